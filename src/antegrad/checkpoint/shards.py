"""What one process writes of a checkpoint that several processes write together.

Under ZeRO an array of the training state is cut over N ranks: flattened, padded with zeros to N times `chunk` elements
(`chunk` is the size divided by N, rounded up), and rank r holds the elements ``[r * chunk, (r + 1) * chunk)``. P
processes hold the N ranks, each of them a range. The arrays that are not cut are the same on every process.

| file | holds |
| --- | --- |
| ``step-00000600.shard-00001-of-00004.safetensors`` | the flat pieces of one process; the first: the other arrays too |
| ``step-00000600.index.json`` | what belongs together, see `antegrad.checkpoint.index` |

Each of these safetensors files has one metadata entry, ``antegrad.shard``: the random token of its save, the step, the
ranks that it holds, and a digest of the types of the arrays that are cut. So pieces of two saves are never put
together. Where a step is saved again, the files of the set that is replaced stay until the new index is there; the new
ones are then ``.shard-00001-of-00004.r1.``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from antegrad.checkpoint.alias import read_aliases, refold
from antegrad.checkpoint.codec import encode
from antegrad.checkpoint.header import build_header, check_names, parse_header
from antegrad.errors import CheckpointError
from antegrad.ir.types import TensorType

SHARD_KEY = "antegrad.shard"
SHARD = re.compile(r"step-([0-9]{8,})\.shard-([0-9]{5,})-of-([0-9]{5,})(?:\.r[1-9][0-9]{0,8})?\.safetensors")
"""Names of the files of a set; its groups are the step, the number from 1 on, and how many there are."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Says of a flat array what it is a piece of: ranks ``[first, first + count)`` of `ranks` hold the array `type`."""

    type: TensorType
    ranks: int
    first: int
    count: int

    @property
    def piece(self) -> TensorType:
        """The type of the piece: ``count * chunk`` elements."""
        return TensorType((self.count * chunk(self.type, self.ranks),), self.type.dtype)


@dataclass(frozen=True, eq=False)
class Part:
    """What one process writes: its arrays by name, as encoded data in the order of a file, and the ranks they are of.

    `layout` are the full types of the sharded arrays. `types` and `data` are those of the file.
    """

    types: dict[str, TensorType]
    data: list[memoryview]
    layout: dict[str, TensorType]
    ranks: int
    first: int
    count: int

    def file(self, stamp: str) -> list[memoryview]:
        """The file's bytes with its stamp, in pieces."""
        return [memoryview(build_header(self.types, {SHARD_KEY: stamp})[0]), *self.data]

    def digest(self) -> str:
        """Equal on all processes that cut the same arrays in the same way."""
        return digest(self.layout, self.ranks)


def chunk(kind: TensorType, ranks: int) -> int:
    """How many elements each of `ranks` ranks holds of an array, padding included."""
    return -(-kind.size // ranks)


def digest(layout: Mapping[str, TensorType], ranks: int) -> str:
    """32 hexadecimal digits that stand for the full types of all sharded arrays and the number of ranks."""
    text = json.dumps([ranks, *((name, str(kind)) for name, kind in sorted(layout.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def shard_name(step: int, number: int, processes: int, revision: int = 0) -> str:
    """``step-00000600.shard-00001-of-00004.safetensors``; `number` counts from 1."""
    again = f".r{revision}" if revision else ""
    return f"step-{step:08d}.shard-{number:05d}-of-{processes:05d}{again}.safetensors"


def stamp(token: str, step: int, layout: str, first: int, count: int) -> str:
    """The metadata entry of one file: by it a file of another save, of other arrays or of other ranks is known."""
    return json.dumps({"token": token, "step": step, "layout": layout, "first": first, "count": count})


def part(
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    sharded: Mapping[str, Sharded],
    *,
    everything: bool,
    copy: bool,
) -> Part:
    """What a process writes of `tensors`, of which `sharded` names the pieces (at least one).

    Arguments:
      metadata: as for a save; its aliases are left out, as in any checkpoint.
      everything: whether the arrays that are not sharded are written too; else they are not looked at.
      copy: whether to take the bytes now, so that the arrays may change.
    Raises `CheckpointError` for what cannot be saved.
    """
    if SHARD_KEY in metadata:
        raise CheckpointError(f"cannot save metadata {SHARD_KEY!r}: it marks the files of a set. Choose another key.")
    sharded = _stored(sharded, metadata)
    kept = tensors if everything else {name: tensors[name] for name in sharded if name in tensors}
    kept = refold(kept, metadata) if everything else kept
    check_names(kept, metadata)
    ranks, first, count = _range(kept, sharded)
    header, *data = (memoryview(bytes(piece)) if copy else piece for piece in encode(kept, {}))
    entries, _ = parse_header(bytes(header[8:]), sum(map(len, data)), "what was to be saved")
    types = {entry.name: entry.type for entry in entries}
    return Part(types, data, {name: of.type for name, of in sharded.items()}, ranks, first, count)


def _stored(sharded: Mapping[str, Sharded], metadata: Mapping[str, str]) -> dict[str, Sharded]:
    """`sharded` without the further names of tied arrays."""
    aliases = read_aliases(metadata, "the metadata to save")
    return {name: of for name, of in sharded.items() if name not in aliases}


def _range(tensors: Mapping[str, np.ndarray], sharded: Mapping[str, Sharded]) -> tuple[int, int, int]:
    """The ranks, the first and the count that all of `sharded` have; refused where a piece does not fit."""
    ranges: dict[tuple[int, int, int], str] = {}
    for name, of in sharded.items():
        _check_piece(name, tensors, of)
        ranges.setdefault((of.ranks, of.first, of.count), name)
    if len(ranges) != 1:
        found = ", ".join(f"{name!r} ranks {a} to {a + c - 1} of {n}" for (n, a, c), name in ranges.items())
        raise CheckpointError(f"cannot save pieces of different ranks together, found {found or 'none'}")
    return next(iter(ranges))


def _check_piece(name: str, tensors: Mapping[str, np.ndarray], of: Sharded) -> None:
    numbers = (of.ranks, of.first, of.count)
    if not all(type(number) is int for number in numbers) or not 0 <= of.first < of.first + of.count <= of.ranks:
        raise CheckpointError(
            f"cannot save {name!r} as ranks from {of.first!r} on, {of.count!r} of {of.ranks!r}: expected whole numbers "
            "with 0 <= first, 1 <= count and first + count <= ranks"
        )
    if name not in tensors:
        raise CheckpointError(f"cannot save {name!r}: it is said to be sharded, and there is no such tensor")
    array = tensors[name]
    if tuple(np.shape(array)) != of.piece.shape or getattr(array, "dtype", None) != of.piece.dtype:
        found = f"{getattr(array, 'dtype', type(array).__name__)}{list(np.shape(array))}"
        raise CheckpointError(
            f"cannot save {name!r}: {of.count} of {of.ranks} ranks of {of.type} are a piece {of.piece}, found {found}"
        )


def whole(tensors: Mapping[str, np.ndarray], sharded: Mapping[str, Sharded]) -> dict[str, np.ndarray]:
    """`tensors` with full arrays (views) for pieces that hold all ranks; a `CheckpointError` where one does not."""
    full = dict(tensors)
    for name, of in sharded.items():
        if name not in tensors:
            continue  # a further name of a tied array
        _check_piece(name, tensors, of)
        if of.count != of.ranks:
            raise CheckpointError(
                f"cannot save {name!r}: this is the only process, and it holds {of.count} of {of.ranks} ranks: "
                "pass the group of processes to the writer"
            )
        full[name] = np.asarray(tensors[name])[: of.type.size].reshape(of.type.shape)
    return full


def uncovered(ranges: Iterable[tuple[int, int]], ranks: int) -> str | None:
    """What is wrong with ranges (first, count) that should cover ``[0, ranks)`` once; None for nothing."""
    at = 0
    for first, count in sorted(ranges):
        if first < at:
            return f"rank {first} is held twice"
        if first > at:
            return f"nobody holds rank {at}, and rank {first} is held"
        at = first + count
    if at == ranks:
        return None
    return f"nobody holds rank {at} of {ranks}" if at < ranks else f"rank {at - 1} is held, and there are {ranks} ranks"
