"""Processes that save together, as threads of this one, and what they save."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antegrad.checkpoint import Sharded
from antegrad.checkpoint.shards import chunk
from antegrad.ir.types import type_of
from antegrad.train.writer import CheckpointWriter

PATIENCE = 60.0


class Job:
    """So many threads. With `turns` one runs at a time, and the next one when it gathers or ends."""

    def __init__(self, count: int, turns: bool = False) -> None:
        self.count, self.turn = count, 0 if turns else None
        self.changed = threading.Condition()
        self.posted: dict[str, dict[int, Any]] = {}
        self.gone: list[int] = []
        self.results: list[Any] = [None] * count

    def gather(self, index: int, topic: str, value: Any) -> list[Any]:
        with self.changed:
            posted = self.posted.setdefault(topic, {})
            assert index not in posted, topic
            posted[index] = json.loads(json.dumps(value))
            self._pass(index)

            def ready() -> bool:
                return self.turn in (None, index) and (len(posted) == self.count or bool(self.gone))

            assert self.changed.wait_for(ready, PATIENCE), f"nobody came to {topic!r}"
            if len(posted) < self.count:
                raise ConnectionError(f"process {self.gone[0]} is gone")
            return [posted[number] for number in range(self.count)]

    def _pass(self, index: int) -> None:
        if self.turn is not None:
            left = [(index + more) % self.count for more in range(1, self.count + 1)]
            self.turn = next((number for number in left if number not in self.gone), index)
        self.changed.notify_all()

    def _run(self, index: int, work: Callable[[Member], Any]) -> None:
        if self.turn is None:
            self._end(index, work)
            return
        with self.changed:
            assert self.changed.wait_for(lambda: self.turn == index, PATIENCE)
            self._end(index, work)

    def _end(self, index: int, work: Callable[[Member], Any]) -> None:
        try:
            self.results[index] = work(Member(self, index, self.count))
        except BaseException as error:
            self.results[index] = error
        with self.changed:
            self.gone.append(index)
            self._pass(index)

    def run(self, work: Callable[[Member], Any]) -> list[Any]:
        """What `work` gives or raises in each thread."""
        threads = [threading.Thread(target=self._run, args=(index, work)) for index in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive()
        return self.results


@dataclass(frozen=True)
class Member:
    """One of the threads: a `Group`."""

    job: Job
    index: int
    count: int

    def gather(self, topic: str, value: Any) -> list[Any]:
        return self.job.gather(self.index, topic, value)


def run(count: int, work: Callable[[Member], Any], turns: bool = False) -> list[Any]:
    """What `work` gives in each of `count` threads; an error in one of them is raised here."""
    results = Job(count, turns).run(work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def split(ranks: int, processes: int) -> list[tuple[int, int]]:
    """First rank and number of ranks of each process, as unequal as can be: the first has what the others leave."""
    more = ranks - processes + 1
    return [(0, more), *((more + number, 1) for number in range(processes - 1))]


def piece(full: np.ndarray, ranks: int, first: int, count: int) -> tuple[np.ndarray, Sharded]:
    """What a process holds of an array, and what that is."""
    each = chunk(type_of(full), ranks)
    padded = np.zeros(ranks * each, full.dtype)
    padded[: full.size] = full.reshape(-1)
    return padded[first * each : (first + count) * each], Sharded(type_of(full), ranks, first, count)


def pieces(
    full: dict[str, np.ndarray], names: set[str], ranks: int, first: int, count: int
) -> tuple[dict[str, np.ndarray], dict[str, Sharded]]:
    """All that a process has: pieces of the arrays in `names`, and the others whole."""
    cut = {name: piece(array, ranks, first, count) for name, array in full.items() if name in names}
    return full | {name: array for name, (array, _) in cut.items()}, {name: of for name, (_, of) in cut.items()}


def save_set(
    directory: Path,
    full: dict[str, np.ndarray],
    metadata: dict[str, str],
    ranks: int,
    processes: int,
    names: set[str] | None = None,
    step: int = 600,
) -> Path:
    """The index of a checkpoint of `full` in which `names` are sharded, by default all."""
    ranges = split(ranks, processes)

    def work(group: Member) -> Path:
        cut = full if names is None else names
        tensors, sharded = pieces(full, set(cut), ranks, *ranges[group.index])
        with CheckpointWriter(directory, background=False, group=group) as target:
            return target.save(step, tensors, metadata, sharded=sharded)

    return run(processes, work)[0]


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        type_of(found[name]) == type_of(array) and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )
