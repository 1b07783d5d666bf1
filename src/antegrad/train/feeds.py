"""Where batches come from. Feeds are written with `ops`: they run in the training program, or at once on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from antegrad import flow, ops, random, tree
from antegrad.ir.types import TensorType, spec
from antegrad.train.objective import as_input

Augment = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""From a key, the places of the samples in the data (i32[batch]), inputs and targets to new inputs and targets."""


@dataclass(frozen=True)
class Rows:
    """A batch as the data have it: inputs, targets, and where needed weights of the samples and their places."""

    x: Any
    y: Any
    weights: Any = None
    places: Any = None

    @property
    def parts(self) -> list[Any]:
        """What there is, in order."""
        return [part for part in (self.x, self.y, self.weights, self.places) if part is not None]


class Feed(Protocol):
    """How the steps of an epoch get their batches."""

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        ...

    @property
    def samples(self) -> int:
        """Samples (or tokens) of an epoch, for the speed that is shown."""
        ...

    @property
    def weighted(self) -> bool:
        """Whether samples have weights, because a batch may be short."""
        ...

    @property
    def carried(self) -> TensorType:
        """The type of what goes from step to step of an epoch, such as the order of the samples."""
        ...

    def started(self, seed: Any, epoch: Any) -> Any:
        """What is carried from the first step of `epoch` on."""
        ...

    def rows(self, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        """The batch of `step`."""
        ...

    def augmented(self, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, Any]:
        """Inputs and targets as the model gets them."""
        ...


def streams(seed: Any) -> tuple[Any, Any, Any]:
    """The keys of a run: for the order of the samples, for the steps (dropout), and for augmentation."""
    order, steps, augmentation = (random.fold_in(seed, number) for number in range(3))
    return order, steps, augmentation


def current(feed: Feed, carried: Any, seed: Any, epoch: Any, fresh: Any) -> Any:
    """What is carried: made anew where `fresh` says so."""
    return flow.cond(fresh, lambda _: feed.started(seed, epoch), lambda kept: kept, carried)


@dataclass(frozen=True)
class EpochFeed:
    """Every sample once an epoch, in an order that depends on (seed, epoch) alone; the last batch may be short.

    What fills it up repeats the first sample of the data with weight 0.
    """

    count: int
    batch: int
    shuffle: bool = True
    augment: Augment | None = None

    @property
    def steps(self) -> int:
        return -(-self.count // self.batch)

    @property
    def samples(self) -> int:
        return self.count

    @property
    def weighted(self) -> bool:
        return self.count % self.batch != 0

    @property
    def carried(self) -> TensorType:
        return spec((self.steps * self.batch,), "i32")

    def started(self, seed: Any, epoch: Any) -> Any:
        key = streams(seed)[0]
        order = random.epoch_permutation(key, epoch, self.count) if self.shuffle else ops.arange(self.count)
        return ops.pad(order, (0, self.steps * self.batch - self.count))

    def rows(self, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        places = ops.dynamic_slice(carried, (step * self.batch,), (self.batch,))
        x, y = tree.map(lambda leaf: ops.take_p(leaf, places, 0), data)
        weights = sample_weights(step, self.batch, self.count) if self.weighted else None
        return Rows(x, y, weights, places if self.augment is not None else None)

    def augmented(self, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, Any]:
        if self.augment is None:
            return rows.x, rows.y
        key = random.fold_in(streams(seed)[2], epoch)
        return self.augment(key, rows.places, as_input(rows.x), rows.y)


def sample_weights(step: Any, batch: int, count: int) -> Any:
    """f32[batch]: 1 for a sample, 0 for what fills the last batch up."""
    return ops.convert(step * batch + ops.arange(batch) < count, "f32")


@dataclass(frozen=True)
class WindowFeed:
    """Windows of a text: row r of step s begins at a place that is drawn from (seed, s, r) alone.

    The data are one array of tokens. Inputs are `context` tokens, targets the same one place further on. An epoch is
    nothing but a number of steps, after which there is an evaluation.
    """

    tokens: int
    context: int
    batch: int
    steps: int
    weighted: bool = False

    @property
    def samples(self) -> int:
        return self.steps * self.batch * self.context

    @property
    def carried(self) -> TensorType:
        return spec((1,), "i32")

    def started(self, seed: Any, epoch: Any) -> Any:
        return ops.zeros((1,), "i32")

    def rows(self, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        key = random.fold_in(streams(seed)[0], epoch * self.steps + step)
        starts = random.randint(key, (self.batch,), 0, self.tokens - self.context)
        windows = windows_at(data, starts, self.context)
        return Rows(windows[:, :-1], windows[:, 1:])

    def augmented(self, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, Any]:
        return rows.x, rows.y


def windows_at(tokens: Any, starts: Any, context: int) -> Any:
    """i32[rows,context+1]: the tokens from each of `starts` on."""
    places = ops.expand_dims(starts, 1) + ops.arange(context + 1)
    return ops.convert(ops.take_p(tokens, places, 0), "i32")
