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
from antegrad.train.loop import streaming_program, training_program
from antegrad.train.programs import State, StepPrograms


class Engine:
    """Runs steps on data that lie on the device. The state lies there too: `state` fetches it, `load` replaces it."""

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
        self.program = self._captured()
        donated = self.program.input_names[: self._donated]
        self.compiled: Compiled = compile_program(
            self.program, device=device, donate=donated, compiler_options=options
        )
        self._place()
        self.load(state)

    @property
    def _donated(self) -> int:
        """How many inputs the next outputs take the memory of."""
        return self._count + 1

    def _captured(self) -> Program:
        return training_program(self.programs, self.feed, self.data)

    def _place(self) -> None:
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
    def failed(self) -> int | None:
        """The number of the step whose loss was NaN or infinite, if there was one."""
        number = int(np.asarray(self.device_state["failed"]))
        return None if number < 0 else number

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

    @property
    def _donated(self) -> int:
        return self._count

    def _captured(self) -> Program:
        self._capacity = min(CHUNK, self.feed.steps) if self.programs.loops else 1
        self._order: tuple[int, Any] | None = None
        return streaming_program(self.programs, self.feed, self.rows(0, 0), self._capacity)

    def _place(self) -> None:
        self._ahead: tuple[tuple[int, int, int], Any] | None = None

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
        following = start + count
        if following < self.feed.steps:
            ahead = epoch, following, min(self._capacity, self.feed.steps - following)
            self._ahead = ahead, self._copied(*ahead)
        return results[: self.programs.reported], count

    def _chunk(self, epoch: int, start: int, count: int) -> Any:
        if self._ahead is not None and self._ahead[0] == (epoch, start, count):
            return self._ahead[1]
        return self._copied(epoch, start, count)

    def _copied(self, epoch: int, start: int, count: int) -> Any:
        """`count` batches on the device, filled up to the capacity with the last of them."""
        batches = [self.rows(epoch, start + min(i, count - 1)).parts for i in range(self._capacity)]
        stacked = [np.stack([np.asarray(part) for part in parts]) for parts in zip(*batches, strict=True)]
        return put(stacked, self.device)


