"""Activation functions of floats, as compositions. On 16-bit floats they are computed in f32 and rounded once."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.ops.arrays import misfit, normalize_axis
from antegrad.ops.fused import gelu_p
from antegrad.ops.special import floating, rounded_once

__all__ = [
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "mish",
    "relu6", "selu", "silu", "softsign",
]  # fmt: skip


def log_sigmoid(x: Any) -> Any:
    """``log(sigmoid(x)) = -softplus(-x)``, finite for every finite x.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 0 at inf, -inf at -inf.
    Derivative: ``dy * sigmoid(-x)``.
    """
    return ops.negative(ops.softplus(ops.negative(floating("log_sigmoid", x))))


@rounded_once
def silu(x: Any) -> Any:
    """``x * sigmoid(x)``, also called swish.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN at -inf.
    Derivative: ``dy * (s + x * s * (1 - s))`` with ``s = sigmoid(x)``.
    Source: Elfwing et al. (2017), arXiv:1702.03118.
    """
    return ops.multiply(x, ops.sigmoid(x))


def gelu(x: Any, approximate: bool = False) -> Any:
    """``x * ndtr(x)``, with the normal distribution function; the default of torch.

    With `approximate` it is ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, the form of GPT-2 and the
    default of JAX, which differs by up to 5e-4. It is computed as ``x * sigmoid(2 * ...)``, which is the same.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN at -inf. The relative error is that of `ndtr`, in the negative tail too.
    Derivative: ``dy * (ndtr(x) + x * exp(-x**2 / 2) / sqrt(2 * pi))``, or that of the approximation.
    Source: Hendrycks and Gimpel (2016), arXiv:1606.08415.
    """
    x = floating("gelu", x)
    if x.dtype.itemsize == 8 and not approximate:
        return ops.multiply(x, ops.ndtr(x))
    return gelu_p(x, approximate)


@rounded_once
def mish(x: Any) -> Any:
    """``x * tanh(softplus(x))``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN at -inf.
    Derivative: ``dy * (t + x * (1 - t**2) * sigmoid(x))`` with ``t = tanh(softplus(x))``.
    Source: Misra (2019), arXiv:1908.08681.
    """
    return ops.multiply(x, ops.tanh(ops.softplus(x)))


@rounded_once
def elu(x: Any, alpha: float = 1.0) -> Any:
    """x above 0, ``alpha * (exp(x) - 1)`` below.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: ``-alpha`` at -inf.
    Derivative: dy above 0, else ``dy * alpha * exp(x)``.
    Source: Clevert et al. (2015), arXiv:1511.07289.
    """
    return ops.where(ops.greater(x, 0.0), x, ops.multiply(ops.expm1(x), alpha))


@rounded_once
def celu(x: Any, alpha: float = 1.0) -> Any:
    """x above 0, ``alpha * (exp(x / alpha) - 1)`` below: `elu` with a slope of 1 on both sides of 0.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: ``-alpha`` at -inf.
    Derivative: dy above 0, else ``dy * exp(x / alpha)``.
    Source: Barron (2017), arXiv:1704.07483.
    """
    return ops.where(ops.greater(x, 0.0), x, ops.multiply(ops.expm1(ops.divide(x, alpha)), alpha))


@rounded_once
def selu(x: Any) -> Any:
    """``scale * elu(x, alpha)`` with the constants that keep mean 0 and variance 1.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: ``-scale * alpha`` at -inf.
    Derivative: `scale` times that of `elu`.
    Source: Klambauer et al. (2017), arXiv:1706.02515.
    """
    return ops.multiply(elu(x, 1.6732632423543772), 1.0507009873554805)


@rounded_once
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x above 0, ``negative_slope * x`` else.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN stays NaN.
    Derivative: dy above 0, else ``dy * negative_slope``, at 0 too, as in torch.
    """
    return ops.where(ops.greater(x, 0.0), x, ops.multiply(x, negative_slope))


def relu6(x: Any) -> Any:
    """``min(max(x, 0), 6)``.

    Shapes: x (...) gives the same shape.
    Edges: NaN stays NaN.
    Derivative: dy between 0 and 6; 0 at 0, at 6 and beyond.
    """
    return ops.where(ops.greater_equal(x, 6.0), 6.0, ops.relu(x))


def hard_tanh(x: Any) -> Any:
    """x moved into [-1, 1].

    Shapes: x (...) gives the same shape.
    Edges: NaN stays NaN.
    Derivative: that of `clip`: dy inside and at the bounds, else 0.
    """
    return ops.clip(x, -1.0, 1.0)


@rounded_once
def hard_sigmoid(x: Any) -> Any:
    """``relu6(x + 3) / 6``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: 0 at -inf, 1 at inf.
    Derivative: ``dy / 6`` between -3 and 3; 0 at both and beyond.
    """
    return ops.divide(relu6(ops.add(x, 3.0)), 6.0)


@rounded_once
def hard_silu(x: Any) -> Any:
    """``x * hard_sigmoid(x)``, also called hard swish.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN at -inf.
    Derivative: ``dy * (2 * x + 3) / 6`` between -3 and 3, dy from 3 on, 0 below.
    Source: Howard et al. (2019), arXiv:1905.02244.
    """
    return ops.multiply(x, hard_sigmoid(x))


@rounded_once
def softsign(x: Any) -> Any:
    """``x / (1 + |x|)``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: NaN at the infinities.
    Derivative: ``dy / (1 + |x|)**2``; dy at 0.
    """
    return ops.divide(x, ops.add(ops.abs(x), 1.0))


@rounded_once
def glu(x: Any, axis: int = -1) -> Any:
    """``a * sigmoid(b)`` for the halves a and b of x along `axis`.

    Shapes: x (..., 2 n, ...) gives (..., n, ...); 16-bit floats are computed in f32.
    Edges: an axis of odd size is a `ShapeError`.
    Derivative: ``dy * sigmoid(b)`` for a, ``dy * a * s * (1 - s)`` with ``s = sigmoid(b)`` for b.
    Source: Dauphin et al. (2016), arXiv:1612.08083.
    """
    place = normalize_axis(axis, x, "glu")
    if x.shape[place] % 2:
        raise misfit(f"glu: axis {axis} of shape {x.shape} has no two equal halves")
    a, b = ops.split(x, 2, place)
    return ops.multiply(a, ops.sigmoid(b))
