"""Exponentials, logarithms, roots, powers and trigonometry: elementwise functions of floats."""

from __future__ import annotations

import math
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
from antegrad.ops.special import Special

__all__ = [
    "arctan2", "cbrt", "cos", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "power", "rsqrt",
    "sigmoid", "sin", "sqrt", "tan", "tanh",
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
    """``e ** x``.

    Shapes: x (...) gives the same shape.
    Edges: 0 at -inf; overflows to inf.
    Derivative: ``dy * result``.
    """

    numpy = "np.exp({x})"
    stablehlo = "exponential"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, y)


class Expm1(Wide):
    """``e ** x - 1``, exact near 0.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -1 at -inf; overflows to inf.
    Derivative: ``dy * (result + 1)``.
    """

    numpy = "np.expm1({x})"
    stablehlo = "exponential_minus_one"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, y + 1)


class Log(Unary):
    """Natural logarithm.

    Shapes: x (...) gives the same shape.
    Edges: -inf at 0, NaN below.
    Derivative: ``dy / x``; infinite at 0.
    """

    numpy = "np.log({x})"
    stablehlo = "log"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / x)


class Log1p(Unary):
    """``log(1 + x)``, exact near 0.

    Shapes: x (...) gives the same shape.
    Edges: -inf at -1, NaN below.
    Derivative: ``dy / (1 + x)``; infinite at -1.
    """

    numpy = "np.log1p({x})"
    stablehlo = "log_plus_one"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / (x + 1))


class Exp2(Special, Unary):
    """``2 ** x``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 0 at -inf; overflows to inf.
    Derivative: ``dy * log(2) * result``.
    """

    numpy = "np.exp2({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        return power(2.0, x)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, y * math.log(2))


class Log2(Special, Unary):
    """Logarithm to base 2, exact for powers of 2.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -inf at 0, NaN below.
    Derivative: ``dy / (x * log(2))``; infinite at 0.
    """

    numpy = "np.log2({x})"
    cost = 30

    def formula(self, x: Any) -> Any:
        near = log(x) / math.log(2)
        whole = ops.round(near)
        return ops.where(power(2.0, whole) == x, whole, near)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / math.log(2) / x)


class Log10(Special, Unary):
    """Logarithm to base 10.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -inf at 0, NaN below.
    Derivative: ``dy / (x * log(10))``; infinite at 0.
    """

    numpy = "np.log10({x})"
    cost = 20

    def formula(self, x: Any) -> Any:
        return log(x) / math.log(10)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / math.log(10) / x)


class Sqrt(Unary):
    """Square root.

    Shapes: x (...) gives the same shape.
    Edges: NaN below 0.
    Derivative: ``dy / (2 * result)``; infinite at 0.
    """

    numpy = "np.sqrt({x})"
    stablehlo = "sqrt"

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 0.5 / y)


def rsqrt_helper(x: Any) -> Any:
    """1 / sqrt(x)."""
    return np.ones_like(x) / np.sqrt(x)


class Rsqrt(Wide):
    """``1 / sqrt(x)``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: inf at 0, -inf at -0.0, NaN below, 0 at inf.
    Derivative: ``-dy * result / (2 * x)``; infinite at 0.
    """

    numpy = "rsqrt_helper({x})"
    helpers = (rsqrt_helper,)
    stablehlo = "rsqrt"

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, -0.5 * y / x)


class Cbrt(Unary):
    """Cube root, of negative numbers too.

    Shapes: x (...) gives the same shape.
    Edges: an infinity gives itself.
    Derivative: ``dy / (3 * result**2)``; infinite at 0.
    """

    numpy = "np.cbrt({x})"
    stablehlo = "cbrt"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 / (3 * y * y))


class Sin(Unary):
    """Sine of an angle in radians.

    Shapes: x (...) gives the same shape.
    Edges: NaN at the infinities.
    Derivative: ``dy * cos(x)``.
    """

    numpy = "np.sin({x})"
    stablehlo = "sine"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, cos(x))


class Cos(Unary):
    """Cosine of an angle in radians.

    Shapes: x (...) gives the same shape.
    Edges: NaN at the infinities.
    Derivative: ``-dy * sin(x)``.
    """

    numpy = "np.cos({x})"
    stablehlo = "cosine"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, -sin(x))


class Tan(Unary):
    """Tangent of an angle in radians.

    Shapes: x (...) gives the same shape.
    Edges: NaN at the infinities.
    Derivative: ``dy * (1 + result**2)``.
    """

    numpy = "np.tan({x})"
    stablehlo = "tan"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, 1 + y * y)


class Tanh(Unary):
    """Hyperbolic tangent.

    Shapes: x (...) gives the same shape.
    Edges: -1 and 1 at the infinities.
    Derivative: ``dy * (1 - result**2)``.
    """

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
    """``1 / (1 + exp(-x))``, also called the logistic function.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 0 at -inf, 1 at inf.
    Derivative: ``dy * result * (1 - result)``.
    """

    numpy = "sigmoid_helper({x})"
    helpers = (sigmoid_helper,)
    stablehlo = "logistic"
    cost = 10

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * (y * (1 - y))


class Arctan2(Binary):
    """Angle of the point (x, y) in radians, in [-pi, pi]; y is the first operand.

    Shapes: y and x broadcast.
    Edges: 0 or pi at the origin, by the sign of x, with the sign of y.
    Derivative: ``dy * x / (x**2 + y**2)`` for y, ``-dy * y / (x**2 + y**2)`` for x; 0 at the origin.
    """

    numpy = "np.arctan2({x}, {y})"
    stablehlo = "atan2"
    accepts = ("float",)
    cost = 20

    def vjp(self, dy: Any, angle: Any, y: Any, x: Any) -> Any:
        square = x * x + y * y
        scaled = ops.where(square == 0, 0, dy / ops.where(square == 0, 1, square))
        return scaled * x, -scaled * y


class Power(Binary):
    """``x ** y``: products for a Python integer y from 0 to 3, and of integer tensors.

    Shapes: x and y broadcast; an integer x takes a Python integer y.
    Edges: ``x ** 0`` and ``1 ** y`` are 1, also for NaN; NaN for a negative base with a fractional exponent.
    Derivative: ``dy * y * x**(y - 1)``, 0 where y is 0, at 0 ** 0 too; ``dy * log(x) * result``, 0 where x is 0.
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


exp = Exp()
expm1 = Expm1()
exp2 = Exp2()
log = Log()
log2 = Log2()
log10 = Log10()
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
