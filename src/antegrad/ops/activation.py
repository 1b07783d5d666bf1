"""Activation functions of floats, as compositions. On 16-bit floats they are computed in f32 and rounded once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.types import accumulation_dtype
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.dispatch import as_tensor

__all__ = [
    "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "mish", "relu6",
    "selu", "silu", "softplus", "softsign",
]  # fmt: skip


def _rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, computed in f32 for 16-bit floats and rounded to their type at the end."""

    @functools.wraps(function)
    def wrapped(x: Any, *arguments: Any, **keywords: Any) -> Any:
        x = as_tensor(x)
        wide = ops.convert(x, accumulation_dtype(x.dtype))
        return ops.convert(function(wide, *arguments, **keywords), x.dtype)

    return wrapped


@_rounded_once
def softplus(x: Any) -> Any:
    """``log(1 + exp(x))``, as ``max(x, 0) + log1p(exp(-|x|))``, which no x makes overflow."""
    return ops.add(ops.maximum(x, 0.0), ops.log1p(ops.exp(ops.negative(ops.abs(x)))))


@_rounded_once
def log_sigmoid(x: Any) -> Any:
    """``log(sigmoid(x)) = -softplus(-x)``, finite for every finite x."""
    return ops.subtract(ops.minimum(x, 0.0), ops.log1p(ops.exp(ops.negative(ops.abs(x)))))


@_rounded_once
def silu(x: Any) -> Any:
    """``x * sigmoid(x)``, also called swish. Source: Elfwing et al. (2017), arXiv:1702.03118."""
    return ops.multiply(x, ops.sigmoid(x))


@_rounded_once
def gelu(x: Any) -> Any:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``: the form that GPT-2 uses.

    Computed as ``x * sigmoid(2 * ...)``, which is the same. It differs from ``x * Phi(x)`` by up to 5e-4. Source:
    Hendrycks and Gimpel (2016), arXiv:1606.08415.
    """
    cubic = ops.multiply(ops.multiply(ops.square(x), x), 0.044715)
    return ops.multiply(x, ops.sigmoid(ops.multiply(ops.add(x, cubic), 2 * math.sqrt(2 / math.pi))))


@_rounded_once
def mish(x: Any) -> Any:
    """``x * tanh(softplus(x))``. Source: Misra (2019), arXiv:1908.08681."""
    return ops.multiply(x, ops.tanh(softplus(x)))


@_rounded_once
def elu(x: Any, alpha: float = 1.0) -> Any:
    """x above 0, ``alpha * (exp(x) - 1)`` below. Source: Clevert et al. (2015), arXiv:1511.07289."""
    return ops.where(ops.greater(x, 0.0), x, ops.multiply(ops.expm1(x), alpha))


@_rounded_once
def selu(x: Any) -> Any:
    """``scale * elu(x, alpha)`` with the constants that keep mean 0 and variance 1.

    Source: Klambauer et al., "Self-normalizing neural networks" (2017), arXiv:1706.02515.
    """
    return ops.multiply(elu(x, 1.6732632423543772), 1.0507009873554805)


@_rounded_once
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x above 0, ``negative_slope * x`` else; the gradient at 0 is `negative_slope`, as in torch."""
    return ops.where(ops.greater(x, 0.0), x, ops.multiply(x, negative_slope))


def relu6(x: Any) -> Any:
    """``min(max(x, 0), 6)``; the gradient is 0 at 0 and at 6."""
    return ops.where(ops.greater_equal(x, 6.0), 6.0, ops.relu(x))


def hard_tanh(x: Any) -> Any:
    """x moved into [-1, 1]; the gradient at the bounds is 1, as that of `clip`."""
    return ops.clip(x, -1.0, 1.0)


@_rounded_once
def hard_sigmoid(x: Any) -> Any:
    """``relu6(x + 3) / 6``."""
    return ops.divide(relu6(ops.add(x, 3.0)), 6.0)


@_rounded_once
def hard_silu(x: Any) -> Any:
    """``x * hard_sigmoid(x)``, also called hard swish. Source: Howard et al. (2019), arXiv:1905.02244."""
    return ops.multiply(x, hard_sigmoid(x))


@_rounded_once
def softsign(x: Any) -> Any:
    """``x / (1 + |x|)``."""
    return ops.divide(x, ops.add(ops.abs(x), 1.0))


@_rounded_once
def glu(x: Any, axis: int = -1) -> Any:
    """``a * sigmoid(b)`` for the halves a and b of x along `axis`. Source: Dauphin et al. (2016), arXiv:1612.08083.

    Raises `ShapeError` when the size of that axis is odd.
    """
    x = as_tensor(x)
    place = normalize_axis(axis, x.ndim, "glu")
    if x.shape[place] % 2:
        raise ShapeError(f"glu: axis {axis} of shape {x.shape} has no two equal halves")
    a, b = ops.split(x, 2, place)
    return ops.multiply(a, ops.sigmoid(b))
