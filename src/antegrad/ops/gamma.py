"""The logarithm of the gamma function and its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.code import Code, fill
from antegrad.ir.program import Equation
from antegrad.ir.types import TensorType, accumulation_dtype
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import bind
from antegrad.ops.elementwise import Unary, mul_no_nan
from antegrad.ops.special import Special, floating

__all__ = ["digamma", "lgamma", "polygamma"]


def lgamma_helper(
    x: Any,
    near_one: Any = (
        (4.945235359296727, 201.8112620856775, 2290.8383738313464, 11319.672059033808,
         28557.246356716354, 38484.962284437934, 26377.487876241954, 7225.813979700288),
        (1.0, 67.48212550303778, 1113.3323938571993, 7738.757056935398,
         27639.870744033407, 54993.102062261576, 61611.22180066002, 36351.2759150194,
         8785.536302431014),
    ),
    near_two: Any = (
        (4.974607845568932, 542.4138599891071, 15506.93864978365, 184793.29044456323,
         1088204.7694688288, 3338152.96798703, 5106661.678927353, 3074109.0548505397),
        (1.0, 183.03283993705926, 7765.049321445006, 133190.38279660742,
         1136705.8213219696, 5267964.117437947, 13467014.543111017, 17827365.303532742,
         9533095.591844354),
    ),
    above_four: Any = (
        (14745.0216605994, 2426813.3694867045, 121475557.40450932, 2663432449.630977,
         29403789566.34554, 170266573776.5399, 492612579337.7431, 560625185622.3951),
        (-1.0, 2690.5301758708993, 639388.5654300093, 41355999.30241388,
         1120872109.616148, 14886137286.788137, 101680358627.24382, 341747634550.73773,
         446315818741.9713),
    ),
    stirling: Any = (5.7083835261e-03, -1.910444077728e-03, 8.4171387781295e-04, -5.952379913043012e-04,
                     0.0007936507935003503, -0.0027777777777776816, 0.08333333333333333),
) -> Any:  # fmt: skip
    """log |gamma(x)|: a rational function of each interval up to 12, Stirling's series above, reflection below 0."""

    def horner(t: Any, coefficients: Any) -> Any:
        total = coefficients[0]
        for coefficient in coefficients[1:]:
            total = total * t + coefficient
        return total

    def ratio(t: Any, tables: Any) -> Any:
        return horner(t, tables[0]) / horner(t, tables[1])

    size = np.abs(x)
    small = size < 0.6796875  # there the logarithm of 1 / size is what makes gamma(size) of gamma(1 + size)
    one, two, four = np.where(small, size, size - 1.0), np.where(size > 1.5, size - 2.0, size - 1.0), size - 4.0
    first = one * (-0.5772156649015329 + one * ratio(one, near_one))
    second = two * (0.42278433509846713 + two * ratio(two, near_two))
    third = 1.791759469228055 + four * ratio(four, above_four)
    fourth = (size - 0.5) * (np.log(size) - 1.0) + (0.4189385332046727 + horner(1 / size / size, stirling) / size)
    low = np.where((size > 1.5) | (small & (size > 0.5)), second, first)
    value = np.where(size > 12, fourth, np.where(size > 4, third, low))
    sine = np.sin(np.pi * np.abs(size - np.rint(size))) / np.pi
    factor = np.where(small, np.where(x < 0, sine, size), np.where(x < 0, size * sine, 1.0))
    pole = (x <= 0) & (np.floor(x) == x)
    return np.where(pole, np.inf, np.where(x < 0, -value, value) - np.log(factor))


class Lgamma(Special, Unary):
    """Logarithm of the absolute value of the gamma function.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: inf at 0, at the negative whole numbers and at both infinities.
    Derivative: ``dy * digamma(x)``.
    Source: Cody and Hillstrom, "Chebyshev approximations for the natural logarithm of the gamma function" (1967).
    """

    helpers = (lgamma_helper,)
    cost = 150

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, digamma(x))


def digamma_helper(
    x: Any,
    near: Any = (
        (0.004510468124576294, 5.493285583300039, 376.4669317592928, 7952.5490849152,
         71451.59581895193, 306559.76301987364, 636069.9778896446, 580413.1278353757,
         165856.95029761022),
        (1.0, 96.14165477422236, 2628.771579058119, 29862.497022250278, 162065.66091533672,
         434878.8071276833, 542563.8453726999, 242421.85002017985, 6.415522378357623e-08),
    ),
    far: Any = (
        (-2.7103228277757836, -15.16627177689612, -19.78455414871922, -8.810095882831222,
         -1.4479614616899843, -0.07368960033239455, -6.513538773271817e-21),
        (1.0, 44.992760373789366, 202.40955312679932, 247.3697900331529, 107.42543875702279,
         17.46396506067857, 0.8842752039887348),
    ),
) -> Any:  # fmt: skip
    """The derivative of log gamma(x): a rational function up to 3, one beside the logarithm above, reflection below."""

    def ratio(t: Any, above: Any, below: Any) -> Any:
        top, bottom = above[0], below[0]
        for a, b in zip(above[1:], below[1:], strict=True):
            top, bottom = top * t + a, bottom * t + b
        return top / bottom

    low = x < 0.5
    y = np.where(low, 1.0 - x, x)
    slope = ratio(y, *near)
    middle = slope * (y - 1.4609375) - slope * 0.0006946449683623413  # the zero in two parts, which XLA would add
    large = ratio(1 / y / y, *far) - 0.5 / y + np.log(y)
    angle = np.pi * np.where(np.abs(x) < 0.5, x, x - np.rint(x))
    reflected = np.where(low, np.pi * np.cos(angle) / np.sin(angle), 0.0)
    value = np.where(y > 3, large, middle) - reflected
    return np.where((x < 0) & (angle == 0), np.nan, value)


class Digamma(Special, Unary):
    """Derivative of `lgamma`, also called psi.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -inf at 0 and inf at -0.0; NaN at the negative whole numbers, where the sides differ, and at -inf.
    Derivative: ``dy * polygamma(1, x)``.
    Source: Cody, Strecok and Thacher, "Chebyshev approximations for the psi function" (1973).
    """

    helpers = (digamma_helper,)
    cost = 100

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, polygamma(1, x))


def polygamma_helper(
    n: int,
    x: Any,
    bernoulli: Any = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
                      -3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000),
) -> Any:  # fmt: skip
    """Derivative n of digamma: (-1) ** (n + 1) * n! * zeta(n + 1, x) by Euler and Maclaurin, reflection below 0."""
    s, parity, unit, scale = n + 1, (-1) ** n, 1.0, 1.0
    if n < 10:
        for factor in range(2, s):
            scale *= factor
    else:  # n! is spread over the n + 1 factors, so that nothing overflows before the result does
        unit = float(np.exp(np.sum(np.log(np.arange(1, s))) / s))

    def inverse_power(base: Any, exponent: int) -> Any:  # a few products are faster than a power, and as exact
        return (unit / base) ** exponent if exponent < 4 else (base / unit) ** -exponent

    y = np.where(x < 0, 1.0 - x, x)
    last = y + 9.0
    ratio = np.minimum(s / last, 4.0)  # where it is larger, the first terms alone make the sum
    series, step, square = 0.5, ratio, ratio * ratio
    for j, coefficient in enumerate(bernoulli):
        series = series + coefficient * step
        step = step * square * ((1 + (2 * j + 1) / s) * (1 + (2 * j + 2) / s))
    zeta = inverse_power(y + 8.0, s)
    for k in range(7, 0, -1):
        zeta = zeta + inverse_power(y + k, s)
    zeta = zeta + inverse_power(y, s) + (inverse_power(last, n) * (unit / n) + inverse_power(last, s) * series)
    cotangent = [0.0, 1.0]  # of pi * x; then its derivatives over k! as polynomials in it, without the powers of pi
    for k in range(1, s):
        slope = [power * value / k for power, value in enumerate(cotangent)][1:]
        cotangent = [-a - b for a, b in zip([*slope, 0.0, 0.0], [0.0, 0.0, *slope], strict=True)]
    angle = np.pi * (x - np.rint(x))
    turn = np.cos(angle) / np.sin(angle)
    reflected = turn * 0.0
    for value in reversed(cotangent):
        reflected = reflected * turn + value
    below = -scale * zeta - scale * (turn * 0.0 + unit * np.pi) ** s * reflected
    value = np.where(x < 0, below, -scale * parity * zeta)
    return np.where((x < 0) & (angle == 0), np.nan if parity > 0 else np.inf, value)


class Polygamma(Special):
    """Derivative n of `digamma`, for a whole number n >= 0 that is no tensor.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: infinite at 0 and, for odd n, at the negative whole numbers; NaN there for even n, where the sides differ.
        The relative error grows with n, to about ``4 * n`` ulp.
    Derivative: ``dy * polygamma(n + 1, x)``.
    Raises: `ShapeError` for an n that is not a whole number >= 0.
    """

    helpers = (polygamma_helper,)
    cost = 300

    def __call__(self, n: Any, x: Any) -> Any:
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 0:
            raise misfit(f"polygamma: the order must be a whole number >= 0, found {n!r}")
        if n == 0:
            return digamma(x)
        x = floating(self.name, x)
        return ops.convert(bind(self, ops.convert(x, accumulation_dtype(x.dtype)), n=int(n)), x.dtype)

    def result(self, x: TensorType, *, n: int) -> TensorType:
        return self.checked(x)

    def render(self, equation: Equation, *operands: Code) -> Code:
        return fill("polygamma_helper({n}, {x})", ("x",), operands, equation.params)

    def formula(self, x: Any, n: int) -> Any:
        return polygamma_helper(n, x)

    def vjp(self, dy: Any, y: Any, x: Any, *, n: int) -> Any:
        return mul_no_nan(dy, self(n + 1, x))


lgamma = Lgamma()
digamma = Digamma()
polygamma = Polygamma()
