"""The checker: every Program is checked when it is made, so a pass cannot hand on a broken one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from antegrad.errors import DTypeError, ProgramError, ShapeError

if TYPE_CHECKING:
    from antegrad.ir.program import Equation, Program, Value


def check(program: Program) -> None:
    """Raise `ProgramError` unless values are defined once and before use, and types follow the type rules."""
    if len(set(program.input_names)) != len(program.input_names):
        raise ProgramError(f"program {program.name} has two inputs of one name: {', '.join(program.input_names)}")
    defined: set[Value] = set(program.inputs)
    if len(defined) != len(program.inputs):
        raise ProgramError(f"program {program.name} lists one value as two inputs")
    for array, value in zip(program.captured, program.inputs[program.argument_count :], strict=True):
        if array.shape != value.type.shape or array.dtype != value.type.dtype:
            raise ProgramError(f"program {program.name}: captured array {array.dtype}{array.shape} is not {value!r}")
    for number, equation in enumerate(program.equations):
        _check_equation(program, number, equation, defined)
    for name, value in zip(program.output_names, program.outputs, strict=True):
        if value not in defined:
            raise ProgramError(f"program {program.name}: output {name} ({value!r}) is never defined")


def _check_equation(program: Program, number: int, equation: Equation, defined: set[Value]) -> None:
    """Check one equation, and add what it defines to `defined`."""
    for value in equation.inputs:
        if value not in defined:
            raise ProgramError(f"{_where(program, number, equation)} uses {value!r} before it is defined")
    for value in equation.outputs:
        if value in defined:
            raise ProgramError(f"{_where(program, number, equation)} defines {value!r} a second time")
        defined.add(value)
    if equation not in _well_typed:
        _check_types(program, number, equation)
        _well_typed.add(equation)


_well_typed: WeakSet[Equation] = WeakSet()
"""Equations whose types have been checked. An equation never changes, so a pass that keeps it need not pay again."""


def _check_types(program: Program, number: int, equation: Equation) -> None:
    try:
        expected = equation.primitive.result_types(equation.input_types, equation.params)
    except (ShapeError, DTypeError) as error:
        raise ProgramError(f"{_where(program, number, equation)}: {error}") from None
    if expected != equation.output_types:
        found, right = (", ".join(map(str, types)) for types in (equation.output_types, expected))
        raise ProgramError(f"{_where(program, number, equation)} gives {found}, but its type rule says {right}")


def _where(program: Program, number: int, equation: Equation) -> str:
    return f"program {program.name}, equation {number} ({equation.primitive.name}; {equation.source})"
