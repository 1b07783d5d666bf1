"""Order statistics: medians, quantiles, the largest elements, and places in what is sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.types import DTYPES, type_of
from antegrad.ops.arrays import Axes, as_shape, listed, misfit, normalize_axes, normalize_axis
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.elementwise import mul_no_nan
from antegrad.ops.promotion import unify
from antegrad.ops.sort import sort, sort_p
from antegrad.ops.statistics import floating, widened
from antegrad.ops.tensor import Tensor

__all__ = ["median", "percentile", "quantile", "searchsorted", "top_k"]

METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def median(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The element in the middle of the sorted ones over `axis`, or over all; the mean of two for an even number.

    Shapes: x (..., n, ...) gives (..., ...); in f32 for 16-bit floats.
    Edges: NaN if any is; an empty axis is a `ShapeError`.
    Derivative: dy for that element, or half of it for each of the two. Of equal elements the order is that of `sort`.
    """
    return _quantile("median", x, 0.5, axis, keepdims, "linear")


def quantile(
    x: Any, q: float | Sequence[float] | Any, axis: Axes = None, keepdims: bool = False, method: str = "linear"
) -> Any:
    """What lies at the fraction `q` of the way through the sorted elements over `axis`, or over all.

    Between two neighbours `method` decides: "linear" interpolates, "lower", "higher" and "nearest" (at a half: the even
    place) take one, and "midpoint" is their mean.

    Shapes: x (..., n, ...) and q (k) give (k, ..., ...), without k for one number; in f32 for 16-bit floats.
    Edges: NaN if any x is; an empty axis is a `ShapeError`. A number q outside of 0 to 1 is a `ShapeError`; in an array
        it is clamped.
    Derivative: dy for the two neighbours by their weights; for an array q and "linear", dy times their difference.
    """
    return _quantile("quantile", x, q, axis, keepdims, method)


def percentile(
    x: Any, q: float | Sequence[float] | Any, axis: Axes = None, keepdims: bool = False, method: str = "linear"
) -> Any:
    """What lies at `q` percent of the way through the sorted elements: ``quantile(x, q / 100)``.

    Shapes: as in `quantile`.
    Edges: as in `quantile`, with q from 0 to 100.
    Derivative: as in `quantile`.
    """
    return _quantile("percentile", x, q, axis, keepdims, method, whole=100)


def _quantile(operation: str, x: Any, q: Any, axis: Axes, keepdims: bool, method: str, whole: int = 1) -> Any:
    x = floating(x, operation)
    axes = normalize_axes(axis, x, operation)
    kept = tuple(place for place in range(x.ndim) if place not in axes)
    count = math.prod(x.shape[place] for place in axes)
    if count == 0 or method not in METHODS:
        problem = f"method must be one of {', '.join(METHODS)}, found {method!r}"
        raise misfit(f"{operation}: {problem if count else f'{type_of(x)} has no element over axis {axis}'}")
    lead = tuple(x.shape[place] for place in kept)
    rows = widened(sort(ops.reshape(ops.transpose(x, (*kept, *axes)), (*lead, count)), -1))
    known = not isinstance(q, (Tensor, np.ndarray))
    if known:
        place = _known_fractions(operation, q, whole) * (count - 1)
    else:
        fractions = ops.convert(floating(q, operation), rows.dtype) / whole
        place = ops.clip(fractions * (count - 1), 0, count - 1)
    result = _interpolated(rows, place, method, known)
    last = ops.reshape(rows[..., -1:], (*lead, *(1,) * place.ndim))
    result = ops.where(ops.isnan(last), math.nan, result)
    result = ops.moveaxis(result, range(len(lead), result.ndim), range(place.ndim))
    if keepdims:
        result = ops.reshape(result, (*place.shape, *(1 if i in axes else size for i, size in enumerate(x.shape))))
    return ops.convert(result, x.dtype)


def _known_fractions(operation: str, q: Any, whole: int) -> Any:
    """Fractions of `whole`, in f64."""
    try:
        fractions = np.asarray(q, np.float64) / whole
    except (TypeError, ValueError):
        fractions = np.asarray(math.nan)
    if not ((fractions >= 0) & (fractions <= 1)).all():
        raise misfit(f"{operation}: numbers from 0 to {whole} are needed, found {q!r}")
    return fractions


def _interpolated(rows: Any, place: Any, method: str, known: bool) -> Any:
    """What lies at `place` of the last axis of sorted rows. What is known is left out of the program if it is 0."""
    low, high = np.floor(place), np.ceil(place)
    if method == "nearest":
        low = np.rint(place)
    first = _at(rows, high if method == "higher" else low, known)
    if method in ("lower", "higher", "nearest") or (known and (low == place).all()):
        return first
    weight = (place - low).astype(rows.dtype)
    if method == "midpoint":
        weight = (weight > 0).astype(rows.dtype) * 0.5
    return ops.add(mul_no_nan(1 - weight, first), mul_no_nan(weight, _at(rows, high, known)))


def _at(rows: Any, place: Any, known: bool) -> Any:
    place = place.astype(np.int32) if known else ops.convert(place, "i32")
    if known and place.ndim == 0:
        return ops.getitem(rows, (..., int(place)))
    return ops.take_p(rows, place, rows.ndim - 1)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The `k` largest elements along `axis` in descending order, and their positions (i32).

    Shapes: x (..., n, ...) gives two of (..., k, ...).
    Edges: of equal elements the first comes first; NaN counts as larger than all numbers. k > n is a `ShapeError`.
    Derivative: dy of the values for the elements chosen, zeros elsewhere.
    """
    x = as_tensor(x)
    place, (count,) = normalize_axis(axis, x, "top_k"), as_shape(k, "top_k")
    if count > x.shape[place]:
        raise misfit(f"top_k: {type_of(x)} has no {count} elements along axis {place}")
    # The last of a stable ascending order, read from the end, is a stable descending one of the reversed axis.
    backwards = ops.flip(x, place), ops.flip(ops.iota(x.shape, DTYPES["i32"], place), place)
    last = (*[slice(None)] * place, slice(x.shape[place] - count, None))
    values, positions = (ops.flip(ops.getitem(part, last), place) for part in sort_p(backwards, place))
    return values, positions


def searchsorted(sorted: Any, values: Any, side: str = "left") -> Any:
    """Where each value would be put into a sorted vector: before all elements that are not smaller.

    With ``side="right"`` behind all that are not larger. A binary search of fixed length.

    Shapes: sorted (n,) and values (...) give (...) of i32, from 0 to n.
    Edges: NaN counts as larger than all numbers, as in `sort`.
    Derivative: none.
    """
    sorted, values = (ops.stop_gradient(each) for each in unify("searchsorted", as_tensor(sorted), as_tensor(values)))
    if sorted.ndim != 1 or side not in ("left", "right"):
        raise misfit(f"searchsorted: a vector and side 'left' or 'right', found {listed((sorted, values))}, {side!r}")
    low, high = (ops.full(values.shape, end, "i32") for end in (0, sorted.size))
    for _ in range(sorted.size.bit_length()):
        middle = (low + high) // 2
        found = ops.take_p(sorted, middle, 0)
        before = _less(found, values) if side == "left" else ops.logical_not(_less(values, found))
        before = before & (low < high)
        low, high = ops.where(before, middle + 1, low), ops.where(before, high, ops.minimum(high, middle))
    return low


def _less(x: Any, y: Any) -> Any:
    """``x < y`` with NaN as the largest."""
    return (x < y) | ((y != y) & (x == x))
