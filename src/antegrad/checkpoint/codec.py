"""The safetensors format: named arrays and string metadata as bytes, and back.

Why not the NumPy functions of the safetensors library (0.8.0): its writer stores the memory of an array in memory
order, so that a transposed or strided array comes back scrambled; its reader fails on bf16; its metadata is written in
an order that changes from call to call; and it accepts a key twice. The files are the same format: each side reads the
other's.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from antegrad.checkpoint.header import DAMAGED, MAX_HEADER, Entry, build_header, check_names, parse_header, refuse
from antegrad.errors import CheckpointError
from antegrad.ir.types import DTYPES, SHORT_NAMES, TensorType

BOOL = DTYPES["bool"]
LENGTH = 8
"""Bytes of the length field before the header."""
HOST_IS_BIG_ENDIAN = sys.byteorder == "big"
"""The format is little-endian."""


def encode(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Iterator[memoryview]:
    """The file's bytes, in pieces to be written one after the other.

    Arguments:
      tensors: arrays of any shape, memory order and byte order with one of the 13 element types; other array types
        (``jax.Array``) are converted by NumPy. The pieces are views of contiguous arrays: do not change the arrays
        before the pieces are written.
      metadata: text to text.
    Everything is checked before this returns; a name, value or element type that does not fit is a `CheckpointError`.
    """
    check_names(tensors, metadata)
    arrays = {name: _as_array(name, value) for name, value in tensors.items()}
    types = {name: TensorType(array.shape, _native(array.dtype)) for name, array in arrays.items()}
    header, order = build_header(types, metadata)
    return itertools.chain([memoryview(header)], (_to_bytes(arrays[name]) for name in order))


def decode(stream: io.BufferedIOBase, source: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata of the safetensors file in `stream`, an open binary file; `source` names it in errors.

    The arrays are C-contiguous, writable and own their memory: none is a view of the file. The header is checked in
    full against the size of the file before any array is made. Raises `CheckpointError` for anything that is wrong.
    """
    entries, metadata = decode_header(stream, source)
    return {entry.name: _read_tensor(stream, entry, source) for entry in entries}, metadata


def decode_header(stream: io.BufferedIOBase, source: str) -> tuple[list[Entry], dict[str, str]]:
    """The entries in the order of their data and the metadata, checked as in `decode`; leaves `stream` at the data."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    header = _read_header(stream, size, source)
    return parse_header(header, size - LENGTH - len(header), source)


def _as_array(name: str, value: Any) -> np.ndarray:
    if not (hasattr(value, "dtype") and hasattr(value, "__array__")):
        raise CheckpointError(f"cannot save {name!r}: expected an array, found {type(value).__name__}: use np.asarray")
    array = np.asarray(value)
    if _native(array.dtype) not in SHORT_NAMES:
        known = ", ".join(DTYPES)
        raise CheckpointError(f"cannot save {name!r}: its element type is {array.dtype}, expected one of {known}")
    return array


def _native(dtype: np.dtype) -> np.dtype:
    """`dtype` in the host's byte order: a big-endian array has the same values, so it is converted, not refused."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def _to_bytes(array: np.ndarray) -> memoryview:
    """The elements in C order and little-endian, as a flat view of bytes; a copy only where the memory differs."""
    native = np.ascontiguousarray(array, dtype=_native(array.dtype)).reshape(-1)
    if native.dtype == BOOL:
        native = native.view(np.uint8) != 0  # a bool array made by a view may hold other bytes than 0 and 1
    return _swapped(native).view(np.uint8).data


def _swapped(flat: np.ndarray) -> np.ndarray:
    """The bits of `flat` between the host's byte order and the format's: the same array on a little-endian host."""
    bits = flat.view(f"u{flat.dtype.itemsize}")
    return bits.byteswap() if HOST_IS_BIG_ENDIAN else bits


def _read_header(stream: io.BufferedIOBase, size: int, source: str) -> bytes:
    """The header's bytes; its claimed length is compared with `size`, that of the file, before they are read."""
    if size < LENGTH:
        refuse(source, f"the file has {size} bytes, expected at least the {LENGTH} bytes of the header's length")
    length = int.from_bytes(_read(stream, LENGTH, source), "little")
    if length > size - LENGTH:
        refuse(source, f"the header is said to have {length} bytes, and {size - LENGTH} bytes follow its length field")
    if length > MAX_HEADER:
        refuse(source, f"the header is said to have {length} bytes, expected at most {MAX_HEADER}")
    return _read(stream, length, source)


def _read(stream: io.BufferedIOBase, count: int, source: str) -> bytes:
    data = bytearray(count)
    read_into(stream, memoryview(data), "the header", source)
    return bytes(data)


def _read_tensor(stream: io.BufferedIOBase, entry: Entry, source: str) -> np.ndarray:
    def fill(flat: np.ndarray) -> None:
        read_into(stream, flat.view(np.uint8).data, f"tensor {entry.name!r}", source)

    return read_array(entry.name, entry.type, fill, source)


def read_array(
    name: str, kind: TensorType, fill: Callable[[np.ndarray], None], source: str, advice: str = DAMAGED
) -> np.ndarray:
    """The tensor `name` of a file, an array of type `kind` whose bytes, in the order of the format, `fill` writes.

    `fill` is given the array without its shape. Raises `CheckpointError` for a shape that NumPy cannot have, and for
    bytes that are no bools.
    """
    where = f"tensor {name!r} of type {kind}"
    try:
        array = np.empty(kind.shape, kind.dtype)
    except ValueError as error:  # no bytes, and yet a dimension beyond NumPy's limits: [0, 2^62]
        refuse(source, f"{where} cannot be made ({error})", advice)
    flat = array.reshape(-1)
    fill(flat)
    if HOST_IS_BIG_ENDIAN:
        flat.view(f"u{kind.dtype.itemsize}")[...] = _swapped(flat)
    if kind.dtype == BOOL and (bad := int(np.count_nonzero(flat.view(np.uint8) > 1))):
        refuse(source, f"{where} has {bad} bytes that are neither 0 nor 1", advice)
    return array


def read_into(stream: io.BufferedIOBase, view: memoryview, where: str, source: str, advice: str = DAMAGED) -> None:
    """Fill `view`; a file that became shorter after its size was taken is refused."""
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])
        if not count:
            refuse(source, f"{where} has {len(view)} bytes, and the file ended after {done} of them", advice)
        done += count
