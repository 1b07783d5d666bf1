"""The index of a checkpoint that several processes wrote: which files belong together, and what is cut over them.

It is one JSON object, and is checked in full before a file that it names is opened:

| key | holds |
| --- | --- |
| ``antegrad.index`` | version of this convention |
| ``step``, ``token`` | the step, and 32 random hexadecimal digits of the save, which each file has too |
| ``ranks``, ``processes`` | how many ranks the arrays are cut over, and how many files there are |
| ``files`` | for each process ``name``, ``bytes``, and its ranks: ``first`` and ``count`` |
| ``tensors`` | for each array that is cut its full ``dtype`` (as in a safetensors file) and ``shape`` |
| ``metadata`` | that of the checkpoint, text to text |

The arrays that are not cut are in the first file. File names are relative to the index, and hold no directory.
"""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from antegrad.checkpoint.header import MAX_HEADER, parse_type, refuse, short
from antegrad.checkpoint.shards import SHARD, digest, shard_name, stamp, uncovered
from antegrad.errors import CheckpointError
from antegrad.ir.types import SHORT_NAMES, TensorType

INDEX_SUFFIX = ".index.json"
VERSION_KEY, VERSION = "antegrad.index", 1
KEYS = (VERSION_KEY, "step", "token", "ranks", "processes", "files", "tensors", "metadata")
TOKEN = re.compile(r"[0-9a-f]{32}")
ADVICE = "Restore the checkpoint from a copy, or take another one."


@dataclass(frozen=True, slots=True)
class File:
    """One file of a set: its name, its size in bytes, and the ranks ``[first, first + count)`` that it holds."""

    name: str
    size: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Index:
    """What an index says; `tensors` are the full types of the arrays that are cut."""

    step: int
    token: str
    ranks: int
    files: tuple[File, ...]
    tensors: dict[str, TensorType]
    metadata: dict[str, str]

    def stamps(self) -> list[str]:
        """What each of the files must have in its metadata."""
        layout = digest(self.tensors, self.ranks)
        return [stamp(self.token, self.step, layout, file.first, file.count) for file in self.files]

    def to_bytes(self) -> bytes:
        tensors = {
            name: {"dtype": SHORT_NAMES[kind.dtype].upper(), "shape": list(kind.shape)}
            for name, kind in sorted(self.tensors.items())
        }
        files = [{"name": f.name, "bytes": f.size, "first": f.first, "count": f.count} for f in self.files]
        values = (VERSION, self.step, self.token, self.ranks, len(files), files, tensors, self.metadata)
        text = json.dumps(dict(zip(KEYS, values, strict=True)), ensure_ascii=False, indent=1).encode() + b"\n"
        if len(text) > MAX_HEADER:
            raise CheckpointError(
                f"cannot save {len(tensors)} tensors: names and metadata take {len(text)} bytes of an index, "
                f"which holds at most {MAX_HEADER}. Save less metadata."
            )
        return text


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a path is named as an index."""
    return Path(path).name.endswith(INDEX_SUFFIX)


def read_index(stream: BinaryIO, source: str) -> Index:
    """The index in `stream`, consistent with itself. Raises `CheckpointError` naming `source` for anything else."""
    size = stream.seek(0, io.SEEK_END)
    if size > MAX_HEADER:
        refuse(source, f"the index has {size} bytes, expected at most {MAX_HEADER}", ADVICE)
    stream.seek(0)
    return _Parser(source).index(stream.read(size))


class _Parser:
    """Refuses what is no index, naming `source`."""

    def __init__(self, source: str) -> None:
        self.source = source

    def index(self, text: bytes) -> Index:
        value = self._object(self._json(text), "the index")
        if (version := value.get(VERSION_KEY, VERSION)) != VERSION:
            advice = "Update antegrad to the one that wrote the file, or a later one."
            refuse(self.source, f"the index has version {short(version)}, expected {VERSION}", advice)
        value = self._fields(value, KEYS, "the index")
        if not isinstance(value["token"], str) or not TOKEN.fullmatch(value["token"]):
            self._refuse(f"its token is {short(value['token'])}, expected 32 hexadecimal digits")
        step, ranks = self._whole(value, "step", 0, "the index"), self._whole(value, "ranks", 1, "the index")
        return Index(
            step, value["token"], ranks,
            self._files(value["files"], step, ranks, value["processes"]),
            {name: self._tensor(name, kind) for name, kind in self._object(value["tensors"], "'tensors'").items()},
            self._metadata(value["metadata"]),
        )  # fmt: skip

    def _refuse(self, problem: str) -> NoReturn:
        refuse(self.source, problem, ADVICE)

    def _json(self, text: bytes) -> Any:
        try:
            return json.loads(text.decode(), object_pairs_hook=_unique)
        except RecursionError:
            self._refuse(f"the index of {len(text)} bytes nests too deeply to be parsed")
        except ValueError as error:
            self._refuse(f"the index of {len(text)} bytes is not JSON ({short(str(error))})")

    def _object(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(f"{where} is {short(value)}, expected a JSON object")
        return value

    def _fields(self, value: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
        fields = self._object(value, where)
        if set(fields) != set(keys):
            self._refuse(f"{where} has the keys {short(list(fields))}, expected {', '.join(keys)}")
        return fields

    def _whole(self, fields: dict[str, Any], key: str, minimum: int, where: str) -> int:
        value = fields[key]
        if type(value) is not int or not minimum <= value < 2**63:
            self._refuse(f"{where} has {short(value)} as {key!r}, expected a whole number from {minimum} to 2^63-1")
        return value

    def _files(self, value: Any, step: int, ranks: int, processes: Any) -> tuple[File, ...]:
        if not isinstance(value, list) or not value or len(value) != processes:
            self._refuse(f"it is of {short(processes)} processes, and its files are {short(value)}")
        files = tuple(self._file(number, entry, step, len(value)) for number, entry in enumerate(value, 1))
        if problem := uncovered([(file.first, file.count) for file in files], ranks):
            self._refuse(f"its files do not hold each rank once: {problem}")
        return files

    def _file(self, number: int, value: Any, step: int, processes: int) -> File:
        where = f"file {number}"
        fields = self._fields(value, ("name", "bytes", "first", "count"), where)
        match = SHARD.fullmatch(fields["name"]) if isinstance(fields["name"], str) else None
        if match is None or tuple(map(_number, match.groups())) != (step, number, processes):
            expected = shard_name(step, number, processes)
            self._refuse(f"{where} has the name {short(fields['name'])}, expected {expected} without a directory")
        size, first, count = (
            self._whole(fields, key, low, where) for key, low in (("bytes", 8), ("first", 0), ("count", 1))
        )
        return File(fields["name"], size, first, count)

    def _tensor(self, name: str, value: Any) -> TensorType:
        where = f"tensor {name!r}"
        return parse_type(self._fields(value, ("dtype", "shape"), where), where, self.source, ADVICE)

    def _metadata(self, value: Any) -> dict[str, str]:
        for key, text in self._object(value, "'metadata'").items():
            if not isinstance(text, str):
                self._refuse(f"'metadata' has {short(text)} under {key!r}, expected text")
        return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ, and whose texts UTF-8 can hold."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key comes twice among {short([key for key, _ in pairs])}")
    for key, value in pairs:
        for text in (key, value):
            if isinstance(text, str):
                text.encode()
    return found


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 20 else -1
