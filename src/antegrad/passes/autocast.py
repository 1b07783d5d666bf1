"""Mixed precision as a pass: products and activations in bf16, what sums and divides in f32.

Parameters stay f32 and are rounded where they are used, so small updates are not lost, and the range of bf16 is that of
f32, so the loss needs no scaling. A cast stands only where two precisions meet:

- products (`dot_general`, convolutions) take bf16 operands and give bf16; they are summed in f32.
- what moves or selects elements, and simple arithmetic, follows its operands: bf16 as soon as one of them comes from a
  product, with parameters and inputs rounded to it, unless another was computed in f32 by the next kind.
- everything else (sums, exponentials, roots, divisions) is computed in f32: softmax, norms, losses, statistics.

Source: Micikevicius et al., "Mixed precision training" (2018), with bf16 as in Kalamkar et al. (2019).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.builder import Builder
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import BF16, DTYPES
from antegrad.ops.dispatch import bind, lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.passes.simplify import simplify

F32 = DTYPES["f32"]
PRODUCTS = frozenset({"dot_general", "conv_general"})
FOLLOWING = frozenset(
    {
        "add", "subtract", "multiply", "negative", "abs", "maximum", "minimum", "relu", "clip", "where", "tanh",
        "sigmoid", "broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate", "flip", "take",
        "dynamic_slice", "dynamic_update_slice", "stop_gradient", "reduce_max", "reduce_min", "reduce_window",
        "optimization_barrier",
    }
)  # fmt: skip
"""Primitives whose result in bf16 is as good as their operands: one rounding, or none."""
ARITHMETIC = frozenset({"add", "subtract", "multiply", "negative"})


def autocast(program: Program) -> Program:
    """`program` with products in bf16. Inputs and outputs keep their element types; f64 is left alone."""
    return simplify(_Cast(program).run())


class _Cast:
    """One application. `exact` holds the f32 values that are computed in f32 on purpose."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = Builder()
        self.values: dict[Value, Tensor] = {}
        self.exact = _exact_values(program)

    def run(self) -> Program:
        program, builder = self.program, self.builder
        for value, name in zip(program.inputs, program.input_names, strict=True):
            self.values[value] = Tensor(builder.input(value.type, name), builder)
        with tracing(builder):
            for equation in program.equations:
                builder.source = equation.source
                self._convert(equation)
            outputs = [lift(builder, self._as(value, value.type.dtype)) for value in program.outputs]
        result = builder.finish(program.name, outputs, program.output_names, program.structure)
        return replace(result, captured=program.captured)

    def _convert(self, equation: Equation) -> None:
        wanted = self._target(equation)
        types = [wanted if value.type.dtype == F32 else value.type.dtype for value in equation.inputs]
        operands = [self._as(value, dtype) for value, dtype in zip(equation.inputs, types, strict=True)]
        found = bind(equation.primitive, *operands, **_cast_params(equation))
        results = found if equation.primitive.multiple_results else (found,)
        for value, result in zip(equation.outputs, results, strict=True):
            if value.name and not result.value.declared:
                result.value.name, result.value.declared = value.name, value.declared
            self.values[value] = result

    def _target(self, equation: Equation) -> np.dtype:
        """The element type in which the f32 operands of `equation` are taken."""
        if equation.primitive.name in PRODUCTS:
            return BF16
        if equation.primitive.name not in FOLLOWING or self.exact.intersection(equation.outputs):
            return F32
        rounded = any(self.values[value].dtype == BF16 for value in equation.inputs)
        return BF16 if rounded else F32

    def _as(self, value: Value, dtype: np.dtype) -> Any:
        return ops.convert(self.values[value], dtype)


def _cast_params(equation: Equation) -> dict[str, Any]:
    """The params of `equation` with its sub-programs cast, which keep their types."""
    return {key: _cast_param(value) for key, value in equation.params.items()}


def _cast_param(value: Any) -> Any:
    if isinstance(value, Program):
        return autocast(value)
    return tuple(map(_cast_param, value)) if isinstance(value, tuple) else value


def _exact_values(program: Program) -> set[Value]:
    """What is computed in f32 because it must be, and what serves nothing else.

    Forwards: the results of all that neither multiplies matrices nor follows its operands, and what follows those.
    Then backwards: arithmetic that only such equations read, as the difference in the exponent of a softmax.
    """
    exact: set[Value] = set()
    for equation in program.equations:
        if equation.primitive.name in FOLLOWING:
            if exact.intersection(equation.inputs):
                exact.update(equation.outputs)
        elif equation.inputs and equation.primitive.name not in PRODUCTS and equation.primitive.name != "convert":
            exact.update(equation.outputs)
    needed_rounded = set(program.outputs)
    for equation in reversed(program.equations):
        if equation.primitive.name in ARITHMETIC and not needed_rounded.intersection(equation.outputs):
            exact.update(equation.outputs)
        if not exact.intersection(equation.outputs):
            needed_rounded.update(equation.inputs)
    return exact
