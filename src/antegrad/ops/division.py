"""Quotients and remainders by the two roundings: toward zero, as C has them, and down, as Python has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.types import is_integer
from antegrad.ops.elementwise import Binary, mul_no_nan
from antegrad.ops.promotion import harmonise

__all__ = ["floor_divide", "remainder", "truncated_divide", "truncated_remainder"]


def truncated_divide_helper(x: Any, y: Any) -> Any:
    """Integer quotient rounded toward zero; all bits set where the divisor is 0."""
    x, y = (np.asarray(operand, np.result_type(x, y)) for operand in (x, y))
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = (x - np.fmod(x, safe)) // safe
    return np.where(y == 0, ~np.zeros_like(x), quotient)


class TruncatedDivide(Binary):
    """Integer quotient rounded toward zero.

    Shapes: x and y, integers, broadcast.
    Edges: all bits set where y is 0, as XLA defines it; the lowest integer divided by -1 is itself.
    Derivative: none.
    """

    numpy = "truncated_divide_helper({x}, {y})"
    helpers = (truncated_divide_helper,)
    stablehlo = "divide"
    accepts = ("integer",)
    differentiable = False


def truncated_remainder_helper(x: Any, y: Any) -> Any:
    """Remainder with the sign of x; for integers x itself where y is 0, for floats NaN there."""
    x, y = (np.asarray(operand, np.result_type(x, y)) for operand in (x, y))
    return np.fmod(x, y) if x.dtype.kind not in "iu" else np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))


class TruncatedRemainder(Binary):
    """Remainder with the sign of the dividend, as C's ``fmod``.

    Shapes: x and y broadcast.
    Edges: where y is 0, x for integers and NaN for floats.
    Derivative: dy, and ``-dy`` times the truncated quotient.
    """

    numpy = "truncated_remainder_helper({x}, {y})"
    helpers = (truncated_remainder_helper,)
    stablehlo = "remainder"

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        quotient = ops.round((a - y) / b)
        return dy, mul_no_nan(-dy, quotient)


truncated_divide = TruncatedDivide()
truncated_remainder = TruncatedRemainder()


def floor_divide(x: Any, y: Any) -> Any:
    """Quotient rounded down, as Python's ``//``: ``1.0 // 0.1`` is 9, since ten times the float 0.1 is more than 1.

    Shapes: x and y broadcast.
    Edges: where y is 0, what `divide` gives for floats, and `truncated_divide` for integers.
    Derivative: none.
    """
    x, y = harmonise("floor_divide", x, y)
    rest = truncated_remainder(x, y)
    if is_integer(x.dtype):
        quotient = truncated_divide(x, y)
    else:
        quotient = ops.round(ops.divide(ops.where(ops.equal(y, 0), x, ops.subtract(x, rest)), y))
    return ops.where(_signs_differ(rest, y), ops.subtract(quotient, 1), quotient)


def remainder(x: Any, y: Any) -> Any:
    """Remainder with the sign of the divisor, as Python's ``%``.

    Shapes: x and y broadcast.
    Edges: where y is 0, x for integers and NaN for floats.
    Derivative: dy, and ``-dy`` times the quotient rounded down.
    """
    x, y = harmonise("remainder", x, y)
    rest = truncated_remainder(x, y)
    return ops.where(_signs_differ(rest, y), ops.add(rest, y), rest)


def _signs_differ(x: Any, y: Any) -> Any:
    """Whether neither is 0 and just one is negative."""
    apart = ops.not_equal(ops.less(x, 0), ops.less(y, 0))
    return ops.logical_and(apart, ops.logical_and(ops.not_equal(x, 0), ops.not_equal(y, 0)))
