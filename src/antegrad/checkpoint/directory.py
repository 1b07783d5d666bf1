"""The checkpoints in the directory of a run: their names, the pointers to them, and which ones go.

A checkpoint is a file ``step-00000600.safetensors``, or a set: ``step-00000600.index.json`` with the files that it
names (see `antegrad.checkpoint.shards`). The text files ``latest`` and ``best`` hold the name of one of them each.
"""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from antegrad.checkpoint.alias import unfold
from antegrad.checkpoint.codec import encode
from antegrad.checkpoint.header import build_header
from antegrad.checkpoint.index import INDEX_SUFFIX, is_index, read_index
from antegrad.checkpoint.reader import Reader
from antegrad.checkpoint.shards import SHARD
from antegrad.checkpoint.store import load_metadata, opened, write_file
from antegrad.errors import CheckpointError

logger = logging.getLogger("antegrad")

CHECKPOINT = re.compile(r"step-([0-9]{8,})\.(?:safetensors|index\.json)")
"""Names of checkpoints. No other file is ever removed, but for the files of sets."""
LATEST, BEST = "latest", "best"


def checkpoint_name(step: int, sharded: bool = False) -> str:
    """The name of the checkpoint of `step`, a whole number of at least 0.

    It is ``step-00000600.safetensors``, and ``step-00000600.index.json`` for one with sharded arrays.
    """
    if operator.index(step) < 0:
        raise CheckpointError(f"cannot save step {step}: expected a whole number of at least 0")
    return f"step-{operator.index(step):08d}{INDEX_SUFFIX if sharded else '.safetensors'}"


def checkpoint_step(name: str) -> int:
    """The step in the name of a checkpoint."""
    match = CHECKPOINT.fullmatch(name)
    assert match is not None, name
    return int(match[1])


def checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in `directory`, by step; none where there is no such directory. Their contents are not read."""
    found = [(int(match[1]), match[0]) for match in map(CHECKPOINT.fullmatch, _listed(directory)) if match]
    return [Path(directory) / name for _, name in sorted(found)]


def checkpoint_at(directory: str | os.PathLike[str], step: int) -> Path | None:
    """The complete checkpoint of `step`, of whichever kind; None if there is none.

    Where there are both kinds, it is the one that ``latest`` or ``best`` names.
    """
    directory = Path(directory)
    named = [pointed(directory, LATEST), pointed(directory, BEST)]
    paths = [directory / checkpoint_name(step, sharded) for sharded in (False, True)]
    paths.sort(key=lambda path: named.index(path.name) if path.name in named else len(named))
    return next((path for path in paths if path.exists() and _problem(path) is None), None)


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint from which to go on: the last one that was finished. None if there is none.

    It is a file or an index, as `checkpoint.load` takes them. Where the pointer ``latest`` is missing, or what it names
    is missing or incomplete, it is the newest complete one, and the logger ``antegrad`` warns. Raises `CheckpointError`
    where a run was saved and no checkpoint is complete.
    """
    return _find(Path(directory), LATEST)


def chosen(source: str | os.PathLike[str]) -> Path:
    """The checkpoint that `source` names: itself, or the `latest` of the directory of a run.

    Raises `CheckpointError` for a directory without one.
    """
    path = Path(source)
    found = latest(path) if path.is_dir() else path
    if found is None:
        raise CheckpointError(f"{path} has no checkpoint: name a file, an index, or the directory of another run")
    return found


def best(directory: str | os.PathLike[str]) -> Path | None:
    """The last checkpoint that was saved as the best one, None if none was.

    Where what the pointer ``best`` names is missing or incomplete, it is the newest complete checkpoint, and the logger
    ``antegrad`` warns; as `latest` otherwise.
    """
    directory = Path(directory)
    return _find(directory, BEST) if os.path.lexists(directory / BEST) else None


def pointed(directory: Path, pointer: str) -> str | None:
    """The name in a pointer; None where it is missing, cannot be read, or holds no name of a checkpoint."""
    try:
        name = (directory / pointer).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if CHECKPOINT.fullmatch(name) else None


def set_files(index: Path) -> set[str]:
    """The names of the files of a set; none where its index is missing or cannot be trusted."""
    try:
        with open(index, "rb") as stream:
            return {file.name for file in read_index(stream, str(index)).files}
    except (OSError, CheckpointError):
        return set()


def remove_old(
    directory: Path, last: str, keep: int, replaced: Iterable[str] = (), held: frozenset[int] = frozenset()
) -> None:
    """Remove what is no longer wanted after the save of the checkpoint `last`, to which ``latest`` points.

    The `keep` newest checkpoints stay, and `last`, the best one and those of the steps `held` besides. What goes is the
    rest, a checkpoint of the other kind that has the step of `last`, the files `replaced` of the set that was there
    before, and files of earlier steps that no index names. What cannot be removed is logged.
    """
    step, kept = checkpoint_step(last), {last, pointed(directory, BEST)}
    found = checkpoints(directory)
    again = [path for path in found if checkpoint_step(path.name) == step and path.name != last]
    old = [path for path in found if path not in again][:-keep]
    for path in [path for path in old if checkpoint_step(path.name) not in held] + again:
        if path.name not in kept and _remove(path) and is_index(path):
            remove_files(directory, (name for name, of in _shards(directory) if of == checkpoint_step(path.name)))
    remove_files(directory, replaced)
    remove_files(directory, _strays(directory, step))


def remove_files(directory: Path, names: Iterable[str]) -> None:
    """Remove files of sets; what cannot be removed is logged."""
    for name in names:
        _remove(directory / name)


def export(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Path:
    """Write the checkpoint `source` as one ordinary safetensors file, and return the path.

    It has the bytes that a single process would have written. One array at a time is in memory.

    Arguments:
      source: a safetensors file, an index (``*.index.json``), or the directory of a run, of which `latest` is taken.
      target: the file to write, atomically; one that is there is replaced.
    Raises `CheckpointError` when the source cannot be trusted, and when the target is one of its files, or another
    file of its run.
    """
    path = chosen(source)
    with opened(path) as reader:
        _check_target(Path(target), path, reader)
        nothing = np.empty(0)
        unfold(dict.fromkeys(reader.types, nothing), reader.metadata, str(path))
        return write_file(target, _contents(reader))


def _check_target(target: Path, path: Path, reader: Reader) -> None:
    advice = "Choose another name."
    if is_index(target):
        raise CheckpointError(f"cannot export to {target}: that is the name of an index. {advice}")
    real = Path(os.path.realpath(target))
    for file in (path, *(source.path for source in reader.sources)):
        if os.path.realpath(file) == str(real) or (os.path.exists(target) and file.samefile(target)):
            raise CheckpointError(f"cannot export {path} to {target}: the source would be overwritten. {advice}")
    if real.parent == Path(os.path.realpath(path)).parent and _is_of_run(real):
        raise CheckpointError(f"cannot export {path} to {target}: that is a file of the run. {advice}")


def _is_of_run(path: Path) -> bool:
    """Whether a file in the directory of a run belongs to it, by its name or, if it is there, its kind."""
    name = path.name
    taken = CHECKPOINT.fullmatch(name) or SHARD.fullmatch(name) or name in (LATEST, BEST)
    return bool(taken) or (path.exists() and path.suffix != ".safetensors")


def _contents(reader: Reader) -> Iterator[bytes | memoryview]:
    """The bytes of the ordinary file, each array read when it is asked for."""
    header, order = build_header(reader.types, reader.metadata)
    yield header
    for name in order:
        yield list(encode({name: reader.read(name)}, {}))[1]


def _listed(directory: str | os.PathLike[str]) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _shards(directory: Path) -> list[tuple[str, int]]:
    """The files of sets by name, each with its step."""
    return sorted((match[0], int(match[1])) for match in map(SHARD.fullmatch, _listed(directory)) if match)


def _strays(directory: Path, step: int) -> list[str]:
    """Files of sets of earlier steps than `step` that no index names; an index that cannot be read may name any."""
    names: dict[int, set[str]] = {}
    found = []
    for name, of in _shards(directory):
        if of >= step:
            continue
        index = directory / checkpoint_name(of, sharded=True)
        if of not in names:
            names[of] = set_files(index)
        if name not in names[of] and (names[of] or not index.exists()):
            found.append(name)
    return found


def _remove(path: Path) -> bool:
    """Whether the file is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("the old checkpoint %s cannot be removed: %s", path, error.strerror)
        return False
    return True


def _find(directory: Path, pointer: str) -> Path | None:
    name = pointed(directory, pointer)
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


def _problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, as far as headers, sizes and index tell; None for one that is complete."""
    try:
        load_metadata(path)
    except CheckpointError as error:
        return str(error)
    return None
