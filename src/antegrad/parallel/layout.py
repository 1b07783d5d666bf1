"""How arrays are divided among ranks, and the buckets in which they travel.

An array of any shape is flattened, filled up with zeros to a multiple of the number of ranks, and cut into equal
*shards*, one for each rank. Arrays that travel together are a *bucket*: one collective for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.checkpoint.shards import chunk
from antegrad.ir.types import TensorType, accumulation_dtype, type_of
from antegrad.ops.index import dynamic_slice_p


@dataclass(frozen=True)
class Layout:
    """The division among `ranks` ranks."""

    ranks: int

    def chunk(self, type: TensorType) -> int:
        """Elements of a shard."""
        return chunk(type, self.ranks)

    def shard(self, type: TensorType) -> TensorType:
        """The type of a shard."""
        return type.with_shape((self.chunk(type),))

    def padded(self, type: TensorType) -> int:
        """Elements of all shards together."""
        return self.chunk(type) * self.ranks

    # on arrays of the host

    def spread(self, array: np.ndarray) -> np.ndarray:
        """All shards of an array, one after the other."""
        type = type_of(array)
        spread = np.zeros(self.padded(type), type.dtype)
        spread[: type.size] = array.reshape(-1)
        return spread

    def joined(self, spread: np.ndarray, type: TensorType) -> np.ndarray:
        """The array of which `spread` are all shards."""
        return spread[: type.size].reshape(type.shape)

    # in programs

    def rows(self, x: Any) -> Any:
        """[ranks, chunk]: the shards of a whole tensor."""
        type = type_of(x)
        flat, missing = ops.reshape(x, (type.size,)), self.padded(type) - type.size
        if missing:
            flat = ops.concatenate([flat, ops.zeros((missing,), type.dtype)])
        return ops.reshape(flat, (self.ranks, self.chunk(type)))

    def own(self, x: Any) -> Any:
        """This rank's shard of a whole tensor that every rank has. A shard is filled up, never the whole tensor."""
        type, chunk = type_of(x), self.chunk(type_of(x))
        flat, first = ops.reshape(x, (type.size,)), ops.axis_index(self.ranks) * chunk
        if self.padded(type) == type.size:
            return dynamic_slice_p(flat, (first,), (chunk,))
        start = ops.minimum(first, type.size - chunk)
        filled = ops.concatenate([dynamic_slice_p(flat, (start,), (chunk,)), ops.zeros((chunk,), type.dtype)])
        return dynamic_slice_p(filled, (ops.minimum(first - start, chunk),), (chunk,))

    def whole(self, rows: Any, type: TensorType) -> Any:
        """The tensor whose shards are `rows` [ranks, chunk]."""
        flat = ops.reshape(rows, (self.padded(type),))
        return ops.reshape(flat[: type.size] if self.padded(type) != type.size else flat, type.shape)

    def inside(self, type: TensorType) -> Any:
        """bool[chunk]: which elements of this rank's shard are no filling."""
        place = ops.axis_index(self.ranks) * self.chunk(type) + ops.arange(self.chunk(type))
        return place < type.size

    # what ranks agree on

    def share(self, x: Any) -> Any:
        """This rank's part of a mean over the ranks; divided before it is added, so that the sum does not overflow."""
        return ops.convert(ops.convert(x, accumulation_dtype(x.dtype)) / self.ranks, x.dtype)

    def largest(self, x: Any) -> Any:
        """The largest of integers over the ranks; of truth values, whether one is true."""
        found = ops.all_reduce(ops.convert(x, "i32") if x.dtype == np.bool_ else x, self.ranks, "max")
        return ops.convert(found, x.dtype)

    # buckets

    def all_reduce(self, tensors: Sequence[Any]) -> list[Any]:
        """The sums over all ranks of tensors of one element type, by one collective."""
        if len(tensors) == 1:
            return [ops.all_reduce(tensors[0], self.ranks)]
        flat = ops.concatenate([ops.reshape(each, (type_of(each).size,)) for each in tensors])
        parts = _cut(ops.all_reduce(flat, self.ranks), [type_of(each).size for each in tensors])
        return [ops.reshape(part, each.shape) for part, each in zip(parts, tensors, strict=True)]

    def reduce_scatter(self, tensors: Sequence[Any]) -> list[Any]:
        """This rank's shards of the sums over all ranks, by one collective."""
        rows = [self.rows(each) for each in tensors]
        bucket = ops.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]
        summed = ops.reshape(ops.reduce_scatter(bucket, self.ranks), (bucket.shape[1],))
        return _cut(summed, [row.shape[1] for row in rows])

    def all_gather(self, shards: Sequence[Any], types: Sequence[TensorType]) -> list[Any]:
        """The whole tensors of which every rank has its shard, by one collective."""
        bucket = ops.concatenate(shards) if len(shards) > 1 else shards[0]
        rows = ops.all_gather(ops.reshape(bucket, (1, bucket.shape[0])), self.ranks)
        columns = _cut(rows, [shard.shape[0] for shard in shards], axis=1)
        return [self.whole(part, type) for part, type in zip(columns, types, strict=True)]


def after(x: Any, *known: Any) -> Any:
    """`x`, which is computed after `known` are.

    XLA for CPU drops barriers before it orders a program, so the order is one of data: a condition that holds for every
    number, of one element of each, which no compiler pass takes for a constant.
    """
    first = [ops.reshape(ops.reshape(each, (each.size,))[:1], ()) for each in known if each.size]
    held = [ops.logical_or(each == each, each != each) for each in first]
    return ops.where(functools.reduce(ops.logical_and, held), x, ops.zeros((), x.dtype)) if held else x


def _cut(x: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """`x` cut along an axis into parts of these sizes."""
    return [x] if len(sizes) == 1 else ops.split(x, [int(end) for end in np.cumsum(sizes[:-1])], axis)


def buckets(types: Sequence[TensorType], limit: int) -> list[list[int]]:
    """Positions of `types`, in order, in buckets of one element type each.

    A bucket is full when the next tensor would make it larger than `limit` bytes, so one that is larger goes alone.
    """
    found: list[list[int]] = []
    latest: dict[np.dtype, int] = {}
    sizes: list[int] = []
    for position, type in enumerate(types):
        last = latest.get(type.dtype)
        if last is not None and sizes[last] + type.nbytes <= limit:
            found[last].append(position)
            sizes[last] += type.nbytes
        else:
            latest[type.dtype] = len(found)
            found.append([position])
            sizes.append(type.nbytes)
    return found
