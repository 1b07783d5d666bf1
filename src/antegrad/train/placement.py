"""Where a training runs. `OnDevice` is one device; `antegrad.parallel` has the one for several.

The engine, the evaluation and the loop ask it for everything that depends on that: the programs, the batches, how
arrays get to devices and back, and what processes that train together must agree on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from antegrad import tree
from antegrad.checkpoint.shards import Sharded
from antegrad.errors import SettingError
from antegrad.ir.program import Program
from antegrad.runtime.compile import compile as compile_program
from antegrad.runtime.device import DeviceInfo, resolve
from antegrad.runtime.memory import fetch, free_bytes, put
from antegrad.train.feeds import Feed, Rows
from antegrad.train.loop import evaluation_program, types
from antegrad.train.objective import Objective, batch_type
from antegrad.train.options import compiler_options
from antegrad.train.programs import State, StepPrograms, averaged_state, model_of

if TYPE_CHECKING:
    from antegrad.parallel.strategy import Strategy

logger = logging.getLogger("antegrad")


class OnDevice:
    """A training on one device, in one process."""

    ranks = 1
    """How many devices work on a batch, each on its part."""
    leader = True
    """Whether this process does what is done once for all: printing, and writing records."""
    group: Any = None
    """The processes that train together, as `CheckpointWriter` takes them; None for one."""

    def __init__(self, device: DeviceInfo, options: Mapping[str, Any] | None = None) -> None:
        self.device, self.options = device, options

    @property
    def description(self) -> str:
        """How the training is divided, for its configuration."""
        return "one device"

    # programs

    def part(self, batch: Any, accumulate: int = 1) -> Any:
        """The types of a rank's part of a batch, from those of the batch."""
        return batch

    def programs(self, *arguments: Any, **settings: Any) -> StepPrograms:
        """The step programs; arguments as for `StepPrograms`, with a rank's part of the batch."""
        return StepPrograms(*arguments, **settings)

    def feed(self, feed: Feed, extent: int) -> Feed:
        """`feed` as a rank sees it; `extent` is the size of the data along the first axis."""
        return feed

    def rows(self, feed: Feed, data: Any, carried: Any, seed: Any, epoch: Any, step: Any) -> Rows:
        """The batch of a step, made on the host; where there are several ranks, the parts of those of this process."""
        return feed.rows(data, carried, seed, epoch, step)

    def rank_rows(self, feed: Feed, data: Any, carried: Any, seed: Any, epoch: Any, step: Any, rank: int) -> Rows:
        """The part of one rank of the batch of a step, made on the host."""
        return self.rows(feed, data, carried, seed, epoch, step)

    def rank_key(self, key: Any, rank: int) -> Any:
        """The key of a rank's step, from that of the step."""
        return key

    def data_types(self, feed: Feed, data: Any) -> Any:
        """The types of what a rank has of the data."""
        return types(data)

    def compiled(
        self, program: Program, donated: int, inputs: Sequence[bool], outputs: Sequence[bool]
    ) -> Callable[..., Any]:
        """`program`, of which the first `donated` inputs give their memory to the results.

        `inputs` and `outputs` say which of them are sharded, where there are several ranks.
        """
        names = program.input_names[:donated]
        return compile_program(program, device=self.device, donate=names, compiler_options=self.options)

    # arrays

    def put(self, array: Any) -> Any:
        """An array that every rank has."""
        return put(array, self.device)

    def put_state(self, programs: StepPrograms, state: State) -> list[Any]:
        """The leaves of a whole state."""
        return tree.leaves(put(state, self.device))

    def state(self, programs: StepPrograms, leaves: Any) -> State:
        """The whole of a state, or of some entries of one, as NumPy arrays. All processes call it."""
        return fetch(leaves)

    def saved(self, programs: StepPrograms, leaves: Any) -> tuple[State, Mapping[str, Sharded] | None]:
        """What this process writes into a checkpoint: the state, and of which names in it it holds but a piece."""
        return self.state(programs, leaves), None

    def put_data(self, feed: Feed, data: Any) -> list[Any]:
        """The data from which batches are made."""
        return tree.leaves(put(data, self.device))

    def put_rows(self, parts: Sequence[Any]) -> list[Any]:
        """Batches that were made on the host, stacked along a first axis."""
        return put(list(parts), self.device)

    # evaluation

    def model(self, programs: StepPrograms, state: State, averaged: bool) -> Any:
        """The model (the averaged one) with its arrays on `device`, from a state as the engine has it."""
        return model_of(programs.objective, averaged_state(state) if averaged else state)

    def host_model(self, programs: StepPrograms, state: State, averaged: bool) -> Any:
        """The model with its arrays as NumPy's. Where ranks hold shards of them, all processes call it."""
        return fetch(self.model(programs, state, averaged))

    def evaluated(self, programs: StepPrograms, state: State, averaged: bool) -> list[Any]:
        """The model's arrays as `evaluation` takes them, from a state as the engine has it."""
        return tree.leaves(self.model(programs, state, averaged))

    def put_model(self, leaves: list[Any]) -> list[Any]:
        """Whole arrays of a model, as `evaluation` takes them where it is not sharded."""
        return leaves

    def holds_shards(self, averaged: bool) -> bool:
        """Whether what `evaluated` gives is sharded."""
        return False

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
        """The executable for data of these types, on all ranks together; see `evaluation_program`.

        `sharded` says whether the ranks hold shards of the model's parameters.
        """
        program = objective.evaluation(*batch_type(data, batch), weighted=weighted)
        arrays = len(tree.leaves(objective.model))
        whole = evaluation_program(transform(program), arrays, batch, data, loops, weighted)
        return compile_program(whole, device=self.device, compiler_options=self.options)

    def put_sums(self, count: int) -> list[Any]:
        """The sums with which an evaluation begins."""
        return [self.put(np.float32(0)) for _ in range(count)]

    def added(self, sums: Sequence[Any]) -> list[float]:
        """The sums of an evaluation over all ranks."""
        return [float(each) for each in fetch(list(sums))]

    def put_samples(self, counts: Sequence[int]) -> Any:
        """How many rows of its data are samples, for each rank."""
        return np.int32(counts[0])

    def put_examples(self, arrays: Any) -> Any:
        """The data of an evaluation, those of each rank one after the other."""
        return put(arrays, self.device)

    def free_bytes(self) -> int | None:
        """Bytes that are free for data; None where no device says so."""
        return free_bytes(self.device)

    # agreement between processes

    def gathered(self, topic: str, value: Any, patient: bool = False) -> list[Any]:
        """The values of all processes, which JSON must have.

        A process waits for the others as long as the timeout of the run says; if `patient`, as long as they live.
        """
        return [value]

    def agreed(self, topic: str, value: Any) -> Any:
        """The value of process 0."""
        return self.gathered(topic, value)[0]

    def any_of(self, topic: str, value: Any) -> Any:
        """The value of the first process in which it is true, else that of process 0."""
        found = self.gathered(topic, value)
        return next((each for each in found if each), found[0])

    def begins(self, dispatch: int) -> None:
        """Said before each dispatch, by its number."""

    def explained(self, error: Exception) -> Exception:
        """What to raise where a dispatch raised `error`: a lost process may be behind it."""
        return error


def placement(
    parallel: Strategy | None, device: str | None, graph_capture: bool, deterministic: bool
) -> OnDevice:
    """Where a training with these settings of `Trainer` runs; a `SettingError` for `parallel` that is none."""
    from antegrad.parallel.placement import OnMesh
    from antegrad.parallel.strategy import Strategy

    if parallel is None:
        found = resolve(device)
        _warn_alone(None)
        return OnDevice(found, compiler_options(found, graph_capture, deterministic))
    if not isinstance(parallel, Strategy):
        raise SettingError(f"Trainer: parallel must be parallel.ddp() or parallel.zero(level), found {parallel!r}")
    if device is not None:
        raise SettingError(
            f"Trainer: device={device!r} and parallel=... are both given, and the mesh has the devices: choose them by "
            "parallel.mesh(data=..., device=...)"
        )
    _warn_alone(parallel)
    return OnMesh(parallel, compiler_options(parallel.mesh.device, graph_capture, deterministic))


def _warn_alone(parallel: Strategy | None) -> None:
    """Say so where one of several processes trains without the others: they may not know of each other."""
    from antegrad.parallel import processes

    if processes.count() > 1 and (parallel is None or not parallel.mesh.spans_processes):
        logger.warning(
            "this is process %d of %d, and it trains by itself: pass parallel=parallel.ddp() or parallel.zero(level), "
            "on devices and not on the host, to train together", processes.index(), processes.count(),
        )  # fmt: skip
