"""Making arrays of nothing but sizes and numbers, with NumPy's names and argument order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import DTYPES, SHORT_NAMES, DTypeLike, accumulation_dtype, as_dtype, is_float, type_of
from antegrad.ops.arrays import as_integer, as_number, as_shape, broadcast_to, expand_dims, misfit, placed, reshape
from antegrad.ops.constant import constant
from antegrad.ops.dispatch import as_tensor, bind, current_builder, frozen
from antegrad.ops.promotion import harmonise
from antegrad.ops.shape import iota

__all__ = [
    "arange", "eye", "full", "full_like", "linspace", "meshgrid", "one_hot", "ones", "ones_like", "tri", "zeros",
    "zeros_like",
]  # fmt: skip

I32 = DTYPES["i32"]


def full(shape: Any, value: float, dtype: DTypeLike = "f32") -> Any:
    """A tensor in which every element is `value`, a Python number.

    Shapes: `shape`, a size or a sequence of sizes.
    Edges: a number that `dtype` does not hold is a `DTypeError`; a size that is no integer >= 0 a `ShapeError`.
    Derivative: none.
    """
    sizes = as_shape(shape, "full")
    element = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value
    scalar = as_number(element, as_dtype(dtype), "full")
    traced = bind(constant, value=frozen(scalar)) if current_builder() is not None else scalar
    return broadcast_to(traced, sizes)


def zeros(shape: Any, dtype: DTypeLike = "f32") -> Any:
    """A tensor of zeros.

    Shapes: `shape`, a size or a sequence of sizes.
    Edges: a size that is no integer >= 0 is a `ShapeError`.
    Derivative: none.
    """
    return full(as_shape(shape, "zeros"), False if as_dtype(dtype).kind == "b" else 0, dtype)


def ones(shape: Any, dtype: DTypeLike = "f32") -> Any:
    """A tensor of ones.

    Shapes: `shape`, a size or a sequence of sizes.
    Edges: a size that is no integer >= 0 is a `ShapeError`.
    Derivative: none.
    """
    return full(as_shape(shape, "ones"), True if as_dtype(dtype).kind == "b" else 1, dtype)


def full_like(x: Any, value: float) -> Any:
    """`value` in the shape and element type of `x`.

    Shapes: that of x.
    Edges: a number that the element type of x does not hold is a `DTypeError`.
    Derivative: 0.
    """
    x = as_tensor(x)
    return full(x.shape, value, x.dtype)


def zeros_like(x: Any) -> Any:
    """Zeros in the shape and element type of `x`.

    Shapes: that of x.
    Edges: an empty x gives an empty tensor.
    Derivative: 0.
    """
    x = as_tensor(x)
    return zeros(x.shape, x.dtype)


def ones_like(x: Any) -> Any:
    """Ones in the shape and element type of `x`.

    Shapes: that of x.
    Edges: an empty x gives an empty tensor.
    Derivative: 0.
    """
    x = as_tensor(x)
    return ones(x.shape, x.dtype)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike | None = None) -> Any:
    """``start, start + step, ...`` before `stop`, counting down for a negative `step`.

    Shapes: (ceil((stop - start) / step),); i32 of integers and f32 of floats where no `dtype` is given.
    Edges: a step of 0 is a `ShapeError`; numbers that `dtype` does not hold are a `DTypeError`. For fractions prefer
        `linspace`: whether the last step is below `stop` depends on rounding.
    Derivative: none.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    if not all(isinstance(bound, (int, float, np.number)) for bound in (start, stop, step)):
        raise placed(DTypeError, f"arange: numbers are needed, found {start!r}, {stop!r}, {step!r}")
    if step == 0 or not all(math.isfinite(bound) for bound in (start, stop, step)):
        raise misfit(f"arange: from {start} in steps of {step} one never arrives at {stop}")
    whole = all(isinstance(bound, (int, np.integer)) for bound in (start, stop, step))
    target = (I32 if whole else DTYPES["f32"]) if dtype is None else as_dtype(dtype)
    count = max(0, math.ceil((stop - start) / step))
    first, by, last = (_exact(bound, target) for bound in (start, step, start + max(count - 1, 0) * step))
    for bound in (first, last):
        as_number(bound, target, "arange")
    inner = DTYPES["i64"] if target.kind == "u" and by < 0 else accumulation_dtype(target)
    counts = iota((count,), inner)
    scaled = counts if by == 1 or count < 2 else counts * by
    return ops.convert(scaled if first == 0 else scaled + first, target)


def _exact(bound: Any, dtype: np.dtype) -> Any:
    """A bound as a Python number, an integer for integer types; what is no integer is left to `as_number` to refuse."""
    bound = bound.item() if isinstance(bound, np.number) else bound
    return int(bound) if not is_float(dtype) and bound == int(bound) else bound


def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: DTypeLike | None = None) -> Any:
    """`num` numbers at equal distances from `start` to `stop`, which is the last of them if `endpoint`.

    Shapes: (num,), or (num, ...) for tensors `start` and `stop` of shape (...). f32 of Python numbers.
    Edges: num = 1 gives `start`; the ends are exact. An integer `dtype` is a `DTypeError`.
    Derivative: ``d_start = sum(dy * (1 - t)), d_stop = sum(dy * t)`` with t from 0 to 1.
    """
    ends = [float(end) if isinstance(end, (int, float)) else end for end in (start, stop)]
    if dtype is not None and is_float(as_dtype(dtype)):
        wide = accumulation_dtype(as_dtype(dtype))
        ends = [as_number(end, wide, "linspace") if isinstance(end, float) else end for end in ends]
    first, last = harmonise("linspace", *ends)
    target = first.dtype if dtype is None else as_dtype(dtype)
    if not is_float(target) or not is_float(first.dtype):
        found = f"{type_of(first)} and dtype {SHORT_NAMES[target]}"
        raise placed(DTypeError, f"linspace is for floats, found ends of {found}: use arange for integers")
    (count,) = as_shape(num, "linspace")
    wide = accumulation_dtype(target)
    steps = iota((count, *(1,) * first.ndim), wide) / max(count - 1 if endpoint else count, 1)
    first, last = (ops.convert(end, wide) for end in (first, last))
    return ops.convert(first * (1 - steps) + last * steps, target)


def eye(rows: int, columns: int | None = None, k: int = 0, dtype: DTypeLike = "f32") -> Any:
    """Ones on the k-th diagonal, zeros elsewhere.

    Shapes: (rows, columns), square where no `columns` are given.
    Edges: k beyond the border gives zeros alone.
    Derivative: none.
    """
    shape = as_shape((rows, rows if columns is None else columns), "eye")
    return ops.convert(_diagonal_of(shape, k) == iota(shape, I32, 1), dtype)


def tri(rows: int, columns: int | None = None, k: int = 0, dtype: DTypeLike = "f32") -> Any:
    """Ones on and below the k-th diagonal, zeros above.

    Shapes: (rows, columns), square where no `columns` are given.
    Edges: k beyond the border gives ones or zeros alone.
    Derivative: none.
    """
    shape = as_shape((rows, rows if columns is None else columns), "tri")
    return ops.convert(iota(shape, I32, 1) <= _diagonal_of(shape, k), dtype)


def _diagonal_of(shape: tuple[int, ...], k: int) -> Any:
    """At every place of a matrix the column of the k-th diagonal in that row."""
    rows, offset = iota(shape, I32, 0), as_integer(k, "a diagonal")
    return ops.add(rows, offset) if offset else rows


def one_hot(indices: Any, depth: int, dtype: DTypeLike = "f32") -> Any:
    """1 at the index along a new last axis, 0 elsewhere.

    Shapes: indices (...) of integers give (..., depth).
    Edges: an index that is negative or past the end is nowhere: its row is 0.
    Derivative: none.
    """
    indices = as_tensor(indices)
    if indices.dtype.kind not in "iu":
        raise placed(DTypeError, f"one_hot: an index must be an integer, found {type_of(indices)}")
    if indices.dtype.itemsize < 4:
        indices = ops.convert(indices, I32)  # an 8-bit type may not hold every position
    positions = iota((*indices.shape, *as_shape(depth, "one_hot")), indices.dtype, indices.ndim)
    return ops.convert(expand_dims(indices, -1) == positions, dtype)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    """The coordinates of a grid: every array along an axis of its own, repeated along the others.

    Shapes: vectors (m,), (n,), (p,) ... give tensors (n, m, p, ...), or (m, n, p, ...) with ``indexing="ij"``.
    Edges: no array gives an empty list; an empty vector gives empty tensors.
    Derivative: the sum of dy over the axes along which a vector was repeated.
    """
    tensors = [as_tensor(array) for array in arrays]
    if indexing not in ("xy", "ij") or any(tensor.ndim > 1 for tensor in tensors):
        types = ", ".join(str(type_of(tensor)) for tensor in tensors)
        raise misfit(f"meshgrid: vectors and indexing 'xy' or 'ij' are needed, found {types} and {indexing!r}")
    swapped = indexing == "xy" and len(tensors) > 1
    axes = [1 - axis if swapped and axis < 2 else axis for axis in range(len(tensors))]
    sizes = dict(zip(axes, (tensor.size for tensor in tensors), strict=True))
    shape = tuple(sizes[axis] for axis in range(len(tensors)))
    return [
        broadcast_to(reshape(tensor, (tensor.size, *(1,) * (len(shape) - 1 - axis))), shape)
        for axis, tensor in zip(axes, tensors, strict=True)
    ]
