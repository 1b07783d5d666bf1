"""`blame`: which equation first made the NaN or infinity that reached a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import tree
from antegrad.ir.program import Equation, Program, Source, Value, provide
from antegrad.ir.text import line, value_names
from antegrad.ir.types import is_float
from antegrad.ops.elementwise import mul_no_nan
from antegrad.ops.logic import where
from antegrad.tools.expose import run_exposed


@dataclass(frozen=True)
class Blame:
    """An equation whose operands were finite and whose result was not, or an input that was not finite."""

    program: str
    what: str
    source: Source
    kind: str
    entry: tuple[int, ...]
    count: int

    def __str__(self) -> str:
        place = f" at {self.source}" if str(self.source) else ""
        return (
            f"{self.program}: the first {self.kind} comes from the {self.source.part} pass, {self.what}{place}; "
            f"entry {list(self.entry)}, {self.count} in all"
        )


def blame(program: Program, *arguments: Any) -> Blame | None:
    """The origin of the NaN or infinity in the results of `program` for `arguments`; None when all are finite.

    The program runs on the host, equation by equation, and the search goes back from the results that are not finite.
    So what a `where` discards, or what a zero cotangent guards against, is not blamed. An equation with sub-programs
    is blamed as a whole.
    """
    values = run_exposed(program, tree.leaves(list(arguments)), "host")
    producers = program.producers()
    order = {value: number for number, equation in enumerate(program.equations) for value in equation.outputs}
    bad = {value for value in program.outputs if _is_bad(values[value])}
    found: Value | None = None
    while bad:
        value = max(bad, key=lambda candidate: order.get(candidate, -1))
        bad.discard(value)
        found = value
        if value in producers:
            bad.update(_bad_operands(producers[value], values, value))
    return None if found is None else _report(program, found, producers, values)


def _is_bad(array: np.ndarray, mask: np.ndarray | None = None) -> bool:
    return is_float(array.dtype) and bool(np.any(_bad_entries(array) if mask is None else _bad_entries(array) & mask))


def _bad_entries(array: np.ndarray) -> np.ndarray:
    return ~np.isfinite(array.astype(np.float64))


def _bad_operands(equation: Equation, values: dict[Value, np.ndarray], output: Value) -> Sequence[Value]:
    """The operands that can have made the bad entries of `output`."""
    arrays = [values[value] for value in equation.inputs]
    bad = _bad_entries(values[output])
    masks: list[np.ndarray | None] = [None] * len(arrays)
    if equation.primitive is where:
        masks = [None, arrays[0] & bad, ~arrays[0] & bad]
    elif equation.primitive is mul_no_nan:
        masks = [bad, (arrays[0] != 0) & bad]
    elif equation.primitive.broadcasts:
        masks = [bad] * len(arrays)
    pairs = zip(equation.inputs, arrays, masks, strict=True)
    return [value for value, array, mask in pairs if _is_bad(array, mask)]


def _report(program: Program, value: Value, producers: dict[Value, Equation], values: dict[Value, np.ndarray]) -> Blame:
    array = values[value]
    entries = np.argwhere(_bad_entries(array))
    entry = tuple(int(i) for i in entries[0])
    kind = "NaN" if np.isnan(array.astype(np.float64)[entry]) else "infinity"
    if value in producers:
        equation = producers[value]
        return Blame(program.name, line(equation, value_names(program)), equation.source, kind, entry, len(entries))
    name = program.input_names[program.inputs.index(value)]
    return Blame(program.name, f"input {name} ({value.type})", Source(), kind, entry, len(entries))


provide("blame", blame)
