"""The device side of training: the one executable, the state that it changes, and the data that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from antegrad import random, tree
from antegrad.ir.program import Program
from antegrad.runtime.compile import Compiled
from antegrad.runtime.compile import compile as compile_program
from antegrad.runtime.device import DeviceInfo
from antegrad.runtime.memory import fetch, put
from antegrad.train.feeds import Feed, Rows, streams
from antegrad.train.loop import streaming_program, training_program, types
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
        device: DeviceInfo,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.programs, self.feed, self.device, self.data = programs, feed, device, data
        self.seed = np.asarray(random.key(seed))
        state = programs.init()
        self.structure, self._count = tree.structure(state), len(tree.leaves(state))
        self._options = options
        self.program = self._captured()

    def start(self, state: State | None = None) -> None:
        """Compile, copy the data to the device, and begin from `state`, or anew."""
        self.compiled: Compiled = compile_program(
            self.program,
            device=self.device,
            donate=self.program.input_names[: self._donated],
            compiler_options=self._options,
        )
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
        return training_program(self.programs, self.feed, self.data)

    def _place(self) -> None:
        self._on_device: list[Any] = []  # room for the new ones
        self._on_device = tree.leaves(put(self.data, self.device))

    def load(self, state: State) -> None:
        """Continue from `state`; what the feed carries is made anew by the next dispatch."""
        self._leaves = tree.leaves(put(state, self.device))
        carried = self.feed.carried
        self._carried = put(np.zeros(carried.shape, carried.dtype), self.device)
        self._fresh = True

    @property
    def device_state(self) -> State:
        """The state on the device; the next dispatch takes its memory."""
        return tree.unflatten(self.structure, self._leaves)

    @property
    def state(self) -> State:
        """The state as NumPy arrays."""
        return fetch(self.device_state)

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
            return [np.asarray(sums)[:count] for sums in self._run(epoch, first, count)]
        rows = [self._run(epoch, step, 1) for step in range(first, first + count)]
        return [np.concatenate([np.asarray(row[i]) for row in rows]) for i in range(self.programs.reported)]

    def _run(self, epoch: int, first: int, count: int) -> list[Any]:
        scalars = np.int32(epoch), np.int32(first), np.int32(count), np.bool_(self._fresh)
        found = tree.leaves(self.compiled(*self._leaves, self._carried, *self._on_device, self.seed, *scalars))
        self._fresh = False
        reported = self.programs.reported
        self._leaves, self._carried = found[reported:-1], found[-1]
        return found[:reported]

    def rows(self, epoch: int, step: int) -> Rows:
        """The batch of a step, made on the host."""
        return self.feed.rows(self.data, self._host_carried(epoch), self.seed, np.int32(epoch), np.int32(step))

    def _host_carried(self, epoch: int) -> Any:
        return self.feed.started(self.seed, np.int32(epoch))

    def gradient_inputs(self, epoch: int, step: int, state: State) -> list[Any]:
        """The inputs of `programs.gradient` in a step, made on the host: to find out what went wrong there."""
        rows = self.rows(epoch, step)
        model = self.programs.objective.leaves(state["param"], state["state"])
        key = random.fold_in(streams(self.seed)[1], state["step"])
        weights = [] if rows.weights is None else [rows.weights]
        return [*model, *tree.leaves(self.feed.augmented(rows, self.seed, np.int32(epoch))), key, *weights]


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

    def _captured(self) -> Program:
        self._capacity = min(CHUNK, self.feed.steps) if self.programs.loops else 1
        self._order: tuple[int, Any] | None = None
        return streaming_program(self.programs, self.feed, self.rows(0, 0), self._capacity)

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
        parts = [[np.asarray(row[i])[:n] for row, n in found] for i in range(self.programs.reported)]
        return [np.concatenate(part) for part in parts]

    def _run_chunk(self, epoch: int, start: int, count: int) -> tuple[list[Any], int]:
        chunk = self._chunk(epoch, start, count)
        results = tree.leaves(self.compiled(*self._leaves, *chunk, self.seed, np.int32(epoch), np.int32(count)))
        self._leaves = results[self.programs.reported :]
        fetch(self._before)  # or the copies would run ahead of the computation, and fill the device
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
        return put([np.stack(parts) for parts in zip(*batches, strict=True)], self.device)
