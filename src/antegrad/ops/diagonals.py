"""Diagonals and triangles of matrices, with NumPy's names and argument order."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.types import BOOL, DTYPES, type_of
from antegrad.ops.arrays import as_integer, misfit, moveaxis, normalize_axis, reshape
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.shape import iota, pad_p

__all__ = ["diag", "diagonal", "trace", "tril", "triu"]


def _triangle(operation: str, x: Any, offset: int, lower: bool) -> Any:
    x = as_tensor(x)
    if x.ndim < 2:
        raise misfit(f"{operation}: a matrix or a stack of them is needed, found {type_of(x)}")
    shape = x.shape[-2:]
    rows, columns = (iota(shape, DTYPES["i32"], axis) for axis in (0, 1))
    diagonal = ops.add(rows, as_integer(offset, operation))
    keep = columns <= diagonal if lower else columns >= diagonal
    return ops.where(keep, x, False if x.dtype == BOOL else 0)


def tril(x: Any, k: int = 0) -> Any:
    """`x` with zeros above the k-th diagonal of its last two axes.

    Shapes: x (..., m, n) gives the same shape; fewer than two axes are a `ShapeError`.
    Edges: k beyond the border gives x or zeros; NaN and infinities above the diagonal become 0.
    Derivative: dy with the same zeros.
    """
    return _triangle("tril", x, k, lower=True)


def triu(x: Any, k: int = 0) -> Any:
    """`x` with zeros below the k-th diagonal of its last two axes.

    Shapes: x (..., m, n) gives the same shape; fewer than two axes are a `ShapeError`.
    Edges: k beyond the border gives x or zeros; NaN and infinities below the diagonal become 0.
    Derivative: dy with the same zeros.
    """
    return _triangle("triu", x, k, lower=False)


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements ``x[i, i + offset]`` of two axes, along a new last axis.

    Shapes: x (m, n, ...) gives (..., d), with d the length of the diagonal.
    Edges: an offset beyond the matrix gives an empty diagonal; the same axis twice is a `ShapeError`.
    Derivative: dy on the diagonal, zeros elsewhere.
    """
    x, offset = as_tensor(x), as_integer(offset, "diagonal")
    axes = [normalize_axis(axis, x, "diagonal") for axis in (axis1, axis2)]
    if axes[0] == axes[1]:
        raise misfit(f"diagonal: two different axes of {type_of(x)} are needed, found {axis1} and {axis2}")
    x = moveaxis(x, axes, (-2, -1))
    *lead, rows, columns = x.shape
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    if count == 0:
        return ops.zeros((*lead, 0), x.dtype)
    start = offset if offset > 0 else -offset * columns
    flat = reshape(x, (*lead, rows * columns))
    return ops.getitem(flat, (..., slice(start, start + (count - 1) * (columns + 1) + 1, columns + 1)))


def diag(x: Any, k: int = 0) -> Any:
    """The k-th diagonal of a matrix; or the square matrix with the vector `x` on its k-th diagonal, zeros elsewhere.

    Shapes: x (m, n) gives a vector; (n,) gives (n + |k|, n + |k|). Other numbers of axes are a `ShapeError`.
    Edges: an empty vector gives a matrix of (|k|, |k|) zeros; a k beyond the border an empty diagonal.
    Derivative: dy on the diagonal; or the k-th diagonal of dy.
    """
    x, k = as_tensor(x), as_integer(k, "diag")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise misfit(f"diag: a vector or a matrix is needed, found {type_of(x)}: use diagonal for more axes")
    size = x.size + abs(k)
    before = k if k > 0 else -k * size
    after = size * size - before - (max(x.size - 1, 0) * (size + 1) + min(x.size, 1))
    return reshape(pad_p(x, np.asarray(0, x.dtype), (before,), (after,), (size,)), (size, size))


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Sum of the diagonal of two axes: ``x[0, offset] + x[1, 1 + offset] + ...``.

    Shapes: x (m, n, ...) gives (...); bool counts as i32, and 16-bit floats are accumulated in f32.
    Edges: 0 for an empty diagonal.
    Derivative: dy on the diagonal, zeros elsewhere.
    """
    return ops.sum(diagonal(x, offset, axis1, axis2), -1)
