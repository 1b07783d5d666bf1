"""Comparison, selection, conversion, and the logical operations."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTypeLike, TensorType, as_dtype, is_float, is_integer
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.elementwise import Binary, Elementwise, Unary, kind
from antegrad.ops.promotion import broadcast, unify

__all__ = [
    "convert", "equal", "greater", "greater_equal", "isfinite", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "not_equal", "stop_gradient", "where",
]  # fmt: skip


class Comparison(Binary):
    """Base of the comparisons; the result is bool. A comparison with NaN is false, but for `not_equal`."""

    accepts = ("float", "integer", "bool")
    differentiable = False
    direction = ""

    def result(self, x: TensorType, y: TensorType) -> TensorType:
        return self.checked(x, y).with_dtype(BOOL)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.compare {self.direction}, {', '.join(operands)} : {types}")


class Equal(Comparison):
    """``x == y``.

    Shapes: x and y broadcast, and give bool.
    Edges: false beside NaN.
    Derivative: none.
    """

    numpy = "{x} == {y}"
    direction = "EQ"


class NotEqual(Comparison):
    """``x != y``.

    Shapes: x and y broadcast, and give bool.
    Edges: true beside NaN.
    Derivative: none.
    """

    numpy = "{x} != {y}"
    direction = "NE"


class Less(Comparison):
    """``x < y``.

    Shapes: x and y broadcast, and give bool.
    Edges: false beside NaN.
    Derivative: none.
    """

    numpy = "{x} < {y}"
    direction = "LT"


class LessEqual(Comparison):
    """``x <= y``.

    Shapes: x and y broadcast, and give bool.
    Edges: false beside NaN.
    Derivative: none.
    """

    numpy = "{x} <= {y}"
    direction = "LE"


class Greater(Comparison):
    """``x > y``.

    Shapes: x and y broadcast, and give bool.
    Edges: false beside NaN.
    Derivative: none.
    """

    numpy = "{x} > {y}"
    direction = "GT"


class GreaterEqual(Comparison):
    """``x >= y``.

    Shapes: x and y broadcast, and give bool.
    Edges: false beside NaN.
    Derivative: none.
    """

    numpy = "{x} >= {y}"
    direction = "GE"


class Isfinite(Unary):
    """Whether x is neither infinite nor NaN.

    Shapes: x (...), a float, gives bool of the same shape.
    Edges: true for every finite float.
    Derivative: none.
    """

    numpy = "np.isfinite({x})"
    differentiable = False

    def result(self, x: TensorType) -> TensorType:
        return self.checked(x).with_dtype(BOOL)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.is_finite {operands[0]} : {types}")


class Where(Elementwise):
    """``x`` where `condition` holds, else ``y``.

    Shapes: condition, which is bool, x and y broadcast.
    Edges: an infinity or NaN that is not selected leaves no trace.
    Derivative: dy for the selected operand, 0 for the other; a bool condition has none.
    """

    numpy = "np.where({condition}, {x}, {y})"
    accepts = ("float", "integer", "bool")

    def __call__(self, condition: Any, x: Any, y: Any) -> Any:
        x, y = unify(self.name, x, y)
        return bind(self, *broadcast(self.name, as_tensor(condition), x, y))

    def result(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        if condition.dtype != BOOL:
            raise DTypeError(f"where: the condition must be bool, found {condition}: compare it with something")
        if condition.shape != x.shape:
            raise ShapeError(f"where: operands of one shape are needed, found {condition}, {x} and {y}")
        return self.checked(x, y)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = f"{tensor(equation.input_types[0])}, {tensor(equation.output.type)}"
        return emitter.op(f"stablehlo.select {', '.join(operands)} : {types}")

    def vjp(self, dy: Any, y: Any, condition: Any, a: Any, b: Any) -> Any:
        return None, where(condition, dy, 0), where(condition, 0, dy)

    def flops(self, equation: Equation) -> int:
        return 0


def float_to_integer_helper(x: Any, dtype: Any) -> Any:
    """x rounded toward zero and clamped to what dtype holds; 0 for NaN."""
    info = np.iinfo(dtype)
    wide = np.trunc(np.where(np.isnan(x), np.zeros_like(x), x).astype(np.float64))
    inside = np.clip(wide, float(info.min), float(np.nextafter(float(info.max), 0)) if info.bits == 64 else info.max)
    return np.where(wide >= float(info.max), info.max, inside.astype(dtype)).astype(dtype)


class Convert(Primitive):
    """x in another element type.

    Shapes: x (...) gives the same shape.
    Edges: float to integer rounds toward zero and clamps (0 for NaN); integers wrap; bool is ``x != 0``.
    Derivative: dy in the type of x; none for integers.
    """

    helpers = (float_to_integer_helper,)
    elementwise = True

    def __call__(self, x: Any, dtype: DTypeLike) -> Any:
        target = as_dtype(dtype)
        x = as_tensor(x)
        return x if x.dtype == target else bind(self, x, dtype=target)

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return bind(self, *stretched(operands, batched, size), **params)

    def result(self, x: TensorType, *, dtype: np.dtype) -> TensorType:
        return x.with_dtype(dtype)

    def render(self, equation: Equation, *operands: Code) -> Code:
        source, target = equation.input_types[0].dtype, equation.params["dtype"]
        saturates = is_float(source) and is_integer(target)
        template = "float_to_integer_helper({x}, {dtype})" if saturates else "{x}.astype({dtype})"
        return fill(template, ("x",), operands, equation.params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        source, target = equation.input_types[0], equation.output.type
        if target.dtype != BOOL:
            return emitter.convert(operands[0], source, target)
        zero = emitter.splat(0, source)
        return emitter.op(f"stablehlo.compare NE, {operands[0]}, {zero} : {signature([source, source], [target])}")

    def vjp(self, dy: Any, y: Any, x: Any, *, dtype: np.dtype) -> Any:
        return convert(dy, x.dtype) if is_float(x.dtype) else None


class StopGradient(Primitive):
    """x itself, as a constant to the derivative.

    Shapes: x (...) gives the same shape.
    Edges: none.
    Derivative: 0.
    """

    differentiable = False
    elementwise = True

    def __call__(self, x: Any) -> Any:
        return bind(self, as_tensor(x))

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return bind(self, *stretched(operands, batched, size), **params)

    def result(self, x: TensorType) -> TensorType:
        return x

    def render(self, equation: Equation, *operands: Code) -> Code:
        return operands[0]

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        return operands[0]


equal = Equal()
not_equal = NotEqual()
less = Less()
less_equal = LessEqual()
greater = Greater()
greater_equal = GreaterEqual()
isfinite = Isfinite()
where = Where()
convert = Convert()
stop_gradient = StopGradient()


def truth(x: Any) -> Any:
    """``x != 0`` as bool; a bool tensor as it is."""
    x = as_tensor(x)
    return x if kind(x.dtype) == "bool" else x != 0


def logical_and(x: Any, y: Any) -> Any:
    """Whether both are true (not 0).

    Shapes: x and y broadcast, and give bool.
    Edges: NaN is true.
    Derivative: none.
    """
    return ops.bitwise_and(truth(x), truth(y))


def logical_or(x: Any, y: Any) -> Any:
    """Whether either is true (not 0).

    Shapes: x and y broadcast, and give bool.
    Edges: NaN is true.
    Derivative: none.
    """
    return ops.bitwise_or(truth(x), truth(y))


def logical_xor(x: Any, y: Any) -> Any:
    """Whether just one is true (not 0).

    Shapes: x and y broadcast, and give bool.
    Edges: NaN is true.
    Derivative: none.
    """
    return ops.bitwise_xor(truth(x), truth(y))


def logical_not(x: Any) -> Any:
    """Whether x is false (0).

    Shapes: x (...) gives bool of the same shape.
    Edges: NaN is true, so this is false for it.
    Derivative: none.
    """
    return ops.invert(truth(x))
