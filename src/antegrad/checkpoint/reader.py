"""Reads a checkpoint array by array, from one file or from the files of a set.

All files of a set are opened and checked before anything is read, and stay open: what is read belongs together even
where the set is replaced or removed at the same time.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antegrad.checkpoint.alias import unfold
from antegrad.checkpoint.codec import decode_header, read_array, read_into
from antegrad.checkpoint.header import Entry, refuse
from antegrad.checkpoint.index import ADVICE, File, Index, read_index
from antegrad.checkpoint.shards import SHARD_KEY, Sharded, chunk
from antegrad.errors import CheckpointError
from antegrad.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class _Source:
    """One open file: where its data starts, and its entries by name."""

    path: Path
    stream: io.BufferedReader
    start: int
    entries: dict[str, Entry]
    metadata: dict[str, str]


@dataclass(frozen=True, eq=False)
class Reader:
    """An open checkpoint: full types by name, metadata, and `read`. Names of tied arrays have one entry, the first."""

    path: Path
    types: dict[str, TensorType]
    metadata: dict[str, str]
    sources: list[_Source]
    index: Index | None

    def read(self, name: str) -> np.ndarray:
        """The full array, C-contiguous, writable and with memory of its own. Raises `CheckpointError`."""
        kind = self.types[name]

        def fill(flat: np.ndarray) -> None:
            if self.index is None or name not in self.index.tensors:
                _fill(self.sources[0], name, flat)
                return
            each = chunk(kind, self.index.ranks)
            for source, file in zip(self.sources, self.index.files, strict=True):
                # The slice ends with the array: padding is not read.
                _fill(source, name, flat[file.first * each : (file.first + file.count) * each])

        return read_array(name, kind, fill, str(self.path), ADVICE)


def opened_file(stream: io.BufferedReader, path: Path) -> Reader:
    """The ordinary safetensors file `path`, open as `stream`; a `CheckpointError` where it cannot be trusted."""
    source = _source(stream, path)
    refuse_shard(source.metadata, path)
    return Reader(path, {name: entry.type for name, entry in source.entries.items()}, source.metadata, [source], None)


@contextlib.contextmanager
def opened_set(stream: io.BufferedReader, path: Path) -> Iterator[Reader]:
    """The set of the index `path`, open as `stream`; a `CheckpointError` where files are missing or do not fit."""
    index = read_index(stream, str(path))
    with contextlib.ExitStack() as stack:
        sources = []
        for file, stamp in zip(index.files, index.stamps(), strict=True):
            place = path.with_name(file.name)
            advice = f"It is one of the {len(index.files)} files of {path}. {ADVICE}"
            with _readable(place, advice):
                stream = stack.enter_context(open(place, "rb"))
                size = os.fstat(stream.fileno()).st_size
                if size != file.size:
                    refuse(str(place), f"the file has {size} bytes, expected {file.size}", advice)
                sources.append(_source(stream, place))
            _check_stamp(sources[-1], stamp, path)
            _check_pieces(sources[-1], file, index, path)
        types = {name: entry.type for name, entry in sources[0].entries.items()} | index.tensors
        yield Reader(path, types, index.metadata, sources, index)


def load_set(stream: io.BufferedReader, path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """All full arrays of a set by name, tied ones as one array, and the metadata."""
    with opened_set(stream, path) as reader:
        tensors = {name: reader.read(name) for name in reader.types}
        return unfold(tensors, reader.metadata, str(path)), reader.metadata


def refuse_shard(metadata: dict[str, str], path: Path) -> None:
    """Raise `CheckpointError` for one file of a set, whose arrays are pieces."""
    if SHARD_KEY in metadata:
        refuse(str(path), "it holds the pieces of one process only", "Load the index of its step (*.index.json).")


@contextlib.contextmanager
def _readable(path: Path, advice: str) -> Iterator[None]:
    """An `OSError` becomes a `CheckpointError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}. {advice}") from error


def _source(stream: io.BufferedReader, path: Path) -> _Source:
    entries, metadata = decode_header(stream, str(path))
    return _Source(path, stream, stream.tell(), {entry.name: entry for entry in entries}, metadata)


def _check_stamp(source: _Source, expected: str, path: Path) -> None:
    """Refuse a file that was written in another save, or at another place of this one."""
    found = source.metadata.get(SHARD_KEY)
    if found != expected:
        held = "it has no stamp of a set" if found is None else f"its stamp is {found[:200]}"
        refuse(str(source.path), f"it does not belong to {path}: {held}, expected {expected}", ADVICE)


def _check_pieces(source: _Source, file: File, index: Index, path: Path) -> None:
    """Refuse a file without the pieces that the index says."""
    missing, more = index.tensors.keys() - source.entries.keys(), source.entries.keys() - index.tensors.keys()
    if missing or (more and file is not index.files[0]):
        what = f"lacks {min(missing)!r}" if missing else f"also has {min(more)!r}"
        refuse(str(source.path), f"it {what}, unlike what {path} says", ADVICE)
    for name, kind in index.tensors.items():
        piece = Sharded(kind, index.ranks, file.first, file.count).piece
        if source.entries[name].type != piece:
            has = f"tensor {name!r} has the type {source.entries[name].type}"
            part = f"{file.count} of {index.ranks} ranks of {kind} are {piece}"
            refuse(str(source.path), f"{has}, and by {path} {part}", ADVICE)


def _fill(source: _Source, name: str, flat: np.ndarray) -> None:
    """Read the first bytes of the tensor into `flat`."""
    with _readable(source.path, ADVICE):
        source.stream.seek(source.start + source.entries[name].begin)
        read_into(source.stream, flat.view(np.uint8).data, f"tensor {name!r}", str(source.path), ADVICE)
