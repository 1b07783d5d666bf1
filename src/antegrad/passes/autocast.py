"""Mixed precision as a pass: products and activations in bf16, what sums and divides in f32.

Parameters stay f32 and are rounded where they are used, so small updates are not lost, and the range of bf16 is that of
f32, so the loss needs no scaling. A cast stands only where two precisions meet:

- products (`dot_general`, convolutions) take bf16 operands and give bf16; they are summed in f32.
- what moves or selects elements, and simple arithmetic, follows its operands: bf16 as soon as one of them comes from a
  product, with parameters and inputs rounded to it, unless another was computed in f32 by the next kind.
- everything else (sums, exponentials, roots, divisions) is computed in f32: losses, statistics. So are softmax, GELU
  and norms inside, which take and give bf16 and round once.

Source: Micikevicius et al., "Mixed precision training" (2018), with bf16 as in Kalamkar et al. (2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.builder import Builder
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import BF16, DTYPES, TensorType, type_of
from antegrad.ops.call import RULES
from antegrad.ops.dispatch import bind, lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.passes.simplify import simplify

F32 = DTYPES["f32"]
PRODUCTS = frozenset({"dot_general", "conv_general"})
FOLLOWING = frozenset(
    {
        "add", "subtract", "multiply", "negative", "abs", "maximum", "minimum", "relu", "clip", "where", "tanh",
        "sigmoid", "broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate", "flip", "take",
        "dynamic_slice", "dynamic_update_slice", "stop_gradient", "reduce_max", "reduce_min", "reduce_window_max",
        "optimization_barrier", "softmax", "gelu", "standardize",
    }
)  # fmt: skip
"""Primitives whose result in bf16 is as good as their operands: one rounding, or none (f32 inside the last three)."""
ARITHMETIC = frozenset({"add", "subtract", "multiply", "negative"})


def autocast(program: Program) -> Program:
    """`program` with products in bf16. Inputs and outputs keep their element types; f64 is left alone.

    What a loop carries or stacks is bf16 where its body makes it so, as between layers that stand in a row.
    """
    return simplify(_Cast(program).run(program.input_types, program.output_types))


def _followed(program: Program, inputs: Sequence[TensorType]) -> Program:
    """The cast `program` for `inputs`, with outputs in the element types in which they are made."""
    return simplify(_Cast(program).run(inputs, [None] * len(program.outputs)))


class _Cast:
    """One application. `exact` holds the f32 values that are computed in f32 on purpose."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = Builder()
        self.values: dict[Value, Tensor] = {}
        self.bodies = _cast_bodies(program)
        self.exact = _exact_values(program, self.bodies)

    def run(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType | None]) -> Program:
        """The cast program on `inputs`; an output for which there is None has the element type in which it is made."""
        program, builder = self.program, self.builder
        for value, type, name in zip(program.inputs, inputs, program.input_names, strict=True):
            self.values[value] = Tensor(builder.input(type, name), builder)
        with tracing(builder):
            for equation in program.equations:
                builder.source = equation.source
                self._convert(equation)
            pairs = zip(program.outputs, outputs, strict=True)
            made = [self.values[v] if type is None else self._as(v, type.dtype) for v, type in pairs]
            results = [lift(builder, each) for each in made]
        result = builder.finish(program.name, results, program.output_names, program.structure)
        return replace(result, captured=program.captured)

    def _convert(self, equation: Equation) -> None:
        if equation in self.bodies:
            params, types = self._body_params(equation)
        else:
            wanted = self._target(equation)
            params = {key: _cast_param(value) for key, value in equation.params.items()}
            types = [wanted if value.type.dtype == F32 else value.type.dtype for value in equation.inputs]
        operands = [self._as(value, dtype) for value, dtype in zip(equation.inputs, types, strict=True)]
        found = bind(equation.primitive, *operands, **params)
        results = found if equation.primitive.multiple_results else (found,)
        for value, result in zip(equation.outputs, results, strict=True):
            if value.name and not result.value.declared:
                result.value.name, result.value.declared = value.name, value.declared
            self.values[value] = result

    def _body_params(self, equation: Equation) -> tuple[dict[str, Any], list[np.dtype]]:
        """The params of a scan or of a call, and the element types of its operands."""
        if equation.primitive.name == "scan":
            body = self.bodies[equation]
            taken = body.input_types[: sum(equation.params["counts"])]
            return {**equation.params, "body": body}, [t.dtype for t in (*taken, *equation.input_types[len(taken) :])]
        types = [type_of(self.values[value]) for value in equation.inputs]
        cast = _followed(equation.params["program"], types)
        return {**equation.params, "program": cast}, [type.dtype for type in types]

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


def _cast_bodies(program: Program) -> dict[Equation, Program]:
    """The cast programs of all scans and rematerialised calls, whose results need not be f32."""
    found: dict[Equation, Program] = {}
    for equation in program.equations:
        if equation.primitive.name == "scan":
            found[equation] = _cast_body(equation)
        elif isinstance(equation.params.get("rule"), type(RULES["remat"])):
            found[equation] = _followed(equation.params["program"], equation.input_types)
    return found


def _cast_body(equation: Equation) -> Program:
    """The cast body of a scan. A carry that the body makes in bf16 goes in as bf16, too."""
    body, (constants, carries) = equation.params["body"], equation.params["counts"]
    made = _followed(body, body.input_types).output_types[:carries]
    carry = [of if of.dtype == BF16 else own for own, of in zip(body.output_types[:carries], made, strict=True)]
    inputs = (*body.input_types[:constants], *carry, *body.input_types[constants + carries :])
    return simplify(_Cast(body).run(inputs, [*carry, *[None] * (len(body.outputs) - carries)]))


def _cast_param(value: Any) -> Any:
    if isinstance(value, Program):
        return autocast(value)
    return tuple(map(_cast_param, value)) if isinstance(value, tuple) else value


def _exact_values(program: Program, bodies: Mapping[Equation, Program]) -> set[Value]:
    """What is computed in f32 because it must be, and what serves nothing else.

    Forwards: the results of all that neither multiplies matrices nor follows its operands, and what follows those.
    Then backwards: arithmetic that only such equations read, as the difference in the exponent of a softmax.
    """
    exact: set[Value] = set()
    for equation in program.equations:
        if equation in bodies:
            made = zip(equation.outputs, bodies[equation].output_types, strict=True)
            exact.update(value for value, type in made if type.dtype != BF16)
        elif equation.primitive.name in FOLLOWING:
            if exact.intersection(equation.inputs):
                exact.update(equation.outputs)
        elif equation.inputs and equation.primitive.name not in PRODUCTS and equation.primitive.name != "convert":
            exact.update(value for value in equation.outputs if value.type.dtype == F32)
    needed_rounded = set(program.outputs)
    for equation in reversed(program.equations):
        if equation.primitive.name in ARITHMETIC and not needed_rounded.intersection(equation.outputs):
            exact.update(equation.outputs)
        if not exact.intersection(equation.outputs):
            needed_rounded.update(equation.inputs)
    return exact
