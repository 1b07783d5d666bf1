"""Checkpoints of a run, written while training goes on: one file a save, and two pointers to them.

A directory holds ``step-00000600.safetensors``, ... and the text files ``latest`` and ``best``, each the name of one of
them. A pointer moves only after the flushed file is in place, and older files go only after that. So whenever the
process is killed, `latest` finds a complete checkpoint, and it is the last that was finished, or the one before.
"""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

from antegrad.checkpoint.alias import refold
from antegrad.checkpoint.codec import encode
from antegrad.checkpoint.store import ensure_writable, load_metadata, write_file
from antegrad.errors import CheckpointError

__all__ = ["CheckpointWriter", "best", "checkpoint_name", "checkpoints", "latest"]

logger = logging.getLogger("antegrad")

CHECKPOINT = re.compile(r"step-([0-9]{8,})\.safetensors")
"""Names of checkpoints. No other file is ever removed."""
LATEST, BEST = "latest", "best"


class CheckpointWriter:
    """Saves checkpoints into one directory, and removes the old ones.

    With `background` a thread writes, and at most one save is under way: the next one waits for it. `save` has copied
    all values when it returns, so the caller may change its arrays, or donate the buffers below them, at once.

    A failure in the background is raised by the next `save`, `wait` or `close`, as a `CheckpointError` with the
    original one as its cause. Leave by ``with`` or `close`, which wait for the last save.

    Arguments:
      directory: created if it is missing, and tried before any work. Raises `CheckpointError` if it cannot be written.
      keep: how many of the newest checkpoints stay. The one of the last save and the best one stay besides.
      keep_best: whether a save with ``best=True`` moves the pointer ``best``. Without it there is no such pointer.
      background: without it, `save` returns when the checkpoint is on the disk, and copies nothing.
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, keep_best: bool = True, background: bool = True
    ) -> None:
        if keep < 1:
            raise ValueError(f"CheckpointWriter keeps at least one checkpoint, found keep={keep!r}")
        self.directory = ensure_writable(directory)
        self.keep, self.keep_best = keep, keep_best
        self._thread = ThreadPoolExecutor(1, "antegrad-checkpoint") if background else None
        self._running: tuple[str, Future[None]] | None = None

    def save(
        self, step: int, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], best: bool = False
    ) -> Path:
        """Save host arrays as they are now, and return the path of their checkpoint.

        Arguments:
          step: steps done, at least 0. A checkpoint of the same step is replaced.
          tensors, metadata: as `checkpoint.pack` gives them.
          best: whether this is the best checkpoint so far.
        Raises `CheckpointError`: for arrays or metadata that cannot be saved, and for the save before this one, if it
        failed. Then nothing of this save is written, and it can be tried again.
        """
        name = checkpoint_name(step)
        self.wait()
        pieces = encode(refold(tensors, metadata), metadata)
        if self._thread is None:
            self._commit(name, pieces, best)
        else:
            # The bytes are taken now: the arrays may be views of memory that the next step overwrites.
            copied = [bytes(piece) for piece in pieces]
            self._running = name, self._thread.submit(self._commit, name, copied, best)
        return self.directory / name

    def resume(self, step: int, best: bool) -> None:
        """Go on from the checkpoint of `step`, which was saved with this `best`.

        Where a kill left the first checkpoint without its pointers, they come now: the run may have no better one.
        """
        self.wait()
        for pointer in (BEST, LATEST) if best and self.keep_best else (LATEST,):
            if _named(self.directory, pointer) != checkpoint_name(step):
                write_file(self.directory / pointer, [f"{checkpoint_name(step)}\n".encode()])

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

    def _commit(self, name: str, pieces: Iterable[bytes | memoryview], best: bool) -> None:
        write_file(self.directory / name, pieces)
        # First the best, so that no run continues after a best step that the pointer does not know.
        for pointer in (BEST, LATEST) if best and self.keep_best else (LATEST,):
            write_file(self.directory / pointer, [f"{name}\n".encode()])
        self._remove_old(name)

    def _remove_old(self, last: str) -> None:
        kept = {last, _named(self.directory, BEST)}
        for path in checkpoints(self.directory)[: -self.keep]:
            if path.name not in kept:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    logger.warning("the old checkpoint %s cannot be removed: %s", path, error.strerror)


def checkpoint_name(step: int) -> str:
    """The name of the file for `step`, a whole number of at least 0: ``step-00000600.safetensors``."""
    if operator.index(step) < 0:
        raise CheckpointError(f"cannot save step {step}: expected a whole number of at least 0")
    return f"step-{operator.index(step):08d}.safetensors"


def checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in `directory`, by step; none where there is no such directory. Their contents are not read."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(int(match[1]), match[0]) for match in map(CHECKPOINT.fullmatch, names) if match]
    return [Path(directory) / name for _, name in sorted(found)]


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint from which to go on: the last one that was finished. None if there is none.

    Where the pointer ``latest`` is missing, or what it names is missing or incomplete, it is the newest complete one,
    and the logger ``antegrad`` warns. Raises `CheckpointError` where a run was saved and no checkpoint is complete.
    """
    return _find(Path(directory), LATEST)


def best(directory: str | os.PathLike[str]) -> Path | None:
    """The last checkpoint that was saved as the best one, None if none was.

    Where what the pointer ``best`` names is missing or incomplete, it is the newest complete checkpoint, and the logger
    ``antegrad`` warns; as `latest` otherwise.
    """
    directory = Path(directory)
    return _find(directory, BEST) if os.path.lexists(directory / BEST) else None


def _find(directory: Path, pointer: str) -> Path | None:
    name = _named(directory, pointer)
    others = [path for path in reversed(checkpoints(directory)) if path.name != name]
    if name is None and not others:
        return None
    problem = "it is missing, or is no name of a checkpoint" if name is None else _problem(directory / name)
    if name is not None and problem is None:
        return directory / name
    found = next((path for path in others if _problem(path) is None), None)
    if found is None:
        raise CheckpointError(
            f"{directory} has no complete checkpoint: restore one of them from a copy, or start anew in another "
            f"directory. {directory / pointer}: {problem}"
        )
    logger.warning("%s: %s; the newest complete checkpoint %s is taken", directory / pointer, problem, found.name)
    return found


def _named(directory: Path, pointer: str) -> str | None:
    """The name in a pointer; None where it is missing, cannot be read, or holds no name of a checkpoint."""
    try:
        name = (directory / pointer).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if CHECKPOINT.fullmatch(name) else None


def _problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, as far as its header and its size tell; None for one that is complete."""
    try:
        load_metadata(path)
    except CheckpointError as error:
        return str(error)
    return None
