"""The constant: a value that stands in the program itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad.ir.code import Code, dtype_code
from antegrad.ir.mlir import Emitter
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import TensorType, type_of
from antegrad.ops.literals import array_literal, scalar_literal

__all__ = ["constant"]


class Constant(Primitive):
    """An embedded array; `value` is a read-only NumPy array."""

    def result(self, *, value: np.ndarray) -> TensorType:
        return type_of(value)

    def render(self, equation: Equation, *operands: Code) -> Code:
        value = equation.params["value"]
        if value.ndim == 0:
            return Code(f"{dtype_code(value.dtype)}({scalar_literal(value).text})")
        return array_literal(value)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        return emitter.constant(equation.params["value"])

    def vjp(self, dy: Any, y: Any, **params: Any) -> tuple[()]:
        return ()


constant = Constant()
