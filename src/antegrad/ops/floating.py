"""What floats have besides a magnitude: NaN and infinities, a sign bit, a whole part."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from antegrad import ops
from antegrad.ir.types import accumulation_dtype, is_float
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.elementwise import Unary
from antegrad.ops.promotion import harmonise
from antegrad.ops.special import floating

__all__ = [
    "ceil", "copysign", "floor", "isclose", "isinf", "isnan", "isneginf", "isposinf", "nan_to_num", "round", "signbit",
    "trunc",
]  # fmt: skip


class Floor(Unary):
    """The largest whole number not above x.

    Shapes: x (...) gives the same shape.
    Edges: NaN and the infinities give themselves.
    Derivative: none.
    """

    numpy = "np.floor({x})"
    stablehlo = "floor"
    differentiable = False


class Ceil(Unary):
    """The smallest whole number not below x.

    Shapes: x (...) gives the same shape.
    Edges: NaN and the infinities give themselves.
    Derivative: none.
    """

    numpy = "np.ceil({x})"
    stablehlo = "ceil"
    differentiable = False


class Round(Unary):
    """The nearest whole number, halves to the even one.

    Shapes: x (...) gives the same shape.
    Edges: NaN and the infinities give themselves.
    Derivative: none.
    """

    numpy = "np.rint({x})"
    stablehlo = "round_nearest_even"
    differentiable = False


floor = Floor()
ceil = Ceil()
round = Round()

_SIGNED = {2: "i16", 4: "i32", 8: "i64"}
"""The signed integer of the width of a float, whose sign is the float's sign bit."""


def isnan(x: Any) -> Any:
    """Whether x is NaN.

    Shapes: x (...) gives bool of the same shape.
    Edges: false for integers.
    Derivative: none.
    """
    return ops.not_equal(x, x)


def isinf(x: Any) -> Any:
    """Whether x is infinite.

    Shapes: x (...), a float, gives bool of the same shape.
    Edges: false for NaN.
    Derivative: none.
    """
    return ops.equal(ops.abs(x), math.inf)


def isposinf(x: Any) -> Any:
    """Whether x is positive infinity.

    Shapes: x (...), a float, gives bool of the same shape.
    Edges: false for NaN.
    Derivative: none.
    """
    return ops.equal(x, math.inf)


def isneginf(x: Any) -> Any:
    """Whether x is negative infinity.

    Shapes: x (...), a float, gives bool of the same shape.
    Edges: false for NaN.
    Derivative: none.
    """
    return ops.equal(x, -math.inf)


def isclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Whether ``|x - y| <= atol + rtol * |y|``.

    Shapes: x and y, floats, broadcast, and give bool; 16-bit floats are compared in f32.
    Edges: an infinity is close to itself alone, NaN to nothing, or to NaN if `equal_nan`.
    Derivative: none.
    """
    x, y = harmonise("isclose", x, y)
    wide = accumulation_dtype(floating("isclose", x).dtype)
    x, y = ops.convert(x, wide), ops.convert(y, wide)
    allowed = ops.add(ops.multiply(ops.abs(y), rtol), atol)
    near = ops.logical_and(ops.isfinite(y), ops.less_equal(ops.abs(ops.subtract(x, y)), allowed))
    close = ops.logical_or(near, ops.equal(x, y))
    return ops.logical_or(close, ops.logical_and(isnan(x), isnan(y))) if equal_nan else close


def signbit(x: Any) -> Any:
    """Whether the sign of x is negative: of -0.0 and of a negative NaN too, unlike ``x < 0``.

    Shapes: x (...), a float, gives bool of the same shape.
    Edges: true for -0.0.
    Derivative: none.
    """
    x = floating("signbit", x)
    return ops.less(ops.bitcast(x, _SIGNED[x.dtype.itemsize]), 0)


def copysign(x: Any, y: Any) -> Any:
    """``|x|`` with the sign of y.

    Shapes: x and y, floats, broadcast.
    Edges: the sign of a zero counts: ``copysign(1, -0.0)`` is -1.
    Derivative: dy with the sign of x * y, 0 at x = 0; 0 for y.
    """
    x, y = harmonise("copysign", x, y)
    magnitude = ops.abs(x)
    return ops.where(signbit(y), ops.negative(magnitude), magnitude)


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """x with `nan` in place of NaN, and `posinf` and `neginf` in place of the infinities.

    Shapes: x (...) gives the same shape; integers are returned as they are.
    Edges: without `posinf` and `neginf` the largest and the lowest finite number of the type stand in.
    Derivative: dy where x is finite, else 0.
    """
    x = as_tensor(x)
    if not is_float(x.dtype):
        return x
    limits = ml_dtypes.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    finite = ops.where(isposinf(x), high, ops.where(isneginf(x), low, x))
    return ops.where(isnan(x), nan, finite)


def trunc(x: Any) -> Any:
    """The whole number next to x toward 0.

    Shapes: x (...), a float, gives the same shape.
    Edges: the sign stays: ``trunc(-0.5)`` is -0.0.
    Derivative: none.
    """
    return ops.where(ops.less(x, 0.0), ceil(x), floor(x))
