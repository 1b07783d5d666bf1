"""Batch normalization."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.autodiff.custom import custom_vjp
from antegrad.ir.types import DTypeLike, accumulation_dtype, as_dtype, type_of
from antegrad.nn import context
from antegrad.nn.module import Module, state, static
from antegrad.nn.normalization import checked_features, in_wide, scaled
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor


class BatchNorm(Module):
    """``(x - mean) / sqrt(var + eps) * scale + bias`` for each channel, the last axis, over all other axes.

    In training mean and biased variance are those of the batch, in two passes and in f32 for 16-bit floats, and the
    running statistics move towards them: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased
    variance, as in torch (what Flax calls momentum is 1 minus this). In evaluation the running statistics are used.

    With sample weights (see `training_call`) the statistics are weighted means, and samples of weight 0 count for
    nothing. A batch with one value a channel has the variance 0, so its result is `bias`; it leaves the running
    variance as it was, and one without any value leaves the running mean too.

    Where devices hold parts of a batch, each uses the statistics of its own part, or with ``ranks`` in `training_call`
    those of the whole batch.

    Parameters: ``scale`` f32[features], which starts at 1, and ``bias`` f32[features], which starts at 0. State:
    ``mean`` f32[features], which starts at 0, and ``var`` f32[features], which starts at 1; never 16-bit floats.
    Source: Ioffe and Szegedy (2015), arXiv:1502.03167.
    """

    scale: Any
    bias: Any
    mean: Any = state()
    var: Any = state()
    momentum: float = static(default=0.1)
    eps: float = static(default=1e-5)

    def __init__(self, features: int, *, momentum: float = 0.1, eps: float = 1e-5, dtype: DTypeLike = "f32") -> None:
        wide = accumulation_dtype(as_dtype(dtype))
        self._set(scale=ops.ones((features,), dtype), bias=ops.zeros((features,), dtype))
        self._set(mean=ops.zeros((features,), wide), var=ops.ones((features,), wide), momentum=momentum, eps=eps)

    def __call__(self, x: Any) -> Any:
        """`x` [..., features] to the same type; a `ShapeError` that names the layer when the last axis differs."""
        (features,) = self.scale.shape
        return in_wide(checked_features(f"BatchNorm({features})", x, features, least=2), self._normalized)

    def _normalized(self, x: Any) -> Any:
        call = context.training()
        if call is None:
            factor = ops.multiply(ops.rsqrt(ops.add(self.var, self.eps)), self.scale)
            return scaled(ops.subtract(x, self.mean), factor, self.bias)
        weights = None if call.sample_weights is None else _weights(call.sample_weights, x)
        normalized = batch_normalized(call.ranks)
        y, mean, var = normalized(x, weights, self.scale, self.bias, np.asarray(self.eps, x.dtype))
        self._follow(_count(x, weights, call.ranks), mean, var)
        return y

    def _follow(self, count: Any, mean: Any, var: Any) -> None:
        """Move the running statistics towards those of a batch; where it has too few values they stay."""
        before, several = context.current(self), count > 1
        # By Python's division, so that the quotient of two numbers is not rounded to f32 where `var` is f64.
        unbiased = ops.multiply(var, count / _chosen(several, count - 1, 1))
        mean = _chosen(count > 0, self._moved(before.mean, mean), before.mean)
        var = _chosen(several, self._moved(before.var, unbiased), before.var)
        context.update("mean", ops.convert(mean, before.mean.dtype))
        context.update("var", ops.convert(var, before.var.dtype))

    def _moved(self, running: Any, batch: Any) -> Any:
        return ops.add(running, ops.multiply(ops.subtract(batch, running), self.momentum))


def _weights(sample_weights: Any, x: Any) -> Any:
    """The weights [batch, 1, ..., 1] in the element type of `x`."""
    weights = as_tensor(sample_weights)
    if weights.shape != x.shape[:1]:
        raise misfit(
            f"BatchNorm: sample weights float[{x.shape[0]}] are needed for a batch of {type_of(x)}, "
            f"found {type_of(weights)}"
        )
    return ops.reshape(ops.convert(weights, x.dtype), (x.shape[0], *(1,) * (x.ndim - 1)))


def _count(x: Any, weights: Any, ranks: int) -> Any:
    """How many values of each channel there are on all ranks: a number, or the sum of their weights."""
    if weights is None:
        return float(math.prod(x.shape[:-1]) * ranks)
    return ops.multiply(ops.all_reduce(ops.sum(weights), ranks), float(math.prod(x.shape[1:-1])))


def _chosen(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`; decided at once where it is known."""
    if isinstance(condition, bool):
        return x if condition else y
    return ops.where(condition, x, y)


@functools.cache
def batch_normalized(ranks: int) -> Any:
    """The function of ``(x, weights, scale, bias, eps)`` that gives the normalized batch, its mean and biased variance.

    The statistics are over the parts of the batch that `ranks` ranks hold; the last two results take no part in
    derivatives. `weights` is [batch, 1, ..., 1], or None.

    The gradient is written by hand because it reads x and dy twice and not three times: on XLA for CPU the derived one
    took 10 to 20 % more processor time for the layer alone, 5 to 7 % more for two with 3x3 convolutions before them,
    and about 3 % more for the gradient of ResNet-20.
    """

    @custom_vjp
    def batch_normalized(x: Any, weights: Any, scale: Any, bias: Any, eps: Any) -> tuple[Any, Any, Any]:
        return _forward(ranks, x, weights, scale, bias, eps)[0]

    batch_normalized.defvjp(functools.partial(_forward, ranks), functools.partial(_backward, ranks))
    return batch_normalized


def _forward(
    ranks: int, x: Any, weights: Any, scale: Any, bias: Any, eps: Any
) -> tuple[tuple[Any, Any, Any], tuple[Any, ...]]:
    count = _count(x, weights, ranks)

    def mean_of(values: Any) -> Any:
        total = ops.all_reduce(_sum(_weighted(values, weights)), ranks)
        return ops.divide(total, _chosen(count > 0, count, 1.0))

    mean = mean_of(x)
    deviation = ops.subtract(x, mean)
    var = mean_of(ops.square(deviation))
    inverse = ops.rsqrt(ops.add(var, eps))
    y = scaled(deviation, ops.multiply(inverse, scale), bias)
    return (y, mean, var), (x, weights, scale, bias, mean, inverse)


def _backward(ranks: int, residuals: tuple[Any, ...], cotangents: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    x, weights, scale, bias, mean, inverse = residuals
    dy, count = cotangents[0], _count(x, weights, ranks)
    normal = ops.multiply(ops.subtract(x, mean), inverse)
    d_bias, d_scale = _sum(dy), _sum(ops.multiply(dy, normal))
    # What goes through the statistics comes from all ranks; each has its own part of the gradient of scale and bias.
    all_bias, all_scale = (d_bias, d_scale) if ranks == 1 else ops.all_reduce(ops.stack([d_bias, d_scale]), ranks)
    through_statistics = ops.divide(ops.add(ops.multiply(normal, all_scale), all_bias), _chosen(count > 0, count, 1.0))
    dx = ops.multiply(ops.subtract(dy, _weighted(through_statistics, weights)), ops.multiply(inverse, scale))
    return ops.convert(dx, x.dtype), None, ops.convert(d_scale, scale.dtype), ops.convert(d_bias, bias.dtype), None


def _sum(x: Any) -> Any:
    """Over all axes but the last."""
    return ops.sum(x, tuple(range(x.ndim - 1)))


def _weighted(x: Any, weights: Any) -> Any:
    return x if weights is None else ops.multiply(x, weights)
