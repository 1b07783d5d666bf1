"""Distributions made from uniform draws.

The host takes log, log1p and tan from NumPy, so there `exponential`, `gumbel`, `laplace` and `cauchy` can differ from
XLA by 4 ulp in f32 (of 1, where the result is smaller). On XLA they have the bits of `jax.random`, but for `gumbel` in
f16, where JAX rounds less often.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, SettingError, ShapeError
from antegrad.ir.types import DTypeLike, is_float, type_of
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.dispatch import as_tensor, untraced
from antegrad.ops.tensor import Tensor
from antegrad.random.draws import broadcasts, checked_bound, checked_float, fraction, scaled
from antegrad.random.keys import Shape, checked_key, checked_shape, refused


def _uniform(operation: str, key: Any, shape: Shape, dtype: DTypeLike, low: float, high: float = 1.0) -> Any:
    """Uniform floats between two numbers, for the distribution `operation`."""
    key, shape, dtype = checked_key(operation, key), checked_shape(operation, shape), checked_float(operation, dtype)
    return scaled(operation, fraction(key, shape, dtype), np.array(low, dtype), np.array(high, dtype))


def _info(operation: str, dtype: DTypeLike) -> Any:
    return ml_dtypes.finfo(checked_float(operation, dtype))


def normal(key: Any, shape: Shape = (), dtype: DTypeLike = "f32") -> Any:
    """Standard normal floats: ``sqrt(2) * erfinv(u)`` for u uniform in (-1, 1).

    In f32, bf16 and f16 every value that can come has the same bits on the host, on XLA's CPU and in `jax.random`. In
    f64 the host differs from XLA by up to 32 ulp, because XLA's log1p is off by as much near -0.41.
    """
    key, shape, dtype = checked_key("normal", key), checked_shape("normal", shape), checked_float("normal", dtype)
    low = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    u = ops.add(ops.multiply(fraction(key, shape, dtype), 2.0), low)  # exact
    return ops.erfinv(u) * np.array(np.sqrt(2), dtype)


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Shape | None = None, dtype: DTypeLike = "f32") -> Any:
    """Standard normal floats in the open interval (lower, upper): ``sqrt(2) * erfinv(u)``, u between erf of the ends.

    `lower` and `upper` are numbers or arrays, known when captured; they broadcast to `shape`, which by default is
    theirs. The bits are as exact as those of `normal`. Raises `SettingError` unless ``lower < upper``.
    """
    operation = "truncated_normal"
    key, dtype = checked_key(operation, key), checked_float(operation, dtype)
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        raise refused(DTypeError, operation, f"the ends must be known when captured, found {lower!r} and {upper!r}")
    whole = np.broadcast_shapes(np.shape(lower), np.shape(upper)) if shape is None else shape
    sizes = checked_shape(operation, whole)
    ends = [checked_bound(operation, name, end, sizes, dtype) for name, end in (("lower", lower), ("upper", upper))]
    if not (ends[0] < ends[1]).all():
        raise refused(SettingError, operation, f"lower must be below upper, found {lower} and {upper}")
    root = np.array(np.sqrt(2), dtype)
    with untraced():
        low, high = (ops.erf(end * (1 / root)) for end in ends)  # as XLA divides by a constant
    u = scaled(operation, fraction(key, sizes, dtype), low, high)
    inside = [np.nextafter(end, np.array(limit, dtype)) for end, limit in zip(ends, (np.inf, -np.inf), strict=True)]
    return ops.clip(ops.erfinv(u) * root, *inside)


def exponential(key: Any, shape: Shape = (), dtype: DTypeLike = "f32") -> Any:
    """Floats of density ``exp(-x)``, x >= 0: ``-log1p(-u)`` for u uniform in [0, 1)."""
    return -ops.log1p(-_uniform("exponential", key, shape, dtype, 0.0))


def gumbel(key: Any, shape: Shape = (), dtype: DTypeLike = "f32") -> Any:
    """Floats of density ``exp(-(x + exp(-x)))``: ``-log(-log(u))`` for u uniform in (0, 1)."""
    return -ops.log(-ops.log(_uniform("gumbel", key, shape, dtype, _info("gumbel", dtype).tiny)))


def laplace(key: Any, shape: Shape = (), dtype: DTypeLike = "f32") -> Any:
    """Floats of density ``exp(-|x|) / 2``: ``sign(u) * log1p(-|u|)`` for u uniform in (-1, 1)."""
    u = _uniform("laplace", key, shape, dtype, -1 + _info("laplace", dtype).epsneg)
    return ops.sign(u) * ops.log1p(-ops.abs(u))


def cauchy(key: Any, shape: Shape = (), dtype: DTypeLike = "f32") -> Any:
    """Floats of density ``1 / (pi * (1 + x**2))``: ``tan(pi * (u - 1/2))`` for u uniform in (0, 1)."""
    u = _uniform("cauchy", key, shape, dtype, _info("cauchy", dtype).eps)
    return ops.tan(ops.multiply(ops.subtract(u, 0.5), math.pi))


def categorical(key: Any, logits: Any, axis: int = -1, shape: Shape | None = None) -> Any:
    """Positions (i32) along `axis` with probabilities ``softmax(logits, axis)``: argmax of logits plus Gumbel noise.

    `shape` is that of the result, to which the shape of `logits` without `axis` (the default) must broadcast.
    """
    logits = as_tensor(logits)
    if not is_float(logits.dtype):
        raise refused(DTypeError, "categorical", f"logits must be floats, found {type_of(logits)}")
    place = normalize_axis(axis, logits, "random.categorical")
    batch = (*logits.shape[:place], *logits.shape[place + 1 :])
    shape = batch if shape is None else checked_shape("categorical", shape)
    if not broadcasts(batch, shape):
        raise refused(ShapeError, "categorical", f"one draw for each of {batch} does not broadcast to {shape}")
    lead = len(shape) - len(batch)
    noise = gumbel(key, (*shape[: lead + place], logits.shape[place], *shape[lead + place :]), logits.dtype)
    return ops.argmax(noise + logits, axis=lead + place)
