"""A Program as one equation of another: for functions with a derivative of their own, and for rematerialisation."""

from __future__ import annotations

from typing import Any

from antegrad.errors import ShapeError
from antegrad.ir.code import Code
from antegrad.ir.mlir import Emitter, signature
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation, Program
from antegrad.ir.types import TensorType
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import bind

__all__ = ["call_p", "optimization_barrier"]

RULES: dict[str, Any] = {}
"""Rules by name for the calls that `ops` makes and cannot import them for; `autodiff.remat` puts ``remat`` here."""


class Call(Primitive):
    """The results of `program` on the operands. `rule` says how it is differentiated (`autodiff.custom`, `remat`)."""

    multiple_results = True

    def __call__(self, *operands: Any, program: Program, rule: Any) -> Any:
        return bind(self, *operands, program=program, rule=rule)

    def result(self, *operands: TensorType, program: Program, rule: Any) -> tuple[TensorType, ...]:
        if operands != program.input_types:
            found, needed = (", ".join(map(str, types)) for types in (operands, program.input_types))
            raise ShapeError(f"call of {program.name}: operands ({needed}) are needed, found ({found})")
        return program.output_types

    def render(self, equation: Equation, *operands: Code) -> Code:
        function, *arguments = operands
        return Code(f"{function.text}({', '.join(argument.text for argument in arguments)})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        return tuple(emitter.body(equation.params["program"], operands))


class OptimizationBarrier(Primitive):
    """The operands themselves; no compiler moves or merges computations across it.

    Rematerialisation uses it, so that what is computed a second time is not merged with the first.

    Shapes: those of the operands.
    Edges: XLA for CPU drops the barrier early; values are the same either way.
    Derivative: the cotangents themselves.
    """

    multiple_results = True

    def __call__(self, *operands: Any) -> Any:
        return bind(self, *operands)

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return bind(self, *stretched(operands, batched, size), **params)

    def result(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def render(self, equation: Equation, *operands: Code) -> Code:
        return Code(f"({', '.join(operand.text for operand in operands)},)")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        if not operands:
            return ()
        types = signature(equation.input_types, equation.output_types)[1:].split(") ->")[0]
        name = emitter.op(f"stablehlo.optimization_barrier {', '.join(operands)} : {types}", results=len(operands))
        return (name,) if len(operands) == 1 else tuple(f"{name}#{i}" for i in range(len(operands)))

    def vjp(self, dy: Any, y: Any, *operands: Any) -> Any:
        return dy


call_p = Call()
optimization_barrier = OptimizationBarrier()
