"""The draws from which all others are made: bits, uniform floats, uniform integers, and yes or no."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, SettingError, ShapeError
from antegrad.ir.types import DTYPES, SHORT_NAMES, DTypeLike, as_dtype, is_float, is_integer, promote, type_of
from antegrad.ops.dispatch import as_tensor, untraced
from antegrad.ops.promotion import number
from antegrad.ops.tensor import Tensor
from antegrad.random.keys import Shape, checked_key, checked_shape, refused, split, threefry


def bits(key: Any, shape: Shape = (), dtype: DTypeLike = "u32") -> Any:
    """Uniform bits as unsigned integers, u8, u16, u32 or u64. Raises `DTypeError` for another `dtype`."""
    key, shape, dtype = checked_key("bits", key), checked_shape("bits", shape), as_dtype(dtype)
    if dtype.kind != "u":
        raise refused(DTypeError, "bits", f"dtype must be u8, u16, u32 or u64, found {SHORT_NAMES[dtype]}")
    high, low = threefry(key, math.prod(shape))
    if dtype.itemsize < 8:
        words = ops.convert(high ^ low, dtype)
    else:
        words = (ops.convert(high, dtype) << 32) | ops.convert(low, dtype)
    return ops.reshape(words, shape)


def uniform(key: Any, shape: Shape = (), dtype: DTypeLike = "f32", low: Any = 0.0, high: Any = 1.0) -> Any:
    """Uniform floats in [low, high): a fraction in [0, 1) of as many bits as the mantissa has, scaled.

    `low` and `high` are numbers, arrays or tensors that broadcast to `shape` and whose element type fits in `dtype`.
    Where ``high <= low`` the result is `low`. Scaled is ``fraction * (high - low) + low``, in f32 and f64 rounded once,
    as XLA does where the processor can.

    Raises `DTypeError` for a `dtype` that is no float type or bounds that do not fit in it, `ShapeError` for bounds
    that do not broadcast to `shape`, and `SettingError` for bounds whose difference is not finite.
    """
    key, shape, dtype = checked_key("uniform", key), checked_shape("uniform", shape), checked_float("uniform", dtype)
    ends = [checked_bound("uniform", name, end, shape, dtype) for name, end in (("low", low), ("high", high))]
    return scaled("uniform", fraction(key, shape, dtype), *ends)


def fraction(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Uniform floats in [0, 1): whole numbers of as many bits as the mantissa has, divided by their count."""
    info = ml_dtypes.finfo(dtype)
    width = 8 if info.nmant < 8 else info.bits
    numbers = bits(key, shape, f"u{width}") >> (width - info.nmant)
    return ops.divide(ops.convert(numbers, dtype), float(2**info.nmant))


def scaled(operation: str, part: Any, low: Any, high: Any) -> Any:
    """``part * (high - low) + low`` for fractions `part`, and `low` where ``high <= low``."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return ops.maximum(low, _multiply_add(part, high - low, low))
    with np.errstate(over="ignore", invalid="ignore"):
        span = high - low
    if not np.isfinite(span.astype(np.float64)).all():
        raise refused(SettingError, operation, f"from {low} to {high} is no finite range in {SHORT_NAMES[part.dtype]}")
    if (low == 0).all() and (span == 1).all():
        return part
    # Without the maximum XLA would merge the sum with one that follows, and round once where all else rounds twice.
    return ops.maximum(low, _multiply_add(part, span, low))


def _multiply_add(x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``, fused in f32 and f64 unless y is known to be a power of two, which makes the product exact."""
    exact = not isinstance(y, Tensor) and np.isin(np.frexp(y.astype(np.float64))[0], (0, 0.5, -0.5)).all()
    return x * y + z if exact or x.dtype.itemsize < 4 else ops.fma(x, y, z)


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None) -> Any:
    """True with probability `p`: a number, or a float array or tensor that broadcasts to `shape` (by default its own).

    The uniform draw that decides has the element type of `p` (f32 for a number), and with it its resolution: 2**-23 in
    f32, 2**-7 in bf16. Raises `SettingError` for a `p` that is known and not in [0, 1].
    """
    key = checked_key("bernoulli", key)
    p = number(float(p), DTYPES["f32"]) if isinstance(p, (int, float)) else as_tensor(p)
    if not is_float(p.dtype):
        raise refused(DTypeError, "bernoulli", f"p must be a float, found {type_of(p)}: use .astype('f32')")
    if not isinstance(p, Tensor) and not ((p >= 0) & (p <= 1)).all():
        raise refused(SettingError, "bernoulli", f"p must be in [0, 1], found {p}")
    shape = tuple(p.shape) if shape is None else checked_shape("bernoulli", shape)
    return fraction(key, shape, p.dtype) < checked_bound("bernoulli", "p", p, shape, p.dtype)


def randint(key: Any, shape: Shape, low: Any, high: Any, dtype: DTypeLike = "i32") -> Any:
    """Integers in [low, high), each from twice as many bits as it has, reduced by ``% (high - low)``.

    `low` and `high` are integers, or integer arrays or tensors that broadcast to `shape` and whose element type fits
    in `dtype` (in i32 when it has fewer bits). Where ``high <= low`` the result is `low`. Exactly uniform only if
    ``high - low`` is a power of two.

    Raises `DTypeError` for bounds that do not fit in `dtype`, `ShapeError` for bounds that do not broadcast to `shape`.
    """
    key, shape, dtype = checked_key("randint", key), checked_shape("randint", shape), as_dtype(dtype)
    if not is_integer(dtype):
        raise refused(DTypeError, "randint", f"dtype must be an integer type, found {SHORT_NAMES[dtype]}")
    # As in JAX, 8 and 16 bits are drawn with 32, to keep the bias small.
    wide = dtype if dtype.itemsize >= 4 else DTYPES["i32"]
    known = not isinstance(low, Tensor) and not isinstance(high, Tensor)
    with untraced() if known else nullcontext():
        low, span = _range(low, high, shape, dtype, wide)
        half = ops.truncated_remainder(ops.full(span.shape, 2 ** (wide.itemsize * 4), span.dtype), span)
        multiplier = ops.truncated_remainder(ops.multiply(half, half), span)
    first, second = split(key)
    upper, lower = (ops.truncated_remainder(bits(one, shape, span.dtype), span) for one in (first, second))
    offset = ops.truncated_remainder(ops.add(ops.multiply(upper, multiplier), lower), span)
    return ops.convert(ops.add(low, ops.convert(offset, wide)), dtype)


def _range(low: Any, high: Any, shape: tuple[int, ...], dtype: np.dtype, wide: np.dtype) -> tuple[Any, Any]:
    """`low` in the type `wide`, and the number of integers from `low` to `high` as unsigned; 0 stands for all."""
    unsigned, limits = DTYPES[f"u{wide.itemsize * 8}"], np.iinfo(dtype)
    if isinstance(low, int) and isinstance(high, int):
        if not limits.min <= low <= limits.max or not limits.min <= high <= limits.max + 1:
            fits = f"{SHORT_NAMES[dtype]} holds {limits.min} to {limits.max}"
            raise refused(DTypeError, "randint", f"from {low} up to {high}: {fits}")
        count = max(high - low, 1) % 2 ** (wide.itemsize * 8)
        return np.array(low, wide), np.array(count, unsigned)
    low, high = (checked_bound("randint", n, end, shape, wide) for n, end in (("low", low), ("high", high)))
    if wide != dtype:
        low, high = ops.clip(low, limits.min, limits.max), ops.clip(high, limits.min, limits.max + 1)
    return low, ops.where(high > low, ops.convert(ops.subtract(high, low), unsigned), 1)


def checked_float(operation: str, dtype: DTypeLike) -> np.dtype:
    """`dtype` as a NumPy dtype; a `DTypeError` if it is no float type."""
    found = as_dtype(dtype)
    if not is_float(found):
        raise refused(DTypeError, operation, f"dtype must be a float type, found {SHORT_NAMES[found]}")
    return found


def checked_bound(operation: str, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """`value` in the element type `dtype`; an error if that loses bits or if it does not broadcast to `shape`."""
    try:
        if isinstance(value, (bool, int, float)):
            return number(value, dtype)
        value = as_tensor(value)
        fits = promote([value.dtype, dtype]) == dtype
    except DTypeError as error:
        raise refused(DTypeError, operation, f"{name}: {error}") from None
    if not fits:
        raise refused(DTypeError, operation, f"{name}: {type_of(value)} does not fit in {SHORT_NAMES[dtype]}")
    if not broadcasts(value.shape, shape):
        raise refused(ShapeError, operation, f"{name}: {type_of(value)} does not broadcast to the shape {shape}")
    return ops.convert(value, dtype)


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to `target`."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)
