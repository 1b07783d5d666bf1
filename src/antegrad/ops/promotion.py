"""What happens to operands before an elementwise equation: one element type, one shape, and nothing lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import SHORT_NAMES, is_float, is_integer, promote, type_of
from antegrad.ops.dispatch import as_tensor, here


def harmonise(operation: str, *operands: Any) -> tuple[Any, ...]:
    """`operands` with one element type and one shape.

    A Python number takes the element type of the arrays beside it. Arrays of different types are promoted only
    where the wider of them holds every value of the others; shapes broadcast as in NumPy. Raises `DTypeError` or
    `ShapeError` with the user's line.
    """
    return broadcast(operation, *unify(operation, *operands))


def unify(operation: str, *operands: Any) -> tuple[Any, ...]:
    """`operands` as tensors of one element type, their shapes as they were."""
    weak = [_is_number(operand) for operand in operands]
    tensors = [operand if is_weak else as_tensor(operand) for operand, is_weak in zip(operands, weak, strict=True)]
    strong = [tensor.dtype for tensor, is_weak in zip(tensors, weak, strict=True) if not is_weak]
    try:
        target = promote(strong) if strong else _number_dtype(operands)
        return tuple(
            number(tensor, target) if is_weak else ops.convert(tensor, target)
            for tensor, is_weak in zip(tensors, weak, strict=True)
        )
    except DTypeError as error:
        types = ", ".join(str(type_of(x)) for x, is_weak in zip(tensors, weak, strict=True) if not is_weak)
        raise DTypeError(f"{operation}{f' of {types}' if types else ''}: {error}{_place()}") from None


def _is_number(operand: Any) -> bool:
    """Python numbers; NumPy's f64 scalars are Python floats by inheritance and count as such."""
    return isinstance(operand, (bool, int, float))


def _number_dtype(operands: Sequence[Any]) -> np.dtype:
    if any(isinstance(operand, np.float64) for operand in operands):
        return np.dtype(np.float64)
    if any(isinstance(operand, float) for operand in operands):
        return np.dtype(np.float32)
    return np.dtype(np.bool_) if all(isinstance(operand, bool) for operand in operands) else np.dtype(np.int32)


def number(value: float, dtype: np.dtype) -> np.ndarray:
    """A Python number as a scalar array of `dtype`; a `DTypeError` when that type cannot hold it.

    A decimal fraction is rounded to the nearest value of a float type, as in a literal.
    """
    if is_float(dtype):
        try:
            with np.errstate(over="ignore"):
                array = np.asarray(float(value)).astype(dtype)
        except OverflowError:
            bits = int(value).bit_length()
            raise DTypeError(f"an integer of {bits} bits is too large for {SHORT_NAMES[dtype]}") from None
        if math.isinf(float(array)) and math.isfinite(value):
            raise DTypeError(f"{value!r} is too large for {SHORT_NAMES[dtype]}")
        return array
    if is_integer(dtype) and isinstance(value, int):
        limits = np.iinfo(dtype)
        if limits.min <= value <= limits.max:
            return np.asarray(value, dtype)
        raise DTypeError(f"{value} does not fit in {SHORT_NAMES[dtype]}, which holds {limits.min} to {limits.max}")
    if dtype.kind == "b" and isinstance(value, bool):
        return np.asarray(value)
    raise DTypeError(f"{value!r} would lose its value in {SHORT_NAMES[dtype]}: convert the tensor with .astype(...)")


def broadcast(operation: str, *operands: Any) -> tuple[Any, ...]:
    """`operands` broadcast to one shape by NumPy's rule."""
    shapes = {tuple(operand.shape) for operand in operands}
    if len(shapes) == 1:
        return operands
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        found = " and ".join(f"{SHORT_NAMES[o.dtype]}[{','.join(map(str, o.shape))}]" for o in operands)
        raise ShapeError(f"{operation}: {found} do not broadcast together{_place()}") from None
    return tuple(ops.broadcast_to(operand, shape) for operand in operands)


def _place() -> str:
    place = str(here())
    return f"\n  at {place}" if place else ""
