"""Losses of numbers, element by element."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.losses.reduction import alike, present, reduced, shares
from antegrad.optim import settings


def mean_squared_error(prediction: Any, target: Any, *, sample_weights: Any = None, reduction: str = "mean") -> Any:
    """``(prediction - target) ** 2``, of float tensors of one shape; the mean is over all elements."""
    residual, share = _residual("mean_squared_error", prediction, target, sample_weights)
    return reduced("mean_squared_error", ops.square(residual), reduction, share)


def l1(prediction: Any, target: Any, *, sample_weights: Any = None, reduction: str = "mean") -> Any:
    """``|prediction - target|``, of float tensors of one shape; the gradient is 0 where they are equal."""
    residual, share = _residual("l1", prediction, target, sample_weights)
    return reduced("l1", ops.abs(residual), reduction, share)


def huber(
    prediction: Any, target: Any, *, delta: float = 1.0, sample_weights: Any = None, reduction: str = "mean"
) -> Any:
    """``r * r / 2`` for residuals r up to `delta` in size, ``delta * (|r| - delta / 2)`` beyond.

    Of float tensors of one shape, with `delta` above 0; as ``torch.nn.HuberLoss`` and ``optax.huber_loss``. Source:
    Huber, "Robust estimation of a location parameter" (1964).
    """
    delta = settings.number("huber", "delta", delta, "(0, inf)")
    residual, share = _residual("huber", prediction, target, sample_weights)
    near = ops.clip(residual, -delta, delta)
    values = ops.multiply(near, ops.subtract(residual, ops.multiply(near, 0.5)))
    return reduced("huber", values, reduction, share)


def _residual(loss: str, prediction: Any, target: Any, sample_weights: Any) -> tuple[Any, Any]:
    """The residual, and the weight of each of its elements."""
    prediction, target = alike(loss, prediction=prediction, target=target)
    share = shares(loss, sample_weights, prediction)
    return ops.name(ops.subtract(*present(share, prediction, target)), "residual"), share


def gaussian_nll(
    mean: Any, target: Any, variance: Any, *, eps: float = 1e-6, sample_weights: Any = None, reduction: str = "mean"
) -> Any:
    """``(log(variance) + (target - mean)**2 / variance) / 2``, of float tensors of one shape.

    The negative log-likelihood of a normal distribution without its constant ``log(2 * pi) / 2``, as
    ``torch.nn.GaussianNLLLoss``. A variance below `eps` (> 0) counts as `eps`, and gets no gradient (torch passes one
    on): predict it with `ops.softplus`, so that it is positive. Source: Nix and Weigend, "Estimating the mean and
    variance of the target probability distribution" (1994).
    """
    eps = settings.number("gaussian_nll", "eps", eps, "(0, inf)")
    mean, target, variance = alike("gaussian_nll", mean=mean, target=target, variance=variance)
    share = shares("gaussian_nll", sample_weights, mean)
    mean, target = present(share, mean, target)
    (variance,) = present(share, variance, fill=1.0)
    variance = ops.name(ops.maximum(variance, eps), "bounded")
    scaled = ops.divide(ops.square(ops.subtract(target, mean)), variance)
    return reduced("gaussian_nll", ops.multiply(ops.add(ops.log(variance), scaled), 0.5), reduction, share)
