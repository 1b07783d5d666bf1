"""Functions that stay in the logarithm: sums of exponentials, products with a logarithm, log-odds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.types import accumulation_dtype
from antegrad.ops.elementwise import Binary, Unary, mul_no_nan
from antegrad.ops.promotion import harmonise
from antegrad.ops.special import Special, floating, rounded_once

__all__ = ["log1mexp", "logaddexp", "logaddexp2", "logit", "softplus", "symexp", "symlog", "xlog1py", "xlogy"]


class Logaddexp(Special, Binary):
    """``log(exp(x) + exp(y))`` without overflow.

    Shapes: x and y broadcast; 16-bit floats are computed in f32.
    Edges: -inf where both are -inf; infinite where either is inf.
    Derivative: ``dy * sigmoid(x - y)`` and ``dy * sigmoid(y - x)``; 0 where both are -inf, halves where both are inf.
    """

    numpy = "np.logaddexp({x}, {y})"
    cost = 30

    def formula(self, x: Any, y: Any) -> Any:
        apart = ops.where(x == y, 0, ops.abs(x - y))  # the difference of two infinities would be NaN
        return ops.maximum(x, y) + ops.log1p(ops.exp(-apart))

    def vjp(self, dy: Any, value: Any, x: Any, y: Any) -> Any:
        apart = ops.where(ops.isinf(value) & (x == y), 0, x - y)
        dy = ops.where(value == -math.inf, 0, dy)
        return dy * ops.sigmoid(apart), dy * ops.sigmoid(-apart)


def softplus_helper(x: Any) -> Any:
    """log(1 + exp(x)), computed on the side that cannot overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


class Softplus(Special, Unary):
    """``log(1 + exp(x))``, as ``max(x, 0) + log1p(exp(-|x|))``, which no x makes overflow.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 0 at -inf.
    Derivative: ``dy * sigmoid(x)``.
    """

    helpers = (softplus_helper,)
    cost = 30

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * ops.sigmoid(x)


logaddexp = Logaddexp()
softplus = Softplus()


def logaddexp2(x: Any, y: Any) -> Any:
    """``log2(2**x + 2**y)`` without overflow.

    Shapes: x and y broadcast; 16-bit floats are computed in f32.
    Edges: those of `logaddexp`.
    Derivative: that of `logaddexp` at ``x * log(2)`` and ``y * log(2)``.
    """
    x, y, dtype = _wide("logaddexp2", x, y)
    scale = math.log(2)
    return ops.convert(ops.divide(logaddexp(ops.multiply(x, scale), ops.multiply(y, scale)), scale), dtype)


def xlogy(x: Any, y: Any) -> Any:
    """``x * log(y)``, and 0 where x is 0: ``-sum(xlogy(p, p))`` is the entropy of p.

    Shapes: x and y broadcast; 16-bit floats are computed in f32.
    Edges: 0 where x is 0, whatever y is; NaN where y is negative and x is not 0.
    Derivative: ``dy * log(y)``, which is -inf at y = 0, and ``dy * x / y``, which is 0 where x is 0.
    """
    x, y, dtype = _wide("xlogy", x, y)
    return ops.convert(mul_no_nan(x, ops.log(y)), dtype)


def xlog1py(x: Any, y: Any) -> Any:
    """``x * log(1 + y)``, exact near y = 0, and 0 where x is 0.

    Shapes: x and y broadcast; 16-bit floats are computed in f32.
    Edges: 0 where x is 0, whatever y is; NaN where y is below -1 and x is not 0.
    Derivative: ``dy * log1p(y)``, which is -inf at y = -1, and ``dy * x / (1 + y)``, which is 0 where x is 0.
    """
    x, y, dtype = _wide("xlog1py", x, y)
    return ops.convert(mul_no_nan(x, ops.log1p(y)), dtype)


def _wide(operation: str, x: Any, y: Any) -> tuple[Any, Any, np.dtype]:
    """Two float operands of one type and shape, 16-bit ones as f32, and the type that they had."""
    x, y = harmonise(operation, x, y)
    dtype = floating(operation, x).dtype
    wide = accumulation_dtype(dtype)
    return ops.convert(x, wide), ops.convert(y, wide), dtype


@rounded_once
def logit(x: Any) -> Any:
    """The log-odds ``log(x / (1 - x))``, the inverse of `sigmoid`; exact near 1/2 too.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -inf at 0, inf at 1, NaN outside [0, 1].
    Derivative: ``dy / (x * (1 - x))``.
    """
    near = ops.less_equal(ops.abs(ops.subtract(x, 0.5)), 0.25)
    middle = ops.multiply(ops.arctanh(ops.subtract(ops.multiply(x, 2.0), 1.0)), 2.0)
    return ops.where(near, middle, ops.subtract(ops.log(x), ops.log1p(ops.negative(x))))


@rounded_once
def log1mexp(x: Any) -> Any:
    """``log(1 - exp(-x))`` for x > 0, as ``-log1p(1 / expm1(x))``, which is exact near 0 and for large x.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -inf at 0, NaN below.
    Derivative: ``dy / (exp(x) - 1)``.
    """
    return ops.negative(ops.log1p(ops.reciprocal(ops.expm1(x))))


@rounded_once
def symlog(x: Any) -> Any:
    """``sign(x) * log(1 + |x|)``: a logarithm for numbers of both signs.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: an infinity gives itself.
    Derivative: ``dy / (1 + |x|)``; dy at 0.
    Source: Hafner et al. (2023), arXiv:2301.04104.
    """
    side = _side(x)
    return ops.multiply(side, ops.log1p(ops.multiply(side, x)))


@rounded_once
def symexp(x: Any) -> Any:
    """``sign(x) * (exp(|x|) - 1)``, the inverse of `symlog`.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: overflows to an infinity of the sign of x.
    Derivative: ``dy * exp(|x|)``; dy at 0.
    """
    side = _side(x)
    return ops.multiply(side, ops.expm1(ops.multiply(side, x)))


def _side(x: Any) -> Any:
    """-1 below 0, else 1: unlike `sign` it is not 0 at 0, where |x| would lose its slope."""
    return ops.where(ops.less(x, 0.0), ops.full_like(x, -1.0), ops.ones_like(x))
