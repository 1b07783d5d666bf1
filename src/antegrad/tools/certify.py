"""`certify`: a device against the host, and both against double precision, equation by equation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from antegrad import tree
from antegrad.ir.program import Program, Source
from antegrad.ir.text import line, value_names
from antegrad.ir.types import is_float
from antegrad.runtime.device import resolve
from antegrad.tools.expose import WIDENED, run_exposed, with_twins


@dataclass(frozen=True)
class Row:
    """One equation: its largest errors in units of the last place of the f64 reference, and where it stands."""

    equation: str
    place: str
    host_ulps: float
    device_ulps: float
    difference: float


@dataclass(frozen=True)
class Certificate:
    """Every float equation of a program, compared. `rows` are in the order of the program."""

    program: str
    device: str
    rows: tuple[Row, ...]
    outputs_relative: float
    """Largest difference between device and host over the outputs, relative to the largest element of its output."""

    @property
    def worst(self) -> Row:
        """The equation that is furthest from f64 on the device."""
        return max(self.rows, key=lambda row: row.device_ulps)

    def table(self, count: int = 10) -> str:
        """The `count` worst equations as text."""
        rows = sorted(self.rows, key=lambda row: -max(row.device_ulps, row.host_ulps))[:count]
        lines = [f"{'host ulps':>10}  {self.device + ' ulps':>10}  {'difference':>10}  equation"]
        for row in rows:
            numbers = f"{row.host_ulps:>10.1f}  {row.device_ulps:>10.1f}  {row.difference:>10.1e}"
            lines.append(f"{numbers}  {row.equation}  {row.place}".rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        head = f"{self.program} on {self.device}: outputs within {self.outputs_relative:.1e} of the host, relative"
        return f"{head}\n{self.table()}"


def certify(program: Program, *arguments: Any, device: str | None = None) -> Certificate:
    """Run `program` on the host, on `device` and in f64 on the host, and compare every equation.

    The two devices share nothing but the Program: one executes NumPy text, the other what XLA makes of StableHLO.
    Errors are in units in the last place (ulps) of the largest element of each value: what a rounding is to a sum of
    that size. For a sum over an axis the largest of its terms counts too, because they may cancel. The reference has
    f64 for f32, bf16 and f16 alike, so a bf16 value is off by what all roundings before it have added up to.
    Sub-programs are compared as a whole.
    """
    name = resolve(device).name
    arrays = tree.leaves(list(arguments))
    host, other = (run_exposed(program, arrays, where) for where in ("host", name))
    wide_program, twins = with_twins(program)
    wide_arrays = [np.asarray(a).astype(np.float64) if np.asarray(a).dtype in WIDENED else a for a in arrays]
    reference = run_exposed(wide_program, wide_arrays, "host")
    rows, names, sizes = [], value_names(program), {}
    for equation in program.equations:
        for value in equation.outputs:
            if is_float(value.type.dtype) and value.type.size:
                summed = equation.inputs if equation.primitive.name == "reduce_sum" else ()
                sizes[value] = max(_largest(reference[twins[v]]) for v in (value, *summed))
                what = line(equation, names), _place(equation.source)
                rows.append(_row(what, host[value], other[value], reference[twins[value]], sizes[value]))
    outputs = [value for value in program.outputs if is_float(value.type.dtype) and value.type.size]
    worst = max((_difference(host[v], other[v]) / sizes.get(v, _largest(host[v])) for v in outputs), default=0.0)
    return Certificate(program.name, name, tuple(rows), worst)


def _place(source: Source) -> str:
    """``blocks.0.mlp, model.py:14``."""
    return ", ".join(filter(None, (source.layer, source.location)))


def _largest(array: np.ndarray) -> float:
    """The largest finite element, and never 0."""
    wide = array.astype(np.float64)
    return float(np.max(np.abs(wide[np.isfinite(wide)]), initial=float(np.finfo(np.float32).tiny)))


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0))


def _row(what: tuple[str, str], host: np.ndarray, device: np.ndarray, exact: np.ndarray, size: float) -> Row:
    info = ml_dtypes.finfo(host.dtype)
    ulp = 2.0 ** (max(math.frexp(size)[1] - 1, info.minexp) - info.nmant)
    return Row(*what, _difference(host, exact) / ulp, _difference(device, exact) / ulp, _difference(host, device))
