"""Where a training on several ranks runs: what `antegrad.train.placement.OnDevice` is for one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from antegrad import ops, random, tree
from antegrad.capture import capture
from antegrad.checkpoint.shards import Sharded
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType
from antegrad.ops.dispatch import apply
from antegrad.parallel.exchange import Exchange, exchanged
from antegrad.parallel.feeds import RankFeed
from antegrad.parallel.group import PATIENCE, Group
from antegrad.parallel.layout import Layout
from antegrad.parallel.programs import RankPrograms, rank_batch
from antegrad.parallel.strategy import Strategy
from antegrad.parallel.watch import PeerError
from antegrad.passes.simplify import simplify
from antegrad.runtime.memory import free_bytes, put
from antegrad.runtime.mesh import MeshExecutable
from antegrad.train.feeds import Feed, Rows
from antegrad.train.loop import evaluation_program, types
from antegrad.train.objective import Objective, batch_type
from antegrad.train.placement import OnDevice
from antegrad.train.programs import State, StepPrograms, averaged_state, model_of


class OnMesh(OnDevice):
    """A training on the ranks of a mesh, perhaps in several processes."""

    def __init__(self, strategy: Strategy, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(strategy.mesh.device, options)
        self.strategy, self.mesh = strategy, strategy.mesh
        self.layout = Layout(self.mesh.size)
        self.group = Group(PATIENCE) if self.mesh.spans_processes else None
        self.processes = Group() if self.mesh.spans_processes else None

    @property
    def ranks(self) -> int:
        return self.mesh.size

    @property
    def leader(self) -> bool:
        return self.group is None or self.group.index == 0

    @property
    def description(self) -> str:
        processes = "" if self.group is None else f" in {self.group.count} processes"
        return f"{self.strategy.name} on {self.ranks} devices{processes}"

    # programs

    def part(self, batch: Any, accumulate: int = 1) -> Any:
        return rank_batch(batch, self.ranks, accumulate)

    def programs(self, *arguments: Any, **settings: Any) -> StepPrograms:
        if self.ranks == 1:  # there is nobody to exchange anything with
            return StepPrograms(*arguments, **settings)
        return RankPrograms(self.strategy, *arguments, **settings)

    def feed(self, feed: Feed, extent: int) -> RankFeed:
        return RankFeed(feed, self.ranks, extent)

    def rows(self, feed: Feed, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        assert isinstance(feed, RankFeed)
        return feed.of_ranks(data, carried, seed, epoch, step, self.mesh.local_ranks)

    def rank_rows(self, feed: Feed, data: Any, carried: Any, seed: Any, epoch: Any, step: Any, rank: int) -> Rows:
        assert isinstance(feed, RankFeed)
        return feed.of_ranks(data, carried, seed, epoch, step, range(rank, rank + 1))

    def rank_key(self, key: Any, rank: int) -> Any:
        return random.fold_in(key, rank) if self.ranks > 1 else key

    def data_types(self, feed: Feed, data: Any) -> Any:
        assert isinstance(feed, RankFeed)
        return feed.part_types(data)

    def compiled(
        self, program: Program, donated: int, inputs: Sequence[bool], outputs: Sequence[bool]
    ) -> MeshExecutable:
        return self._compiled(program, inputs, outputs, range(donated))

    def _compiled(
        self, program: Program, inputs: Sequence[bool], outputs: Sequence[bool], donate: Sequence[int]
    ) -> MeshExecutable:
        with nullcontext() if self.processes is None else self.processes.busy():
            return MeshExecutable(program, self.mesh, inputs, outputs, donate, self.options)

    # arrays

    def put(self, array: Any) -> Any:
        return self.mesh.put(array, False)

    def put_state(self, programs: StepPrograms, state: State) -> list[Any]:
        leaves, flags = tree.leaves(state), tree.leaves(programs.sharded)
        return [self._put_leaf(np.asarray(leaf), flag) for leaf, flag in zip(leaves, flags, strict=True)]

    def _put_leaf(self, leaf: np.ndarray, sharded: bool) -> Any:
        return self.mesh.put(self.layout.spread(leaf), True) if sharded else self.mesh.put(leaf, False)

    def state(self, programs: StepPrograms, leaves: Any) -> State:
        if self.processes is not None and any(tree.leaves({name: programs.sharded[name] for name in leaves})):
            self._meet()
        types, flags = ({name: each[name] for name in leaves} for each in (programs.whole_types, programs.sharded))
        return tree.map(self._whole, leaves, types, flags)

    def _meet(self) -> None:
        """Wait for the other processes where all of them have to take part; who is alone learns it here."""
        assert self.processes is not None
        try:
            self.processes.gather("state", None)
        except PeerError as error:
            what = "trainer.state, with ZeRO-3 or ema also the model, is put together from the shards of all processes"
            raise PeerError(f"{error}. {what}: all of them must ask for it", error.rank) from error

    def _whole(self, leaf: Any, type: TensorType, sharded: bool) -> np.ndarray:
        found = self.mesh.fetch(leaf)
        return self.layout.joined(found, type) if sharded else found

    def saved(self, programs: StepPrograms, leaves: Any) -> tuple[State, Mapping[str, Sharded] | None]:
        if self.group is None or not self.strategy.shards:
            return super().saved(programs, leaves)
        own = self.mesh.local_ranks

        def piece(leaf: Any, sharded: bool) -> np.ndarray:
            return self.mesh.own_rows(leaf) if sharded else self.mesh.fetch(leaf)

        types, flags = (tree.named_leaves(_stored(each)) for each in (programs.whole_types, programs.sharded))
        held = {n: Sharded(types[n], self.ranks, own.start, len(own)) for n, flag in flags.items() if flag}
        return tree.map(piece, leaves, programs.sharded), held

    def put_data(self, feed: Feed, data: Any) -> list[Any]:
        assert isinstance(feed, RankFeed)
        return [self.mesh.put(part, True) for part in tree.leaves(feed.divided(data))]

    def put_rows(self, parts: Sequence[Any]) -> list[Any]:
        return [self.mesh.put_own(_by_rank(part, len(self.mesh.local_ranks))) for part in parts]

    def free_bytes(self) -> int | None:
        free = free_bytes(self.device)
        # Where the ranks have memories of their own, each holds a part of the data.
        return free if free is None or self.mesh.platform == "cpu" else free * self.ranks

    # evaluation

    def model(self, programs: StepPrograms, state: State, averaged: bool) -> Any:
        return put(self.host_model(programs, state, averaged), self.device)

    def host_model(self, programs: StepPrograms, state: State, averaged: bool) -> Any:
        needed = ("param", "state", "opt") if averaged else ("param", "state")
        whole = self.state(programs, {name: state[name] for name in needed})
        return model_of(programs.objective, averaged_state(whole) if averaged else whole)

    def evaluated(self, programs: StepPrograms, state: State, averaged: bool) -> list[Any]:
        if averaged and self.strategy.shards:
            return self.put_model(tree.leaves(self.host_model(programs, state, averaged)))
        return tree.leaves(model_of(programs.objective, averaged_state(state) if averaged else state))

    def put_model(self, leaves: list[Any]) -> list[Any]:
        return [self.put(np.asarray(leaf)) for leaf in leaves]

    def holds_shards(self, averaged: bool) -> bool:
        return self.strategy.shards >= 3 and not averaged

    def evaluation(
        self,
        objective: Objective,
        batch: int,
        data: Any,
        loops: bool,
        weighted: bool,
        transform: Callable[[Program], Program],
        sharded: bool,
    ) -> Callable[..., Any]:
        batch //= self.ranks
        rows = tree.map(lambda type: type.with_shape((type.shape[0] // self.ranks, *type.shape[1:])), types(data))
        program = transform(objective.evaluation(*batch_type(rows, batch), weighted=weighted))
        flags = self._sharded_parameters(objective, sharded)
        gathered = tuple(i for i, flag in enumerate(flags) if flag)
        program = exchanged(program, Exchange(self.layout, self.strategy.bucket_bytes, gathered=gathered))
        whole = rank_evaluation(evaluation_program(program, len(flags), batch, rows, loops, weighted), len(flags))
        sums = [True] * len(program.outputs)
        inputs = [*flags, *sums, *[True] * len(tree.leaves(rows)), True, False, False]
        return self._compiled(whole, inputs, sums, ())

    def _sharded_parameters(self, objective: Objective, sharded: bool) -> list[bool]:
        states = objective.state_names
        return [sharded and path not in states for path in tree.named_leaves(objective.model)]

    def put_sums(self, count: int) -> list[Any]:
        return [self.mesh.put(np.zeros(self.ranks, np.float32), True) for _ in range(count)]

    def added(self, sums: Sequence[Any]) -> list[float]:
        return [float(np.sum(self.mesh.fetch(each), dtype=np.float32)) for each in sums]

    def put_samples(self, counts: Sequence[int]) -> Any:
        return self.mesh.put(np.asarray(counts, np.int32), True)

    def put_examples(self, arrays: Any) -> Any:
        return tree.map(lambda leaf: self.mesh.put(leaf, True), arrays)

    # agreement between processes

    def gathered(self, topic: str, value: Any, patient: bool = False) -> list[Any]:
        processes = self.group if patient else self.processes
        return [value] if processes is None else processes.gather(topic, value)

    def begins(self, dispatch: int) -> None:
        if self.processes is not None:
            self.processes.progress(dispatch)

    def explained(self, error: Exception) -> Exception:
        return error if self.processes is None else self.processes.explained(error)


def _stored(state: State) -> State:
    """A state under the names that it has in checkpoints."""
    return {"param": {**state["param"], **state["state"]}, "opt": state["opt"]}


def _by_rank(stacked: np.ndarray, ranks: int) -> np.ndarray:
    """Batches [capacity, ranks * rows, ...] as [ranks * capacity, rows, ...]: those of each rank together."""
    capacity, rows = stacked.shape[0], stacked.shape[1] // ranks
    split = stacked.reshape(capacity, ranks, rows, *stacked.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 1, 0)).reshape(ranks * capacity, rows, *stacked.shape[2:])


def rank_evaluation(program: Program, model: int) -> Program:
    """An `evaluation_program` as one rank runs it: sums and number of samples are this rank's, of one element each.

    So every rank adds up its own, in the same order for any number of dispatches. The first `model` inputs are the
    model's arrays.
    """
    sums = len(program.outputs)
    named = list(zip(program.input_names, program.input_types, strict=True))
    samples = len(named) - len(program.captured) - 3
    single = [model + i for i in range(sums)] + [samples]

    def evaluate(*inputs: Any) -> Any:
        scalars = [ops.reshape(each, ()) if i in single else each for i, each in enumerate(inputs)]
        return [ops.reshape(total, (1,)) for total in apply(program, scalars)]

    count = program.argument_count
    inputs = [type.with_shape((1,)) if i in single else type for i, (_, type) in enumerate(named[:count])]
    return simplify(capture(evaluate, *inputs, name=program.name))
