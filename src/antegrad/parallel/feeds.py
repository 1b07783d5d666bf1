"""Batches for several ranks: each holds a part of the data on its device, and gets its part of every batch.

A batch is drawn from all of the data, in the same order for any number of ranks. Every rank looks up what it has of the
batch; a sum over the ranks, in which each sample comes from the one rank that has it, gives each its rows. It is a sum
of the bits as integers, so no value changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import flow, ops, tree
from antegrad.capture import capture
from antegrad.ir.types import DTYPES, TensorType, is_float, type_of
from antegrad.ops.index import dynamic_slice_p
from antegrad.train.feeds import Feed, Rows, WindowFeed
from antegrad.train.shares import Shares

EXCHANGED_BYTES = 4 * 2**20
"""How much of a batch a rank looks up at a time. A whole batch would take the room of those of all ranks."""


@dataclass(frozen=True)
class RankFeed(Feed):
    """`feed`, whose batches are of all ranks, as one of `ranks` ranks sees it."""

    feed: Feed
    ranks: int
    extent: int
    """Samples, or tokens, in all of the data."""

    @property
    def steps(self) -> int:
        return self.feed.steps

    @property
    def samples_a_step(self) -> float:
        return self.feed.samples_a_step

    def place(self, epoch: int, step: int, done: int) -> tuple[int, int]:
        return self.feed.place(epoch, step, done)

    def has(self, step: int) -> bool:
        return self.feed.has(step)

    @property
    def weighted(self) -> bool:
        return self.feed.weighted

    @property
    def carried(self) -> TensorType:
        return self.feed.carried

    def started(self, seed: Any, epoch: Any) -> Any:
        return self.feed.started(seed, epoch)

    @property
    def keeps_places(self) -> bool:
        return self.feed.keeps_places

    def drawn(self, carried: Any, seed: Any, epoch: Any, step: Any) -> Any:
        return self._own(self.feed.drawn(carried, seed, epoch, step))

    def weights(self, step: Any) -> Any:
        weights = self.feed.weights(step)
        return None if weights is None else self._own(weights)

    def batch_of(self, units: Any) -> tuple[Any, Any]:
        return self.feed.batch_of(units)

    def augmented(self, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, Any]:
        return self.feed.augmented(rows, seed, epoch)

    def rows(self, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        places = self.feed.drawn(carried, seed, epoch, step)
        x, y = self.batch_of(self.units(data, places))
        return Rows(x, y, self.weights(step), self._own(places) if self.keeps_places else None)

    def units(self, data: Any, places: Any) -> Any:
        """This rank's rows of what all ranks together have at the `places` of the whole batch."""
        if self.ranks == 1:
            return self.feed.units(data, places)
        own = places.shape[0] // self.ranks
        pieces = self._pieces(data, own)
        by_piece = ops.transpose(ops.reshape(places, (self.ranks, pieces, own // pieces)), (1, 0, 2))
        by_piece = ops.reshape(by_piece, (pieces, places.shape[0] // pieces))
        if pieces == 1:
            return self._exchanged_units(data, by_piece[0])
        _, found = flow.scan(lambda kept, piece: (kept, self._exchanged_units(data, piece)), (), by_piece)
        return tree.map(lambda leaf: ops.reshape(leaf, (own, *leaf.shape[2:])), found)

    def _exchanged_units(self, data: Any, places: Any) -> Any:
        """This rank's rows of what all ranks have at `places`, equally many for each rank, in their order."""
        local = places - ops.axis_index(self.ranks) * self.part
        here = ops.logical_and(local >= 0, local < self.part)
        found = self.feed.units(data, ops.clip(local, 0, self.part - 1))
        return tree.map(lambda leaf: _exchanged(leaf, here, self.ranks), found)

    def _pieces(self, data: Any, own: int) -> int:
        """In how many pieces of one size a rank's `own` rows are exchanged: each rank looks up those of all ranks."""
        example = capture(lambda data: self.feed.units(data, ops.zeros((1,), "i32")), tree.map(type_of, data))
        row = sum(type.nbytes for type in example.output_types) * self.ranks
        fitting = (n for n in range(1, own + 1) if own % n == 0 and row * (own // n) <= EXCHANGED_BYTES)
        return next(fitting, own)

    def of_ranks(self, data: Any, carried: Any, seed: Any, epoch: Any, step: Any, ranks: range) -> Rows:
        """The rows of some ranks, one after the other, from the whole of the data: for the host, which has them."""
        places, weights = self.feed.drawn(carried, seed, epoch, step), self.feed.weights(step)
        size = places.shape[0] // self.ranks
        own = slice(ranks.start * size, ranks.stop * size)
        x, y = self.batch_of(self.feed.units(data, places[own]))
        return Rows(x, y, None if weights is None else weights[own], places[own] if self.keeps_places else None)

    # the data on the devices

    @property
    def part(self) -> int:
        """Samples, or places at which a window may begin, that a rank has."""
        return -(-self.extent // self.ranks)

    @property
    def reach(self) -> int:
        """What a rank has beyond its part, because a unit that begins there goes on so far."""
        return self.feed.context if isinstance(self.feed, WindowFeed) else 0

    def divided(self, data: Any) -> Any:
        """`data` as global arrays to be sharded: the part of each rank, one after the other."""
        rows = self._rows
        return tree.map(lambda leaf: Shares(leaf, self.part, self.ranks, rows=rows, reach=self.reach), data)

    def part_types(self, data: Any) -> Any:
        """The types of a rank's part of `data`."""
        return tree.map(lambda leaf: type_of(leaf).with_shape((self._rows, *type_of(leaf).shape[1:])), data)

    @property
    def _rows(self) -> int:
        """What a rank has of the data in all."""
        return self.part + self.reach if self.ranks > 1 else self.extent

    def _own(self, x: Any) -> Any:
        """This rank's part of a tensor over the whole batch."""
        size = x.shape[0] // self.ranks
        start = (ops.axis_index(self.ranks) * size, *[ops.zeros((), "i32")] * (x.ndim - 1))
        return x if self.ranks == 1 else dynamic_slice_p(x, start, (size, *x.shape[1:]))


def _exchanged(x: Any, here: Any, ranks: int) -> Any:
    """This rank's rows of `x`, of which each row counts on the one rank where `here` is true."""
    dtype = x.dtype
    bits = ops.bitcast(x, DTYPES[f"u{8 * dtype.itemsize}"]) if is_float(dtype) else x
    # Not every library of collectives adds 16-bit integers, and none adds truth values.
    wide = ops.convert(bits, "u32") if bits.dtype.itemsize == 2 or bits.dtype == np.bool_ else bits
    mask = ops.reshape(here, (here.shape[0], *(1,) * (x.ndim - 1)))
    own = ops.reduce_scatter(ops.where(mask, wide, np.zeros((), wide.dtype)), ranks)
    own = ops.convert(own, bits.dtype)
    return ops.bitcast(own, dtype) if is_float(dtype) else own
