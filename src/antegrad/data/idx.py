"""The IDX format of the MNIST files: a magic number, the sizes, then the numbers, all of them big-endian."""

from __future__ import annotations

import math
import os

import numpy as np

from antegrad.data.download import read_contents
from antegrad.data.error import DataError

__all__ = ["parse_idx", "read_idx"]

ELEMENT_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in the IDX file `path`, which may be gzipped: u8, i8, i16, i32, f32 or f64 of any shape.

    Raises `DataError` for a file that is no IDX file, or does not have exactly the bytes that its header promises.
    """
    return parse_idx(read_contents(path), str(path))


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """The array that the bytes of an IDX file hold, in native byte order; `name` stands in the messages.

    Raises `DataError`: not IDX, truncated, or with bytes left over.
    """
    if len(content) < 4:
        raise DataError(f"{name}: the file has {len(content)} bytes, expected at least the 4 of an IDX header")
    zeros, code, rank = content[:2], content[2], content[3]
    if zeros != b"\0\0" or code not in ELEMENT_TYPES:
        raise DataError(f"{name}: expected two zero bytes and the code of an IDX type, found {content[:32]!r}")
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataError(f"{name}: the file ends at byte {len(content)}, within the {start} bytes of its IDX header")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    dtype = np.dtype(ELEMENT_TYPES[code])
    expected, found = math.prod(shape) * dtype.itemsize, len(content) - start
    if found != expected:
        raise DataError(
            f"{name}: the IDX header promises {'x'.join(map(str, shape))} numbers of {dtype.itemsize} bytes, "
            f"{expected} bytes in all, and {found} bytes follow it"
        )
    try:
        flat = np.frombuffer(content, dtype, offset=start)
        return flat.reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    except ValueError as error:  # more axes, or larger sizes beside a 0, than NumPy has
        raise DataError(f"{name}: an array of shape {shape} cannot be made, {error}") from error
