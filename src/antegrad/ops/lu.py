"""LU with partial pivoting. XLA has no operation for it: it eliminates column by column in a loop, in halves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.program import Equation
from antegrad.ir.types import DTYPES, TensorType
from antegrad.ops.composition import composed
from antegrad.ops.control import scan_p
from antegrad.ops.decomposition import PANEL, Decomposition, mirrored, triangular_solve_p
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.index import dynamic_slice_p, take_p
from antegrad.ops.reduce import argmax_p
from antegrad.ops.shape import iota

__all__ = ["lu"]

I32 = DTYPES["i32"]


def lu_helper(x: Any) -> Any:
    """L and U in one array, the row exchanged with each, and the order of rows, column by column."""
    rows, columns = x.shape[-2:]
    lead, count = x.shape[:-2], min(rows, columns)
    a = x.reshape(int(np.prod(lead)), rows, columns).copy()
    batch, order = np.arange(len(a)), np.tile(np.arange(rows, dtype=np.int32), (len(a), 1))
    pivots = np.zeros((len(a), count), np.int32)
    for k in range(count):
        place = pivots[:, k] = k + np.argmax(np.abs(a[:, k:, k]), axis=1)
        for array in (a, order):
            found = array[batch, place]
            array[batch, place] = array[:, k]
            array[:, k] = found
        pivot = a[:, k, None, k]
        a[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)
        a[:, k + 1 :, k + 1 :] -= a[:, k + 1 :, k, None] * a[:, k, None, k + 1 :]
    return a.reshape(x.shape), pivots.reshape(*lead, count), order.reshape(*lead, rows)


class Lu(Decomposition):
    """``x[permutation] = L @ U`` with partial pivoting: L (diagonal 1) and U packed, pivots, permutation."""

    numpy = "lu_helper({x})"
    helpers = (lu_helper,)
    multiple_results = True

    def result(self, x: TensorType) -> tuple[TensorType, ...]:
        rows, columns = self.matrix(x).shape[-2:]
        exchanged, order = ((*x.shape[:-2], size) for size in (min(rows, columns), rows))
        return x, TensorType(exchanged, I32), TensorType(order, I32)

    def formula(self, x: Any) -> Any:
        count = math.prod(x.shape[:-2])
        packed, pivots, order = _halved(ops.reshape(x, (count, *x.shape[-2:])))
        lead = x.shape[:-2]
        return tuple(ops.reshape(part, (*lead, *part.shape[1:])) for part in (packed, pivots, order))

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        if dy[0] is None:
            return None
        packed, _, order = y
        size = min(x.shape[-2:])
        lower, upper, top = packed[..., :size], packed[..., :size, :], packed[..., :size, :size]
        d_lower, d_upper = ops.tril(dy[0][..., :size], -1), ops.triu(dy[0][..., :size, :])
        below, right = d_lower[..., size:, :], d_upper[..., size:]
        inner = mirrored(_unit_lower(top)) @ d_lower[..., :size, :] - right @ mirrored(upper[..., size:])
        outer = d_upper[..., :size] @ mirrored(ops.triu(top)) - mirrored(lower[..., size:, :]) @ below
        core = triangular_solve_p(top, ops.tril(inner, -1) + ops.triu(outer), True, True, True)
        columns = ops.concatenate([core, below], -2)
        columns = mirrored(triangular_solve_p(top, mirrored(columns), lower=False))
        rest = triangular_solve_p(top, right, True, True, True)
        return rows_at(ops.concatenate([columns, rest], -1) if rest.shape[-1] else columns, ops.argsort(order, -1))

    def flops(self, equation: Equation) -> int:
        type = equation.input_types[0]
        rows, columns = type.shape[-2:]
        small, large = min(rows, columns), max(rows, columns)
        return math.prod(type.shape[:-2]) * small * small * (3 * large - small) // 3


def _unit_lower(packed: Any) -> Any:
    return ops.tril(packed, -1) + ops.eye(packed.shape[-1], dtype=packed.dtype)


def rows_at(x: Any, order: Any) -> Any:
    """The rows of each matrix in the order that belongs to it."""
    lead, rows, width = x.shape[:-2], x.shape[-2], x.shape[-1]
    count = math.prod(lead)
    places = ops.reshape(order, (count, order.shape[-1])) + ops.expand_dims(ops.arange(count) * rows, 1)
    return ops.reshape(take_p(ops.reshape(x, (count * rows, width)), places, 0), (*lead, order.shape[-1], width))


def _halved(x: Any) -> tuple[Any, Any, Any]:
    """LU of a batch of matrices: of the left half of the columns, then of what that leaves of the right half.

    Source: Toledo, "Locality of reference in LU decomposition with partial pivoting" (1997).
    """
    size = min(x.shape[-2:])
    if size <= PANEL:
        return _panel(x)
    half = size // 2
    left, first, order = _halved(x[..., :half])
    right = rows_at(x[..., half:], order)
    top = triangular_solve_p(left[..., :half, :], right[..., :half, :], unit_diagonal=True)
    rest, second, below = _halved(right[..., half:, :] - left[..., half:, :] @ top)
    under = rows_at(left[..., half:, :], below)
    rows = [ops.concatenate([left[..., :half, :], top], -1), ops.concatenate([under, rest], -1)]
    moved = rows_at(ops.expand_dims(order[..., half:], -1), below)[..., 0]
    pivots = ops.concatenate([first, second + half], -1)
    return ops.concatenate(rows, -2), pivots, ops.concatenate([order[..., :half], moved], -1)


def _panel(x: Any) -> tuple[Any, Any, Any]:
    """LU column by column, in a loop."""
    count, rows, columns = x.shape
    steps = min(rows, columns)
    order = ops.broadcast_to(iota((rows,), I32, 0), (count, rows))
    if x.size == 0:
        return x, ops.zeros((count, steps), "i32"), order
    types = x.type, TensorType((count, rows), I32), TensorType((), I32)
    body = composed(_eliminated, *types)
    packed, order, pivots = bind(
        scan_p, x, order, ops.arange(steps), body=body, counts=(0, 2), length=steps, reverse=False
    )
    return packed, ops.transpose(pivots), order


def _eliminated(x: Any, order: Any, step: Any) -> tuple[Any, Any, Any]:
    """Column `step` eliminated below the diagonal, after the exchange of its largest element's row with row `step`.

    A column of zeros is left as it is.
    """
    count, rows, columns = x.shape
    row, column, zero = iota((1, rows, 1), I32, 1), iota((1, 1, columns), I32, 2), np.int32(0)
    values = dynamic_slice_p(x, (zero, zero, step), (count, rows, 1))
    place = argmax_p(ops.reshape(ops.where(row < step, -1, ops.abs(values)), (count, rows)), 1)
    places, here = ops.reshape(place, (count, 1, 1)), row == step
    found = rows_at(x, ops.expand_dims(place, 1))
    above = dynamic_slice_p(x, (zero, step, zero), (count, 1, columns))
    exchanged = ops.where(here, found, ops.where(row == places, above, x))
    pivot, lifted = (dynamic_slice_p(line, (zero, zero, step), (count, 1, 1)) for line in (found, above))
    factor = ops.where(row == places, lifted, values) / ops.where(pivot == 0, 1, pivot)
    below = ops.where(column > step, exchanged - factor * found, ops.where(column == step, factor, exchanged))
    own = ops.expand_dims(order, -1)
    first, last = dynamic_slice_p(own, (zero, step, zero), (count, 1, 1)), rows_at(own, ops.expand_dims(place, 1))
    order = ops.where(here, last, ops.where(row == places, first, own))[..., 0]
    return ops.where(row > step, below, exchanged), order, place


lu_p = Lu()


def lu(x: Any) -> tuple[Any, Any, Any]:
    """``x[permutation] = L @ U`` by Gaussian elimination with partial pivoting: ``(packed, pivots, permutation)``.

    Shapes: x (..., m, n) gives packed (..., m, n), L below the diagonal (its own is 1) and U on and above it; pivots
    i32 (..., min(m, n)), the row exchanged with each; permutation i32 (..., m). f32 and f64.
    Edges: of equal candidates the first row is taken; a column of zeros is left as it is, and U has a 0 there.
    Derivative: of packed, for fixed exchanges; NaN where U has a 0 on its diagonal.
    """
    return lu_p(as_tensor(x))
