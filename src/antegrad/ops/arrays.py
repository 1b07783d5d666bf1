"""Making and reshaping arrays, with NumPy's names and argument order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.types import DTypeLike, as_dtype, is_float
from antegrad.ops.constant import constant
from antegrad.ops.dispatch import as_tensor, bind, current_builder, frozen, here
from antegrad.ops.promotion import number, unify
from antegrad.ops.shape import broadcast_in_dim, concatenate_p, flip_p, iota, pad_p, reshape_p, transpose_p

__all__ = [
    "arange", "broadcast_to", "concatenate", "expand_dims", "eye", "flip", "full", "full_like", "moveaxis", "name",
    "one_hot", "ones", "ones_like", "pad", "ravel", "repeat_axis", "reshape", "split", "squeeze", "stack", "swapaxes",
    "tile", "transpose", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

Axes = int | Sequence[int] | None


def misfit(message: str) -> ShapeError:
    """The error, with the user's line."""
    place = str(here())
    return ShapeError(f"{message}\n  at {place}" if place else message)


def normalize_axis(axis: int, ndim: int, operation: str) -> int:
    """`axis` counted from the front; a `ShapeError` when a tensor of `ndim` axes has no such axis."""
    if not isinstance(axis, (int, np.integer)) or not -ndim <= axis < ndim:
        raise misfit(f"{operation}: axis {axis!r} of a tensor with {ndim} axes")
    return int(axis) % ndim


def normalize_axes(axes: Axes, ndim: int, operation: str) -> tuple[int, ...]:
    """`axes` counted from the front, sorted, each once; None stands for all."""
    if axes is None:
        return tuple(range(ndim))
    listed = [axes] if isinstance(axes, (int, np.integer)) else list(axes)
    result = sorted(normalize_axis(axis, ndim, operation) for axis in listed)
    if len(set(result)) != len(result):
        raise misfit(f"{operation}: an axis stands twice in {axes}")
    return tuple(result)


def as_shape(shape: Any) -> tuple[int, ...]:
    """A size or a sequence of sizes as a tuple."""
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(size) for size in shape)


def name(x: Any, label: str) -> Any:
    """`x` itself; in a capture it is printed under the name `label` unless a variable of the user names it."""
    if isinstance(x, ops.Tensor) and not x.value.declared:
        x.value.name = label
    return x


def full(shape: Any, value: float, dtype: DTypeLike = "f32") -> Any:
    """A tensor of `shape` in which every element is `value`."""
    scalar = number(value, as_dtype(dtype))
    traced = bind(constant, value=frozen(scalar)) if current_builder() is not None else scalar
    return broadcast_to(traced, as_shape(shape))


def zeros(shape: Any, dtype: DTypeLike = "f32") -> Any:
    """A tensor of zeros."""
    return full(shape, False if as_dtype(dtype).kind == "b" else 0, dtype)


def ones(shape: Any, dtype: DTypeLike = "f32") -> Any:
    """A tensor of ones."""
    return full(shape, True if as_dtype(dtype).kind == "b" else 1, dtype)


def full_like(x: Any, value: float) -> Any:
    """`value` in the shape and element type of `x`."""
    x = as_tensor(x)
    return full(x.shape, value, x.dtype)


def zeros_like(x: Any) -> Any:
    """Zeros in the shape and element type of `x`."""
    x = as_tensor(x)
    return zeros(x.shape, x.dtype)


def ones_like(x: Any) -> Any:
    """Ones in the shape and element type of `x`."""
    x = as_tensor(x)
    return ones(x.shape, x.dtype)


def arange(start: int, stop: int | None = None, step: int = 1, dtype: DTypeLike = "i32") -> Any:
    """``start, start + step, ...`` below `stop` (counting down for a negative `step`); integers or whole floats."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise misfit("arange: a step of 0 never arrives")
    count = max(0, math.ceil((stop - start) / step))
    counts = iota((count,), as_dtype(dtype))
    scaled = counts if step == 1 else counts * step
    return scaled if start == 0 else scaled + start


def eye(rows: int, columns: int | None = None, dtype: DTypeLike = "f32") -> Any:
    """Ones on the diagonal, zeros elsewhere."""
    shape = (rows, rows if columns is None else columns)
    return ops.convert(iota(shape, np.dtype(np.int32), 0) == iota(shape, np.dtype(np.int32), 1), dtype)


def one_hot(indices: Any, depth: int, dtype: DTypeLike = "f32") -> Any:
    """1 at the index along a new last axis of size `depth`, 0 elsewhere; all 0 for an index out of range."""
    indices = as_tensor(indices)
    if indices.dtype.itemsize < 4:
        indices = ops.convert(indices, "i32")  # an 8-bit type may not hold every position
    positions = iota((*indices.shape, depth), indices.dtype, indices.ndim)
    return ops.convert(expand_dims(indices, -1) == positions, dtype)


def _triangle(x: Any, offset: int, lower: bool) -> Any:
    x = as_tensor(x)
    shape = x.shape[-2:]
    rows, columns = (iota(shape, np.dtype(np.int32), axis) for axis in (0, 1))
    keep = columns <= rows + offset if lower else columns >= rows + offset
    return ops.where(keep, x, False if x.dtype.kind == "b" else 0)


def tril(x: Any, k: int = 0) -> Any:
    """`x` with zeros above the k-th diagonal of its last two axes."""
    return _triangle(x, k, lower=True)


def triu(x: Any, k: int = 0) -> Any:
    """`x` with zeros below the k-th diagonal of its last two axes."""
    return _triangle(x, k, lower=False)


def broadcast_to(x: Any, shape: Any) -> Any:
    """`x` stretched to `shape` by NumPy's rule."""
    x, target = as_tensor(x), as_shape(shape)
    if x.shape == target:
        return x
    return bind(broadcast_in_dim, x, shape=target, dims=tuple(range(len(target) - x.ndim, len(target))))


def reshape(x: Any, shape: Any) -> Any:
    """The same elements, in row-major order, under another shape; one size may be -1."""
    x, target = as_tensor(x), as_shape(shape)
    if target.count(-1) > 1 or any(size < -1 for size in target):
        raise misfit(f"reshape: {target} has more than one -1, or a size below -1")
    if -1 in target:
        rest = math.prod(size for size in target if size != -1)
        if rest == 0 or x.size % rest:
            raise misfit(f"reshape: no size for the -1 in {target} gives the {x.size} elements of shape {x.shape}")
        target = tuple(x.size // rest if size == -1 else size for size in target)
    return x if target == x.shape else bind(reshape_p, x, shape=target)


def ravel(x: Any) -> Any:
    """The elements in row-major order along one axis."""
    return reshape(x, (as_tensor(x).size,))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Axes in the order `axes`, or reversed."""
    x = as_tensor(x)
    if axes is None:
        permutation = tuple(reversed(range(x.ndim)))
    else:
        permutation = tuple(normalize_axis(axis, x.ndim, "transpose") for axis in axes)
    return x if permutation == tuple(range(x.ndim)) else bind(transpose_p, x, permutation=permutation)


def swapaxes(x: Any, first: int, second: int) -> Any:
    """Two axes exchanged."""
    x = as_tensor(x)
    order = list(range(x.ndim))
    a, b = (normalize_axis(axis, x.ndim, "swapaxes") for axis in (first, second))
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def moveaxis(x: Any, source: int, destination: int) -> Any:
    """One axis moved, the others in their order."""
    x = as_tensor(x)
    a, b = (normalize_axis(axis, x.ndim, "moveaxis") for axis in (source, destination))
    order = [axis for axis in range(x.ndim) if axis != a]
    order.insert(b, a)
    return transpose(x, order)


def expand_dims(x: Any, axis: Axes) -> Any:
    """New axes of size 1 at the places `axis` of the result."""
    x = as_tensor(x)
    count = 1 if isinstance(axis, (int, np.integer)) else len(list(axis or ()))
    places = normalize_axes(() if axis is None else axis, x.ndim + count, "expand_dims")
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if place in places else next(sizes) for place in range(x.ndim + count)))


def squeeze(x: Any, axis: Axes = None) -> Any:
    """Axes of size 1 removed: all, or those named."""
    x = as_tensor(x)
    if axis is None:
        gone = tuple(place for place, size in enumerate(x.shape) if size == 1)
    else:
        gone = normalize_axes(axis, x.ndim, "squeeze")
    if any(x.shape[place] != 1 for place in gone):
        raise misfit(f"squeeze: not every axis in {gone} of shape {x.shape} has size 1")
    return reshape(x, tuple(size for place, size in enumerate(x.shape) if place not in gone))


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays one after the other along `axis`."""
    tensors = unify("concatenate", *arrays)
    return concatenate_p(tensors, normalize_axis(axis, tensors[0].ndim, "concatenate"))


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape along a new axis."""
    tensors = unify("stack", *arrays)
    place = normalize_axis(axis, tensors[0].ndim + 1, "stack")
    return concatenate_p([expand_dims(tensor, place) for tensor in tensors], place)


def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    """`x` cut along `axis` into equal sections, or before the given indices."""
    x = as_tensor(x)
    place = normalize_axis(axis, x.ndim, "split")
    size = x.shape[place]
    if isinstance(sections, int):
        if size % sections:
            raise misfit(f"split: an axis of size {size} has no {sections} equal sections")
        cuts = list(range(0, size + 1, size // sections)) if size else [0] * (sections + 1)
    else:
        cuts = [0, *sections, size]
    index = (slice(None),) * place
    return [x[(*index, slice(a, b))] if b > a or size else x for a, b in pairwise(cuts)]


def flip(x: Any, axis: Axes = None) -> Any:
    """Elements in reverse order along `axis`, or along all axes."""
    x = as_tensor(x)
    return flip_p(x, normalize_axes(axis, x.ndim, "flip"))


def tile(x: Any, repeats: Any) -> Any:
    """`x` repeated as a whole, along each axis."""
    x, counts = as_tensor(x), as_shape(repeats)
    counts = (1,) * (x.ndim - len(counts)) + counts
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    spread = tuple(size for pair in zip(counts, shape, strict=True) for size in pair)
    ones = tuple(size for n in shape for size in (1, n))
    return reshape(broadcast_to(reshape(x, ones), spread), tuple(c * n for c, n in zip(counts, shape, strict=True)))


def repeat_axis(x: Any, repeats: int, axis: int) -> Any:
    """Every element along `axis` repeated in place, as ``np.repeat`` with one count."""
    x = as_tensor(x)
    place = normalize_axis(axis, x.ndim, "repeat")
    spread = (*x.shape[: place + 1], repeats, *x.shape[place + 1 :])
    shape = (*x.shape[:place], x.shape[place] * repeats, *x.shape[place + 1 :])
    return reshape(broadcast_to(expand_dims(x, place + 1), spread), shape)


def pad(x: Any, widths: Any, value: float = 0) -> Any:
    """`x` with `value` around it; `widths` is one number, one pair, or a pair an axis, as in ``np.pad``."""
    x = as_tensor(x)
    pairs = np.broadcast_to(np.asarray(widths, np.int64), (x.ndim, 2)).tolist()
    fill = number(value if is_float(x.dtype) else bool(value) if x.dtype.kind == "b" else int(value), x.dtype)
    return pad_p(x, fill, [low for low, _ in pairs], [high for _, high in pairs], (0,) * x.ndim)
