"""Losses of embeddings: vectors that only have a direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import is_float, type_of
from antegrad.losses.classification import cross_entropy
from antegrad.losses.reduction import alike, place, present, reduced, shares
from antegrad.ops.arrays import normalize_axis
from antegrad.optim import settings

SMALLEST_NORM = 1e-12
"""A vector that is shorter is divided by this instead of its length, as in torch."""


def cosine_distance(
    prediction: Any, target: Any, *, axis: int = -1, sample_weights: Any = None, reduction: str = "mean"
) -> Any:
    """``1 - prediction . target / (|prediction| |target|)`` along `axis`, of float tensors of one shape: from 0 to 2.

    1 for a vector of zeros. As ``optax.cosine_distance``, and ``torch.nn.CosineEmbeddingLoss`` for targets 1.
    """
    prediction, target = alike("cosine_distance", prediction=prediction, target=target)
    axis = normalize_axis(axis, target, "cosine_distance")
    share = shares("cosine_distance", sample_weights, target, axis)
    prediction, target = (_unit(x, axis) for x in present(share, prediction, target, axis=axis))
    similarity = ops.name(ops.sum(ops.multiply(prediction, target), axis), "similarity")
    return reduced("cosine_distance", ops.subtract(1.0, similarity), reduction, share)


def contrastive(a: Any, b: Any, *, temperature: Any = 0.07, sample_weights: Any = None, reduction: str = "mean") -> Any:
    """InfoNCE in both directions, the loss of CLIP: `a[i]` and `b[i]` belong together, all other pairs do not. ::

        logits = unit(a) @ unit(b).T / temperature
        loss[i] = (cross_entropy(logits[i], i) + cross_entropy(logits[:, i], i)) / 2

    Both are float (samples, features), as they come from the encoders: they are divided by their lengths here. A pair
    of weight 0 is no counter-example for the others either. Source: van den Oord et al., "Representation learning with
    contrastive predictive coding" (2018); both directions: Radford et al., "Learning transferable visual models from
    natural language supervision" (2021).

    Arguments:
      temperature: a number > 0, or a float scalar that is trained.
    """
    a, b, share = _embeddings("contrastive", a, b, sample_weights)
    logits = _logits("contrastive", a, b, temperature)
    pairs = np.arange(logits.shape[0], dtype=np.int32)
    directions = [logits, ops.transpose(logits)]
    if share is not None:
        directions = [ops.where(_hidden(share), -np.inf, scores) for scores in directions]
    losses = [cross_entropy(scores, pairs, reduction="none") for scores in directions]
    return reduced("contrastive", ops.multiply(ops.add(*losses), 0.5), reduction, share)


def nt_xent(a: Any, b: Any, *, temperature: Any = 0.5, sample_weights: Any = None, reduction: str = "mean") -> Any:
    """NT-Xent, the loss of SimCLR: two views `a[i]` and `b[i]` of a sample are told from all other views. ::

        z = unit(concatenate([a, b]))          logits = z @ z.T / temperature, without the diagonal
        loss[i] = (cross_entropy(logits[i], i + n) + cross_entropy(logits[i + n], i)) / 2

    Both are float (samples, features), divided by their lengths here. A sample of weight 0 is no counter-example for
    the others either. Source: Chen et al., "A simple framework for contrastive learning of visual representations"
    (2020).

    Arguments:
      temperature: a number > 0, or a float scalar that is trained.
    """
    a, b, share = _embeddings("nt_xent", a, b, sample_weights)
    views, count = ops.concatenate([a, b]), a.shape[0]
    logits = _logits("nt_xent", views, views, temperature)
    logits = ops.where(ops.eye(2 * count, dtype="bool"), -np.inf, logits)
    others = np.roll(np.arange(2 * count, dtype=np.int32), count)
    if share is not None:
        logits = ops.where(ops.tile(_hidden(share), (2, 2)), -np.inf, logits)
    values = ops.reshape(cross_entropy(logits, others, reduction="none"), (2, count))
    return reduced("nt_xent", ops.mean(values, 0), reduction, share)


def _embeddings(loss: str, a: Any, b: Any, sample_weights: Any) -> tuple[Any, Any, Any]:
    """Both as unit vectors, zeros for samples of weight 0, and the weights."""
    a, b = alike(loss, a=a, b=b)
    if a.ndim != 2:
        raise ShapeError(f"{loss}: a and b are (samples, features), found {type_of(a)}{place()}")
    share = shares(loss, sample_weights, a, 1)
    a, b = present(share, a, b, axis=1)
    return _unit(a, 1), _unit(b, 1), share


def _unit(x: Any, axis: int) -> Any:
    return ops.divide(x, ops.maximum(ops.norm(x, axis=axis, keepdims=True), SMALLEST_NORM))


def _logits(loss: str, a: Any, b: Any, temperature: Any) -> Any:
    if not hasattr(temperature, "shape"):
        temperature = settings.number(loss, "temperature", temperature, "(0, inf)")
    elif temperature.shape != () or not is_float(temperature.dtype):
        raise DTypeError(f"{loss}: temperature is a number or a float scalar, found {type_of(temperature)}{place()}")
    return ops.divide(ops.matmul(a, ops.transpose(b)), temperature)


def _hidden(share: Any) -> Any:
    """Where sample j is no counter-example for sample i: j has weight 0, and is not i."""
    count = share.shape[0]
    return ops.logical_and(ops.equal(share, 0.0), ops.logical_not(ops.eye(count, dtype="bool")))
