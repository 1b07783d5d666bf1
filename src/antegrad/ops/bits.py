"""Operations on the bits of integers and bool, and the bits of one type read as another."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad.errors import DTypeError
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, SHORT_NAMES, DTypeLike, TensorType, as_dtype
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.elementwise import Binary, Unary

__all__ = ["bitcast", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"]


class Bitcast(Primitive):
    """The same bits read as another element type of the same width.

    Shapes: x (...) gives the same shape.
    Edges: types of other widths, and bool, are a `DTypeError`.
    Derivative: none.
    """

    numpy = "{x}.view({dtype})"
    differentiable = False

    def __call__(self, x: Any, dtype: DTypeLike) -> Any:
        return bind(self, as_tensor(x), dtype=as_dtype(dtype))

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return bind(self, *stretched(operands, batched, size), **params)

    def result(self, x: TensorType, *, dtype: np.dtype) -> TensorType:
        if x.dtype.itemsize != dtype.itemsize or BOOL in (x.dtype, dtype):
            raise DTypeError(f"bitcast: {x} and {SHORT_NAMES[dtype]} differ in width")
        return x.with_dtype(dtype)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.bitcast_convert {operands[0]} : {types}")


class Bitwise(Binary):
    """Base of the operations on bits; on bool they are the logical ones."""

    accepts = ("integer", "bool")
    differentiable = False


class BitwiseAnd(Bitwise):
    """``x & y``.

    Shapes: x and y, integers or bool, broadcast.
    Edges: the logical and of bool.
    Derivative: none.
    """

    numpy = "{x} & {y}"
    stablehlo = "and"


class BitwiseOr(Bitwise):
    """``x | y``.

    Shapes: x and y, integers or bool, broadcast.
    Edges: the logical or of bool.
    Derivative: none.
    """

    numpy = "{x} | {y}"
    stablehlo = "or"


class BitwiseXor(Bitwise):
    """``x ^ y``.

    Shapes: x and y, integers or bool, broadcast.
    Edges: the exclusive or of bool.
    Derivative: none.
    """

    numpy = "{x} ^ {y}"
    stablehlo = "xor"


class Invert(Unary):
    """``~x``.

    Shapes: x (...), an integer or bool, gives the same shape.
    Edges: the logical not of bool.
    Derivative: none.
    """

    numpy = "~{x}"
    stablehlo = "not"
    accepts = ("integer", "bool")
    differentiable = False


class LeftShift(Bitwise):
    """``x << y``.

    Shapes: x and y, integers, broadcast.
    Edges: 0 where y is not below the width, or is negative.
    Derivative: none.
    """

    numpy = "{x} << {y}"
    stablehlo = "shift_left"
    accepts = ("integer",)


class RightShift(Bitwise):
    """``x >> y``, keeping the sign of a signed x.

    Shapes: x and y, integers, broadcast.
    Edges: all sign bits where y is not below the width, or is negative.
    Derivative: none.
    """

    numpy = "{x} >> {y}"
    accepts = ("integer",)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        type = equation.output.type
        name = "shift_right_logical" if type.dtype.kind == "u" else "shift_right_arithmetic"
        return emitter.op(f"stablehlo.{name} {', '.join(operands)} : {tensor(type)}")


bitcast = Bitcast()
bitwise_and = BitwiseAnd()
bitwise_or = BitwiseOr()
bitwise_xor = BitwiseXor()
invert = Invert()
left_shift = LeftShift()
right_shift = RightShift()
