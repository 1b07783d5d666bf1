"""Elementwise arithmetic: operands of one shape and one element type, and a result of the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BF16, BOOL, TensorType, is_float, is_integer
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import bind
from antegrad.ops.promotion import harmonise

__all__ = [
    "abs", "add", "clip", "divide", "maximum", "minimum", "mul_no_nan", "multiply", "negative", "reciprocal", "relu",
    "sign", "square", "subtract",
]  # fmt: skip


class Elementwise(Primitive):
    """Base of the elementwise primitives. `accepts` names the kinds of element type: float, integer, bool."""

    broadcasts = True
    elementwise = True
    accepts = ("float", "integer")
    cost = 1
    """FLOPs an element."""

    def __call__(self, *operands: Any, **keywords: Any) -> Any:
        if keywords:
            raise TypeError(f"{self.name} takes no keyword {', '.join(keywords)}")
        return bind(self, *harmonise(self.name, *operands))

    def checked(self, *operands: TensorType) -> TensorType:
        """The one type of all operands."""
        first = operands[0]
        for operand in operands[1:]:
            if operand.shape != first.shape:
                raise ShapeError(f"{self.name}: operands of one shape are needed, found {first} and {operand}")
            if operand.dtype != first.dtype:
                raise DTypeError(f"{self.name}: operands of one element type are needed, found {first} and {operand}")
        if kind(first.dtype) not in self.accepts:
            raise DTypeError(f"{self.name} is for {' or '.join(self.accepts)} tensors, found {first}: use .astype(...)")
        return first

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return bind(self, *stretched(operands, batched, size), **params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = tensor(equation.output.type)
        return emitter.op(f"stablehlo.{self.stablehlo} {', '.join(operands)} : {types}")

    def flops(self, equation: Equation) -> int:
        return self.cost * equation.output.type.size if is_float(equation.output.type.dtype) else 0


def kind(dtype: np.dtype) -> str:
    """``float``, ``integer`` or ``bool``."""
    return "float" if is_float(dtype) else "integer" if is_integer(dtype) else "bool"


class Unary(Elementwise):
    accepts = ("float",)

    def result(self, x: TensorType) -> TensorType:
        return self.checked(x)


class Binary(Elementwise):
    def result(self, x: TensorType, y: TensorType) -> TensorType:
        return self.checked(x, y)


class Add(Binary):
    """``x + y``.

    Shapes: x and y broadcast.
    Edges: integers wrap around; floats overflow to an infinity.
    Derivative: dy and dy.
    """

    numpy = "{x} + {y}"
    stablehlo = "add"

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        return dy, dy


class Subtract(Binary):
    """``x - y``.

    Shapes: x and y broadcast.
    Edges: integers wrap around; floats overflow to an infinity.
    Derivative: dy and -dy.
    """

    numpy = "{x} - {y}"
    stablehlo = "subtract"

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        return dy, -dy


class Multiply(Binary):
    """``x * y``.

    Shapes: x and y broadcast.
    Edges: integers wrap around; floats overflow to an infinity.
    Derivative: ``dy * y`` and ``dy * x``.
    """

    numpy = "{x} * {y}"
    stablehlo = "multiply"

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        return dy * b, dy * a


def mul_no_nan_helper(cotangent: Any, factor: Any) -> Any:
    """cotangent * factor, and 0 where the cotangent is 0 even if the factor is infinite or NaN."""
    return np.where(cotangent == 0, cotangent, cotangent * factor)


class MulNoNan(Binary):
    """``cotangent * factor``, and 0 where the cotangent is 0 even if the factor is infinite or NaN.

    The reverse rules whose factor can be infinite use it, so that an element that a select left out stays out.

    Shapes: cotangent and factor, floats, broadcast.
    Edges: NaN for an infinite cotangent and a factor of 0, as in the product.
    Derivative: itself by ``factor``, and ``dy * cotangent``, 0 where the cotangent is 0.
    """

    numpy = "mul_no_nan_helper({x}, {y})"
    helpers = (mul_no_nan_helper,)
    accepts = ("float",)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        cotangent, factor = operands
        type = equation.output.type
        zero = emitter.splat(0, type)
        boolean = type.with_dtype(BOOL)
        mask = emitter.op(f"stablehlo.compare EQ, {cotangent}, {zero} : {signature([type, type], [boolean])}")
        product = emitter.op(f"stablehlo.multiply {cotangent}, {factor} : {tensor(type)}")
        return emitter.op(f"stablehlo.select {mask}, {cotangent}, {product} : {tensor(boolean)}, {tensor(type)}")

    def vjp(self, dy: Any, y: Any, cotangent: Any, factor: Any) -> Any:
        return mul_no_nan(dy, factor), ops.where(cotangent == 0, 0, mul_no_nan(dy, cotangent))


class Divide(Binary):
    """``x / y``, of floats.

    Shapes: x and y broadcast.
    Edges: an infinity or NaN where y is 0.
    Derivative: ``dy / y`` and ``-dy * x / y**2``.
    """

    numpy = "{x} / {y}"
    stablehlo = "divide"
    accepts = ("float",)

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        return mul_no_nan(dy, 1 / b), mul_no_nan(-dy, y / b)


class Negative(Unary):
    """``-x``.

    Shapes: x (...) gives the same shape.
    Edges: the lowest integer, and an unsigned x, wrap around.
    Derivative: -dy.
    """

    numpy = "-{x}"
    stablehlo = "negate"
    accepts = ("float", "integer")

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return -dy


class Sign(Unary):
    """-1, 0 or 1 by the sign of x.

    Shapes: x (...) gives the same shape.
    Edges: NaN for NaN.
    Derivative: none.
    """

    numpy = "np.sign({x})"
    stablehlo = "sign"
    accepts = ("float", "integer")
    differentiable = False

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        type = equation.output.type
        if type.dtype.kind != "u":
            return super().emit(emitter, equation, *operands)
        # StableHLO has no sign of unsigned integers.
        return emitter.op(f"stablehlo.minimum {operands[0]}, {emitter.splat(1, type)} : {tensor(type)}")


class Abs(Unary):
    """``|x|``.

    Shapes: x (...) gives the same shape.
    Edges: the lowest integer stays as it is.
    Derivative: ``dy * sign(x)``; 0 at 0.
    """

    numpy = "np.abs({x})"
    stablehlo = "abs"
    accepts = ("float", "integer")

    def __call__(self, x: Any) -> Any:
        (x,) = harmonise(self.name, x)
        return x if x.dtype.kind == "u" else bind(self, x)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * sign(x)


class Maximum(Binary):
    """The larger of two.

    Shapes: x and y broadcast.
    Edges: NaN if either is.
    Derivative: dy for the larger, 0 for the other; half of it for each at a tie.
    """

    numpy = "np.maximum({x}, {y})"
    stablehlo = "maximum"
    accepts = ("float", "integer", "bool")

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        return _extremum_cotangents(dy, a > b, a == b)


class Minimum(Binary):
    """The smaller of two.

    Shapes: x and y broadcast.
    Edges: NaN if either is.
    Derivative: dy for the smaller, 0 for the other; half of it for each at a tie.
    """

    numpy = "np.minimum({x}, {y})"
    stablehlo = "minimum"
    accepts = ("float", "integer", "bool")

    def vjp(self, dy: Any, y: Any, a: Any, b: Any) -> Any:
        return _extremum_cotangents(dy, a < b, a == b)


def _extremum_cotangents(dy: Any, first_wins: Any, tie: Any) -> tuple[Any, Any]:
    half = dy * 0.5
    return (
        ops.where(tie, half, ops.where(first_wins, dy, 0)),
        ops.where(tie, half, ops.where(first_wins, 0, dy)),
    )


class Relu(Unary):
    """``max(x, 0)``.

    Shapes: x (...) gives the same shape.
    Edges: NaN stays NaN.
    Derivative: dy above 0, else 0, at 0 too (a tie of `maximum` would split it).
    """

    numpy = "np.maximum({x}, 0)"
    accepts = ("float", "integer")

    def render(self, equation: Equation, *operands: Code) -> Code:
        if equation.output.type.dtype == BF16:
            return fill("np.maximum({x}, bfloat16(0))", ("x",), operands, {})
        return super().render(equation, *operands)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        type = equation.output.type
        return emitter.op(f"stablehlo.maximum {operands[0]}, {emitter.splat(0, type)} : {tensor(type)}")

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return ops.where(y > 0, dy, 0)


class Clip(Elementwise):
    """``min(max(x, low), high)``.

    Shapes: x, low and high broadcast.
    Edges: NaN stays NaN; a bound of None is none; `high` where the bounds cross.
    Derivative: dy inside and at the bounds, else 0; a bound gets it from the x that lie beyond.
    """

    numpy = "np.minimum(np.maximum({x}, {low}), {high})"

    def __call__(self, x: Any, low: Any = None, high: Any = None) -> Any:
        if low is None or high is None:
            return x if low is high else maximum(x, low) if high is None else minimum(x, high)
        return bind(self, *harmonise(self.name, x, low, high))

    def result(self, x: TensorType, low: TensorType, high: TensorType) -> TensorType:
        return self.checked(x, low, high)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = tensor(equation.output.type)
        raised = emitter.op(f"stablehlo.maximum {operands[0]}, {operands[1]} : {types}")
        return emitter.op(f"stablehlo.minimum {raised}, {operands[2]} : {types}")

    def vjp(self, dy: Any, y: Any, x: Any, low: Any, high: Any) -> Any:
        inside = (x >= low) & (x <= high)
        return ops.where(inside, dy, 0), ops.where(x < low, dy, 0), ops.where(x > high, dy, 0)


add = Add()
subtract = Subtract()
multiply = Multiply()
mul_no_nan = MulNoNan()
divide = Divide()
negative = Negative()
sign = Sign()
abs = Abs()
maximum = Maximum()
minimum = Minimum()
relu = Relu()
clip = Clip()


def square(x: Any) -> Any:
    """``x * x``.

    Shapes: x (...) gives the same shape.
    Edges: integers wrap around.
    Derivative: ``2 * dy * x``.
    """
    return multiply(x, x)


def reciprocal(x: Any) -> Any:
    """``1 / x``, of floats.

    Shapes: x (...) gives the same shape.
    Edges: an infinity of the sign of x at 0.
    Derivative: ``-dy / x**2``; infinite at 0.
    """
    return divide(1.0, x)
