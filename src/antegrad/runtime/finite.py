"""Programs that watch their own results: one more output says whether all of them are finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from antegrad import ops, tree
from antegrad.errors import NonFiniteError
from antegrad.ir.builder import Builder
from antegrad.ir.program import Program, Source
from antegrad.ir.types import is_float
from antegrad.ops.dispatch import apply, lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.runtime.signature import Signature


def with_finite_flag(program: Program) -> Program:
    """`program` with one more output, bool[]: whether every element of every float output is finite."""
    builder = Builder(source=Source())
    pairs = zip(program.inputs, program.input_names, strict=True)
    inputs = [Tensor(builder.input(value.type, name), builder) for value, name in pairs]
    with tracing(builder):
        results = apply(replace(program, captured=()), inputs)
        flags = [ops.all(ops.isfinite(result)) for result in results if is_float(result.dtype)]
        finite = ops.all(ops.stack(flags)) if flags else ops.ones((), "bool")
        values = [lift(builder, result) for result in (*results, finite)]
    watched = builder.finish(program.name, values, [*program.output_names, "finite"])
    return replace(watched, captured=program.captured)


class CheckedExecutable:
    """An executable of ``with_finite_flag(program)`` that raises `NonFiniteError` instead of giving NaN or infinity."""

    def __init__(self, program: Program, inner: Callable[[Sequence[Any]], Any]) -> None:
        self.signature = Signature.of(program)
        self.inner = inner
        self._program = program

    def __call__(self, arguments: Sequence[Any]) -> Any:
        *outputs, finite = tree.leaves(self.inner(arguments))  # the flag alone, where there are no outputs
        if not bool(finite):
            raise NonFiniteError(self._blame(arguments))
        return self.signature.result(outputs)

    def _blame(self, arguments: Sequence[Any]) -> str:
        found = self._program.blame(*arguments)
        if found is not None:
            return str(found)
        return (
            f"{self._program.name}: the device gave a NaN or infinity where the host gives none: "
            "ag.certify(program, ...) shows the equation at which they part"
        )
