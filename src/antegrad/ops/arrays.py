"""Reshaping, joining and cutting arrays, with NumPy's names and argument order."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import AntegradError, DTypeError, ShapeError
from antegrad.ir.types import type_of
from antegrad.ops.dispatch import as_tensor, bind, here
from antegrad.ops.promotion import number, unify
from antegrad.ops.shape import broadcast_in_dim, concatenate_p, flip_p, reshape_p, transpose_p

__all__ = [
    "array_split", "atleast_1d", "atleast_2d", "broadcast_to", "concatenate", "expand_dims", "flip", "fliplr", "flipud",
    "hstack", "moveaxis", "name", "ravel", "reshape", "rot90", "split", "squeeze", "stack", "swapaxes", "transpose",
    "vstack",
]  # fmt: skip

Axes = int | Sequence[int] | None


def placed(error: type[AntegradError], message: str) -> AntegradError:
    """The error, with the user's line."""
    place = str(here())
    return error(f"{message}\n  at {place}" if place else message)


def misfit(message: str) -> AntegradError:
    """A `ShapeError` with the user's line."""
    return placed(ShapeError, message)


def listed(tensors: Iterable[Any]) -> str:
    """``f32[2,3], f32[3]``."""
    return ", ".join(str(type_of(tensor)) for tensor in tensors)


def as_number(value: Any, dtype: np.dtype, operation: str) -> np.ndarray:
    """A Python number as a scalar of `dtype`; a `DTypeError` for what is none, or when that type cannot hold it."""
    if not isinstance(value, (bool, int, float)):
        raise placed(DTypeError, f"{operation}: one number is needed, found {value!r}")
    try:
        return number(value, dtype)
    except DTypeError as error:
        raise placed(DTypeError, f"{operation}: {error}") from None


def normalize_axis(axis: int, x: Any, operation: str) -> int:
    """`axis` of the tensor `x` counted from the front; a `ShapeError` when it has no such axis.

    In place of `x` there may be a number of axes.
    """
    ndim = x if isinstance(x, int) else x.ndim
    integer = isinstance(axis, (int, np.integer)) and not isinstance(axis, bool)
    if not integer or not -ndim <= axis < ndim:
        expected = f"expected an integer from {-ndim} to {ndim - 1}" if ndim else "a scalar has none"
        found = f"a tensor with {ndim} axes" if isinstance(x, int) else type_of(x)
        raise misfit(f"{operation}: axis {axis!r} of {found}: {expected}")
    return int(axis) % ndim


def normalize_axes(axes: Axes, x: Any, operation: str) -> tuple[int, ...]:
    """`axes` of `x` counted from the front, sorted, each once; None stands for all."""
    if axes is None:
        return tuple(range(x if isinstance(x, int) else x.ndim))
    each = list(axes) if isinstance(axes, Iterable) else [axes]
    result = sorted(normalize_axis(axis, x, operation) for axis in each)
    if len(set(result)) != len(result):
        found = "" if isinstance(x, int) else f" for {type_of(x)}"
        raise misfit(f"{operation}: an axis stands twice in {axes}{found}")
    return tuple(result)


def as_shape(shape: Any, operation: str, lowest: float = 0) -> tuple[int, ...]:
    """A size or a sequence of sizes as a tuple; a `ShapeError` for what is no integer, or below `lowest`."""
    each = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    try:
        sizes = tuple(operator.index(size) for size in each if not isinstance(size, (bool, np.bool_)))
    except AntegradError:
        raise
    except TypeError:
        sizes = ()
    if len(sizes) != len(each) or any(not lowest <= size < 2**63 for size in sizes):
        raise misfit(f"{operation}: integers >= {lowest} are needed, found {shape!r}")
    return sizes


def as_integer(value: Any, operation: str) -> int:
    """One integer, which may be negative; a `ShapeError` for what is none."""
    (integer,) = as_shape((value,), operation, lowest=-math.inf)
    return integer


def name(x: Any, label: str) -> Any:
    """`x` itself; in a capture it is printed under the name `label` unless a variable of the user names it.

    Shapes: that of x.
    Edges: outside of a capture it does nothing.
    Derivative: dy.
    """
    if isinstance(x, ops.Tensor) and not x.value.declared:
        x.value.name = label
    return x


def broadcast_to(x: Any, shape: Any) -> Any:
    """`x` stretched to `shape` by NumPy's rule.

    Shapes: x (..., n) fits where each of its axes, counted from the last, has the size in `shape` or 1.
    Edges: anything else is a `ShapeError`.
    Derivative: the sum of dy over the axes that were stretched or are new.
    """
    x, target = as_tensor(x), as_shape(shape, "broadcast_to")
    if x.shape == target:
        return x
    new = len(target) - x.ndim
    if new < 0 or any(size not in (1, goal) for size, goal in zip(x.shape, target[new:], strict=True)):
        raise misfit(f"broadcast_to: {type_of(x)} does not broadcast to the shape {target}")
    return bind(broadcast_in_dim, x, shape=target, dims=tuple(range(new, len(target))))


def reshape(x: Any, shape: Any) -> Any:
    """The same elements, in row-major order, under another shape.

    Shapes: any with as many elements; one size may be -1, and follows from the others.
    Edges: another number of elements is a `ShapeError`, and so is a -1 that more than one size would fit.
    Derivative: dy in the shape of x.
    """
    x, target = as_tensor(x), as_shape(shape, "reshape", lowest=-1)
    if target.count(-1) > 1:
        raise misfit(f"reshape: {target} has more than one -1")
    if -1 in target:
        rest = math.prod(size for size in target if size != -1)
        if rest == 0 or x.size % rest:
            raise misfit(f"reshape: no size for the -1 in {target} gives the {x.size} elements of {type_of(x)}")
        target = tuple(x.size // rest if size == -1 else size for size in target)
    return x if target == x.shape else bind(reshape_p, x, shape=target)


def ravel(x: Any) -> Any:
    """The elements in row-major order along one axis.

    Shapes: x (...) gives (size,); a scalar gives (1,).
    Edges: an empty x gives (0,).
    Derivative: dy in the shape of x.
    """
    return reshape(x, (as_tensor(x).size,))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Axes in the order `axes`, or reversed: axis i of the result is axis ``axes[i]`` of `x`.

    Shapes: x (m, n, p) and axes (1, 2, 0) give (n, p, m).
    Edges: `axes` that do not name each axis once are a `ShapeError`.
    Derivative: dy with its axes put back.
    """
    x = as_tensor(x)
    if axes is None:
        permutation = tuple(reversed(range(x.ndim)))
    else:
        each = axes if isinstance(axes, Iterable) else (axes,)
        permutation = tuple(normalize_axis(axis, x, "transpose") for axis in each)
    return x if permutation == tuple(range(x.ndim)) else bind(transpose_p, x, permutation=permutation)


def swapaxes(x: Any, first: int, second: int) -> Any:
    """Two axes exchanged.

    Shapes: x (..., m, ..., n, ...) gives (..., n, ..., m, ...).
    Edges: two equal axes change nothing; an axis that x does not have is a `ShapeError`.
    Derivative: dy with the same axes exchanged.
    """
    x = as_tensor(x)
    order = list(range(x.ndim))
    a, b = (normalize_axis(axis, x, "swapaxes") for axis in (first, second))
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Axes `source` moved to the places `destination` of the result, the others in their order.

    Shapes: x (m, n, p), source 0 and destination -1 give (n, p, m).
    Edges: as many sources as destinations, each once, or a `ShapeError`.
    Derivative: dy with the axes moved back.
    """
    x = as_tensor(x)
    sources, places = (
        [normalize_axis(axis, x, "moveaxis") for axis in (axes if isinstance(axes, Iterable) else (axes,))]
        for axes in (source, destination)
    )
    if not len(sources) == len(places) == len(set(sources)) == len(set(places)):
        raise misfit(f"moveaxis: {type_of(x)} from {source} to {destination}: as many different places are needed")
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return transpose(x, order)


def expand_dims(x: Any, axis: int | Sequence[int]) -> Any:
    """New axes of size 1 at the places `axis` of the result.

    Shapes: x (m, n) and axis 1 give (m, 1, n).
    Edges: an axis that the result does not have, or one named twice, is a `ShapeError`.
    Derivative: dy in the shape of x.
    """
    x = as_tensor(x)
    count = len(list(axis)) if isinstance(axis, Iterable) else 1
    places = normalize_axes((axis,) if axis is None else axis, x.ndim + count, "expand_dims")
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if place in places else next(sizes) for place in range(x.ndim + count)))


def squeeze(x: Any, axis: Axes = None) -> Any:
    """Axes of size 1 removed: all, or those named.

    Shapes: x (1, m, 1) gives (m,).
    Edges: a named axis of another size is a `ShapeError`.
    Derivative: dy in the shape of x.
    """
    x = as_tensor(x)
    if axis is None:
        gone = tuple(place for place, size in enumerate(x.shape) if size == 1)
    else:
        gone = normalize_axes(axis, x, "squeeze")
    if any(x.shape[place] != 1 for place in gone):
        raise misfit(f"squeeze: not every axis in {gone} of {type_of(x)} has size 1")
    return reshape(x, tuple(size for place, size in enumerate(x.shape) if place not in gone))


def atleast_1d(x: Any) -> Any:
    """`x` with at least one axis.

    Shapes: a scalar gives (1,), all else its own shape.
    Edges: an empty x stays as it is.
    Derivative: dy in the shape of x.
    """
    x = as_tensor(x)
    return x if x.ndim else reshape(x, (1,))


def atleast_2d(x: Any) -> Any:
    """`x` with at least two axes, new ones in front.

    Shapes: a scalar gives (1, 1), (n,) gives (1, n), all else its own shape.
    Edges: an empty x keeps its size of 0.
    Derivative: dy in the shape of x.
    """
    x = as_tensor(x)
    return x if x.ndim > 1 else reshape(x, (1, x.size))


def _several(operation: str, arrays: Iterable[Any]) -> tuple[Any, ...]:
    """At least one array, all with one element type."""
    found = list(arrays) if isinstance(arrays, Iterable) else []
    if not found:
        raise misfit(f"{operation}: at least one array is needed, found {arrays!r}")
    return unify(operation, *found)


def concatenate(arrays: Iterable[Any], axis: int | None = 0) -> Any:
    """Arrays one after the other along `axis`; axis None flattens them first.

    Shapes: (..., m, ...) and (..., n, ...) give (..., m + n, ...); element types are promoted.
    Edges: no array, a scalar, or another axis of different sizes is a `ShapeError`.
    Derivative: each array gets its part of dy.
    """
    tensors = _several("concatenate", arrays)
    if axis is None:
        tensors, axis = tuple(ravel(tensor) for tensor in tensors), 0
    return concatenate_p(tensors, normalize_axis(axis, tensors[0], "concatenate"))


def stack(arrays: Iterable[Any], axis: int = 0) -> Any:
    """Arrays of one shape along a new axis.

    Shapes: n arrays (...) give (..., n, ...) with n at `axis`; element types are promoted.
    Edges: no array, or two of different shapes, is a `ShapeError`.
    Derivative: each array gets its part of dy.
    """
    tensors = _several("stack", arrays)
    if len({tensor.shape for tensor in tensors}) > 1:
        raise misfit(f"stack: arrays of one shape are needed, found {listed(tensors)}")
    place = normalize_axis(axis, tensors[0].ndim + 1, "stack")
    return concatenate_p([expand_dims(tensor, place) for tensor in tensors], place)


def hstack(arrays: Iterable[Any]) -> Any:
    """Arrays side by side: along the second axis, or along the one axis of vectors.

    Shapes: (m, n) and (m, p) give (m, n + p); (n,) and (p,) give (n + p,).
    Edges: no array at all, or shapes that do not fit, are a `ShapeError`.
    Derivative: each array gets its part of dy.
    """
    tensors = [atleast_1d(tensor) for tensor in _several("hstack", arrays)]
    return concatenate(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(arrays: Iterable[Any]) -> Any:
    """Arrays on top of each other, along the first axis; a vector is a row.

    Shapes: (m, n) and (p, n) give (m + p, n); (n,) and (n,) give (2, n).
    Edges: no array at all, or shapes that do not fit, are a `ShapeError`.
    Derivative: each array gets its part of dy.
    """
    return concatenate([atleast_2d(tensor) for tensor in _several("vstack", arrays)])


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    """`x` cut along `axis` into equal sections, or before the given indices.

    Shapes: x (..., n, ...) and k sections give k tensors (..., n / k, ...).
    Edges: k < 1, or an axis that k does not divide, is a `ShapeError`; `array_split` takes every k >= 1.
    Derivative: the parts of dy one after the other.
    """
    x = as_tensor(x)
    place = normalize_axis(axis, x, "split")
    if not isinstance(sections, Iterable):
        (count,) = as_shape(sections, "split", lowest=1)
        if x.shape[place] % count:
            raise misfit(f"split: {type_of(x)} along axis {place} has no {count} equal sections: use array_split")
    return array_split(x, sections, place)


def array_split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    """`x` cut along `axis` into sections that differ by at most one, longer ones first, or before the given indices.

    Shapes: x (..., 7, ...) and 3 sections give (..., 3, ...), (..., 2, ...) and (..., 2, ...).
    Edges: fewer than one section is a `ShapeError`. Indices count as in a slice.
    Derivative: the parts of dy one after the other.
    """
    x = as_tensor(x)
    place = normalize_axis(axis, x, "array_split")
    size = x.shape[place]
    if isinstance(sections, Iterable):
        cuts = [0, *as_shape(sections, "split", lowest=-size), size]
    else:
        (count,) = as_shape(sections, "array_split", lowest=1)
        cuts = list(accumulate((size // count + (part < size % count) for part in range(count)), initial=0))
    return [ops.getitem(x, (*[slice(None)] * place, slice(start, stop))) for start, stop in pairwise(cuts)]


def flip(x: Any, axis: Axes = None) -> Any:
    """Elements in reverse order along `axis`, or along all axes.

    Shapes: that of x.
    Edges: an axis of size 0 or 1 is left as it is; an axis that x does not have is a `ShapeError`.
    Derivative: dy reversed along the same axes.
    """
    x = as_tensor(x)
    return flip_p(x, normalize_axes(axis, x, "flip"))


def flipud(x: Any) -> Any:
    """Elements in reverse order along the first axis.

    Shapes: that of x, with at least one axis.
    Edges: a scalar has no first axis: a `ShapeError`.
    Derivative: dy reversed along the first axis.
    """
    return flip(x, 0)


def fliplr(x: Any) -> Any:
    """Elements in reverse order along the second axis.

    Shapes: that of x, with at least two axes.
    Edges: a vector has no second axis: a `ShapeError`.
    Derivative: dy reversed along the second axis.
    """
    return flip(x, 1)


def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """`x` turned `k` times by a right angle in the plane of two axes, from the first towards the second.

    Shapes: x (m, n) gives (n, m) for odd k, else (m, n).
    Edges: fewer than two different axes are a `ShapeError`.
    Derivative: dy turned back.
    """
    x, k = as_tensor(x), as_integer(k, "rot90")
    first, second = (normalize_axis(axis, x, "rot90") for axis in as_shape(axes, "rot90", lowest=-x.ndim))
    if first == second:
        raise misfit(f"rot90: two different axes are needed, found {axes}")
    if k % 2 == 0:
        return flip(x, (first, second)) if k % 4 else x
    return flip(swapaxes(x, first, second), first if k % 4 == 1 else second)
