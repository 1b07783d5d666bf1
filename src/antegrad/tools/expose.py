"""Programs that give every value they compute, and programs in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antegrad.ir.builder import Builder
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.text import value_names
from antegrad.ir.types import DTYPES
from antegrad.ops.bits import bitcast
from antegrad.ops.logic import convert

F64 = DTYPES["f64"]
WIDENED = (DTYPES["f32"], DTYPES["bf16"], DTYPES["f16"])
"""The element types that `in_f64` replaces."""


def exposed(program: Program) -> Program:
    """`program` with the result of every equation as an output, in order. Sub-programs are not opened."""
    values = [value for equation in program.equations for value in equation.outputs]
    names = value_names(program)
    return replace(
        program,
        outputs=tuple(values),
        output_names=tuple(f"{names[value]}" for value in values),
        structure=None,
    )


def run_exposed(program: Program, arrays: list[Any], device: str) -> dict[Value, np.ndarray]:
    """Every value of `program`, inputs included, on `device`."""
    everything = exposed(program)
    results = everything.run(*arrays, device=device)
    results = results if len(everything.outputs) != 1 else (results,)
    given = [*map(np.asarray, arrays), *program.captured]
    return dict(zip((*program.inputs, *everything.outputs), (*given, *results), strict=True))


def in_f64(program: Program) -> Program:
    """`program` with f64 for every narrower float; sub-programs included."""
    return with_twins(program)[0]


def with_twins(program: Program) -> tuple[Program, dict[Value, Value]]:
    """`in_f64`, and which of its values stands for which of `program`."""
    builder = Builder()
    env: dict[Value, Value] = {}
    for value, name in zip(program.inputs, program.input_names, strict=True):
        env[value] = builder.input(_wide_type(value), name)
    for equation in program.equations:
        outputs = _widened(builder, equation, [env[value] for value in equation.inputs])
        for old, new in zip(equation.outputs, outputs, strict=True):
            new.name, new.declared = old.name, old.declared
            env[old] = new
    wide = builder.finish(program.name, [env[value] for value in program.outputs], program.output_names)
    captured = tuple(_wide(array) for array in program.captured)
    return replace(wide, captured=captured, structure=program.structure), env


def _widened(builder: Builder, equation: Equation, operands: Sequence[Value]) -> Sequence[Value]:
    """The results of `equation` in f64. Bits belong to the narrow type, so what reads or makes them keeps it."""
    if equation.primitive is not bitcast:
        return builder.add(equation.primitive, operands, _wide_params(equation), equation.source)
    before, after = equation.inputs[0].type.dtype, equation.output.type.dtype
    if operands[0].type.dtype != before:
        operands = builder.add(convert, operands, {"dtype": before}, equation.source)
    outputs = builder.add(bitcast, operands, equation.params, equation.source)
    return builder.add(convert, outputs, {"dtype": F64}, equation.source) if after in WIDENED else outputs


def _wide_type(value: Value) -> Any:
    return value.type.with_dtype(F64) if value.type.dtype in WIDENED else value.type


def _wide_params(equation: Equation) -> dict[str, Any]:
    return {key: _wide(param) for key, param in equation.params.items()}


def _wide(param: Any) -> Any:
    if isinstance(param, Program):
        return in_f64(param)
    if isinstance(param, np.ndarray) and param.dtype in WIDENED:
        return param.astype(F64)
    if isinstance(param, np.dtype) and param in WIDENED:
        return F64
    return tuple(_wide(item) for item in param) if isinstance(param, tuple) else param
