"""Repeating, rolling and padding along axes, with NumPy's names and argument order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.types import BOOL, type_of
from antegrad.ops.arrays import as_number, as_shape, broadcast_to, expand_dims, misfit, normalize_axis, ravel, reshape
from antegrad.ops.dispatch import as_array, as_tensor
from antegrad.ops.shape import concatenate_p, pad_p

__all__ = ["pad", "repeat", "roll", "tile"]

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def tile(x: Any, repeats: int | Sequence[int]) -> Any:
    """`x` repeated as a whole, along each axis.

    Shapes: x (m, n) and repeats (a, b) give (a * m, b * n); the shorter of shape and repeats gets ones in front.
    Edges: a negative number of repeats is a `ShapeError`; 0 gives an empty axis.
    Derivative: the sum of dy over all copies.
    """
    x, counts = as_tensor(x), as_shape(repeats, "tile")
    counts = (1,) * (x.ndim - len(counts)) + counts
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    spread = tuple(size for pair in zip(counts, shape, strict=True) for size in pair)
    ones = tuple(size for n in shape for size in (1, n))
    return reshape(broadcast_to(reshape(x, ones), spread), tuple(c * n for c, n in zip(counts, shape, strict=True)))


def repeat(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Any:
    """Every element along `axis` repeated in place; axis None flattens.

    Shapes: x (..., n, ...) and one number k give (..., n * k, ...); n numbers give their sum.
    Edges: a negative number, or another length than 1 or n, is a `ShapeError`.
    Derivative: the sum of dy over the copies of each element.
    """
    x, axis = (ravel(x), 0) if axis is None else (as_tensor(x), axis)
    place, counts = normalize_axis(axis, x, "repeat"), as_shape(repeats, "repeat")
    size = x.shape[place]
    if len(counts) not in (1, size):
        raise misfit(f"repeat: {type_of(x)} along axis {place} takes 1 or {size} numbers of repeats, found {repeats}")
    if len(set(counts)) > 1:
        return ops.take_p(x, np.repeat(np.arange(size, dtype=np.int32), counts), place)
    count = counts[0] if counts else 1
    before, after = x.shape[:place], x.shape[place + 1 :]
    copies = broadcast_to(expand_dims(x, place + 1), (*before, size, count, *after))
    return reshape(copies, (*before, size * count, *after))


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Any:
    """Elements moved by `shift` places along `axis`, from the end back to the start; axis None rolls the flattened x.

    Shapes: that of x; several shifts and axes must be as many, or one.
    Edges: shifts beyond the size go round again.
    Derivative: dy rolled back.
    """
    x = as_tensor(x)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    shifts = as_shape(shift, "roll", lowest=-math.inf)
    axes = [normalize_axis(each, x, "roll") for each in (axis if isinstance(axis, Iterable) else (axis,))]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise misfit(f"roll: as many shifts as axes are needed, or one, found {shift} and {axis}")
    for step, place in np.broadcast(shifts, axes):
        size = x.shape[place]
        cut = size - step % size if size else 0
        if cut not in (0, size):
            before = (slice(None),) * place
            x = concatenate_p([ops.getitem(x, (*before, part)) for part in (slice(cut, None), slice(cut))], place)
    return x


def pad(x: Any, widths: Any, mode: str = "constant", value: Any = 0) -> Any:
    """`x` with `widths` elements around it: `value`, or elements of x as `mode` says.

    The modes are those of ``np.pad``: "constant"; "edge" repeats the last element, "reflect" mirrors at it without it,
    "symmetric" with it, and "wrap" goes on at the other end.

    Shapes: one width, a pair (before, after), or a pair an axis; x (n,) gives (before + n + after,).
    Edges: a negative width is a `ShapeError`, and so is a mode without "constant" on an empty axis or with a `value`.
    Derivative: for x the sum of dy over all places of each element, for `value` the sum over the padding.
    """
    x = as_tensor(x)
    pairs = _pairs(x, widths)
    if mode not in MODES:
        raise misfit(f"pad: mode must be one of {', '.join(MODES)}, found {mode!r}")
    if mode == "constant":
        truth = x.dtype == BOOL and isinstance(value, int) and value in (0, 1)
        fill = value if hasattr(value, "dtype") else as_number(bool(value) if truth else value, x.dtype, "pad")
        low, high = ([pair[side] for pair in pairs] for side in (0, 1))
        return pad_p(x, fill, low, high, (0,) * x.ndim)
    if not isinstance(value, int) or value != 0:
        raise misfit(f"pad: mode {mode!r} pads with elements of x, and takes no value; found {value!r}")
    for axis, (low, high) in enumerate(pairs):
        if low or high:
            x = _padded(x, axis, low, high, mode)
    return x


def _pairs(x: Any, widths: Any) -> list[tuple[int, int]]:
    """The widths before and after each axis."""
    found = as_array(widths)
    if found.dtype.kind not in "iu" or (found < 0).any():
        raise misfit(f"pad: integers >= 0 are needed around {type_of(x)}, found {widths!r}")
    try:
        return [(int(low), int(high)) for low, high in np.broadcast_to(found, (x.ndim, 2))]
    except ValueError:
        raise misfit(f"pad: one width, a pair or {x.ndim} pairs are needed for {type_of(x)}, not {widths!r}") from None


def _padded(x: Any, axis: int, low: int, high: int, mode: str) -> Any:
    """Padded along one axis by what is taken of it. The inside stays as it is, so that only the margin is gathered."""
    size = x.shape[axis]
    if size == 0:
        raise misfit(f"pad: {type_of(x)} has no element along axis {axis} to pad with by mode {mode!r}")
    places = np.pad(np.arange(size, dtype=np.int32), (low, high), mode)  # pyright: ignore[reportCallIssue, reportArgumentType]  (any mode)
    margins = [ops.take_p(x, part, axis) for part in (places[:low], places[low + size :])]
    parts = [margins[0], x, margins[1]]
    return concatenate_p([part for part in parts if part.shape[axis]], axis)
