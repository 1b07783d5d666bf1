"""Where batches come from. Feeds are written with `ops`: they run in the training program, or at once on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from antegrad import flow, ops, random, tree
from antegrad.ir.types import TensorType, spec
from antegrad.ops.index import dynamic_slice_p
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
        """The arrays that there are, in order."""
        return tree.leaves((self.x, self.y, self.weights, self.places))

    def with_parts(self, parts: Sequence[Any]) -> Rows:
        """The same with other arrays."""
        return Rows(*tree.unflatten(tree.structure((self.x, self.y, self.weights, self.places)), parts))


class Feed(Protocol):
    """How the steps of an epoch get their batches."""

    @property
    def steps(self) -> int:
        """The most steps in one dispatch; where there are epochs, the steps of one."""
        ...

    @property
    def samples_a_step(self) -> float:
        """Samples (or tokens) of a step, for the speed that is shown."""
        ...

    def place(self, epoch: int, step: int, done: int) -> tuple[int, int]:
        """Epoch and step as `rows` takes them, of `step` in `epoch` before which `done` steps were done in all."""
        ...

    def has(self, step: int) -> bool:
        """Whether there is such a step in an epoch."""
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

    def drawn(self, carried: Any, seed: Any, epoch: Any, step: Any) -> Any:
        """i32[batch]: where in the data the samples of `step` are."""
        ...

    def units(self, data: Any, places: Any) -> Any:
        """What the data have at `places`, stacked along a first axis."""
        ...

    def batch_of(self, units: Any) -> tuple[Any, Any]:
        """Inputs and targets, of what `units` gave."""
        ...

    def weights(self, step: Any) -> Any:
        """f32[batch], or None where every sample has the weight 1."""
        ...

    @property
    def keeps_places(self) -> bool:
        """Whether a batch goes with the places of its samples."""
        ...

    def rows(self, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        """The batch of `step`."""
        places = self.drawn(carried, seed, epoch, step)
        x, y = self.batch_of(self.units(data, places))
        return Rows(x, y, self.weights(step), places if self.keeps_places else None)

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
class EpochFeed(Feed):
    """Every sample once an epoch, in an order that depends on (seed, epoch) alone; the last batch may be short.

    What fills it up repeats the first samples of the epoch with weight 0.
    """

    count: int
    batch: int
    shuffle: bool = True
    augment: Augment | None = None

    @property
    def steps(self) -> int:
        return -(-self.count // self.batch)

    @property
    def samples_a_step(self) -> float:
        return self.count / self.steps

    def place(self, epoch: int, step: int, done: int) -> tuple[int, int]:
        return epoch, step

    def has(self, step: int) -> bool:
        return step < self.steps

    @property
    def weighted(self) -> bool:
        return self.count % self.batch != 0

    @property
    def carried(self) -> TensorType:
        return spec((self.steps * self.batch,), "i32")

    def started(self, seed: Any, epoch: Any) -> Any:
        key = streams(seed)[0]
        order = random.epoch_permutation(key, epoch, self.count) if self.shuffle else ops.arange(self.count)
        return ops.concatenate([order, order[: self.steps * self.batch - self.count]])

    def drawn(self, carried: Any, seed: Any, epoch: Any, step: Any) -> Any:
        return dynamic_slice_p(carried, (step * self.batch,), (self.batch,))

    def units(self, data: Any, places: Any) -> Any:
        return tree.map(lambda leaf: ops.take_p(leaf, places, 0), data)

    def batch_of(self, units: Any) -> tuple[Any, Any]:
        return units

    def weights(self, step: Any) -> Any:
        return sample_weights(step, self.batch, self.count) if self.weighted else None

    @property
    def keeps_places(self) -> bool:
        return self.augment is not None

    def augmented(self, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, Any]:
        if self.augment is None:
            return rows.x, rows.y
        key = random.fold_in(streams(seed)[2], epoch)
        return self.augment(key, rows.places, as_input(rows.x), rows.y)


def sample_weights(step: Any, batch: int, count: int) -> Any:
    """f32[batch]: 1 for a sample, 0 for what fills the last batch up."""
    return ops.convert(step * batch + ops.arange(batch) < count, "f32")


@dataclass(frozen=True)
class WindowFeed(Feed):
    """Windows of a text: row r of step s begins at a place that is drawn from (seed, s, r) alone.

    The data are one array of tokens. Inputs are `context` tokens, targets the same one place further on. Steps are
    counted from the beginning, so it makes no difference when there are evaluations.
    """

    tokens: int
    context: int
    batch: int

    @property
    def steps(self) -> int:
        return 1024

    @property
    def weighted(self) -> bool:
        return False

    @property
    def keeps_places(self) -> bool:
        return False

    @property
    def samples_a_step(self) -> float:
        return self.batch * self.context

    def place(self, epoch: int, step: int, done: int) -> tuple[int, int]:
        return 0, done

    def has(self, step: int) -> bool:
        return True

    @property
    def carried(self) -> TensorType:
        return spec((1,), "i32")

    def started(self, seed: Any, epoch: Any) -> Any:
        return ops.zeros((1,), "i32")

    def drawn(self, carried: Any, seed: Any, epoch: Any, step: Any) -> Any:
        key = random.fold_in(streams(seed)[0], step)
        return random.randint(key, (self.batch,), 0, self.tokens - self.context)

    def units(self, data: Any, places: Any) -> Any:
        return windows_at(data, places, self.context)

    def batch_of(self, units: Any) -> tuple[Any, Any]:
        return units[:, :-1], units[:, 1:]

    def weights(self, step: Any) -> Any:
        return None

    def augmented(self, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, Any]:
        return rows.x, rows.y


def windows_at(tokens: Any, starts: Any, context: int) -> Any:
    """i32[rows,context+1]: the tokens from each of `starts` on."""
    places = ops.expand_dims(starts, 1) + ops.arange(context + 1)
    return ops.convert(ops.take_p(tokens, places, 0), "i32")
