"""Random orders and selections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import is_integer, type_of
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.tensor import Tensor
from antegrad.random.draws import bits, randint
from antegrad.random.keys import Shape, checked_key, checked_shape, fold_in, refused, split


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """``arange(x)`` (i32) in random order for an integer `x`, or the array or tensor `x` reordered along `axis`.

    With `independent` every line along `axis` gets an order of its own. The order comes from sorting by random 32-bit
    numbers, as often as makes equal ones harmless: ``ceil(3 * log(size) / log(2**32 - 1))`` times.
    """
    key, count = checked_key("permutation", key), _count("permutation", x)
    if count is not None:
        normalize_axis(axis, 1, "random.permutation")
        return _shuffled(key, ops.arange(count), 0)
    x = as_tensor(x)
    place = normalize_axis(axis, x, "random.permutation")
    if independent or x.ndim == 1:
        return _shuffled(key, x, place)
    return ops.take_p(x, _shuffled(key, ops.arange(x.shape[place]), 0), place)


def epoch_permutation(key: Any, epoch: Any, size: int) -> Any:
    """The order (i32[size]) in which epoch number `epoch` visits `size` examples: a function of key and epoch alone.

    `epoch` is an integer as `fold_in` takes it, so it may be traced.
    """
    return permutation(fold_in(key, epoch), size)


def choice(key: Any, x: Any, shape: Shape = (), replace: bool = True, axis: int = 0) -> Any:
    """Elements drawn from ``arange(x)`` (i32) for an integer `x`, or slices drawn from the array `x` along `axis`.

    In the result `shape` stands in place of that axis. Without `replace` no element comes twice, and a `ShapeError`
    says when there are not enough.
    """
    key, shape, count = checked_key("choice", key), checked_shape("choice", shape), _count("choice", x)
    x = ops.arange(count) if count is not None else as_tensor(x)
    place = normalize_axis(axis, x, "random.choice")
    drawn, size = math.prod(shape), x.shape[place]
    if drawn > (math.inf if replace and size else size):
        raise refused(ShapeError, "choice", f"{drawn} elements of {size} with replace={replace}")
    if replace:
        return ops.take_p(x, randint(key, shape, 0, size), place)
    shuffled = permutation(key, x, place)[(*(slice(None),) * place, slice(drawn))]
    return ops.reshape(shuffled, (*x.shape[:place], *shape, *x.shape[place + 1 :]))


def _count(operation: str, x: Any) -> int | None:
    """The integer that `x` is, or None for an array with axes."""
    x = as_tensor(x)
    if x.shape:
        return None
    if isinstance(x, Tensor):
        raise refused(ShapeError, operation, f"the number of elements must be known when captured, found {x!r}")
    if not is_integer(x.dtype):
        raise refused(DTypeError, operation, f"an integer or an array with an axis is needed, found {type_of(x)}")
    if x < 0:
        raise refused(ShapeError, operation, f"there are no {int(x)} elements")
    return int(x)


def _shuffled(key: Any, x: Any, axis: int) -> Any:
    """`x` sorted along `axis` by random numbers, again and again."""
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(np.iinfo(np.uint32).max))
    for _ in range(rounds):
        key, subkey = split(key)
        x = ops.sort_p((bits(subkey, x.shape), x), axis)[1]
    return x
