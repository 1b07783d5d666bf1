"""Exponentials, logarithms, roots, powers, trigonometry and rounding: elementwise functions of floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, tensor
from antegrad.ir.program import Equation
from antegrad.ir.types import accumulation_dtype, is_float
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.elementwise import Binary, Unary, mul_no_nan
from antegrad.ops.promotion import harmonise

__all__ = [
    "arctan2", "cbrt", "ceil", "cos", "exp", "expm1", "floor", "log", "log1p", "power", "round", "rsqrt", "sigmoid",
    "sin", "sqrt", "tan", "tanh",
]  # fmt: skip


class Wide(Unary):
    """Base of the functions that take several steps: 16-bit floats are computed in f32 and rounded once."""

    def render(self, equation: Equation, *operands: Code) -> Code:
        dtype = equation.output.type.dtype
        wide = accumulation_dtype(dtype)
        template = self.numpy
        if wide != dtype:
            template = f"{template.replace('{x}', '{x}.astype({wide})')}.astype({{dtype}})"
        return fill(template, ("x",), operands, {"wide": wide, "dtype": dtype})

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        type = equation.output.type
        wide = type.with_dtype(accumulation_dtype(type.dtype))
        operand = emitter.convert(operands[0], type, wide)
        return emitter.convert(emitter.op(f"stablehlo.{self.stablehlo} {operand} : {tensor(wide)}"), wide, type)


class Exp(Unary):
    """``e ** x``."""

    numpy = "np.exp({x})"
    stablehlo = "exponential"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, y)


class Expm1(Wide):
    """``e ** x - 1``, exact near 0."""

    numpy = "np.expm1({x})"
    stablehlo = "exponential_minus_one"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, y + 1)


class Log(Unary):
    """Natural logarithm; -inf at 0, NaN below."""

    numpy = "np.log({x})"
    stablehlo = "log"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / x)


class Log1p(Unary):
    """``log(1 + x)``, exact near 0."""

    numpy = "np.log1p({x})"
    stablehlo = "log_plus_one"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / (x + 1))


class Sqrt(Unary):
    """Square root; the gradient at 0 is infinite."""

    numpy = "np.sqrt({x})"
    stablehlo = "sqrt"

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 0.5 / y)


def rsqrt_helper(x: Any) -> Any:
    """1 / sqrt(x)."""
    return np.ones_like(x) / np.sqrt(x)


class Rsqrt(Wide):
    """``1 / sqrt(x)``."""

    numpy = "rsqrt_helper({x})"
    helpers = (rsqrt_helper,)
    stablehlo = "rsqrt"

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, -0.5 * y / x)


class Cbrt(Unary):
    """Cube root."""

    numpy = "np.cbrt({x})"
    stablehlo = "cbrt"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / (3 * y * y))


class Sin(Unary):
    """Sine of an angle in radians."""

    numpy = "np.sin({x})"
    stablehlo = "sine"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, cos(x))


class Cos(Unary):
    """Cosine of an angle in radians."""

    numpy = "np.cos({x})"
    stablehlo = "cosine"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, -sin(x))


class Tan(Unary):
    """Tangent of an angle in radians."""

    numpy = "np.tan({x})"
    stablehlo = "tan"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 + y * y)


class Tanh(Unary):
    """Hyperbolic tangent, elementwise; defined for every real input."""

    numpy = "np.tanh({x})"
    stablehlo = "tanh"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * (1 - y * y)


def sigmoid_helper(x: Any) -> Any:
    """1 / (1 + exp(-x)), computed on the side that cannot overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(x), small) / (np.ones_like(x) + small)


class Sigmoid(Wide):
    """``1 / (1 + exp(-x))``."""

    numpy = "sigmoid_helper({x})"
    helpers = (sigmoid_helper,)
    stablehlo = "logistic"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * (y * (1 - y))


class Arctan2(Binary):
    """Angle of the point (y, x) in radians, in [-pi, pi]; the gradient at the origin is 0."""

    numpy = "np.arctan2({x}, {y})"
    stablehlo = "atan2"
    accepts = ("float",)
    cost = 20

    def vjp(self, dy: Any, angle: Any, y: Any, x: Any) -> Any:
        square = x * x + y * y
        scaled = ops.where(square == 0, 0, dy / ops.where(square == 0, 1, square))
        return scaled * x, -scaled * y


class Power(Binary):
    """``x ** y`` of floats. A negative base with a fractional exponent gives NaN.

    The gradient of the base is 0 where the exponent is 0, also at ``0 ** 0``; that of the exponent is 0 at base 0.
    """

    numpy = "{x} ** {y}"
    stablehlo = "power"
    accepts = ("float",)
    cost = 20

    def render(self, equation: Equation, *operands: Code) -> Code:
        x, (text, level) = operands
        # A printed int would mean products when the text is traced again.
        exponent = Code(f"{text}.0", level) if text.lstrip("-").isdigit() else Code(text, level)
        return super().render(equation, x, exponent)

    def __call__(self, x: Any, y: Any) -> Any:
        if isinstance(y, int) and not isinstance(y, bool):
            return _integer_power(as_tensor(x), y)
        return bind(self, *harmonise(self.name, x, y))

    def vjp(self, dy: Any, y: Any, base: Any, exponent: Any) -> Any:
        slope = mul_no_nan(exponent, power(base, exponent - 1.0))
        logarithm = ops.where(base == 0, 0, log(ops.where(base == 0, 1, base)))
        return mul_no_nan(dy, slope), mul_no_nan(dy, mul_no_nan(logarithm, y))


def _integer_power(x: Any, exponent: int) -> Any:
    """Products for the exponents 0 to 3 and for integers, `power` else."""
    if is_float(x.dtype) and not 0 <= exponent <= 3:
        return bind(power, *harmonise("power", x, float(exponent)))
    if exponent < 0:
        return ops.floor_divide(1, _integer_power(x, -exponent))
    result, square = None, x
    for bit in reversed(f"{exponent:b}"):
        if bit == "1":
            result = square if result is None else ops.multiply(result, square)
        square = ops.square(square)
    return ops.ones_like(x) if result is None else result


class Floor(Unary):
    """The largest whole number not above x."""

    numpy = "np.floor({x})"
    stablehlo = "floor"
    differentiable = False


class Ceil(Unary):
    """The smallest whole number not below x."""

    numpy = "np.ceil({x})"
    stablehlo = "ceil"
    differentiable = False


class Round(Unary):
    """The nearest whole number, halves to the even one."""

    numpy = "np.rint({x})"
    stablehlo = "round_nearest_even"
    differentiable = False


exp = Exp()
expm1 = Expm1()
log = Log()
log1p = Log1p()
sqrt = Sqrt()
rsqrt = Rsqrt()
cbrt = Cbrt()
sin = Sin()
cos = Cos()
tan = Tan()
tanh = Tanh()
sigmoid = Sigmoid()
arctan2 = Arctan2()
power = Power()
floor = Floor()
ceil = Ceil()
round = Round()
