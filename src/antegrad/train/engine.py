"""The device side of training: the one executable, the state that it changes, and the data that it reads."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from antegrad import random, tree
from antegrad.ir.program import Program
from antegrad.train.checks import check_state
from antegrad.train.feeds import Feed, Rows, streams
from antegrad.train.loop import streaming_program, training_program, types
from antegrad.train.placement import OnDevice
from antegrad.train.programs import State, StepPrograms


class Engine:
    """Runs steps on data that lie on the device. The state lies there too: `state` fetches it, `load` replaces it.

    Made, it has captured its program, and raises what is wrong with the shapes; `start` compiles it.
    """

    streamed = False
    """Whether the data stay on the host."""

    def __init__(
        self,
        programs: StepPrograms,
        feed: Feed,
        data: Any,
        place: OnDevice,
        seed: int,
    ) -> None:
        self.programs, self.feed, self.place, self.data = programs, feed, place, data
        self.seed = np.asarray(random.key(seed))
        self.structure = tree.structure(programs.state_types)
        self._count = len(tree.leaves(programs.state_types))
        self._dispatches = 0
        self.program = self._captured()

    def start(self, state: State | None = None) -> None:
        """Compile, copy the data to the device, and begin from `state`, or anew."""
        inputs, outputs = self._sharded()
        self.compiled: Any = self.place.compiled(self.program, self._donated, inputs, outputs)
        self._place()
        self.load(self.programs.init() if state is None else state)

    def serves(self, feed: Feed, data: Any) -> bool:
        """Whether its executable is the one for such data."""
        return feed == self.feed and types(data) == types(self.data)

    def replace(self, data: Any) -> None:
        """Go on with other data of the same types."""
        self._fresh = True
        if any(a is not b for a, b in zip(tree.leaves(data), tree.leaves(self.data), strict=True)):
            self.data = data
            self._place()

    def described(self, before: Engine | None) -> str:
        """What the executable is for, or how that differs from what `before` was for."""
        now, old = self._inputs(), {} if before is None else before._inputs()
        if before is None:
            return f"training is compiled for {', '.join(now.values())}"
        changed = [f"{old.get(name, 'nothing')} and is {text}" for name, text in now.items() if text != old.get(name)]
        return f"training is compiled again: it was for {'; '.join(changed) or 'another step'}"

    def _inputs(self) -> dict[str, str]:
        named = tree.named_leaves(types(self.data))
        shapes = {name: f"data {name} {type}".replace("  ", " ") for name, type in named.items()}
        return {**shapes, "place": "streamed data" if self.streamed else "data on the device"}

    @property
    def _donated(self) -> int:
        """How many inputs the next outputs take the memory of."""
        return self._count + 1

    def _captured(self) -> Program:
        return training_program(self.programs, self.feed, self.place.data_types(self.feed, self.data))

    def _sharded(self) -> tuple[list[bool], list[bool]]:
        """Which inputs and which outputs of the program are sharded over the ranks: state, and data or batches."""
        state = tree.leaves(self.programs.sharded)
        parts = len(self.program.inputs) - len(self.program.captured) - self._count - self._scalars
        before, after = ([], []) if self.streamed else ([False], [False])
        inputs = [*state, *before, *[True] * (parts - len(before)), *[False] * self._scalars]
        return inputs, [*[False] * self.programs.reported, *state, *after]

    @property
    def _scalars(self) -> int:
        """How many inputs come last: the run's key and numbers."""
        return 5

    def _place(self) -> None:
        self._on_device: list[Any] = []  # room for the new ones
        self._on_device = self.place.put_data(self.feed, self.data)

    def load(self, state: State) -> None:
        """Continue from `state`; what the feed carries is made anew by the next dispatch.

        Raises `ShapeError` or `DTypeError` for a state that is not that of this training, with the name of an array.
        """
        check_state(state, self.programs.whole_types)
        self._leaves = self.place.put_state(self.programs, state)
        carried = self.feed.carried
        self._carried = self.place.put(np.zeros(carried.shape, carried.dtype))
        self._fresh = True

    @property
    def device_state(self) -> State:
        """The state on the device, of which ranks may hold shards; the next dispatch takes its memory."""
        return tree.unflatten(self.structure, self._leaves)

    @property
    def state(self) -> State:
        """The whole state as NumPy arrays. All processes of a training ask for it together."""
        return self.place.state(self.programs, self.device_state)

    @property
    def done(self) -> int:
        """How many steps the state has behind it."""
        return int(np.asarray(self.device_state["step"]))

    @property
    def failed(self) -> int | None:
        """The number of the step whose loss was NaN or infinite, if there was one."""
        number = int(np.asarray(self.device_state["failed"]))
        return None if number < 0 else number

    def forgive(self) -> None:
        """Go on after a step that failed."""
        if self.failed is not None:
            self.load({**self.state, "failed": np.int32(-1)})

    def dispatch(self, epoch: int, first: int, count: int) -> list[np.ndarray]:
        """`count` steps of `epoch` from its step `first` on; what they report, f32[count] each."""
        self._fresh = self._fresh or first == 0
        if self.programs.loops:
            return [sums[:count] for sums in self._read(self._run(epoch, first, count))]
        rows = [self._read(row) for row in [self._run(epoch, step, 1) for step in range(first, first + count)]]
        return [np.concatenate([row[i] for row in rows]) for i in range(self.programs.reported)]

    def _run(self, epoch: int, first: int, count: int) -> list[Any]:
        scalars = np.int32(epoch), np.int32(first), np.int32(count), np.bool_(self._fresh)
        found = self._call(*self._leaves, self._carried, *self._on_device, self.seed, *scalars)
        self._fresh = False
        reported = self.programs.reported
        self._leaves, self._carried = found[reported:-1], found[-1]
        return found[:reported]

    def _call(self, *arguments: Any) -> list[Any]:
        """One dispatch; what a lost process breaks is raised as that."""
        self._dispatches += 1
        self.place.begins(self._dispatches)
        try:
            return tree.leaves(self.compiled(*arguments))
        except Exception as error:
            raise self.place.explained(error) from error

    def _read(self, arrays: Any) -> list[np.ndarray]:
        """Arrays as NumPy's; waits until they are computed."""
        try:
            return [np.asarray(array) for array in arrays]
        except Exception as error:
            raise self.place.explained(error) from error

    def rows(self, epoch: int, step: int) -> Rows:
        """The batch of a step, made on the host."""
        return self.place.rows(
            self.feed, self.data, self._host_carried(epoch), self.seed, np.int32(epoch), np.int32(step)
        )

    def _host_carried(self, epoch: int) -> Any:
        return self.feed.started(self.seed, np.int32(epoch))

    def blame(self, epoch: int, step: int, state: State) -> Any:
        """The equation of the gradient program that first makes a NaN or infinity in a step, with its rank if several.

        None where the host finds none.
        """
        program = self.programs.gradient
        if any(equation.primitive.communicates for equation in program.all_equations()):
            return "its layers exchange statistics, so no rank can be looked at alone on the host"
        for rank, part in product(range(self.place.ranks), range(self.programs.accumulate)):
            found = program.blame(*self.gradient_inputs(epoch, step, state, rank, part))
            if found is not None:
                return f"on rank {rank}: {found}" if self.place.ranks > 1 else found
        return None

    def gradient_inputs(self, epoch: int, step: int, state: State, rank: int = 0, part: int = 0) -> list[Any]:
        """The inputs of `programs.gradient` for a part of a step, made on the host: to find out what went wrong."""
        carried, numbers = self._host_carried(epoch), (np.int32(epoch), np.int32(step))
        rows = self.place.rank_rows(self.feed, self.data, carried, self.seed, *numbers, rank)
        model = self.programs.objective.leaves(state["param"], state["state"])
        key = self.place.rank_key(random.fold_in(streams(self.seed)[1], state["step"]), rank)
        key = random.fold_in(key, part) if self.programs.accumulate > 1 else key
        own = slice(part * self.programs.part_size, (part + 1) * self.programs.part_size)
        weights = [] if rows.weights is None else [rows.weights[own]]
        batch = tree.leaves(self.feed.augmented(rows, self.seed, np.int32(epoch)))
        return [*model, *(leaf[own] for leaf in batch), key, *weights]


CHUNK = 8
"""Batches that are copied to the device at a time where the data stay on the host."""


class StreamingEngine(Engine):
    """Runs steps on data that stay on the host: the same batches in the same order, copied while the device computes.

    XLA returns from a dispatch before it has run, so the next chunk is gathered and copied meanwhile.
    """

    streamed = True

    @property
    def _donated(self) -> int:
        return self._count

    @property
    def _scalars(self) -> int:
        return 3

    def _captured(self) -> Program:
        self._capacity = min(CHUNK, self.feed.steps) if self.programs.loops else 1
        self._order: tuple[int, Any] | None = None
        carried = self._host_carried(0)
        example = self.place.rank_rows(self.feed, self.data, carried, self.seed, np.int32(0), np.int32(0), 0)
        return streaming_program(self.programs, self.feed, example, self._capacity)

    def _place(self) -> None:
        self._ahead: tuple[int, int, list[Any], int] | None = None
        self._before: Any = None

    def _host_carried(self, epoch: int) -> Any:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self.feed.started(self.seed, np.int32(epoch))
        return self._order[1]

    def dispatch(self, epoch: int, first: int, count: int) -> list[np.ndarray]:
        stop, found = first + count, []
        for start in range(first, stop, self._capacity):
            found.append(self._run_chunk(epoch, start, min(self._capacity, stop - start)))
        read = [[sums[:n] for sums in self._read(row)] for row, n in found]
        return [np.concatenate([row[i] for row in read]) for i in range(self.programs.reported)]

    def _run_chunk(self, epoch: int, start: int, count: int) -> tuple[list[Any], int]:
        chunk = self._chunk(epoch, start, count)
        results = self._call(*self._leaves, *chunk, self.seed, np.int32(epoch), np.int32(count))
        self._leaves = results[self.programs.reported :]
        # Or the copies would run ahead of the computation, and fill the device.
        self._read([] if self._before is None else [self._before])
        self._before = results[0]
        following = start + count
        # The next dispatch will probably be as long as this one.
        ready = sum(self.feed.has(step) for step in range(following, following + count))
        self._ahead = (epoch, following, self._copied(epoch, following, ready), ready) if ready else None
        return results[: self.programs.reported], count

    def _chunk(self, epoch: int, start: int, count: int) -> list[Any]:
        if self._ahead is not None and self._ahead[:2] == (epoch, start) and self._ahead[3] >= count:
            return self._ahead[2]
        return self._copied(epoch, start, count)

    def _copied(self, epoch: int, start: int, count: int) -> list[Any]:
        """`count` batches on the device, filled up to the capacity with the last of them."""
        batches = [[np.asarray(part) for part in self.rows(epoch, start + i).parts] for i in range(count)]
        batches += [batches[-1]] * (self._capacity - count)
        return self.place.put_rows([np.stack(parts) for parts in zip(*batches, strict=True)])
