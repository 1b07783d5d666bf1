"""Tensor types: a shape and an element type, printed as ``f32[512,2]``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from antegrad.errors import DTypeError, ShapeError

DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
SHORT_NAMES: dict[np.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
BF16 = DTYPES["bf16"]
BOOL = DTYPES["bool"]

DTypeLike = Any
"""A short name (``"f32"``), a NumPy name (``"float32"``), a NumPy dtype or scalar type, or ``bool``."""


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """The NumPy dtype that `dtype` names; a `DTypeError` when antegrad has no such element type.

    ``float``, ``int`` and None are refused: they would mean 64 bits to NumPy and 32 bits to JAX.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if not any(dtype is ambiguous for ambiguous in (float, int, complex, None)):
        try:
            found = np.dtype("bfloat16" if dtype == "bfloat16" else dtype)
        except TypeError:
            found = None
        if found is not None and found in SHORT_NAMES:
            return SHORT_NAMES_CANONICAL[found]
    raise DTypeError(f"no element type {dtype!r}: expected one of {', '.join(DTYPES)}")


SHORT_NAMES_CANONICAL: dict[np.dtype, np.dtype] = {dtype: dtype for dtype in SHORT_NAMES}


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == BF16


def is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu"


def accumulation_dtype(dtype: np.dtype) -> np.dtype:
    """The element type in which sums of `dtype` are accumulated: f32 for the 16-bit floats."""
    return DTYPES["f32"] if is_float(dtype) and dtype.itemsize == 2 else dtype


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of one value. Immutable and hashable."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Iterable[int]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: np.dtype) -> TensorType:
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{SHORT_NAMES[self.dtype]}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


def spec(shape: Sequence[int] | int, dtype: DTypeLike = "f32") -> TensorType:
    """An example without data, for `capture`: ``ag.spec((512, 2), "f32")``."""
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    for dim in dims:
        if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool) or dim < 0:
            raise ShapeError(f"a shape holds sizes >= 0, found {dim!r} in {dims}")
    return TensorType(tuple(int(dim) for dim in dims), as_dtype(dtype))


def type_of(array: Any) -> TensorType:
    """Type of an array-like with ``shape`` and ``dtype``, or of a Python number (f32, i32 or bool)."""
    if hasattr(array, "shape") and hasattr(array, "dtype"):  # first, because np.float64 is a Python float as well
        return TensorType(tuple(array.shape), as_dtype(array.dtype))
    if isinstance(array, bool):
        return TensorType((), DTYPES["bool"])
    if isinstance(array, int):
        return TensorType((), DTYPES["i32"])
    if isinstance(array, float):
        return TensorType((), DTYPES["f32"])
    raise DTypeError(f"expected an array or a number, found {type(array).__name__}: {array!r}")


def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide == narrow or narrow.kind == "b":
        return True
    if is_float(narrow):
        return is_float(wide) and wide.itemsize > narrow.itemsize
    if is_integer(narrow):
        bits = np.iinfo(narrow).bits - (narrow.kind == "i")
        if is_float(wide):
            return bits <= ml_dtypes.finfo(wide).nmant + 1
        if is_integer(wide):
            return np.iinfo(wide).bits - (wide.kind == "i") >= bits and (wide.kind == "i" or narrow.kind == "u")
    return False


_WIDENING = ["bool", "u8", "i8", "u16", "i16", "bf16", "f16", "u32", "i32", "f32", "u64", "i64", "f64"]


def promote(dtypes: Sequence[np.dtype]) -> np.dtype:
    """The smallest element type that holds every value of all `dtypes`.

    NumPy and JAX let ``i32 + f32`` lose bits (to f64 at twice the memory, or to f32). Here a promotion that
    would lose bits, or that would leave the operands' own types to find room, is a `DTypeError`.
    """
    distinct = set(dtypes)
    for candidate in (DTYPES[name] for name in _WIDENING if DTYPES[name] in distinct):
        if all(_holds(candidate, dtype) for dtype in distinct):
            return candidate
    names = " and ".join(sorted(SHORT_NAMES[dtype] for dtype in distinct))
    raise DTypeError(f"{names} have no common type among them that keeps every bit: convert one with .astype(...)")
