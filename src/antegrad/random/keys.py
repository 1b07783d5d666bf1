"""Keys: how the first is made from a seed, and how one gives many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import DTYPES, TensorType, is_integer, spec, type_of
from antegrad.ops.dispatch import as_tensor, here
from antegrad.ops.promotion import number

KEY = TensorType((2,), DTYPES["u32"])
Shape = int | Sequence[int]

_Error = TypeVar("_Error", bound=Exception)


def key(seed: Any) -> Any:
    """The key (u32[2]) of an integer: a Python integer of up to 64 bits, an integer array of shape (), or a tensor.

    Only the low 32 bits of the seed count, as in `jax.random.key` without x64. Raises `DTypeError` for a seed that is
    no integer or has more than 64 bits, and `ShapeError` for one that is no scalar.
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        _fitting("key", "seed", seed, "i64")
        return np.array([0, seed % 2**32], np.uint32)
    return ops.concatenate([ops.zeros((1,), "u32"), _word("key", "the seed", seed)])


def split(key: Any, num: Shape = 2) -> Any:
    """`num` new keys, u32[num,2], or u32[*num,2] for a shape.

    The i-th is Threefry-2x32 of the counter i under `key`, so it is the same whatever `num` is. Raises `ShapeError`
    for a negative number.
    """
    key, shape = checked_key("split", key), checked_shape("split", num)
    return ops.reshape(ops.stack(threefry(key, math.prod(shape)), axis=1), (*shape, 2))


def fold_in(key: Any, data: Any) -> Any:
    """The key (u32[2]) that belongs to `key` and an integer, such as a step or an epoch.

    `data` is a Python integer from 0 to 2**32 - 1, or an integer array or tensor of shape (), of which the low 32 bits
    count. Raises `DTypeError` or `ShapeError` for anything else.
    """
    key = checked_key("fold_in", key)
    if isinstance(data, int) and not isinstance(data, bool):
        data = _fitting("fold_in", "data", data, "u32")
    word = _word("fold_in", "data", data)
    return ops.concatenate(ops.threefry2x32(key, ops.zeros((1,), "u32"), word))


def fold_in_each(key: Any, data: Any) -> Any:
    """The keys (u32[...,2]) that `fold_in` gives for each element of an integer array of any shape."""
    key, data = checked_key("fold_in_each", key), as_tensor(data)
    if not is_integer(data.dtype):
        raise refused(DTypeError, "fold_in_each", f"integers are needed, found {type_of(data)}")
    words = ops.reshape(ops.convert(data, "u32"), (data.size,))
    pairs = ops.stack(ops.threefry2x32(key, ops.zeros((data.size,), "u32"), words), axis=1)
    return ops.reshape(pairs, (*data.shape, 2))


def threefry(key: Any, size: int) -> tuple[Any, Any]:
    """Two random words u32[size] for each of the counters 0, 1, ..., size - 1."""
    return ops.threefry2x32(key, *counters(size))


def counters(size: int) -> tuple[Any, Any]:
    """The high and the low 32 bits of 0, 1, ..., size - 1, each u32[size]."""
    if size <= 2**32:
        return ops.zeros((size,), "u32"), ops.iota((size,), DTYPES["u32"])
    wide = ops.iota((size,), DTYPES["u64"])
    return ops.convert(wide >> 32, "u32"), ops.convert(wide, "u32")


def checked_key(operation: str, key: Any) -> Any:
    """`key` as an array or tensor; a `DTypeError` or `ShapeError` if it is no single key."""
    key = as_tensor(key)
    type = type_of(key)
    if type.dtype != KEY.dtype:
        raise refused(DTypeError, operation, f"a key is {KEY}, found {type}: make one with random.key(seed)")
    if type.shape != KEY.shape:
        advice = "take one of these keys" if type.shape[-1:] == (2,) else "make one with random.key(seed)"
        raise refused(ShapeError, operation, f"a key is {KEY}, found {type}: {advice}")
    return key


def checked_shape(operation: str, shape: Shape) -> tuple[int, ...]:
    """A size or a sequence of sizes as a tuple; a `ShapeError` for a size that is negative or no integer."""
    try:
        return spec(int(shape) if isinstance(shape, np.integer) else shape).shape
    except (ShapeError, TypeError) as error:
        raise refused(ShapeError, operation, str(error)) from None


def refused(error: type[_Error], operation: str, message: str) -> _Error:
    """The error to raise, with the operation, the layer path and the user's line."""
    place = str(here())
    return error(f"random.{operation}: {message}" + (f"\n  at {place}" if place else ""))


def _fitting(operation: str, what: str, value: int, dtype: str) -> np.ndarray:
    """A Python integer as a scalar array; a `DTypeError` when `dtype` cannot hold it."""
    try:
        return number(value, DTYPES[dtype])
    except DTypeError as error:
        raise refused(DTypeError, operation, f"{what}: {error}") from None


def _word(operation: str, what: str, value: Any) -> Any:
    """The low 32 bits of an integer scalar, as u32[1]."""
    value = as_tensor(value)
    type = type_of(value)
    if not is_integer(type.dtype):
        raise refused(DTypeError, operation, f"{what} must be an integer, found {type}")
    if type.shape:
        raise refused(ShapeError, operation, f"{what} must be one integer, found {type}")
    return ops.reshape(ops.convert(value, "u32"), (1,))
