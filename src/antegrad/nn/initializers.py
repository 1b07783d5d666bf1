"""Initializers: ``initializer(key, shape, dtype="f32")`` gives the first values of a parameter.

`kaiming_normal`, `zeros` and the like are initializers; `normal`, `constant` and the like make one from numbers. Where
`jax.nn.initializers` has the same one, the bits are the same (those that scale a plain `normal` can differ by 1 ulp
from jax 0.12 on, which rounds once less).

The fans of a shape are the numbers of inputs and of outputs that one unit is connected with: the two sizes of a dense
kernel (in, out), the last two of a convolution kernel (height, width, in, out), each times the size of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from antegrad import ops, random
from antegrad.errors import SettingError, ShapeError
from antegrad.ir.types import DTypeLike, as_dtype

__all__ = [
    "constant", "fans", "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones",
    "truncated_normal", "uniform", "variance_scaling", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

Initializer = Callable[..., Any]
"""``(key, shape, dtype="f32") -> array``, with a threefry key u32[2] and a float element type."""

TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution that is cut off at -2 and 2."""


def zeros(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
    """0 everywhere; the key is not used."""
    return ops.zeros(shape, dtype)


def ones(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
    """1 everywhere; the key is not used."""
    return ops.ones(shape, dtype)


def constant(value: float) -> Initializer:
    """`value` everywhere; the key is not used."""

    def initialize(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
        return ops.full(shape, value, dtype)

    return initialize


def normal(std: float) -> Initializer:
    """Normal distribution with mean 0 and standard deviation `std`."""

    def initialize(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
        return ops.multiply(random.normal(key, tuple(shape), dtype), std)

    return initialize


def truncated_normal(std: float, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """`std` times a standard normal distribution that is cut off at `lower` and `upper`.

    The result has a smaller standard deviation than `std`: 0.88 of it for the default bounds.
    """

    def initialize(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
        return ops.multiply(random.truncated_normal(key, lower, upper, tuple(shape), dtype), std)

    return initialize


def uniform(scale: float) -> Initializer:
    """Uniform distribution over [0, scale)."""

    def initialize(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
        return ops.multiply(random.uniform(key, tuple(shape), dtype), scale)

    return initialize


def variance_scaling(
    scale: float,
    mode: Literal["fan_in", "fan_out", "fan_avg"],
    distribution: Literal["normal", "truncated_normal", "uniform"],
) -> Initializer:
    """Mean 0 and variance ``scale / fan``, with the fan that `mode` names (`fan_avg` is the mean of both).

    "truncated_normal" is cut off at two standard deviations before it is scaled to that variance. Raises `SettingError`
    for another mode or distribution; the initializer raises `ShapeError` for a shape without two axes.
    """
    if mode not in ("fan_in", "fan_out", "fan_avg"):
        raise SettingError(f"variance_scaling: mode must be 'fan_in', 'fan_out' or 'fan_avg', found {mode!r}")
    if distribution not in ("normal", "truncated_normal", "uniform"):
        raise SettingError(
            f"variance_scaling: distribution must be 'normal', 'truncated_normal' or 'uniform', found {distribution!r}"
        )

    def initialize(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
        shape, dtype = tuple(shape), as_dtype(dtype)
        fan_in, fan_out = fans(shape)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
        variance = np.asarray(scale / max(fan, 1), dtype)
        if distribution == "uniform":
            sample = random.uniform(key, shape, dtype, -1.0, 1.0)
            return ops.multiply(sample, ops.sqrt(ops.multiply(variance, 3.0)))
        if distribution == "normal":
            return ops.multiply(random.normal(key, shape, dtype), ops.sqrt(variance))
        sample = random.truncated_normal(key, -2.0, 2.0, shape, dtype)
        return ops.multiply(sample, ops.divide(ops.sqrt(variance), TRUNCATED_STD))

    return initialize


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs of a kernel ``(..., in, out)``: ``(3, 3, 8, 16)`` has 72 and 144.

    Raises `ShapeError` for fewer than two axes.
    """
    if len(shape) < 2:
        raise ShapeError(
            f"an initializer that scales by fan needs a kernel (..., in, out) of two axes or more, found shape "
            f"{tuple(shape)}: use zeros, normal(std) or another one for biases and gains"
        )
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


kaiming_normal = variance_scaling(2.0, "fan_in", "truncated_normal")
"""Variance ``2 / fan_in``, which relu layers keep. Source: He et al. (2015), arXiv:1502.01852; as `jax`'s he_normal."""

kaiming_uniform = variance_scaling(2.0, "fan_in", "uniform")
"""Uniform with variance ``2 / fan_in``. Source: He et al. (2015), arXiv:1502.01852; as `jax`'s he_uniform."""

xavier_normal = variance_scaling(1.0, "fan_avg", "truncated_normal")
"""Variance ``2 / (fan_in + fan_out)``. Source: Glorot and Bengio (2010); as `jax`'s glorot_normal."""

xavier_uniform = variance_scaling(1.0, "fan_avg", "uniform")
"""Uniform with variance ``2 / (fan_in + fan_out)``. Source: Glorot and Bengio (2010); as `jax`'s glorot_uniform."""

lecun_normal = variance_scaling(1.0, "fan_in", "truncated_normal")
"""Variance ``1 / fan_in``, which linear and tanh layers keep. Source: LeCun et al., "Efficient backprop" (1998)."""

lecun_uniform = variance_scaling(1.0, "fan_in", "uniform")
"""Uniform with variance ``1 / fan_in``. Source: LeCun et al., "Efficient backprop" (1998)."""
