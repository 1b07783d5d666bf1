"""The plain text of a Program: one equation a line, every value with its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from antegrad.ir.names import assign_names, identifier
from antegrad.ir.types import SHORT_NAMES

if TYPE_CHECKING:
    from antegrad.ir.program import Equation, Program, Value


def value_names(program: Program) -> dict[Value, str]:
    """A name for every value of `program`, as `text` shows them."""
    return assign_names(program, [value for equation in program.equations for value in equation.outputs])


def text(program: Program) -> str:
    """The program as a person reads it: inputs, equations with types and origins, outputs; sub-programs below."""
    names = value_names(program)
    arguments = ", ".join(
        f"{name}: {value.type}" for name, value in zip(program.input_names, program.inputs, strict=True)
    )
    lines = [f"program {program.name}({arguments}):"]
    rows = [(line(equation, names), _origin(equation)) for equation in program.equations]
    width = min(max((len(left) for left, _ in rows), default=0), 72)
    lines += [f"  {left:<{width}}  {right}".rstrip() for left, right in rows]
    outputs = ", ".join(
        f"{name}={names[value]}" if identifier(name) != names[value] else name
        for name, value in zip(program.output_names, program.outputs, strict=True)
    )
    lines.append(f"  return {outputs}")
    for equation in program.equations:
        for inner in equation.programs:
            lines += ["", *("  " + line for line in text(inner).splitlines())]
    return "\n".join(lines)


def line(equation: Equation, names: dict[Value, str]) -> str:
    """One equation: results with types, primitive, operands and params."""
    left = ", ".join(f"{names[value]}: {value.type}" for value in equation.outputs)
    parts = [names[value] for value in equation.inputs]
    parts += [f"{key}={_param(value)}" for key, value in equation.params.items()]
    return f"{left} = {equation.primitive.name}({', '.join(parts)})"


def _param(value: Any) -> str:
    from antegrad.ir.program import Program

    if isinstance(value, Program):
        return value.name
    if isinstance(value, np.dtype):
        return SHORT_NAMES[value]
    if isinstance(value, np.ndarray):
        return str(value.tolist())
    if isinstance(value, tuple):
        return f"({', '.join(map(_param, value))})"
    return str(value)


def _origin(equation: Equation) -> str:
    source = equation.source
    parts = [part for part in (source.layer, source.location, source.part if source.part != "forward" else "") if part]
    return f"# {'  '.join(parts)}" if parts else ""
