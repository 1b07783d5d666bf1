"""Sums, means, extrema and what is composed of them, with NumPy's names and argument order."""

from __future__ import annotations

import math
from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import BOOL, accumulation_dtype, is_float, type_of
from antegrad.ops.arrays import Axes, listed, misfit, normalize_axes, normalize_axis, placed, reshape
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.fused import log_softmax_p, softmax_p
from antegrad.ops.promotion import unify
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
    "all", "any", "argmax", "argmin", "average", "count_nonzero", "log_softmax", "logsumexp", "max", "mean", "min",
    "nanmax", "nanmean", "nanmin", "nansum", "prod", "ptp", "softmax", "std", "sum", "var",
]  # fmt: skip


def _reduce(primitive: Any, x: Any, axis: Axes, keepdims: bool) -> Any:
    x = as_tensor(x)
    axes = normalize_axes(axis, x, primitive.name.removeprefix("reduce_"))
    result = primitive(x, axes) if axes else x
    return reshape(result, _kept_shape(x, axes)) if keepdims else result


def _kept_shape(x: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))


def _truth(x: Any) -> Any:
    x = as_tensor(x)
    return x if x.dtype == BOOL else x != 0


def countable(x: Any) -> Any:
    """bool as i32, so that it can be added up."""
    x = as_tensor(x)
    return ops.convert(x, "i32") if x.dtype == BOOL else x


def floating(x: Any, operation: str) -> Any:
    """`x` itself; a `DTypeError` for what is not float."""
    x = as_tensor(x)
    if not is_float(x.dtype):
        raise placed(DTypeError, f"{operation} is for float tensors, found {type_of(x)}: use .astype(...)")
    return x


def widened(x: Any) -> Any:
    """16-bit floats as f32, so that what is summed keeps its bits."""
    return ops.convert(x, accumulation_dtype(x.dtype))


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Sum over `axis`, or over all.

    Shapes: x (..., n, ...) gives (..., ...), or (..., 1, ...) with `keepdims`. bool counts as i32, and 16-bit floats
        are accumulated in f32.
    Edges: 0 over an empty axis; integers wrap.
    Derivative: dy for each element.
    """
    return _reduce(reduce_sum, countable(x), axis, keepdims)


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Product over `axis`, or over all.

    Shapes: as in `sum`.
    Edges: 1 over an empty axis; integers wrap.
    Derivative: dy times the product of all others, exact where factors are 0.
    """
    return _reduce(reduce_prod, countable(x), axis, keepdims)


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Largest element over `axis`, or over all.

    Shapes: as in `sum`, with the type of x.
    Edges: NaN if any is; an empty axis is a `ShapeError`.
    Derivative: dy, split evenly among the ties.
    """
    x = as_tensor(x)
    return any(x, axis, keepdims) if x.dtype == BOOL else _reduce(reduce_max, x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Smallest element over `axis`, or over all.

    Shapes: as in `sum`, with the type of x.
    Edges: NaN if any is; an empty axis is a `ShapeError`.
    Derivative: dy, split evenly among the ties.
    """
    x = as_tensor(x)
    return all(x, axis, keepdims) if x.dtype == BOOL else _reduce(reduce_min, x, axis, keepdims)


def ptp(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Largest minus smallest element over `axis`, or over all.

    Shapes: as in `sum`, with the type of x, which must be a number.
    Edges: NaN if any is; an empty axis is a `ShapeError`; signed integers wrap.
    Derivative: dy, split evenly among the ties for the largest, and -dy among those for the smallest.
    """
    return ops.subtract(max(x, axis, keepdims), min(x, axis, keepdims))


def all(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Whether all elements over `axis` are true (not 0).

    Shapes: as in `sum`, of bool.
    Edges: true over an empty axis; NaN is not 0.
    Derivative: none.
    """
    return _reduce(reduce_and, _truth(x), axis, keepdims)


def any(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Whether any element over `axis` is true (not 0).

    Shapes: as in `sum`, of bool.
    Edges: false over an empty axis; NaN is not 0.
    Derivative: none.
    """
    return _reduce(reduce_or, _truth(x), axis, keepdims)


def count_nonzero(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """How many elements over `axis` are not 0.

    Shapes: as in `sum`, of i32.
    Edges: 0 over an empty axis; NaN is not 0.
    Derivative: none.
    """
    return sum(_truth(x), axis, keepdims)


def _argument(primitive: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = as_tensor(x)
    if axis is None:
        result = primitive(reshape(x, (x.size,)), 0)
        return reshape(result, (1,) * x.ndim) if keepdims else result
    place = normalize_axis(axis, x, primitive.name)
    result = primitive(x, place)
    return reshape(result, _kept_shape(x, (place,))) if keepdims else result


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """First position of the largest element along `axis`, or in the flattened tensor.

    Shapes: as in `sum`, of i32.
    Edges: the first NaN if any is; an empty axis is a `ShapeError`.
    Derivative: none.
    """
    return _argument(argmax_p, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """First position of the smallest element along `axis`, or in the flattened tensor.

    Shapes: as in `sum`, of i32.
    Edges: the first NaN if any is; an empty axis is a `ShapeError`.
    Derivative: none.
    """
    return _argument(argmin_p, x, axis, keepdims)


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Arithmetic mean over `axis`, or over all, of floats.

    Shapes: as in `sum`; in f32 for 16-bit floats.
    Edges: NaN over an empty axis.
    Derivative: ``dy / n`` for each element.
    """
    x = floating(x, "mean")
    count = math.prod(x.shape[place] for place in normalize_axes(axis, x, "mean"))
    return ops.convert(ops.divide(sum(widened(x), axis, keepdims), count), x.dtype)


def average(x: Any, axis: Axes = None, weights: Any = None, keepdims: bool = False) -> Any:
    """Weighted mean over `axis`, or over all: ``sum(w * x) / sum(w)``.

    Shapes: as in `mean`; weights of the shape of x, or a vector along one axis.
    Edges: weights of another shape are a `ShapeError`; if their sum is 0, the result is infinite or NaN.
    Derivative: ``dy * w / sum(w)`` for x, ``dy * (x - y) / sum(w)`` for the weights.
    """
    if weights is None:
        return mean(x, axis, keepdims)
    x, weights = unify("average", floating(x, "average"), floating(weights, "average"))
    axes = normalize_axes(axis, x, "average")
    if weights.shape != x.shape:
        if len(axes) != 1 or weights.shape != (x.shape[axes[0]],):
            raise misfit(f"average: weights like x, or along one axis, are needed, found {listed((x, weights))}")
        weights = reshape(weights, (weights.size, *(1,) * (x.ndim - 1 - axes[0])))
    x_wide, w_wide = widened(x), ops.broadcast_to(widened(weights), x.shape)
    weighted = sum(ops.multiply(x_wide, w_wide), axis, keepdims)
    return ops.convert(ops.divide(weighted, sum(w_wide, axis, keepdims)), x.dtype)


def var(x: Any, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Variance over `axis`, or over all: the sum of squared deviations divided by ``n - ddof``, in two passes.

    Shapes: as in `mean`.
    Edges: NaN over an empty axis, and where n - ddof is 0.
    Derivative: ``dy * 2 * (x - mean(x)) / (n - ddof)``.
    """
    x = floating(x, "var")
    return ops.convert(_wide_var(x, axis, ddof, keepdims), x.dtype)


def _wide_var(x: Any, axis: Axes, ddof: int, keepdims: bool) -> Any:
    wide = widened(x)
    count = math.prod(x.shape[place] for place in normalize_axes(axis, x, "var"))
    deviation = ops.subtract(wide, mean(wide, axis, keepdims=True))
    return ops.divide(sum(ops.square(deviation), axis, keepdims), count - ddof)


def std(x: Any, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Standard deviation over `axis`, or over all: the root of `var`.

    Shapes: as in `mean`.
    Edges: as in `var`.
    Derivative: ``dy * (x - mean(x)) / ((n - ddof) * y)``, and 0 where y is 0.
    """
    x = floating(x, "std")
    return ops.convert(sqrt_flat_at_zero(_wide_var(x, axis, ddof, keepdims)), x.dtype)


def sqrt_flat_at_zero(x: Any) -> Any:
    """The square root, with gradient 0 at 0."""
    zero = x == 0
    return ops.where(zero, 0, ops.sqrt(ops.where(zero, 1, x)))


def nansum(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Sum over `axis`, or over all, of what is not NaN.

    Shapes: as in `sum`.
    Edges: 0 where all are NaN.
    Derivative: dy for each element, 0 for NaN.
    """
    return sum(_without_nan(x, 0), axis, keepdims)


def nanmean(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Arithmetic mean over `axis`, or over all, of what is not NaN.

    Shapes: as in `mean`.
    Edges: NaN where all are NaN.
    Derivative: ``dy / n`` for each element, with n that are not NaN, and 0 for NaN.
    """
    x = floating(x, "nanmean")
    wide = widened(x)
    count = sum(ops.convert(ops.equal(wide, wide), wide.dtype), axis, keepdims)
    return ops.convert(ops.divide(nansum(wide, axis, keepdims), count), x.dtype)


def nanmax(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Largest element over `axis`, or over all, that is not NaN.

    Shapes: as in `max`.
    Edges: NaN where all are NaN; an empty axis is a `ShapeError`.
    Derivative: dy, split evenly among the ties.
    """
    return _nan_extremum(max, x, axis, keepdims, -math.inf)


def nanmin(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """Smallest element over `axis`, or over all, that is not NaN.

    Shapes: as in `min`.
    Edges: NaN where all are NaN; an empty axis is a `ShapeError`.
    Derivative: dy, split evenly among the ties.
    """
    return _nan_extremum(min, x, axis, keepdims, math.inf)


def _without_nan(x: Any, instead: float) -> Any:
    x = as_tensor(x)
    return ops.where(ops.isnan(x), instead, x) if is_float(x.dtype) else x


def _nan_extremum(reduction: Any, x: Any, axis: Axes, keepdims: bool, instead: float) -> Any:
    found = reduction(_without_nan(x, instead), axis, keepdims)
    return ops.where(all(ops.isnan(x), axis, keepdims), math.nan, found) if is_float(found.dtype) else found


def logsumexp(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """``log(sum(exp(x)))`` over `axis`, or over all, without overflow.

    Shapes: as in `mean`.
    Edges: -inf where all x are -inf, and over an empty axis.
    Derivative: ``dy * softmax(x)``; 0 where all x are -inf.
    """
    x = floating(x, "logsumexp")
    axes = normalize_axes(axis, x, "logsumexp")
    if math.prod(x.shape[place] for place in axes) == 0:
        shape = _kept_shape(x, axes) if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
        return ops.full(shape, -math.inf, x.dtype)
    wide = widened(x)
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
    """``exp(x) / sum(exp(x))`` along `axis`, without overflow.

    Shapes: x (..., n, ...) gives the same shape; in f32 for 16-bit floats.
    Edges: 0 where all x are -inf.
    Derivative: ``y * (dy - sum(dy * y))``.
    """
    x = floating(x, "softmax")
    axes = normalize_axes(axis, x, "softmax")
    if x.size == 0:
        return x
    return softmax_p(x, axes)


def log_softmax(x: Any, axis: Axes = -1) -> Any:
    """``x - logsumexp(x)`` along `axis`, without overflow.

    Shapes: x (..., n, ...) gives the same shape; in f32 for 16-bit floats.
    Edges: -inf where all x are -inf.
    Derivative: ``dy - softmax(x) * sum(dy)``.
    """
    x = floating(x, "log_softmax")
    axes = normalize_axes(axis, x, "log_softmax")
    if x.size == 0:
        return x
    return log_softmax_p(x, axes)
