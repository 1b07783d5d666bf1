"""Checkpoints of a run, written while training goes on: one file a save, and two pointers to them.

A directory holds ``step-00000600.safetensors``, ... and the text files ``latest`` and ``best``, each the name of one of
them. A pointer moves only after the flushed file is in place, and older files go only after that. So whenever the
process is killed, `latest` finds a complete checkpoint, and it is the last that was finished, or the one before.

Several processes can save together, each the pieces of the sharded arrays that it holds: a checkpoint is then the files
``step-00000600.shard-00001-of-00004.safetensors``, ... and ``step-00000600.index.json``, which has its name in the
pointers. The first process writes the index, after the files of all are flushed. Each phase ends with a `Group.gather`
that carries the errors: what fails on one process fails on all of them, and the pointers stay.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from antegrad.checkpoint.alias import refold
from antegrad.checkpoint.codec import encode
from antegrad.checkpoint.directory import (
    BEST,
    LATEST,
    best,
    checkpoint_at,
    checkpoint_name,
    checkpoints,
    latest,
    pointed,
    remove_files,
    remove_old,
    set_files,
)
from antegrad.checkpoint.index import File, Index
from antegrad.checkpoint.shards import Part, Sharded, part, shard_name, stamp, whole
from antegrad.checkpoint.store import ensure_writable, write_file
from antegrad.errors import CheckpointError, SettingError
from antegrad.train.group import Agreement, Group, SetPlan, set_plan

__all__ = ["CheckpointWriter", "Group", "best", "checkpoint_at", "checkpoint_name", "checkpoints", "latest"]

logger = logging.getLogger("antegrad")

VISIBLE_WITHIN = 60.0
"""Seconds within which the first process must see the files of the others: network file systems remember for a while
what a directory did not have."""
POLL = 0.1
"""Seconds between two looks."""


@dataclass(frozen=True, eq=False)
class _Job:
    """What one process brings to a save: `part` where arrays are sharded, else the file's `pieces`, on the first."""

    name: str
    step: int
    metadata: dict[str, str]
    best: bool
    held: frozenset[int]
    part: Part | None
    pieces: Sequence[memoryview]


class CheckpointWriter:
    """Saves checkpoints into one directory, and removes the old ones.

    With `background` a thread writes, and at most one save is under way: the next one waits for it. `save` has copied
    all values when it returns, so the caller may change its arrays, or donate the buffers below them, at once.

    A failure in the background is raised by the next `save`, `wait` or `close`, as a `CheckpointError` with the
    original one as its cause. Leave by ``with`` or `close`, which wait for the last save.

    With a `group` of several processes each of them makes a writer for the same directory, and all call its methods in
    the same order. A failure on one of them is raised on all, and its message names the process.

    Arguments:
      directory: created if it is missing, and tried before any work. Raises `CheckpointError` if it cannot be written.
      keep: how many of the newest checkpoints stay. The one of the last save and the best one stay besides.
      keep_best: whether a save with ``best=True`` moves the pointer ``best``. Without it there is no such pointer.
      background: without it, `save` returns when the checkpoint is on the disk, and copies nothing.
      group: the processes that save together; None for one process alone.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 3,
        keep_best: bool = True,
        background: bool = True,
        group: Group | None = None,
    ) -> None:
        if keep < 1:
            raise SettingError(f"CheckpointWriter keeps at least one checkpoint, found keep={keep!r}")
        self.keep, self.keep_best = keep, keep_best
        self.directory = Path(directory)
        self._all = Agreement(group)
        self._first = self._all.index == 0
        self._all.on_all("open", self._open)
        self._thread = ThreadPoolExecutor(1, "antegrad-checkpoint") if background else None
        self._running: tuple[str, Future[None]] | None = None

    def save(
        self,
        step: int,
        tensors: Mapping[str, np.ndarray],
        metadata: Mapping[str, str],
        best: bool = False,
        sharded: Mapping[str, Sharded] | None = None,
        held: Iterable[int] = (),
    ) -> Path:
        """Save host arrays as they are now, and return the path of their checkpoint, a file or an index.

        Arguments:
          step: steps done, at least 0. A checkpoint of the same step is replaced.
          tensors, metadata: as `checkpoint.pack` gives them. In a group only the first process needs the arrays that
            are not sharded, and its metadata counts.
          best: whether this is the best checkpoint so far.
          sharded: for each of `tensors` that is a flat piece (``count * chunk`` elements, the ranks one after the
            other), what it is a piece of. All of them have the same ranks. Without any, the first process writes one
            ordinary file; so does a process that is alone, with full arrays.
          held: steps whose checkpoints stay besides, such as those that are the best ones by several measures.
        Raises `CheckpointError`: for arrays or metadata that cannot be saved, and for the save before this one, if it
        failed. Then nothing of this save is written, and it can be tried again.
        """
        if self._all.count > 1:
            return self._save_together(step, tensors, metadata, best, sharded or {}, frozenset(held))
        name = checkpoint_name(step)
        self.wait()
        pieces = encode(whole(refold(tensors, metadata), sharded or {}), metadata)
        # The bytes are taken now: the arrays may be views of memory that the next step overwrites.
        kept = pieces if self._thread is None else [bytes(piece) for piece in pieces]
        self._start(name, partial(self._commit, name, kept, best, frozenset(held)))
        return self.directory / name

    def resume(self, step: int, best: bool) -> None:
        """Go on from the checkpoint of `step`, which was saved with this `best`.

        Where a kill left the first checkpoint without its pointers, they come now: the run may have no better one.
        """
        self.wait()
        self._all.on_all("resume", partial(self._point_again, step, best) if self._first else None)

    def wait(self) -> None:
        """Return when nothing is under way. Raises `CheckpointError` if the last save in the background failed."""
        if self._running is None:
            return
        name, future = self._running
        error = future.exception()
        self._running = None
        if error is not None:
            raise CheckpointError(f"saving {name} in the background failed: {error}") from error

    def close(self) -> None:
        """`wait`, and end the thread. A closed writer saves no more."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except CheckpointError as failed:
            if error is None:
                raise
            # What ended the block says more, and may be the interrupt that decides the exit code.
            logger.error("%s", failed)
            error.add_note(str(failed))

    # one process, or the first one alone

    def _open(self) -> None:
        ensure_writable(self.directory)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        if self._thread is None:
            work()
        else:
            self._running = name, self._thread.submit(work)

    def _commit(self, name: str, pieces: Iterable[bytes | memoryview], best: bool, held: frozenset[int]) -> None:
        write_file(self.directory / name, pieces)
        self._point(name, best)
        remove_old(self.directory, name, self.keep, held=held)

    def _point(self, name: str, best: bool) -> None:
        # First the best, so that no run continues after a best step that the pointer does not know.
        for pointer in (BEST, LATEST) if best and self.keep_best else (LATEST,):
            write_file(self.directory / pointer, [f"{name}\n".encode()])

    def _point_again(self, step: int, best: bool) -> None:
        names = [checkpoint_name(step, sharded) for sharded in (False, True)]
        for pointer in (BEST, LATEST) if best and self.keep_best else (LATEST,):
            if pointed(self.directory, pointer) not in names:
                found = checkpoint_at(self.directory, step)
                name = names[0] if found is None else found.name
                write_file(self.directory / pointer, [f"{name}\n".encode()])

    # several processes

    def _save_together(
        self,
        step: int,
        tensors: Mapping[str, np.ndarray],
        metadata: Mapping[str, str],
        best: bool,
        sharded: Mapping[str, Sharded],
        held: frozenset[int],
    ) -> Path:
        """What cannot be saved is raised at the call here, and goes to the others, which wait for this process."""
        self.wait()
        try:
            job = self._job(checkpoint_name(step, bool(sharded)), step, tensors, metadata, best, sharded, held)
            name = job.name
        except Exception as error:
            job, name = error, f"step {step!r}"
        self._start(name, partial(self._commit_together, job))
        if isinstance(job, Exception):
            self.wait()
        return self.directory / name

    def _job(
        self,
        name: str,
        step: int,
        tensors: Mapping[str, np.ndarray],
        metadata: Mapping[str, str],
        best: bool,
        sharded: Mapping[str, Sharded],
        held: frozenset[int],
    ) -> _Job:
        copy, mine, pieces = self._thread is not None, None, []
        if sharded:
            mine = part(tensors, metadata, sharded, everything=self._first, copy=copy)
        elif self._first:
            encoded = encode(refold(tensors, metadata), metadata)
            pieces = [memoryview(bytes(piece)) if copy else piece for piece in encoded]
        return _Job(name, int(step), dict(metadata), best, held, mine, pieces)

    def _commit_together(self, job: _Job | Exception) -> None:
        told = self._all.on_all("begin", partial(self._begin, job))
        assert isinstance(job, _Job)
        plan = set_plan(told)
        if plan is None or job.part is None:
            commit = partial(self._commit, job.name, job.pieces, job.best, job.held)
        else:
            sizes = self._write(job, job.part, plan)
            commit = partial(self._commit_set, job, job.part, plan, sizes)
        self._all.on_all("commit", commit if self._first else None)

    def _begin(self, job: _Job | Exception) -> dict[str, Any]:
        """What this process tells of its job."""
        if isinstance(job, Exception):
            raise job
        told: dict[str, Any] = {"step": job.step, "layout": None}
        if job.part is not None:
            told |= {"layout": job.part.digest(), "ranks": job.part.ranks}
            told |= {"first": job.part.first, "count": job.part.count}
        if self._first:
            # Files that an index names are never written over: until the next index is there, they are the checkpoint.
            taken = set_files(self.directory / checkpoint_name(job.step, sharded=True))
            names = (_names(job.step, self._all.count, revision) for revision in itertools.count())
            told |= {"token": secrets.token_hex(16), "names": next(n for n in names if taken.isdisjoint(n))}
        return told

    def _write(self, job: _Job, mine: Part, plan: SetPlan) -> list[int]:
        """Write the file of this process; the sizes of all files, each of which is on the disk."""

        def write() -> int:
            file = mine.file(stamp(plan.token, job.step, mine.digest(), mine.first, mine.count))
            write_file(self.directory / plan.names[self._all.index], file)
            return sum(map(len, file))

        try:
            return self._all.on_all("write", write)
        except CheckpointError:
            if self._first:
                remove_files(self.directory, plan.names)
            raise

    def _commit_set(self, job: _Job, mine: Part, plan: SetPlan, sizes: list[int]) -> None:
        """On the first process, when all files are on the disk: index, pointers, and what goes."""
        path = self.directory / job.name
        files = tuple(File(name, size, *held) for name, size, held in zip(plan.names, sizes, plan.ranges, strict=True))
        replaced = set_files(path)
        try:
            self._see(files)
            index = Index(job.step, plan.token, mine.ranks, files, mine.layout, dict(job.metadata))
            write_file(path, [index.to_bytes()])
        except Exception:
            if set_files(path).isdisjoint(plan.names):
                remove_files(self.directory, plan.names)
            raise
        self._point(job.name, job.best)
        remove_old(self.directory, job.name, self.keep, replaced, job.held)

    def _see(self, files: Iterable[File]) -> None:
        """Return when the files of all processes are in the directory of this one."""
        until = time.monotonic() + VISIBLE_WITHIN
        for file in files:
            path = self.directory / file.name
            while (size := path.stat().st_size if path.exists() else None) != file.size:
                if time.monotonic() > until:
                    found = "is not there" if size is None else f"has {size} bytes"
                    raise CheckpointError(
                        f"{path} {found}, and {file.size} bytes were written by its process: "
                        "all processes must save into one directory, on a file system that they share"
                    )
                time.sleep(POLL)


def _names(step: int, processes: int, revision: int) -> list[str]:
    return [shard_name(step, number, processes, revision) for number in range(1, processes + 1)]
