"""The training step of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from antegrad import ops, random, tree
from antegrad.capture import capture
from antegrad.errors import ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType, is_float, type_of
from antegrad.ops.dispatch import apply, part
from antegrad.parallel.exchange import Exchange, exchanged
from antegrad.parallel.layout import Layout, buckets
from antegrad.parallel.partition import partition
from antegrad.parallel.strategy import Strategy
from antegrad.passes.simplify import simplify
from antegrad.train.objective import exact_scale
from antegrad.train.programs import State, StepPrograms, mean_gradients


class RankPrograms(StepPrograms):
    """The programs of one rank's part of a training step, on its part `x` and `y` of the batch.

    - `forward`, `gradient`: the sum of the losses of the rank's own samples, without any collective.
    - `exchanged`: the same with the collectives, so that sums and gradients are those of the whole batch.
    - `update`: the update of the whole state; `rank_update` that of this rank's shards, by `partition`.
    - `step`: all together.

    The mean is taken last, over the weights of all samples of all ranks, so that every sample (or token) counts alike.
    """

    def __init__(self, strategy: Strategy, *arguments: Any, **settings: Any) -> None:
        self.strategy, self.layout = strategy, Layout(strategy.mesh.size)
        super().__init__(*arguments, **settings)

    def _takes_mean(self) -> bool:
        return False

    def _statistics_ranks(self) -> int:
        return self.layout.ranks if self.strategy.sync_batch_norm else 1

    @property
    def _exchanges_each_part(self) -> bool:
        """Whether each part of an accumulated batch is exchanged: where no rank is to hold whole gradients."""
        return self.accumulate == 1 or self.strategy.shards >= 2

    # which arrays are sharded

    @cached_property
    def whole_types(self) -> State:
        return tree.map(type_of, self.init())

    @cached_property
    def sharded(self) -> State:
        flags = tree.map(lambda _: False, self.whole_types)
        level, parameters = self.strategy.shards, self.whole_types["param"]
        if level >= 3:
            flags["param"] = dict.fromkeys(parameters, True)
        if level >= 1:
            named = tree.named_leaves(self.whole_types["opt"])
            divided = [_belongs(path, type, parameters) for path, type in named.items()]
            flags["opt"] = tree.unflatten(tree.structure(self.whole_types["opt"]), divided)
        return flags

    def _state_types(self) -> State:
        return tree.map(lambda type, flag: self.layout.shard(type) if flag else type, self.whole_types, self.sharded)

    def _gradient_types(self) -> dict[str, TensorType]:
        types = self.whole_types["param"]
        if self.strategy.shards < 2:
            return types
        return {name: self.layout.shard(type) for name, type in types.items()}

    # the programs

    def step_key(self, key: Any) -> Any:
        return random.fold_in(key, ops.axis_index(self.layout.ranks)) if self.layout.ranks > 1 else key

    @property
    def part_program(self) -> Program:
        return self.exchanged if self._exchanges_each_part else self.gradient

    @cached_property
    def exchanged(self) -> Program:
        """The gradient program with the collectives."""
        objective, level = self.objective, self.strategy.shards
        states, reported = objective.state_names, self.reported
        first = 1 + reported
        floats = [is_float(self.whole_types["state"][name].dtype) for name in states]
        gradients = dict(enumerate(objective.parameter_names, first + len(states)))
        paths = tree.named_leaves(objective.model)
        return exchanged(
            self.gradient,
            Exchange(
                self.layout,
                self.strategy.bucket_bytes,
                summed=tuple(range(1, first)),
                averaged=tuple(first + i for i, flag in enumerate(floats) if flag),
                largest=tuple(first + i for i, flag in enumerate(floats) if not flag),
                gradients=tuple(place for place, name in gradients.items() if name in self.trained),
                unread=tuple(place for place, name in gradients.items() if name not in self.trained),
                scatter=level >= 2,
                gathered=tuple(i for i, path in enumerate(paths) if level >= 3 and path not in states),
            ),
        )

    def _gradients(self, state: State, x: Any, y: Any, key: Any, weights: Any) -> tuple[State, list[Any], State]:
        if self.accumulate == 1:
            return self._part(state["param"], state["state"], x, y, key, weights)
        total, sums, layers = self._accumulated(state, x, y, key, weights)
        return (total, sums, layers) if self._exchanges_each_part else self._summed(total, sums, layers)

    def _summed(self, total: State, sums: list[Any], layers: State) -> tuple[State, list[Any], State]:
        """What the parts of a batch gave together, summed over the ranks; what nothing reads stays as it is."""
        floats = [name for name in layers if is_float(layers[name].dtype)]
        parts = [self.layout.share(layers[name]) for name in floats]
        trained = {name: value for name, value in total.items() if name in self.trained}
        found = self._all_reduced([*trained.values(), *sums, *parts])
        gradients = {**total, **dict(zip(trained, found, strict=False))}
        rest = found[len(trained) :]
        averaged = dict(zip(floats, rest[len(sums) :], strict=True))
        largest = {name: self.layout.largest(layers[name]) for name in layers if name not in averaged}
        return gradients, rest[: len(sums)], {**averaged, **largest}

    def _all_reduced(self, tensors: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        for bucket in buckets([type_of(each) for each in tensors], self.strategy.bucket_bytes):
            found.update(zip(bucket, self.layout.all_reduce([tensors[i] for i in bucket]), strict=True))
        return [found[i] for i in range(len(tensors))]

    @cached_property
    def update(self) -> Program:
        """State, summed gradients, what is reported and the layers' state to the new state, all of them whole."""
        types = self.whole_types

        def update(state: State, d: State, sums: list[Any], layers: State) -> State:
            with part("update"):
                gradients = mean_gradients(d, exact_scale(self.part_size), sums[1])
                return super(RankPrograms, self)._updated(state, gradients, sums, layers)

        sums = [self.gradient.output_types[1 + i] for i in range(self.reported)]
        return simplify(capture(update, types, types["param"], sums, types["state"], name="update"))

    @cached_property
    def trained(self) -> frozenset[str]:
        """The parameters whose gradients the update reads: not those that are frozen."""
        names, first = tree.named_leaves(self.whole_types["param"]), len(tree.leaves(self.whole_types))
        read = {value for equation in self.update.equations for value in equation.inputs}.union(self.update.outputs)
        pairs = zip(names, self.update.inputs[first:], strict=False)
        return frozenset(name for name, value in pairs if value in read)

    @cached_property
    def rank_update(self) -> Program:
        """`update` on this rank's shards."""
        level, flags = self.strategy.shards, tree.leaves(self.sharded)
        gradients = [level >= 2] * len(self.whole_types["param"])
        others = [False] * (self.reported + len(self.whole_types["state"]))
        return partition(self.update, self.layout, [*flags, *gradients, *others], flags, self.strategy.bucket_bytes)

    def _updated(self, state: State, gradients: State, sums: Sequence[Any], layers: State) -> State:
        leaves = tree.leaves((state, gradients, list(sums), layers))
        return tree.unflatten(tree.structure(state), apply(self.rank_update, leaves))


def _belongs(path: str, type: TensorType, parameters: dict[str, TensorType]) -> bool:
    """Whether an array of the optimizer's state at `path` is as large as the parameter that it is for."""
    named = (name for name, own in parameters.items() if type.shape == own.shape and is_float(type.dtype))
    return any(path.endswith(f".{name}") for name in named)


def rank_batch(batch: Any, ranks: int, accumulate: int) -> Any:
    """The types of a rank's part of a batch, from those of the batch; a `ShapeError` where it has no equal parts."""
    size = tree.leaves(batch)[0].shape[0]
    if size % (ranks * accumulate):
        parts = f"{ranks} ranks" + (f" and accumulate={accumulate}" if accumulate > 1 else "")
        raise ShapeError(f"batch_size={size} does not divide among {parts}: take a multiple of {ranks * accumulate}")
    return tree.map(lambda type: type.with_shape((size // ranks, *type.shape[1:])), batch)


