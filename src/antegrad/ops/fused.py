"""Functions of several operations that are one primitive each: softmax, GELU and standardization.

Their derivatives take the result or the operand and little else, so a backward pass keeps one array where the
derivatives of the operations would keep two or three. Inside they compute in f32 for 16-bit floats and round once, so
they take and give 16-bit activations without losing more than that rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import TensorType, accumulation_dtype, is_float
from antegrad.ops.composition import composed
from antegrad.ops.dispatch import bind
from antegrad.ops.normal import ndtr_helper

__all__ = ["gelu_p", "log_softmax_p", "softmax_p", "standardize_p"]


class Fused(Primitive):
    """Base: the first helper, ``(x, *params, wide)``, is what NumPy runs, and traced it is what XLA gets.

    `wide` is the element type to compute in: f32 for 16-bit floats.
    """

    cost = 0
    """Floating-point operations an element."""

    def result(self, x: TensorType, **params: Any) -> TensorType:
        if not is_float(x.dtype):
            raise DTypeError(f"{self.name} is for float tensors, found {x}: use .astype(...)")
        axes = params.get("axes", ())
        if list(axes) != sorted(set(axes)) or any(not 0 <= axis < x.ndim for axis in axes):
            raise ShapeError(f"{self.name}: {axes} are not axes of {x}")
        return x

    def render(self, equation: Equation, *operands: Code) -> Code:
        (type,) = equation.input_types
        params = {**equation.params, "wide": accumulation_dtype(type.dtype)}
        listed = ", ".join(f"{{{name}}}" for name in (*self.param_names, "wide"))
        return fill(f"{self.helpers[0].__name__}({{x}}, {listed})", ("x",), operands, params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str | tuple[str, ...]:
        (type,) = equation.input_types
        wide = accumulation_dtype(type.dtype)
        formula = composed(self.helpers[0], type, names=("x",), **equation.params, wide=wide)
        found = emitter.body(formula, operands)
        return tuple(found) if self.multiple_results else found[0]

    def traced_helpers(self) -> dict[str, Any]:
        def call(x: Any, *params: Any) -> Any:
            return bind(self, x, **dict(zip(self.param_names, params[:-1], strict=True)))

        return {self.helpers[0].__name__: call}

    @property
    def param_names(self) -> tuple[str, ...]:
        """The params, which stand between x and `wide` in the helper's signature."""
        code = self.helpers[0].__code__
        return code.co_varnames[1 : code.co_argcount - 1]

    def flops(self, equation: Equation) -> int:
        return self.cost * equation.input_types[0].size


def softmax_helper(x: Any, axes: Any, wide: Any) -> Any:
    """exp(x) over its sum along the axes; the largest element is subtracted first, and 0 where all x are -inf."""
    top = np.max(x.astype(wide), axis=axes, keepdims=True)
    exponentials = np.exp(x.astype(wide) - np.where(np.isfinite(top), top, 0.0))
    total = np.sum(exponentials, axis=axes, keepdims=True)
    return (exponentials / np.where(total == 0, 1.0, total)).astype(x.dtype)


class Softmax(Fused):
    """``exp(x) / sum(exp(x))`` over `axes`. Its gradient is ``y * (dy - sum(dy * y))``."""

    helpers = (softmax_helper,)
    reduces = True
    cost = 4

    def __call__(self, x: Any, axes: tuple[int, ...]) -> Any:
        return bind(self, x, axes=axes)

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        dy, y = (_widened(each) for each in (dy, y))
        return ops.convert(y * (dy - ops.sum(dy * y, axes, keepdims=True)), x.dtype)

    def batch(self, size: int, operands: Any, batched: Any, *, axes: tuple[int, ...]) -> Any:
        return self(operands[0], _inner(axes))


def log_softmax_helper(x: Any, axes: Any, wide: Any) -> Any:
    """x less the logarithm of the sum of exp(x) along the axes; -inf where all x are."""
    top = np.max(x.astype(wide), axis=axes, keepdims=True)
    shifted = x.astype(wide) - np.where(np.isfinite(top), top, 0.0)
    total = np.sum(np.exp(shifted), axis=axes, keepdims=True)
    return (shifted - np.log(np.where(total == 0, 1.0, total))).astype(x.dtype)


class LogSoftmax(Softmax):
    """The logarithm of `Softmax`. Its gradient is ``dy - exp(y) * sum(dy)``."""

    helpers = (log_softmax_helper,)

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        dy, y = (_widened(each) for each in (dy, y))
        return ops.convert(dy - ops.exp(y) * ops.sum(dy, axes, keepdims=True), x.dtype)


def gelu_helper(x: Any, approximate: Any, wide: Any) -> Any:
    """x times the normal distribution function of x, or times a sigmoid that is close to it."""
    x, given = x.astype(wide), x.dtype
    if approximate:
        return (x / (1.0 + np.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))).astype(given)
    return (x * ndtr_helper(x)).astype(given)


class Gelu(Fused):
    """``x * ndtr(x)``, or ``x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))`` if `approximate`.

    Its gradient is computed from x alone. f64 is for the second form only; `ops.gelu` composes the first.
    """

    helpers = (gelu_helper,)
    cost = 30

    def __call__(self, x: Any, approximate: bool) -> Any:
        return bind(self, x, approximate=approximate)

    def vjp(self, dy: Any, y: Any, x: Any, *, approximate: bool) -> Any:
        dy, x, given = _widened(dy), _widened(x), x.dtype
        if approximate:
            scale = 2 * math.sqrt(2 / math.pi)
            gate = ops.sigmoid(scale * (x + 0.044715 * x * x * x))
            slope = gate + x * gate * (1 - gate) * (scale * (1 + 3 * 0.044715 * x * x))
        else:
            slope = ops.ndtr(x) + x * ops.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        return ops.convert(dy * slope, given)

    def batch(self, size: int, operands: Any, batched: Any, *, approximate: bool) -> Any:
        return self(operands[0], approximate)


def standardize_helper(x: Any, axes: Any, eps: Any, centered: Any, wide: Any) -> Any:
    """x less its mean over the axes, divided by the root of its variance plus eps; and one over that root."""
    deviation = x.astype(wide)
    if centered:
        deviation = deviation - np.mean(deviation, axis=axes, keepdims=True)
    scale = 1.0 / np.sqrt(np.mean(deviation * deviation, axis=axes, keepdims=True) + eps)
    return (deviation * scale).astype(x.dtype), scale


class Standardize(Fused):
    """``(x - mean) / sqrt(var + eps)`` over `axes`, and ``1 / sqrt(var + eps)`` in f32 at least.

    The variance is biased, and computed after the mean. Without `centered` the mean is taken for 0. The gradient takes
    both results: ``scale * (dy - mean(dy) - y * mean(dy * y))``.
    """

    helpers = (standardize_helper,)
    reduces = True
    multiple_results = True
    cost = 6

    def __call__(self, x: Any, axes: tuple[int, ...], eps: float, centered: bool = True) -> Any:
        return bind(self, x, axes=axes, eps=eps, centered=centered)

    def result(self, x: TensorType, **params: Any) -> Any:
        type, axes = super().result(x, **params), params["axes"]
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        return type, TensorType(kept, accumulation_dtype(x.dtype))

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...], eps: float, centered: bool) -> Any:
        (dy, d_scale), (y, scale), given = dy, y, x.dtype
        y, dx = _widened(y), None
        if dy is not None:
            dy = _widened(dy)
            dx = dy - y * ops.mean(dy * y, axes, keepdims=True)
            dx = scale * (dx - ops.mean(dy, axes, keepdims=True) if centered else dx)
        if d_scale is not None:
            count = math.prod(x.shape[axis] for axis in axes)
            of_scale = y * (-1 / max(count, 1) * d_scale * scale * scale)
            dx = of_scale if dx is None else dx + of_scale
        return ops.convert(dx, given)

    def batch(self, size: int, operands: Any, batched: Any, *, axes: tuple[int, ...], **params: Any) -> Any:
        return self(operands[0], _inner(axes), **params)


def _widened(x: Any) -> Any:
    return ops.convert(x, accumulation_dtype(x.dtype))


def _inner(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of one sample as those of a batch."""
    return tuple(axis + 1 for axis in axes)


softmax_p = Softmax()
log_softmax_p = LogSoftmax()
gelu_p = Gelu()
standardize_p = Standardize()
