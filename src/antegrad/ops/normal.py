"""The tails of the normal distribution: the complementary error function and the distribution function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ops.elementwise import Unary
from antegrad.ops.special import Special, floating

__all__ = ["erfc", "ndtr"]


def erfc_helper(
    x: Any,
    near: Any = (
        (-2.3763016656650163e-05, -0.005770270296489442, -0.02848174957559851,
         -0.3250421072470015, 0.12837916709551256),
        (-3.960228278775368e-06, 0.00013249473800432164, 0.005081306281875766,
         0.0650222499887673, 0.39791722395915535, 1.0),
    ),
    one: Any = (
        (-0.002166375594868791, 0.035478304325618236, -0.11089469428239668,
         0.31834661990116175, -0.3722078760357013, 0.41485611868374833,
         -0.0023621185607526594),
        (0.011984499846799107, 0.01363708391202905, 0.12617121980876164,
         0.07182865441419627, 0.540397917702171, 0.10642088040084423, 1.0),
    ),
    middle: Any = (
        (-9.814329344169145, -81.2874355063066, -184.60509290671104, -162.39666946257347,
         -62.375332450326006, -10.558626225323291, -0.6938585727071818, -0.009864944034847148),
        (-0.0604244152148581, 6.570249770319282, 108.63500554177944, 429.00814002756783,
         645.3872717332679, 434.56587747522923, 137.65775414351904, 19.651271667439257, 1.0),
    ),
    far: Any = (
        (-483.5191916086514, -1025.0951316110772, -637.5664433683896, -160.63638485582192,
         -17.757954917754752, -0.799283237680523, -0.0098649429247001),
        (-22.44095244658582, 474.52854120695537, 2553.0504064331644, 3199.8582195085955,
         1536.729586084437, 325.7925129965739, 30.33806074348246, 1.0),
    ),
) -> Any:  # fmt: skip
    """The complementary error function, by interval (Sun Microsystems, fdlibm, s_erf.c)."""

    def horner(t: Any, coefficients: Any) -> Any:
        total = coefficients[0]
        for coefficient in coefficients[1:]:
            total = total * t + coefficient
        return total

    def ratio(t: Any, tables: Any) -> Any:
        return horner(t, tables[0]) / horner(t, tables[1])

    size = np.minimum(np.abs(x), 28.0)
    product = size * ratio(size * size, near)
    center = np.where(size < 0.25, 1.0 - (size + product), 0.5 - (product + (size - 0.5)))
    edge = 0.15493708848953247 - ratio(size - 1.0, one)
    inverse = 1.0 / (size * size)
    shape = np.where(size < 1 / 0.35, ratio(inverse, middle), ratio(inverse, far))
    whole = np.rint(size * 64.0) / 64.0  # its square is exact
    tail = np.exp(-whole * whole - 0.5625) / size * np.exp((whole - size) * (whole + size) + shape)
    value = np.where(size < 0.84375, center, np.where(size < 1.25, edge, tail))
    return np.where(x < 0, 2.0 - value, value)


class Erfc(Special, Unary):
    """``1 - erf(x)``, to the last digits where that is small.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 2 at -inf, 0 at inf.
    Derivative: ``-dy * 2 / sqrt(pi) * exp(-x**2)``.
    Source: Sun Microsystems, fdlibm (s_erf.c).
    """

    helpers = (erfc_helper,)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * (-2 / math.sqrt(math.pi) * ops.exp(-x * x))


def ndtr_helper(
    x: Any,
    table: Any = (-0.029732275810675893, 0.14678398607717835, -0.261410543238225, 0.16551016483014988,
                  -0.027321910583466582, 0.10721249940068962, 0.11942509265781832, 0.13991433390191801,
                  0.13961863501320695),
) -> Any:  # fmt: skip
    """The normal distribution function in f32: exp(-x * x / 2) times a polynomial in 1 / (1 + 0.35 |x|)."""
    place = 1.0 / (1.0 + 0.35 * np.abs(x))
    total = table[0]
    for coefficient in table[1:]:
        total = total * place + coefficient
    tail = np.exp(-0.5 * x * x) * (place * total)
    return np.where(x < 0, tail, 1.0 - tail)


class Ndtr(Special, Unary):
    """The distribution function of the standard normal, ``erfc(-x / sqrt(2)) / 2``, which f64 is computed by.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 0 at -inf, 1 at inf. The relative error is below ``(4 + x**2) * eps``, in the negative tail too.
    Derivative: ``dy * exp(-x**2 / 2) / sqrt(2 * pi)``.
    """

    helpers = (ndtr_helper,)

    def __call__(self, x: Any, **keywords: Any) -> Any:
        x = floating(self.name, x)
        if x.dtype.itemsize == 8:
            return ops.multiply(erfc(ops.multiply(x, -math.sqrt(0.5))), 0.5)
        return super().__call__(x, **keywords)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * (1 / math.sqrt(2 * math.pi) * ops.exp(-0.5 * x * x))


erfc = Erfc()
ndtr = Ndtr()
