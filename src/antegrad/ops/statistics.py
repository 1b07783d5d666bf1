"""Sums, means, extrema and what is composed of them, with NumPy's names and argument order."""

from __future__ import annotations

import math
from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import BOOL, accumulation_dtype, is_float
from antegrad.ops.arrays import Axes, normalize_axes, normalize_axis, reshape
from antegrad.ops.dispatch import as_tensor, here
from antegrad.ops.reduce import (
    argmax_p,
    argmin_p,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
)

__all__ = [
    "all", "any", "argmax", "argmin", "log_softmax", "logsumexp", "max", "mean", "min", "norm", "prod", "softmax",
    "std", "sum", "var",
]  # fmt: skip


def _reduce(primitive: Any, x: Any, axis: Axes, keepdims: bool) -> Any:
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim, primitive.name)
    result = primitive(x, axes) if axes else x
    return reshape(result, _kept_shape(x, axes)) if keepdims else result


def _kept_shape(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))


def _truth(x: Any) -> Any:
    x = as_tensor(x)
    return x if x.dtype == BOOL else x != 0


def _countable(x: Any) -> Any:
    x = as_tensor(x)
    return ops.convert(x, "i32") if x.dtype == BOOL else x


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Sum over `axis`, or over all. bool counts as i32; 16-bit floats are accumulated in f32."""
    return _reduce(reduce_sum, _countable(x), axis, keepdims)


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Product over `axis`, or over all; its gradient is exact where factors are 0."""
    return _reduce(reduce_prod, _countable(x), axis, keepdims)


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Largest element over `axis`; the gradient is split evenly among ties. An empty axis is a `ShapeError`."""
    x = as_tensor(x)
    return any(x, axis, keepdims) if x.dtype == BOOL else _reduce(reduce_max, x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Smallest element over `axis`; the gradient is split evenly among ties. An empty axis is a `ShapeError`."""
    x = as_tensor(x)
    return all(x, axis, keepdims) if x.dtype == BOOL else _reduce(reduce_min, x, axis, keepdims)


def all(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Whether all elements over `axis` are true (not 0)."""
    return _reduce(reduce_and, _truth(x), axis, keepdims)


def any(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Whether any element over `axis` is true (not 0)."""
    return _reduce(reduce_or, _truth(x), axis, keepdims)


def _argument(primitive: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = as_tensor(x)
    if axis is None:
        result = primitive(reshape(x, (x.size,)), 0)
        return reshape(result, (1,) * x.ndim) if keepdims else result
    place = normalize_axis(axis, x.ndim, primitive.name)
    result = primitive(x, place)
    return reshape(result, _kept_shape(x, (place,))) if keepdims else result


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """First position (i32) of the largest element along `axis`, or in the flattened tensor."""
    return _argument(argmax_p, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """First position (i32) of the smallest element along `axis`, or in the flattened tensor."""
    return _argument(argmin_p, x, axis, keepdims)


def _floating(x: Any, operation: str) -> Any:
    x = as_tensor(x)
    if not is_float(x.dtype):
        place = str(here())
        raise DTypeError(
            f"{operation} is for float tensors, found {x.dtype}{list(x.shape)}: use .astype(...)"
            + (f"\n  at {place}" if place else "")
        )
    return x


def _wide(x: Any) -> Any:
    """16-bit floats as f32, so that what is summed keeps its bits."""
    return ops.convert(x, accumulation_dtype(x.dtype))


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Arithmetic mean over `axis`, of floats; NaN over an empty axis."""
    x = _floating(x, "mean")
    count = math.prod(x.shape[place] for place in normalize_axes(axis, x.ndim, "mean"))
    return ops.convert(ops.divide(sum(_wide(x), axis, keepdims), count), x.dtype)


def var(x: Any, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Variance over `axis`: the mean of squared deviations, with ``count - ddof`` in the denominator (two passes)."""
    x = _floating(x, "var")
    return ops.convert(_wide_var(x, axis, ddof, keepdims), x.dtype)


def _wide_var(x: Any, axis: Axes, ddof: int, keepdims: bool) -> Any:
    wide = _wide(x)
    count = math.prod(x.shape[place] for place in normalize_axes(axis, x.ndim, "var"))
    deviation = ops.subtract(wide, mean(wide, axis, keepdims=True))
    return ops.divide(sum(ops.square(deviation), axis, keepdims), count - ddof)


def std(x: Any, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Standard deviation over `axis`; its gradient where it is 0 is 0."""
    x = _floating(x, "std")
    return ops.convert(_sqrt_flat_at_zero(_wide_var(x, axis, ddof, keepdims)), x.dtype)


def norm(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Euclidean norm over `axis`; its gradient at the zero vector is 0."""
    x = _floating(x, "norm")
    return ops.convert(_sqrt_flat_at_zero(sum(ops.square(_wide(x)), axis, keepdims)), x.dtype)


def _sqrt_flat_at_zero(x: Any) -> Any:
    zero = x == 0
    return ops.where(zero, 0, ops.sqrt(ops.where(zero, 1, x)))


def logsumexp(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """``log(sum(exp(x)))`` over `axis` without overflow; -inf, with gradient 0, where all x are -inf or none is."""
    x = _floating(x, "logsumexp")
    axes = normalize_axes(axis, x.ndim, "logsumexp")
    if math.prod(x.shape[place] for place in axes) == 0:
        shape = _kept_shape(x, axes) if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
        return ops.full(shape, -math.inf, x.dtype)
    wide = _wide(x)
    top = _finite_top(wide, axes)
    total = sum(ops.exp(ops.subtract(wide, top)), axes, keepdims=True)
    result = ops.where(total == 0, -math.inf, ops.add(ops.log(_not_zero(total)), top))
    if not keepdims:
        result = reshape(result, tuple(n for i, n in enumerate(x.shape) if i not in axes))
    return ops.convert(result, x.dtype)


def _finite_top(x: Any, axes: Axes) -> Any:
    """The largest element, kept out of the gradient; 0 where it is infinite, so that x - top is never NaN."""
    top = ops.stop_gradient(max(x, axes, keepdims=True))
    return ops.where(ops.isfinite(top), top, 0)


def _not_zero(total: Any) -> Any:
    """A sum of exponentials with 1 in place of 0, so that neither value nor gradient becomes NaN."""
    return ops.where(total == 0, 1, total)


def softmax(x: Any, axis: Axes = -1) -> Any:
    """``exp(x) / sum(exp(x))`` along `axis`, in f32 for 16-bit floats; 0 where all x are -inf."""
    x = _floating(x, "softmax")
    axes = normalize_axes(axis, x.ndim, "softmax")
    if x.size == 0:
        return x
    wide = _wide(x)
    exponentials = ops.exp(ops.subtract(wide, _finite_top(wide, axes)))
    total = sum(exponentials, axes, keepdims=True)
    return ops.convert(ops.divide(exponentials, _not_zero(total)), x.dtype)


def log_softmax(x: Any, axis: Axes = -1) -> Any:
    """``x - logsumexp(x)`` along `axis`, in f32 for 16-bit floats; -inf where all x are -inf."""
    x = _floating(x, "log_softmax")
    axes = normalize_axes(axis, x.ndim, "log_softmax")
    if x.size == 0:
        return x
    wide = _wide(x)
    shifted = ops.subtract(wide, _finite_top(wide, axes))
    total = sum(ops.exp(shifted), axes, keepdims=True)
    return ops.convert(ops.subtract(shifted, ops.log(_not_zero(total))), x.dtype)
