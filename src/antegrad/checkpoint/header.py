"""The header of a safetensors file: where each tensor lies, built for a save and checked before a load.

Source: the format description at https://github.com/huggingface/safetensors#format. A file is eight bytes (length of
the header, little-endian), the header (one JSON object) and the data. Every tensor has the fields ``dtype``, ``shape``
and ``data_offsets`` (begin and end in the data), ``__metadata__`` maps strings to strings, and the tensors cover the
data without overlap and without a hole.

Two rules are stricter than the reader of the safetensors library (0.8.0), which lets the last of two equal keys win
and skips fields that it does not know: both are refused here, because a file that says two things cannot be trusted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from antegrad.errors import CheckpointError
from antegrad.ir.types import DTYPES, SHORT_NAMES, TensorType

MAX_HEADER = 100_000_000
"""The longest header, in bytes; the same limit as in the safetensors library, which could not read more."""
MAX_RANK = 64
"""The most dimensions that a NumPy array can have."""
METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")
FILE_DTYPES: dict[str, np.dtype] = {name.upper(): dtype for name, dtype in DTYPES.items()}
"""The format's names: ``F32``, ``BF16``, ``BOOL`` and so on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: its name, its type, and its bytes ``[begin, end)`` within the data."""

    name: str
    type: TensorType
    begin: int
    end: int


class _Object(tuple):
    """A JSON object as its (key, value) pairs, so that equal keys are still seen."""


DAMAGED = "The file is damaged or not safetensors: load another copy."


def refuse(source: str, problem: str, advice: str = DAMAGED) -> NoReturn:
    """Raise the `CheckpointError` of a file that cannot be trusted."""
    raise CheckpointError(f"cannot read {source}: {problem}. {advice}")


def build_header(types: Mapping[str, TensorType], metadata: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """The first bytes of a file, length field included, and the order in which the data follows.

    The widest element types come first, so that every tensor is aligned, and names in alphabetical order: equal
    contents give equal bytes. (The library writes metadata in an order that changes from call to call.)
    Raises `CheckpointError` for names or metadata that the format cannot hold.
    """
    order = sorted(types, key=lambda name: (-types[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name in order:
        kind = types[name]
        dtype = SHORT_NAMES[kind.dtype].upper()
        header[name] = {"dtype": dtype, "shape": list(kind.shape), "data_offsets": [at, at + kind.nbytes]}
        at += kind.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise CheckpointError(
            f"cannot save {len(types)} tensors: names and metadata take {len(text)} bytes, "
            f"and a safetensors header holds at most {MAX_HEADER}. Save less metadata, or several files."
        )
    return len(text).to_bytes(8, "little") + text, order


def check_names(names: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Raise `CheckpointError` unless all names are text and `metadata` maps text to text."""
    for name in names:
        if not _is_text(name) or name == METADATA:
            raise CheckpointError(f"cannot save a tensor as {name!r}: expected a name in text other than {METADATA!r}")
    for key, value in metadata.items():
        if not (_is_text(key) and _is_text(value)):
            raise CheckpointError(f"cannot save metadata {key!r}: {value!r}, expected text under a text key: use str()")


def parse_header(text: bytes, data_size: int, source: str) -> tuple[list[Entry], dict[str, str]]:
    """Entries in the order of their data, and the metadata, of a header that is consistent with itself.

    `text` is the header without its length field, `data_size` the number of bytes that follow it in the file. Once
    this returns, the entries' sizes add up to `data_size`, so that reading them allocates no more than the file has.
    Raises `CheckpointError` naming `source`, the tensor and the numbers.
    """
    if text[:1] != b"{":
        refuse(source, f"the header starts with {text[:8]!r}, expected '{{'")
    header = parse_object(text, "the header", source)
    metadata = _metadata(header.pop(METADATA), source) if METADATA in header else {}
    entries = [_entry(name, value, source) for name, value in header.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_tiling(entries, data_size, source)
    return entries, metadata


def parse_object(text: bytes, where: str, source: str) -> dict[str, Any]:
    """The JSON object in `text`, whose keys differ; objects within it are still unchecked. Raises `CheckpointError`."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_Object)
    except UnicodeDecodeError as error:
        refuse(source, f"{where} of {len(text)} bytes is not UTF-8 text ({error.reason} at byte {error.start})")
    except RecursionError:
        refuse(source, f"{where} of {len(text)} bytes nests too deeply to be parsed")
    except ValueError as error:
        refuse(source, f"{where} of {len(text)} bytes is not JSON ({error})")
    return _unique_keys(value, where, source)


def _unique_keys(value: Any, where: str, source: str) -> dict[str, Any]:
    """The object `value` as a dict; refused when it is no object, or has a key twice or one that is not text."""
    if not isinstance(value, _Object):
        refuse(source, f"{where} is {short(value)}, expected a JSON object")
    for key, count in Counter(key for key, _ in value).items():
        if count > 1:
            refuse(source, f"{where} has the key {key!r} {count} times, expected once")
        if not _is_text(key):
            refuse(source, f"{where} has the key {key!r}, which is not text")
    return dict(value)


def _metadata(value: Any, source: str) -> dict[str, str]:
    metadata = _unique_keys(value, METADATA, source)
    for key, text in metadata.items():
        if not _is_text(text):
            refuse(source, f"{METADATA} has {short(text)} under {key!r}, expected text")
    return metadata


def _entry(name: str, value: Any, source: str) -> Entry:
    where = f"tensor {name!r}"
    fields = _unique_keys(value, where, source)
    if sorted(fields) != sorted(FIELDS):
        refuse(source, f"{where} has the fields {', '.join(fields) or 'none'}, expected {', '.join(FIELDS)}")
    kind = parse_type(fields, where, source)
    offsets = _sizes(fields["data_offsets"])
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(source, f"{where} has the offsets {short(fields['data_offsets'])}, expected [begin, end], begin <= end")
    entry = Entry(name, kind, *offsets)
    if entry.end - entry.begin != entry.type.nbytes:
        spanned = f"its offsets [{entry.begin}, {entry.end}] span {entry.end - entry.begin}"
        refuse(source, f"{where} of type {entry.type} takes {entry.type.nbytes} bytes, and {spanned}")
    return entry


def parse_type(fields: Mapping[str, Any], where: str, source: str, advice: str = "") -> TensorType:
    """The type that ``dtype`` and ``shape`` of `fields` say; a `CheckpointError` where they say none.

    `advice` is what to do about it; by default what holds for a file of any program.
    """
    dtype = FILE_DTYPES.get(fields["dtype"]) if isinstance(fields["dtype"], str) else None
    if dtype is None:
        found = f"{where} has the element type {short(fields['dtype'])}, expected one of {', '.join(FILE_DTYPES)}"
        refuse(source, found, advice or "Convert it to one that antegrad has.")
    shape = _sizes(fields["shape"])
    if shape is None or len(shape) > MAX_RANK:
        expected = f"at most {MAX_RANK} whole numbers from 0 to 2^63-1"
        refuse(source, f"{where} has the shape {short(fields['shape'])}, expected {expected}", advice or DAMAGED)
    return TensorType(shape, dtype)


def _check_tiling(entries: list[Entry], data_size: int, source: str) -> None:
    """Refuse entries (sorted by their begin) that do not cover ``[0, data_size)`` exactly once."""
    at, before = 0, "the start of the data"
    for entry in entries:
        where = f"tensor {entry.name!r}"
        if entry.begin < at:
            refuse(source, f"{where} starts at byte {entry.begin} of the data and overlaps {before} that ends at {at}")
        if entry.begin > at:
            refuse(source, f"{where} starts at byte {entry.begin} of the data and leaves a hole after {before} at {at}")
        if entry.end > data_size:
            missing = f"{entry.end - data_size} bytes are missing"
            refuse(source, f"{where} ends at byte {entry.end} of the data, and the file holds {data_size}: {missing}")
        at, before = entry.end, where
    if at != data_size:
        refuse(source, f"{data_size - at} bytes follow {before}: the header describes {at} bytes of {data_size}")


def _sizes(value: Any) -> tuple[int, ...] | None:
    """`value` as whole numbers from 0 to 2^63-1, or None. JSON's ``true`` and ``1.0`` are no sizes."""
    if not isinstance(value, list):
        return None
    if not all(type(size) is int and 0 <= size < 2**63 for size in value):
        return None
    return tuple(value)


def _is_text(value: Any) -> bool:
    """Whether `value` is a string that UTF-8 can hold, which one with a lone surrogate is not."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: Any) -> str:
    """`value` as Python writes it, in at most 80 characters."""
    text = repr(dict(value) if isinstance(value, _Object) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
