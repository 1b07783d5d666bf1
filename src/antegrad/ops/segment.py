"""Reductions over the rows that share a segment id. Rows whose id is out of range belong to no segment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import BOOL, is_float, is_integer, type_of
from antegrad.ops.arrays import as_shape, listed, misfit, placed
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.index import scatter_p
from antegrad.ops.indexing import at_least_32_bits
from antegrad.ops.statistics import countable, floating, widened

__all__ = ["bincount", "segment_max", "segment_mean", "segment_min", "segment_sum"]


def _reduced(operation: str, data: Any, segment_ids: Any, num_segments: int, mode: str, start: Any) -> Any:
    """Rows combined by id, in a tensor with one more row for those whose id is out of range, which is cut off."""
    data, ids = as_tensor(data), as_tensor(segment_ids)
    (count,) = as_shape(num_segments, operation)
    if not is_integer(ids.dtype):
        raise placed(DTypeError, f"{operation}: a segment id must be an integer, found {type_of(ids)}")
    if ids.ndim == 0 or data.shape[: ids.ndim] != ids.shape:
        raise misfit(f"{operation}: ids with the leading axes of the data are needed, found {listed((data, ids))}")
    ids = at_least_32_bits(ids)
    places = ops.convert(ops.where((ids < 0) | (ids >= count), count, ids), "i32")
    rows = ops.reshape(data, (ids.size, *data.shape[ids.ndim :]))
    initial = ops.full((count + 1, *rows.shape[1:]), start, data.dtype)
    return ops.getitem(scatter_p(initial, ops.ravel(places), rows, 0, mode), slice(count))


def segment_sum(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """Sum of the rows of each segment: ``y[s] = sum(data[i] for i with segment_ids[i] == s)``.

    Shapes: data (n, ...) and integers (n,) give (num_segments, ...); ids of more axes stand for as many of data. bool
        counts as i32, and 16-bit floats are accumulated in f32.
    Edges: a row whose id is negative or not below `num_segments` is dropped; an empty segment gives 0.
    Derivative: dy of its segment for each row, 0 for a dropped one.
    """
    return _reduced("segment_sum", countable(data), segment_ids, num_segments, "add", 0)


def segment_mean(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """Mean of the rows of each segment, of floats.

    Shapes: as in `segment_sum`; in f32 for 16-bit floats.
    Edges: a row whose id is negative or not below `num_segments` is dropped; an empty segment gives 0.
    Derivative: ``dy[s] / size of s`` for each row of segment s, 0 for a dropped one.
    """
    data = floating(data, "segment_mean")
    wide = widened(data)
    total = _reduced("segment_mean", wide, segment_ids, num_segments, "add", 0)
    sizes = segment_sum(np.ones(as_tensor(segment_ids).shape, wide.dtype), segment_ids, num_segments)
    sizes = ops.reshape(ops.maximum(sizes, 1), (*sizes.shape, *(1,) * (total.ndim - 1)))
    return ops.convert(total / sizes, data.dtype)


def segment_max(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """Largest row element of each segment.

    Shapes: as in `segment_sum`.
    Edges: a row whose id is negative or not below `num_segments` is dropped; an empty segment gives -inf, or the lowest
        integer. NaN if any is.
    Derivative: dy of its segment, split evenly among the ties; 0 for a dropped row.
    """
    data = as_tensor(data)
    return _reduced("segment_max", data, segment_ids, num_segments, "max", _limit(data.dtype, lowest=True))


def segment_min(data: Any, segment_ids: Any, num_segments: int) -> Any:
    """Smallest row element of each segment.

    Shapes: as in `segment_sum`.
    Edges: a row whose id is negative or not below `num_segments` is dropped; an empty segment gives inf, or the highest
        integer. NaN if any is.
    Derivative: dy of its segment, split evenly among the ties; 0 for a dropped row.
    """
    data = as_tensor(data)
    return _reduced("segment_min", data, segment_ids, num_segments, "min", _limit(data.dtype, lowest=False))


def _limit(dtype: np.dtype, lowest: bool) -> Any:
    """The lowest or highest value of a type, which no element changes as an extremum."""
    if is_float(dtype):
        return -math.inf if lowest else math.inf
    if dtype == BOOL:
        return not lowest
    return int(np.iinfo(dtype).min if lowest else np.iinfo(dtype).max)


def bincount(x: Any, length: int, weights: Any = None) -> Any:
    """How often each integer from 0 to ``length - 1`` stands in `x` (i32), or the sum of the weights beside it.

    Shapes: integers (...) and weights (...) give (length,).
    Edges: integers that are negative or not below `length` are not counted.
    Derivative: for the weights dy at the integer beside each, 0 where that is not counted.
    """
    x = as_tensor(x)
    if weights is None:
        return _reduced("bincount", ops.ones(x.shape, "i32"), x, length, "add", 0)
    return _reduced("bincount", countable(weights), x, length, "add", 0)
