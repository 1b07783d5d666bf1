"""`certify`: a device against the host, and both against double precision, equation by equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import tree
from antegrad.ir.program import Program
from antegrad.ir.text import line, value_names
from antegrad.ir.types import DTYPES, is_float
from antegrad.runtime.device import resolve
from antegrad.tools.expose import in_f64, run_exposed

F32 = DTYPES["f32"]


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
    that size. f32 programs only; sub-programs are compared as a whole.
    """
    name = resolve(device).name
    arrays = tree.leaves(list(arguments))
    host, other = (run_exposed(program, arrays, where) for where in ("host", name))
    wide_program = in_f64(program)
    wide_arrays = [np.asarray(a).astype(np.float64) if np.asarray(a).dtype == F32 else a for a in arrays]
    reference = run_exposed(wide_program, wide_arrays, "host")
    rows, names = [], value_names(program)
    for equation, wide in zip(program.equations, wide_program.equations, strict=True):
        for value, exact in zip(equation.outputs, wide.outputs, strict=True):
            if value.type.dtype == F32 and value.type.size:
                what = line(equation, names), str(equation.source)
                rows.append(_row(what, host[value], other[value], reference[exact]))
    pairs = [(host[v], other[v]) for v in program.outputs if is_float(v.type.dtype) and v.type.size]
    worst = max((_relative(a, b) for a, b in pairs), default=0.0)
    return Certificate(program.name, name, tuple(rows), worst)


def _row(what: tuple[str, str], host: Any, device: Any, exact: Any) -> Row:
    finite = np.isfinite(exact)
    size = np.max(np.abs(exact[finite]), initial=np.finfo(np.float32).tiny)
    ulp = float(np.spacing(np.float32(size)))
    on_host, on_device = (float(np.max(np.abs(f[finite] - exact[finite]), initial=0)) / ulp for f in (host, device))
    difference = float(np.max(np.abs(host[finite] - device[finite]), initial=0))
    return Row(*what, on_host, on_device, difference)


def _relative(host: np.ndarray, device: np.ndarray) -> float:
    a, b = host.astype(np.float64), device.astype(np.float64)
    return float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(a))), np.finfo(np.float64).tiny))
