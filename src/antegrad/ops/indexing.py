"""``x[...]`` and ``x.at[...]`` as NumPy understands them, in terms of slices, `take` and `scatter`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.types import is_integer
from antegrad.ops.arrays import as_shape, expand_dims, normalize_axis, reshape, transpose
from antegrad.ops.dispatch import as_tensor, here
from antegrad.ops.index import dynamic_slice_p, dynamic_update_slice_p, scatter_p, take_p
from antegrad.ops.promotion import unify
from antegrad.ops.shape import flip_p, slice_p

__all__ = ["IndexUpdate", "dynamic_slice", "dynamic_update_slice", "getitem", "take", "take_along_axis"]


@dataclass(frozen=True)
class _Plan:
    """How an index reads: slices of every axis, flipped axes, axes to drop or add, and integer arrays by axis."""

    slices: tuple[tuple[int, int, int], ...]
    flipped: tuple[int, ...]
    dropped: tuple[int, ...]
    added: tuple[int, ...]
    arrays: tuple[tuple[int, Any], ...]


def getitem(x: Any, index: Any) -> Any:
    """``x[index]`` with integers, slices, ``...``, None and integer arrays (clamped, and counted from the end if < 0).

    A boolean mask is refused, because the shape of its result depends on data: use `where`.
    """
    x = as_tensor(x)
    plan = _plan(x, index)
    result = _basic(x, plan)
    if plan.arrays:
        result = _gathered(result, plan)
    result = reshape(result, _squeezed(result, plan))
    return expand_dims(result, plan.added) if plan.added else result


def _basic(x: Any, plan: _Plan) -> Any:
    start, stop, step = zip(*plan.slices, strict=True) if plan.slices else ((), (), ())
    if (start, stop, step) != ((0,) * x.ndim, x.shape, (1,) * x.ndim):
        x = slice_p(x, start, stop, step)
    return flip_p(x, plan.flipped) if plan.flipped else x


def _squeezed(result: Any, plan: _Plan) -> tuple[int, ...]:
    """The shape without the axes at which an integer stood; those left of index arrays have moved with them."""
    gone = set(plan.dropped)
    if plan.arrays:
        axes = [axis for axis, _ in plan.arrays]
        grown = np.broadcast(*(np.empty(tuple(a.shape)) for _, a in plan.arrays)).ndim - len(axes)
        gone = {axis if axis < axes[0] else axis + grown for axis in gone}
    return tuple(size for axis, size in enumerate(result.shape) if axis not in gone)


def _plan(x: Any, index: Any) -> _Plan:
    items = _expanded(x, index if isinstance(index, tuple) else (index,))
    slices, flipped, dropped, added, arrays = [], [], [], [], []
    axis = out = 0
    for item in items:
        if item is None:
            added.append(out)
            out += 1
            continue
        size = x.shape[axis]
        if isinstance(item, slice):
            bounds, flip = _bounds(item, size)
            slices.append(bounds)
            flipped += [axis] if flip else []
            out += 1
        elif isinstance(item, (int, np.integer)):
            place = _static_index(int(item), size, axis, x)
            slices.append((place, place + 1, 1))
            dropped.append(axis)
        else:
            slices.append((0, size, 1))
            arrays.append((axis, item))
        axis += 1
    if arrays and added:
        raise ShapeError(f"indexing: None beside an index array is not supported{_place()}: use expand_dims")
    return _Plan(tuple(slices), tuple(flipped), tuple(dropped), tuple(added), tuple(arrays))


def _expanded(x: Any, items: tuple[Any, ...]) -> list[Any]:
    """The items with ``...`` written out, one for each axis of x (None aside), arrays as tensors."""
    listed = [_item(item) for item in items]
    used = sum(item is not None and item is not Ellipsis for item in listed)
    dots = sum(item is Ellipsis for item in listed)
    if used > x.ndim or dots > 1:
        raise ShapeError(f"indexing: {used} indices and {dots} ellipses for shape {x.shape}{_place()}")
    place = next((i for i, item in enumerate(listed) if item is Ellipsis), len(listed))
    return [*listed[:place], *[slice(None)] * (x.ndim - used), *listed[place + dots :]]


def _item(item: Any) -> Any:
    if item is None or item is Ellipsis or (isinstance(item, (int, np.integer)) and not isinstance(item, bool)):
        return item
    if isinstance(item, slice):
        return item
    tensor = as_tensor(np.asarray(item, np.int32) if isinstance(item, list) else item)
    if not is_integer(tensor.dtype):
        raise ShapeError(
            f"indexing with {tensor.dtype}: the shape of the result would depend on data; use ops.where{_place()}"
        )
    return tensor


def _bounds(item: slice, size: int) -> tuple[tuple[int, int, int], bool]:
    """A slice as (start, stop, step) with a positive step, and whether the result is then flipped."""
    places = range(*item.indices(size))
    if len(places) == 0:
        return (0, 0, 1), False
    ordered = places if places.step > 0 else places[::-1]
    return (ordered[0], ordered[-1] + 1, ordered.step), places.step < 0


def _static_index(index: int, size: int, axis: int, x: Any) -> int:
    if not -size <= index < size:
        raise ShapeError(f"indexing: {index} is out of range for axis {axis} of shape {x.shape}{_place()}")
    return index % size


def _place() -> str:
    place = str(here())
    return f"\n  at {place}" if place else ""


def from_end(indices: Any, size: int) -> Any:
    """Negative indices counted from the end; unsigned and concrete non-negative ones as they are."""
    if indices.dtype.kind == "u" or (isinstance(indices, np.ndarray) and (indices.size == 0 or indices.min() >= 0)):
        return indices
    indices = _at_least_32_bits(indices)
    return ops.where(indices < 0, indices + size, indices)


def _at_least_32_bits(indices: Any) -> Any:
    """Indices in a type that holds the size of any axis."""
    return ops.convert(indices, "i32") if indices.dtype.itemsize < 4 else indices


def _clamped(indices: Any, size: int) -> Any:
    """The places (i32) along an axis of `size` that `indices` mean: from the end if negative, none outside."""
    return ops.convert(ops.clip(from_end(_at_least_32_bits(indices), size), 0, max(size - 1, 0)), "i32")


def _flat_index(shape: tuple[int, ...], arrays: tuple[tuple[int, Any], ...]) -> tuple[int, int, Any]:
    """First axis, number of axes, and the position within those axes merged to one, clamped axis by axis."""
    axes = [axis for axis, _ in arrays]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise ShapeError(f"indexing: index arrays must stand on neighbouring axes, found {axes}{_place()}")
    if len(arrays) == 1:
        return axes[0], 1, from_end(arrays[0][1], shape[axes[0]])
    flat: Any = None
    for axis, array in arrays:
        place = _clamped(array, shape[axis])
        flat = place if flat is None else flat * shape[axis] + place
    return axes[0], len(axes), flat


def _merged(x: Any, first: int, count: int) -> Any:
    merged = math.prod(x.shape[first : first + count])
    return x if count == 1 else reshape(x, (*x.shape[:first], merged, *x.shape[first + count :]))


def _gathered(x: Any, plan: _Plan) -> Any:
    first, count, flat = _flat_index(x.shape, plan.arrays)
    return take_p(_merged(x, first, count), flat, first)


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Elements of `x` at `indices` along `axis`, or of the flattened `x`.

    An index past the end is clamped; a negative one counts from the end.
    """
    x, indices = as_tensor(x), as_tensor(indices)
    if axis is None:
        x, axis = ops.ravel(x), 0
    place = normalize_axis(axis, x.ndim, "take")
    return take_p(x, from_end(indices, x.shape[place]), place)


def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """``x[i][..., indices[i]]``: for each position of `indices` the element of `x` at that index along `axis`."""
    x, indices = as_tensor(x), as_tensor(indices)
    place = normalize_axis(axis, x.ndim, "take_along_axis")
    if indices.ndim != x.ndim:
        raise ShapeError(f"take_along_axis: as many axes are needed, found {x.shape} and {indices.shape}{_place()}")
    lead = np.broadcast_shapes(*((*a.shape[:place], *a.shape[place + 1 :]) for a in (x, indices)))
    order = (*(i for i in range(x.ndim) if i != place), place)
    rows = ops.broadcast_to(transpose(x, order), (*lead, x.shape[place]))
    columns = ops.broadcast_to(transpose(indices, order), (*lead, indices.shape[place]))
    count, size = math.prod(lead), x.shape[place]
    columns = _clamped(columns, size)
    offsets = ops.expand_dims(ops.arange(count) * size, 1)
    flat = take_p(ops.ravel(rows), reshape(columns, (count, indices.shape[place])) + offsets, 0)
    return transpose(reshape(flat, (*lead, indices.shape[place])), tuple(int(i) for i in np.argsort(order)))


def dynamic_slice(x: Any, starts: Any, sizes: Any) -> Any:
    """The block of `x` with fixed `sizes` that begins at `starts` (one scalar an axis), moved back inside."""
    x, shape = as_tensor(x), as_shape(sizes)
    return dynamic_slice_p(x, [_start(start, n) for start, n in zip(starts, x.shape, strict=False)], shape)


def dynamic_update_slice(x: Any, update: Any, starts: Any) -> Any:
    """`x` with the block that begins at `starts` replaced by `update`, moved back inside as in `dynamic_slice`."""
    x, update = unify("dynamic_update_slice", x, update)
    places = [_start(start, n) for start, n in zip(starts, x.shape, strict=False)]
    return dynamic_update_slice_p(x, update, places)


def _start(start: Any, size: int) -> Any:
    """A start as i32, clamped before it is converted, so that a large one does not wrap."""
    place = _at_least_32_bits(as_tensor(start))
    return place if place.dtype == np.int32 else ops.convert(ops.clip(place, 0, size), "i32")


class IndexUpdate:
    """``x.at``: ``x.at[index].set(values)`` and ``.add(values)`` give a changed copy of `x`.

    With repeated indices `add` adds them up, and in `set` the last one wins (and alone receives a cotangent).
    """

    def __init__(self, x: Any, index: Any = ()) -> None:
        self.x = as_tensor(x)
        self.index = index
        self.indexed = False

    def __getitem__(self, index: Any) -> IndexUpdate:
        found = IndexUpdate(self.x, index)
        found.indexed = True
        return found

    def set(self, values: Any) -> Any:
        return self._scatter(values, "set")

    def add(self, values: Any) -> Any:
        return self._scatter(values, "add")

    def _scatter(self, values: Any, mode: str) -> Any:
        if not self.indexed:
            raise ShapeError(f"at: an index is needed, as in x.at[i].{mode}(values){_place()}")
        x, values = unify("at", self.x, values)
        plan = _plan(x, self.index)
        if len(plan.arrays) == 1 and _reads_all(x, plan):
            ((axis, indices),) = plan.arrays
            updates = ops.broadcast_to(values, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
            return scatter_p(x, from_end(indices, x.shape[axis]), updates, axis, mode)
        positions = getitem(reshape(ops.arange(x.size), x.shape), self.index)
        updates = ops.broadcast_to(values, positions.shape)
        return reshape(scatter_p(ops.ravel(x), ops.ravel(positions), ops.ravel(updates), 0, mode), x.shape)


def _reads_all(x: Any, plan: _Plan) -> bool:
    whole = all(bounds == (0, size, 1) for bounds, size in zip(plan.slices, x.shape, strict=True))
    return whole and not (plan.flipped or plan.dropped or plan.added)
