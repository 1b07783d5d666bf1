"""Checkpoint files: written whole or not at all, and read only after they have been checked.

A save writes a temporary file in the target's directory, flushes it to the disk, renames it over the target, and
flushes the directory: whenever the process is killed, the target holds the old contents or the new ones, complete.

The temporary file is locked (``flock``) while it is written. The lock ends with the process, however that ends, so the
next save tells a leftover from the file of a save that still runs without knowing anything of process numbers, which
are reused, and mean nothing to another container on the same volume. POSIX only.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import io
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antegrad.checkpoint.alias import refold, unfold
from antegrad.checkpoint.codec import decode, encode
from antegrad.checkpoint.index import is_index
from antegrad.checkpoint.reader import Reader, load_set, opened_file, opened_set, refuse_shard
from antegrad.errors import CheckpointError

PIECE = 1 << 26
"""The most bytes in one call of ``os.write``; some systems refuse 2 GiB and more."""
PARTIAL = re.compile(r"\.antegrad-[0-9a-f]{16}\.partial")
"""Names of temporary files. No other file is ever removed."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a checkpoint holds: every tensor by its name in the file (tied names give one array), and the metadata."""

    path: Path
    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]


def ensure_writable(directory: str | os.PathLike[str]) -> Path:
    """Create `directory` if it is missing, and make sure now, before any work, that a save into it can succeed.

    Raises `CheckpointError` when it is or lies below a file, when nobody may write to it, or when a trial file fails.
    """
    path = Path(os.path.realpath(directory))
    _prepare(path)
    try:
        partial, handle = _create_partial(path)
        try:
            _write_all(handle, memoryview(b"antegrad"))
        finally:
            os.unlink(partial)
            os.close(handle)
    except OSError as error:
        raise _unwritable(path, f"a trial file failed: {error.strerror}") from error
    return Path(directory)


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write `tensors` and `metadata` to the safetensors file `path`, atomically, and return the path.

    The directory is created if it is missing, leftovers of killed saves in it are removed, and a file that was there
    is replaced. Raises `CheckpointError`; the old file is then still there, unless the message says otherwise.
    """
    metadata = metadata or {}
    return write_file(path, encode(refold(tensors, metadata), metadata))


def write_file(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> Path:
    """Write `pieces`, one after the other, to the file `path`, atomically, and return the path.

    When it returns, the file will last through a power failure. The directory is created if it is missing, leftovers of
    killed saves in it are removed, and a file that was there is replaced. Raises `CheckpointError`; the old file is
    then still there, unless the message says otherwise.
    """
    target = Path(os.path.realpath(path))
    _prepare(target.parent)
    existed = os.path.lexists(target)
    if existed and not os.path.isfile(target):
        kind = "a directory" if os.path.isdir(target) else "a device, a pipe or a socket"
        raise CheckpointError(f"cannot save {target}: it is {kind}. Choose the name of a file.")
    try:
        _remove_leftovers(target.parent)
        _commit(target, pieces)
    except OSError as error:
        before = "the file that was there is unchanged" if existed else "nothing was written"
        raise CheckpointError(f"cannot save {target}: {error.strerror or error}; {before}.") from error
    _flush_directory(target.parent)
    return Path(path)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """The contents of the checkpoint `path`; arrays are writable and own their memory.

    It is a safetensors file, or the index (``*.index.json``) of files that several processes wrote, which gives the
    same full arrays, whatever their number. Raises `CheckpointError` when a file is missing or cannot be trusted,
    naming file, tensor and numbers.
    """
    path = Path(path)
    with _opened(path) as stream:
        if is_index(path):
            return Checkpoint(path, *load_set(stream, path))
        tensors, metadata = decode(stream, str(path))
    refuse_shard(metadata, path)
    return Checkpoint(path, unfold(tensors, metadata, str(path)), metadata)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of the checkpoint `path`, a safetensors file or an index, without its arrays.

    The header is checked in full against the size of the file (of all files that an index names), so what this reads is
    complete. Raises `CheckpointError` when a file is missing or cannot be trusted.
    """
    with opened(path) as reader:
        return reader.metadata


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Reader]:
    """A checkpoint, to be read array by array; its headers have been checked. Raises `CheckpointError`."""
    path = Path(path)
    with _opened(path) as stream:
        if is_index(path):
            with opened_set(stream, path) as reader:
                yield reader
        else:
            yield opened_file(stream, path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """The file, open for reading; an `OSError` from opening or reading it becomes a `CheckpointError`."""
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        advice = _similar(path) if isinstance(error, FileNotFoundError) else ""
        raise CheckpointError(f"cannot read {path}: {error.strerror}.{advice}") from error


def _similar(path: Path) -> str:
    """Advice for a file that is missing: a checkpoint beside it with a similar name."""
    with contextlib.suppress(OSError):
        entries = path.parent.iterdir()
        names = [entry.name for entry in entries if entry.suffix == ".safetensors" or is_index(entry)]
        if close := difflib.get_close_matches(path.name, names, 1):
            return f" Did you mean {path.parent / close[0]}?"
    return ""


def _prepare(directory: Path) -> None:
    """Create the absolute `directory` and its parents; refuse one that is not a directory or that forbids writing."""
    existing, missing = directory, []
    try:
        while not existing.exists():
            missing.append(existing)
            existing = existing.parent
        mode = existing.stat().st_mode
        if not stat.S_ISDIR(mode):
            raise _unwritable(directory, f"{existing} is a file")
        # To root the kernel grants every write, so a trial file alone would pass in a directory that somebody made
        # read-only on purpose. No write bit for anyone is taken as that purpose, whoever runs this.
        if not mode & 0o222:
            raise _unwritable(directory, f"{existing} has mode {stat.S_IMODE(mode):03o}, nobody may write to it")
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(directory, f"{existing}: {error.strerror}") from error
    for created in missing:
        _flush_directory(created.parent)


def _unwritable(directory: Path, reason: str) -> CheckpointError:
    advice = "Choose another directory or make it writable."
    return CheckpointError(f"cannot save checkpoints in {directory}: {reason}. {advice}")


def _create_partial(directory: Path) -> tuple[Path, int]:
    """A new temporary file in `directory`, locked, and its file descriptor."""
    while True:
        partial = directory / f".antegrad-{secrets.token_hex(8)}.partial"
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        _lock(handle, fcntl.LOCK_EX)
        if partial.exists():
            return partial, handle
        os.close(handle)  # another save took it for a leftover in the moment before it was locked


def _lock(handle: int, operation: int) -> bool:
    """Whether the lock was obtained; never on a file system without locks, where leftovers then stay."""
    try:
        fcntl.flock(handle, operation)
    except OSError:
        return False
    return True


def _remove_leftovers(directory: Path) -> None:
    """Remove the temporary files that no running save holds. What cannot be opened or removed stays."""
    for entry in list(os.scandir(directory)):
        if PARTIAL.fullmatch(entry.name):
            with contextlib.suppress(OSError):  # a directory or a link with such a name does not open
                handle = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    if _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                        os.unlink(entry.path)
                finally:
                    os.close(handle)


def _commit(target: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write `pieces` to a temporary file, flush it, and rename it to `target`; on failure leave nothing behind."""
    partial, handle = _create_partial(target.parent)
    try:
        for piece in pieces:
            _write_all(handle, memoryview(piece))
        os.fsync(handle)
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    finally:
        os.close(handle)


def _write_all(handle: int, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        done += os.write(handle, piece[done : done + PIECE])


def _flush_directory(directory: Path) -> None:
    """Make a rename or a new entry in `directory` last through a power failure, where the file system can."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            problem = f"the new entry in {directory} is there, but a power cut may lose it"
            raise CheckpointError(f"{problem}: flushing the directory failed ({error.strerror}).") from error
