"""How exactly an accelerator multiplies: the precision of every product and convolution of a Program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from antegrad.errors import NameMissing
from antegrad.ir.program import Equation, Program


def with_precision(program: Program, precision: Literal["default", "highest"]) -> Program:
    """`program` with f32 products at `precision` on accelerators; sub-programs included.

    ``"default"`` lets NVIDIA GPUs round the operands to TF32 (10 bits of mantissa) and TPUs to bf16; ``"highest"``
    keeps all of f32. CPUs and the host are exact either way. Raises `NameMissing` for any other name.
    """
    if precision not in ("default", "highest"):
        raise NameMissing(f"with_precision: no precision {precision!r}; expected default or highest")
    return replace(program, equations=tuple(_changed(equation, precision) for equation in program.equations))


def _changed(equation: Equation, precision: Any) -> Equation:
    params = {key: _inside(value, precision) for key, value in equation.params.items()}
    if "precision" in params:
        params["precision"] = precision
    return replace(equation, params=params)


def _inside(param: Any, precision: Any) -> Any:
    if isinstance(param, Program):
        return with_precision(param, precision)
    return tuple(_inside(item, precision) for item in param) if isinstance(param, tuple) else param
