"""Layers without parameters that change the sizes of images: pooling, `Flatten` and `Upsample`. Channels come last."""

from __future__ import annotations

import math
from typing import Any

from antegrad import ops
from antegrad.ir.types import type_of
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.image import Method
from antegrad.ops.spatial import Each, Padding


class MaxPool(Module):
    """Largest element of every window (`ops.max_pool`); the stride is the window unless given."""

    window: Each = static()
    stride: Each | None = static(default=None)
    padding: Padding = static(default="VALID")

    def __call__(self, x: Any) -> Any:
        """`x` [N, *spatial, C] to [N, *spatial', C]."""
        return ops.max_pool(x, self.window, self.stride, self.padding)


class AvgPool(Module):
    """Mean of every window (`ops.avg_pool`); the stride is the window unless given.

    The zeros of the padding count, as in torch and Flax, unless `count_include_pad` is False.
    """

    window: Each = static()
    stride: Each | None = static(default=None)
    padding: Padding = static(default="VALID")
    count_include_pad: bool = static(default=True)

    def __call__(self, x: Any) -> Any:
        """`x` [N, *spatial, C] to [N, *spatial', C]."""
        return ops.avg_pool(x, self.window, self.stride, self.padding, self.count_include_pad)


class AdaptiveAvgPool(Module):
    """Means of `output_size` bins along each spatial axis (`ops.adaptive_avg_pool`)."""

    output_size: Each = static()

    def __call__(self, x: Any) -> Any:
        """`x` [N, *spatial, C] to [N, *output_size, C]."""
        return ops.adaptive_avg_pool(x, self.output_size)


class GlobalAvgPool(Module):
    """Mean over all axes but the first and the last."""

    def __call__(self, x: Any) -> Any:
        """`x` [N, ..., C] to [N, C]; in f32 for 16-bit floats."""
        x = as_tensor(x)
        if x.ndim < 3:
            raise misfit(f"GlobalAvgPool takes an input [N, ..., C] of 3 axes or more, found {type_of(x)}")
        return ops.mean(x, tuple(range(1, x.ndim - 1)))


class Flatten(Module):
    """All axes from `start` on as one; the batch stays by default."""

    start: int = static(default=1)

    def __call__(self, x: Any) -> Any:
        """`x` [N, ...] to [N, size]."""
        x = as_tensor(x)
        if x.ndim < self.start:
            raise misfit(f"Flatten takes an input of {self.start} axes or more, found {type_of(x)}")
        return ops.reshape(x, (*x.shape[: self.start], math.prod(x.shape[self.start :])))


class Upsample(Module):
    """Images made `factor` times as large (`ops.resize`), by repeating ("nearest") or between pixels ("bilinear").

    `factor` is a whole number, or one for each spatial axis.
    """

    factor: Each = static()
    method: Method = static(default="nearest")

    def __call__(self, x: Any) -> Any:
        """`x` [N, *spatial, C] to [N, *(factor * spatial), C]."""
        x = as_tensor(x)
        count = x.ndim - 2
        factors = (self.factor,) * count if isinstance(self.factor, int) else tuple(self.factor)
        if count < 1 or len(factors) != count or min(factors) < 1:
            raise misfit(f"Upsample by {self.factor} takes an input [N, ..., C] with a factor for each of its spatial "
                         f"axes, found {type_of(x)}")
        spatial = (size * factor for size, factor in zip(x.shape[1:-1], factors, strict=True))
        return ops.resize(x, (x.shape[0], *spatial, x.shape[-1]), self.method)
