"""Normalization of each sample: `LayerNorm`, `RMSNorm` and `GroupNorm`.

Statistics are computed in two passes (the mean first, then the mean of squared deviations), so that a large offset
costs no accuracy, and in f32 for 16-bit floats. The result has the element type of the input. The gradient keeps the
standardized array and one number a row (`ops.fused`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import DTypeLike, accumulation_dtype, is_float, type_of
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor, here
from antegrad.ops.fused import standardize_p


def checked_features(layer: str, x: Any, features: int, least: int = 1) -> Any:
    """`x` as a tensor of floats whose last axis has size `features`; a `ShapeError` or `DTypeError` if it is not."""
    x = as_tensor(x)
    if x.ndim < least or x.shape[-1] != features:
        axes = "" if least == 1 else f", of {least} axes or more"
        raise misfit(f"{layer} takes an input whose last axis has size {features}{axes}, found {type_of(x)}")
    if not is_float(x.dtype):
        raise DTypeError(f"{layer} takes floats, found {type_of(x)}: use .astype(...)\n  at {here()}")
    return x


def in_wide(x: Any, normalize: Callable[[Any], Any]) -> Any:
    """``normalize(x)`` in f32 for 16-bit floats, in the element type of `x`."""
    return ops.convert(normalize(ops.convert(x, accumulation_dtype(x.dtype))), x.dtype)


def standardized(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    """``(x - mean) / sqrt(var + eps)`` over `axes`, with the biased variance."""
    return standardize_p(x, axes, eps)[0]


def scaled(x: Any, scale: Any, bias: Any = None) -> Any:
    """``x * scale + bias``."""
    y = ops.multiply(x, scale)
    return y if bias is None else ops.add(y, bias)


class LayerNorm(Module):
    """``(x - mean) / sqrt(var + eps) * scale + bias`` over the last axis, with the biased variance.

    Parameters: ``scale`` f32[features], which starts at 1, and ``bias`` f32[features], which starts at 0 (None without
    one). Source: Ba et al. (2016), arXiv:1607.06450.
    """

    scale: Any
    bias: Any
    eps: float = static(default=1e-5)

    def __init__(self, features: int, *, eps: float = 1e-5, bias: bool = True, dtype: DTypeLike = "f32") -> None:
        self._set(scale=ops.ones((features,), dtype), bias=ops.zeros((features,), dtype) if bias else None, eps=eps)

    def __call__(self, x: Any) -> Any:
        """`x` [..., features] to the same type; a `ShapeError` that names the layer when the last axis differs."""
        (features,) = self.scale.shape
        return in_wide(checked_features(f"LayerNorm({features})", x, features), self._normalized)

    def _normalized(self, x: Any) -> Any:
        return scaled(standardized(x, (x.ndim - 1,), self.eps), self.scale, self.bias)


class RMSNorm(Module):
    """``x / sqrt(mean(x ** 2) + eps) * scale`` over the last axis.

    Parameters: ``scale`` f32[features], which starts at 1. Source: Zhang and Sennrich (2019), arXiv:1910.07467.
    """

    scale: Any
    eps: float = static(default=1e-6)

    def __init__(self, features: int, *, eps: float = 1e-6, dtype: DTypeLike = "f32") -> None:
        self._set(scale=ops.ones((features,), dtype), eps=eps)

    def __call__(self, x: Any) -> Any:
        """`x` [..., features] to the same type; a `ShapeError` that names the layer when the last axis differs."""
        (features,) = self.scale.shape
        return in_wide(checked_features(f"RMSNorm({features})", x, features), self._normalized)

    def _normalized(self, x: Any) -> Any:
        return scaled(standardize_p(x, (x.ndim - 1,), self.eps, centered=False)[0], self.scale)


class GroupNorm(Module):
    """``(x - mean) / sqrt(var + eps) * scale + bias``, for each sample over a group of channels and all axes between.

    Parameters: ``scale`` f32[features], which starts at 1, and ``bias`` f32[features], which starts at 0. With
    one group the statistics are those of the whole sample, with as many as features it is an instance norm. The
    constructor raises `ShapeError` when `groups` does not divide `features`. Source: Wu and He (2018),
    arXiv:1803.08494.
    """

    scale: Any
    bias: Any
    groups: int = static()
    eps: float = static(default=1e-5)

    def __init__(self, groups: int, features: int, *, eps: float = 1e-5, dtype: DTypeLike = "f32") -> None:
        if groups < 1 or features % groups:
            raise ShapeError(f"GroupNorm: {groups} groups do not divide {features} features")
        self._set(scale=ops.ones((features,), dtype), bias=ops.zeros((features,), dtype), groups=groups, eps=eps)

    def __call__(self, x: Any) -> Any:
        """`x` [batch, ..., features] to the same type; a `ShapeError` that names the layer where it does not fit."""
        (features,) = self.scale.shape
        x = checked_features(f"GroupNorm({self.groups} groups of {features})", x, features, least=2)
        return in_wide(x, self._normalized)

    def _normalized(self, x: Any) -> Any:
        (features,), (count, *inner) = self.scale.shape, x.shape[:-1]
        grouped = ops.reshape(x, (count, *inner, self.groups, features // self.groups))
        axes = (*range(1, x.ndim - 1), x.ndim)
        return scaled(ops.reshape(standardized(grouped, axes, self.eps), x.shape), self.scale, self.bias)
