"""Inverse trigonometric and hyperbolic functions of floats. StableHLO has none of them: there they are formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ops.elementwise import Binary, Unary, mul_no_nan
from antegrad.ops.special import Special, rounded_once

__all__ = [
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cosh", "deg2rad", "hypot", "rad2deg", "sinc",
    "sinh",
]  # fmt: skip


class Arcsin(Special, Unary):
    """The angle in [-pi/2, pi/2] whose sine is x.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN outside [-1, 1].
    Derivative: ``dy / sqrt(1 - x**2)``; infinite at -1 and 1.
    """

    numpy = "np.arcsin({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        return ops.arctan2(x, ops.sqrt((1 - x) * (1 + x)))

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / ops.sqrt((1 - x) * (1 + x)))


class Arccos(Special, Unary):
    """The angle in [0, pi] whose cosine is x.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN outside [-1, 1].
    Derivative: ``-dy / sqrt(1 - x**2)``; infinite at -1 and 1.
    """

    numpy = "np.arccos({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        return ops.arctan2(ops.sqrt((1 - x) * (1 + x)), x)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, -1 / ops.sqrt((1 - x) * (1 + x)))


class Arctan(Special, Unary):
    """The angle in [-pi/2, pi/2] whose tangent is x.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -pi/2 and pi/2 at the infinities.
    Derivative: ``dy / (1 + x**2)``.
    """

    numpy = "np.arctan({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        return ops.arctan2(x, 1.0)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy / (1 + x * x)


class Sinh(Special, Unary):
    """Hyperbolic sine ``(exp(x) - exp(-x)) / 2``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: overflows to an infinity of the sign of x.
    Derivative: ``dy * cosh(x)``.
    """

    numpy = "np.sinh({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        size = ops.abs(x)
        root = ops.exp(size * 0.5)  # its square overflows where the result does, and not before
        far = ops.sign(x) * (root * (root * 0.5) - 0.5 / root / root)
        return ops.where(size < 1, x * _odd_series(x * x), far)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, cosh(x))


class Cosh(Special, Unary):
    """Hyperbolic cosine ``(exp(x) + exp(-x)) / 2``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: overflows to infinity.
    Derivative: ``dy * sinh(x)``.
    """

    numpy = "np.cosh({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        root = ops.exp(ops.abs(x) * 0.5)
        return root * (root * 0.5) + 0.5 / root / root

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, sinh(x))


class Arcsinh(Special, Unary):
    """The number whose hyperbolic sine is x: ``log(x + sqrt(x**2 + 1))``, exact near 0.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: an infinity gives itself.
    Derivative: ``dy / sqrt(1 + x**2)``.
    """

    numpy = "np.arcsinh({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        size = ops.abs(x)
        square = size * size
        return ops.copysign(_log1p_or_log_of_twice(size, size + square / (1 + ops.sqrt(1 + square))), x)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy / hypot(x, 1.0)


class Arccosh(Special, Unary):
    """The number >= 0 whose hyperbolic cosine is x: ``log(x + sqrt(x**2 - 1))``, exact near 1.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN below 1.
    Derivative: ``dy / sqrt(x**2 - 1)``; infinite at 1.
    """

    numpy = "np.arccosh({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        above = x - 1
        return _log1p_or_log_of_twice(x, above + ops.sqrt(above) * ops.sqrt(above + 2))

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / (ops.sqrt(x - 1) * ops.sqrt(x + 1)))


class Arctanh(Special, Unary):
    """The number whose hyperbolic tangent is x: ``log((1 + x) / (1 - x)) / 2``, exact near 0.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: infinite at -1 and 1, NaN beyond.
    Derivative: ``dy / (1 - x**2)``; infinite at -1 and 1.
    """

    numpy = "np.arctanh({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        size = ops.abs(x)
        return ops.copysign(0.5 * ops.log1p(2 * size / (1 - size)), x)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / ((1 - x) * (1 + x)))


def _odd_series(square: Any) -> Any:
    """``sinh(z) / z`` where ``z**2``, which is `square`, is within -1 and 1; ``sin(z) / z`` where it is ``-z**2``."""
    total = ops.full_like(square, 1 / math.factorial(17))
    for k in reversed(range(8)):
        total = ops.add(ops.multiply(total, square), 1 / math.factorial(2 * k + 1))
    return total


def _log1p_or_log_of_twice(x: Any, near: Any) -> Any:
    """``log1p(near)``, and ``log(2 * x)`` for an x beside which 1 is nothing, where `near` may overflow."""
    large = x > 1 / float(np.finfo(x.dtype).eps)
    return ops.log1p(ops.where(large, x, near)) + ops.where(large, math.log(2), ops.zeros_like(x))


class Hypot(Special, Binary):
    """``sqrt(x**2 + y**2)`` without overflow.

    Shapes: x and y broadcast; 16-bit floats are computed in f32.
    Edges: infinite if either is, even beside NaN.
    Derivative: ``dy * x / result`` and ``dy * y / result``; 0 at the origin.
    """

    numpy = "np.hypot({x}, {y})"
    cost = 10

    def formula(self, x: Any, y: Any) -> Any:
        x, y = ops.abs(x), ops.abs(y)
        large = ops.maximum(x, y)
        ratio = ops.minimum(x, y) / ops.where(large == 0, 1, large)
        return ops.where(ops.isinf(x) | ops.isinf(y), math.inf, large * ops.sqrt(1 + ratio * ratio))

    def vjp(self, dy: Any, value: Any, x: Any, y: Any) -> Any:
        length = ops.where(value == 0, 1, value)
        return mul_no_nan(dy, x / length), mul_no_nan(dy, y / length)


arcsin = Arcsin()
arccos = Arccos()
arctan = Arctan()
sinh = Sinh()
cosh = Cosh()
arcsinh = Arcsinh()
arccosh = Arccosh()
arctanh = Arctanh()
hypot = Hypot()


@rounded_once
def deg2rad(x: Any) -> Any:
    """Degrees as radians: ``x * pi / 180``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: none.
    Derivative: ``dy * pi / 180``.
    """
    return ops.multiply(x, math.pi / 180)


@rounded_once
def rad2deg(x: Any) -> Any:
    """Radians as degrees: ``x * 180 / pi``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: none.
    Derivative: ``dy * 180 / pi``.
    """
    return ops.multiply(x, 180 / math.pi)


@rounded_once
def sinc(x: Any) -> Any:
    """``sin(pi * x) / (pi * x)``: exactly 1 at 0 and 0 at the other whole numbers.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN at the infinities, as in NumPy.
    Derivative: that of the formula, from a series near 0, so that it and the next ones keep their digits there.
    """
    near = ops.less(ops.abs(x), 0.25)
    series = _odd_series(ops.negative(ops.square(ops.multiply(x, math.pi))))
    whole = ops.round(x)
    odd = ops.subtract(whole, ops.multiply(ops.floor(ops.multiply(whole, 0.5)), 2.0))
    sine = ops.multiply(ops.sin(ops.multiply(ops.subtract(x, whole), math.pi)), ops.subtract(1.0, ops.multiply(odd, 2)))
    return ops.where(near, series, ops.divide(sine, ops.multiply(ops.where(near, 1.0, x), math.pi)))
