"""``x[...]`` and ``x.at[...]`` as NumPy understands them, in terms of slices, `take` and `scatter`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import BOOL, is_float, is_integer, type_of
from antegrad.ops.arrays import as_shape, expand_dims, listed, misfit, moveaxis, normalize_axis, placed, reshape
from antegrad.ops.dispatch import as_array, as_tensor
from antegrad.ops.index import dynamic_slice_p, dynamic_update_slice_p, scatter_p, take_p
from antegrad.ops.promotion import broadcast, unify
from antegrad.ops.shape import flip_p, slice_p
from antegrad.ops.tensor import Tensor

__all__ = ["IndexUpdate", "dynamic_slice", "dynamic_update_slice", "getitem", "take", "take_along_axis"]

_I32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class _Plan:
    """How an index reads: slices of every axis, then axes to flip and to drop, then index arrays by axis of the rest.

    The axes of the index arrays go to the place `first` of the result; then `added` axes of size 1 come in.
    """

    slices: tuple[tuple[int, int, int], ...]
    flipped: tuple[int, ...]
    dropped: tuple[int, ...]
    arrays: tuple[tuple[int, Any], ...]
    first: int
    added: tuple[int, ...]


def getitem(x: Any, index: Any) -> Any:
    """``x[index]`` with integers, slices, ``...``, None and integer arrays.

    Shapes: NumPy's. Index arrays broadcast, and their axes stand where the first of them stood, or in front when a
        slice, ``...`` or None comes between them (or between them and an integer).
    Edges: an integer out of range is a `ShapeError`; in an index array it counts from the end if negative, and is then
        clamped. A boolean mask is refused, because the shape of its result depends on data: use `where`.
    Derivative: dy added up at the places it was read from, zeros elsewhere.
    """
    x = as_tensor(x)
    plan = _plan(x, index)
    result = _basic(x, plan)
    if plan.dropped:
        result = reshape(result, tuple(size for axis, size in enumerate(result.shape) if axis not in plan.dropped))
    if plan.arrays:
        result = _gathered(result, plan)
    return expand_dims(result, plan.added) if plan.added else result


def _basic(x: Any, plan: _Plan) -> Any:
    start, stop, step = zip(*plan.slices, strict=True) if plan.slices else ((), (), ())
    if (start, stop, step) != ((0,) * x.ndim, x.shape, (1,) * x.ndim):
        x = slice_p(x, start, stop, step)
    return flip_p(x, plan.flipped) if plan.flipped else x


def _plan(x: Any, index: Any) -> _Plan:
    items = _expanded(x, index if isinstance(index, tuple) else (index,))
    slices, flipped, dropped, arrays = [], [], [], []
    for item in items:
        axis = len(slices)
        if isinstance(item, slice):
            bounds, flip = _bounds(item, x.shape[axis])
            slices.append(bounds)
            flipped += [axis] if flip else []
        elif isinstance(item, int):
            place = _static_index(item, axis, x)
            slices.append((place, place + 1, 1))
            dropped.append(axis)
        elif item is not None and item is not Ellipsis:
            slices.append((0, x.shape[axis], 1))
            arrays.append((axis - len(dropped), item))
    first, added = _layout(items, _broadcast_ndim(arrays))
    return _Plan(tuple(slices), tuple(flipped), tuple(dropped), tuple(arrays), first, added)


def _broadcast_ndim(arrays: Iterable[tuple[int, Any]]) -> int:
    """The number of axes of the index arrays broadcast together."""
    return max((array.ndim for _, array in arrays), default=0)


def _layout(items: list[Any], index_ndim: int) -> tuple[int, tuple[int, ...]]:
    """Where in the result the axes of the index arrays stand (None aside), and where those that None adds.

    An integer beside an index array is one, as in NumPy.
    """
    plain = [item is None or item is Ellipsis or isinstance(item, slice) for item in items]
    indexed = [position for position, flag in enumerate(plain) if not flag]
    if all(isinstance(items[position], int) for position in indexed):
        indexed = []
    apart = any(after - before > 1 for before, after in pairwise(indexed))
    front = 0 if apart or not indexed else indexed[0]
    first = sum(isinstance(item, slice) for item in items[:front])
    before = sum(item is not Ellipsis for item in items[:front])
    kept = [item for item in items if item is None or isinstance(item, slice)]
    added = (place if place < before else place + index_ndim for place, item in enumerate(kept) if item is None)
    return first, tuple(added)


def _expanded(x: Any, items: tuple[Any, ...]) -> list[Any]:
    """The items with slices behind ``...`` for the axes it stands for, and arrays as tensors.

    The ``...`` stays, because in NumPy it keeps index arrays apart even where it stands for no axis.
    """
    found = [_item(item) for item in items]
    used = sum(item is not None and item is not Ellipsis for item in found)
    dots = sum(item is Ellipsis for item in found)
    if used > x.ndim or dots > 1:
        raise misfit(f"indexing: {used} indices and {dots} ellipses for {type_of(x)}")
    place = next((i + 1 for i, item in enumerate(found) if item is Ellipsis), len(found))
    return [*found[:place], *[slice(None)] * (x.ndim - used), *found[place:]]


def _item(item: Any) -> Any:
    """One item of an index: None, ``...``, a slice, a Python integer, or a tensor of integers."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    tensor = _listed_index(item) if isinstance(item, list) else as_tensor(item)
    if tensor.dtype == BOOL:
        raise misfit("indexing with bool: the shape of the result would depend on data; use ops.where")
    if not is_integer(tensor.dtype):
        raise placed(DTypeError, f"indexing: an index must be an integer, found {type_of(tensor)}: use .astype('i32')")
    return tensor


def _listed_index(item: list) -> Any:
    """A list as an index array of i32; what that does not hold is out of range for every axis."""
    if any(isinstance(each, Tensor) for each in item):
        return ops.stack(item)
    found = as_array(item)
    if found.size and not is_integer(found.dtype):
        return found
    return found.clip(_I32.min, _I32.max).astype(np.int32)


def _bounds(item: slice, size: int) -> tuple[tuple[int, int, int], bool]:
    """A slice as (start, stop, step) with a positive step, and whether the result is then flipped."""
    if item.step == 0 or any(isinstance(bound, (float, np.floating)) for bound in (item.start, item.stop, item.step)):
        raise misfit(f"indexing: the bounds of a slice are integers and its step is not 0, found {item}")
    places = range(*item.indices(size))
    if len(places) == 0:
        return (0, 0, 1), False
    ordered = places if places.step > 0 else places[::-1]
    return (ordered[0], ordered[-1] + 1, ordered.step), places.step < 0


def _static_index(index: int, axis: int, x: Any) -> int:
    size = x.shape[axis]
    if not -size <= index < size:
        raise misfit(f"indexing: {index} is out of range for axis {axis} of {type_of(x)}")
    return index % size


def from_end(indices: Any, size: int) -> Any:
    """Negative indices counted from the end; unsigned and concrete non-negative ones as they are."""
    if indices.dtype.kind == "u" or (isinstance(indices, np.ndarray) and (indices.size == 0 or indices.min() >= 0)):
        return indices
    indices = at_least_32_bits(indices)
    return ops.where(indices < 0, indices + size, indices)


def at_least_32_bits(indices: Any) -> Any:
    """Indices in a type that holds the size of any axis."""
    return ops.convert(indices, "i32") if indices.dtype.itemsize < 4 else indices


def _clamped(indices: Any, size: int) -> Any:
    """The places (i32) along an axis of `size` that `indices` mean: from the end if negative, none outside."""
    return ops.convert(ops.clip(from_end(at_least_32_bits(indices), size), 0, max(size - 1, 0)), "i32")


def _gathered(x: Any, plan: _Plan) -> Any:
    """`x` read by the index arrays: their axes side by side, merged to one, and taken from."""
    axes = [axis for axis, _ in plan.arrays]
    if len(axes) == 1:
        found = take_p(x, from_end(plan.arrays[0][1], x.shape[axes[0]]), axes[0])
        return _moved(found, axes[0], plan)
    first = axes[0]
    if axes != list(range(first, first + len(axes))):
        first, x = 0, moveaxis(x, axes, range(len(axes)))
    sizes = x.shape[first : first + len(axes)]
    places = [_clamped(array, size) for (_, array), size in zip(plan.arrays, sizes, strict=True)]
    flat, *rest = broadcast("indexing", *places)
    for place, size in zip(rest, sizes[1:], strict=True):
        flat = flat * size + place
    merged = reshape(x, (*x.shape[:first], math.prod(sizes), *x.shape[first + len(axes) :]))
    return _moved(take_p(merged, flat, first), first, plan)


def _moved(found: Any, place: int, plan: _Plan) -> Any:
    """The axes of the index arrays, which stand at `place`, moved to where NumPy has them."""
    if place == plan.first:
        return found
    ndim = _broadcast_ndim(plan.arrays)
    return moveaxis(found, range(place, place + ndim), range(plan.first, plan.first + ndim))


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Elements of `x` at `indices` along `axis`, or of the flattened `x`.

    Shapes: x (..., n, ...) and integers (k, ...) give (..., k, ..., ...).
    Edges: a negative index counts from the end; then it is clamped to what there is. An empty axis is a `ShapeError`.
    Derivative: dy added up at the places it was read from, zeros elsewhere.
    """
    x, indices = as_tensor(x), as_tensor(indices)
    if axis is None:
        x, axis = ops.ravel(x), 0
    place = normalize_axis(axis, x, "take")
    return take_p(x, from_end(indices, x.shape[place]), place)


def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """For each position of `indices` the element of `x` at that index along `axis`: ``y[i, j] = x[i, indices[i, j]]``.

    Shapes: x (..., n, ...) and integers (..., k, ...), which broadcast but for that axis, give (..., k, ...).
    Edges: a negative index counts from the end; then it is clamped to what there is.
    Derivative: dy added up at the places it was read from, zeros elsewhere.
    """
    x, indices = as_tensor(x), as_tensor(indices)
    place = normalize_axis(axis, x, "take_along_axis")
    if not is_integer(indices.dtype):
        raise placed(DTypeError, f"take_along_axis: an index must be an integer, found {type_of(indices)}")
    lead = _lead(x, indices, place)
    rows = ops.broadcast_to(moveaxis(x, place, -1), (*lead, x.shape[place]))
    columns = ops.broadcast_to(moveaxis(indices, place, -1), (*lead, indices.shape[place]))
    count, size = math.prod(lead), x.shape[place]
    columns = _clamped(columns, size)
    offsets = ops.expand_dims(ops.arange(count) * size, 1)
    flat = take_p(ops.ravel(rows), reshape(columns, (count, indices.shape[place])) + offsets, 0)
    return moveaxis(reshape(flat, (*lead, indices.shape[place])), -1, place)


def _lead(x: Any, indices: Any, place: int) -> tuple[int, ...]:
    """The axes but `place` of both, broadcast."""
    try:
        if indices.ndim != x.ndim:
            raise ValueError
        return np.broadcast_shapes(*((*a.shape[:place], *a.shape[place + 1 :]) for a in (x, indices)))
    except ValueError:
        raise misfit(f"take_along_axis: {listed((x, indices))} do not broadcast but for axis {place}") from None


def dynamic_slice(x: Any, starts: Any, sizes: Any) -> Any:
    """The block of `x` with fixed `sizes` that begins at computed `starts`, one integer an axis.

    Shapes: x (m, n) and sizes (a, b) give (a, b).
    Edges: a negative start counts from the end; a block that would stick out is moved back inside. Another number of
        starts or sizes, or a size above that of x, is a `ShapeError`.
    Derivative: dy in its place, zeros around it.
    """
    x, shape = as_tensor(x), as_shape(sizes, "dynamic_slice")
    return dynamic_slice_p(x, _starts("dynamic_slice", x, starts), shape)


def dynamic_update_slice(x: Any, update: Any, starts: Any) -> Any:
    """`x` with the block that begins at computed `starts`, one integer an axis, replaced by `update`.

    Shapes: x (m, n) and an update no larger give (m, n).
    Edges: starts as in `dynamic_slice`.
    Derivative: for the update its part of dy; for x dy with zeros there.
    """
    x, update = unify("dynamic_update_slice", x, update)
    return dynamic_update_slice_p(x, update, _starts("dynamic_update_slice", x, starts))


def _starts(operation: str, x: Any, starts: Any) -> list[Any]:
    """The starts as i32, clamped before they are converted, so that a large one does not wrap."""
    found = [as_tensor(start) for start in starts] if isinstance(starts, Iterable) else [as_tensor(starts)]
    if len(found) != x.ndim or any(start.shape for start in found):
        raise misfit(f"{operation}: {type_of(x)} needs {x.ndim} starts, found {listed(found) or 'none'}")
    if any(is_float(start.dtype) or start.dtype == BOOL for start in found):
        raise placed(DTypeError, f"{operation}: a start must be an integer, found {listed(found)}")
    places = [from_end(at_least_32_bits(start), size) for start, size in zip(found, x.shape, strict=True)]
    return [
        place if place.dtype == np.int32 else ops.convert(ops.clip(place, 0, size), "i32")
        for place, size in zip(places, x.shape, strict=True)
    ]


class IndexUpdate:
    """``x.at``: ``x.at[index].set(values)`` and its like give a changed copy of `x`.

    Shapes: values broadcast to what ``x[index]`` is.
    Edges: indices as in `getitem`. Of repeated ones the last wins in `set`; the others combine one after the other.
    Derivative: `set` gives the cotangent of a place to the last value put there, `min` and `max` split it evenly among
        all that tie, `multiply` and `divide` are exact where factors are 0.
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

    def multiply(self, values: Any) -> Any:
        return self._scatter(values, "multiply")

    def divide(self, values: Any) -> Any:
        """``x / v``, with v the product of the values put there, and 1 elsewhere."""
        x, values = unify("at", self.x, values)
        divisors = IndexUpdate(ops.ones_like(x), self.index)
        divisors.indexed = self.indexed
        return ops.divide(x, divisors.multiply(values))

    def min(self, values: Any) -> Any:
        return self._scatter(values, "min")

    def max(self, values: Any) -> Any:
        return self._scatter(values, "max")

    def _scatter(self, values: Any, mode: str) -> Any:
        if not self.indexed:
            raise misfit(f"at: an index is needed, as in x.at[i].{mode}(values)")
        x, values = unify("at", self.x, values)
        plan = _plan(x, self.index)
        if len(plan.arrays) == 1 and _reads_all(x, plan):
            ((axis, indices),) = plan.arrays
            updates = _fitted(values, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), mode)
            return scatter_p(x, from_end(indices, x.shape[axis]), updates, axis, mode)
        positions = getitem(reshape(ops.arange(x.size), x.shape), self.index)
        updates = _fitted(values, positions.shape, mode)
        return reshape(scatter_p(ops.ravel(x), ops.ravel(positions), ops.ravel(updates), 0, mode), x.shape)


def _fitted(values: Any, shape: tuple[int, ...], mode: str) -> Any:
    """The values of an update stretched to what the index selects."""
    try:
        return ops.broadcast_to(values, shape)
    except ShapeError:
        raise misfit(f"at[...].{mode}: {type_of(values)} does not broadcast to the {shape} of the index") from None


def _reads_all(x: Any, plan: _Plan) -> bool:
    whole = all(bounds == (0, size, 1) for bounds, size in zip(plan.slices, x.shape, strict=True))
    return whole and not (plan.flipped or plan.dropped or plan.added)
