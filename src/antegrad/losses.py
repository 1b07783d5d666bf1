"""Losses: from predictions and targets to a scalar, the mean over all samples by default.

Every loss takes ``reduction="mean" | "sum" | "none"``; "none" gives the loss of each sample. 16-bit floats are computed
in f32, and the result is f32. Shapes are compared, never broadcast: predictions (8, 1) and targets (8,) are an error.
All of them stay finite, with finite gradients, as far as f32 can hold the true values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import AntegradError, DTypeError, ShapeError
from antegrad.ir.types import accumulation_dtype, is_float, is_integer, type_of
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.dispatch import as_tensor, here

__all__ = [
    "LabelError", "binary_cross_entropy_with_logits", "check_labels", "cross_entropy", "gaussian_nll", "huber",
    "kl_divergence", "l1", "mean_squared_error",
]  # fmt: skip


class LabelError(AntegradError, ValueError):
    """A label that is no class; the message has its index and value."""


def mean_squared_error(prediction: Any, target: Any, *, reduction: str = "mean") -> Any:
    """``(prediction - target) ** 2``, of float tensors of one shape; the mean is over all elements."""
    prediction, target = _alike("mean_squared_error", prediction=prediction, target=target)
    residual = ops.name(ops.subtract(prediction, target), "residual")
    return _reduced("mean_squared_error", ops.square(residual), reduction)


def l1(prediction: Any, target: Any, *, reduction: str = "mean") -> Any:
    """``|prediction - target|``, of float tensors of one shape; the gradient is 0 where they are equal."""
    prediction, target = _alike("l1", prediction=prediction, target=target)
    return _reduced("l1", ops.abs(ops.name(ops.subtract(prediction, target), "residual")), reduction)


def huber(prediction: Any, target: Any, *, delta: float = 1.0, reduction: str = "mean") -> Any:
    """``r * r / 2`` for residuals r up to `delta` in size, ``delta * (|r| - delta / 2)`` beyond.

    Of float tensors of one shape; as ``torch.nn.HuberLoss`` and ``optax.huber_loss``. Source: Huber, "Robust estimation
    of a location parameter" (1964).
    """
    if not delta > 0:
        raise ValueError(f"huber: delta must be above 0, found {delta!r}")
    prediction, target = _alike("huber", prediction=prediction, target=target)
    residual = ops.name(ops.subtract(prediction, target), "residual")
    near = ops.clip(residual, -delta, delta)
    return _reduced("huber", ops.multiply(near, ops.subtract(residual, ops.multiply(near, 0.5))), reduction)


def gaussian_nll(mean: Any, target: Any, variance: Any, *, eps: float = 1e-6, reduction: str = "mean") -> Any:
    """``(log(variance) + (target - mean)**2 / variance) / 2``, of float tensors of one shape.

    The negative log-likelihood of a normal distribution without its constant ``log(2 * pi) / 2``, as
    ``torch.nn.GaussianNLLLoss``. A variance below `eps` counts as `eps`, and gets no gradient (torch passes one on):
    predict it with `ops.softplus`, so that it is positive. Source: Nix and Weigend, "Estimating the mean and variance
    of the target probability distribution" (1994).
    """
    mean, target, variance = _alike("gaussian_nll", mean=mean, target=target, variance=variance)
    variance = ops.name(ops.maximum(variance, eps), "bounded")
    scaled = ops.divide(ops.square(ops.subtract(target, mean)), variance)
    return _reduced("gaussian_nll", ops.multiply(ops.add(ops.log(variance), scaled), 0.5), reduction)


def kl_divergence(log_predictions: Any, targets: Any, *, axis: int = -1, reduction: str = "mean") -> Any:
    """``sum(targets * (log(targets) - log_predictions))`` along `axis`: the divergence KL(targets || predictions).

    Both are float tensors of one shape: log-probabilities (see `ops.log_softmax`) and probabilities. A target of 0 adds
    nothing, even where the prediction is log 0 = -inf. The mean is over what is left when `axis` is summed
    (``reduction="batchmean"`` of torch). Source: Kullback and Leibler, "On information and sufficiency" (1951).
    """
    log_predictions, targets = _alike("kl_divergence", log_predictions=log_predictions, targets=targets)
    logs = ops.log(ops.where(ops.equal(targets, 0.0), 1.0, targets))
    terms = ops.mul_no_nan(targets, ops.subtract(logs, log_predictions))
    return _reduced("kl_divergence", ops.sum(terms, axis), reduction)


def binary_cross_entropy_with_logits(logits: Any, targets: Any, *, reduction: str = "mean") -> Any:
    """``-targets * log(sigmoid(logits)) - (1 - targets) * log(1 - sigmoid(logits))``, of float tensors of one shape.

    Computed as ``max(logits, 0) - logits * targets + log1p(exp(-|logits|))``, which no logit makes overflow. `targets`
    are probabilities, 0 or 1 mostly.
    """
    logits, targets = _alike("binary_cross_entropy_with_logits", logits=logits, targets=targets)
    tail = ops.log1p(ops.exp(ops.negative(ops.abs(logits))))
    straight = ops.subtract(ops.maximum(logits, 0.0), ops.multiply(logits, targets))
    return _reduced("binary_cross_entropy_with_logits", ops.add(straight, tail), reduction)


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    weights: Any = None,
    reduction: str = "mean",
) -> Any:
    """``-log(softmax(logits)[label])``: softmax cross-entropy with labels or with target probabilities.

    Arguments:
      logits: float, with the classes along `axis`. -inf rules a class out.
      labels: integer classes, in the shape of `logits` without `axis`; or float probabilities in the shape of `logits`.
        Concrete integer labels are checked with `check_labels`. A traced one that is no class gives NaN.
      ignore_index: samples with this label count nothing, also in the mean; where all are ignored the mean is 0, with
        gradient 0. For integer labels only.
      label_smoothing: share s in [0, 1] of every target that is spread over all classes: ``(1 - s) * q + s / classes``.
      weights: float[classes], a factor for each class. The mean over integer labels divides by the sum of the labels'
        weights, that over probabilities by the number of samples, as in ``torch.nn.CrossEntropyLoss``.
    Returns a scalar, or the loss of each sample (0 if ignored) in the shape of `logits` without `axis`.
    Source of smoothing: Szegedy et al., "Rethinking the Inception architecture for computer vision" (2016).
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing must be in [0, 1], found {label_smoothing!r}")
    logits, labels, axis = _classified(logits, labels, axis, ignore_index)
    if weights is not None:
        weights = _class_weights(weights, logits, axis)
    top = ops.name(ops.stop_gradient(ops.max(logits, axis, keepdims=True)), "top")
    shifted = ops.subtract(logits, ops.where(ops.isfinite(top), top, 0.0))
    total = ops.log(ops.sum(ops.name(ops.exp(shifted), "exponentials"), axis, keepdims=True))
    if is_float(labels.dtype):
        loss = _against_probabilities(shifted, total, labels, axis, label_smoothing, weights)
        return _reduced("cross_entropy", loss, reduction)
    loss, share = _against_labels(shifted, total, labels, axis, label_smoothing, weights)
    kept = None if ignore_index is None else ops.name(ops.not_equal(labels, ignore_index), "kept")
    return _reduced("cross_entropy", loss, reduction, share, kept)


def check_labels(labels: Any, classes: int, ignore_index: int | None = None) -> None:
    """Check on the host that integer `labels`, an array of any shape, lie in [0, classes) or are `ignore_index`.

    Raises `LabelError` with the index and the value of the first that does not, `DTypeError` for labels that are not
    integers. A data set is checked once, when it is loaded: on a device nothing can be raised.
    """
    array = np.asarray(labels)
    if not is_integer(array.dtype):
        raise DTypeError(f"check_labels: labels are integers, found {type_of(array)}")
    wrong = (array < 0) | (array >= classes)
    if ignore_index is not None:
        wrong &= array != ignore_index
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"[{', '.join(map(str, index))}]" if index else ""
        ignored = "" if ignore_index is None else f" or {ignore_index}, which is ignored"
        raise LabelError(
            f"labels{place} is {array[index]}, expected a class from 0 to {classes - 1}{ignored}; "
            f"{np.count_nonzero(wrong)} of {array.size} labels are none"
        )


def _classified(logits: Any, labels: Any, axis: int, ignore_index: int | None) -> tuple[Any, Any, int]:
    """Logits and labels of `cross_entropy`, checked against each other, in the types to compute with."""
    logits, labels = as_tensor(logits), as_tensor(labels)
    if not is_float(logits.dtype):
        raise DTypeError(f"cross_entropy: logits are float, found {type_of(logits)}{_place()}")
    axis = normalize_axis(axis, logits.ndim, "cross_entropy")
    if is_integer(labels.dtype):
        expected = (*logits.shape[:axis], *logits.shape[axis + 1 :])
        if isinstance(labels, np.ndarray):
            check_labels(labels, logits.shape[axis], ignore_index)
        labels = ops.convert(labels, "i32") if labels.dtype.itemsize < 4 else labels
    elif is_float(labels.dtype):
        expected = logits.shape
        if ignore_index is not None:
            raise ValueError("cross_entropy: ignore_index is for integer labels, found probabilities")
        labels = _wide(labels)
    else:
        raise DTypeError(f"cross_entropy: labels are integers or probabilities, found {type_of(labels)}{_place()}")
    if labels.shape != expected:
        kind = "integer labels" if is_integer(labels.dtype) else "probabilities"
        raise ShapeError(
            f"cross_entropy: {kind} for logits {type_of(logits)} with the classes along axis {axis} must have shape "
            f"{expected}, found {labels.shape}{_place()}"
        )
    return _wide(logits), labels, axis


def _class_weights(weights: Any, logits: Any, axis: int) -> Any:
    """The weights of the classes, shaped to broadcast along `axis`."""
    weights, classes = as_tensor(weights), logits.shape[axis]
    if weights.shape != (classes,):
        raise ShapeError(f"cross_entropy: weights must have shape ({classes},), found {weights.shape}{_place()}")
    return _along(ops.convert(weights, logits.dtype), logits, axis)


def _along(vector: Any, like: Any, axis: int) -> Any:
    return ops.reshape(vector, tuple(-1 if place == axis else 1 for place in range(like.ndim)))


def _against_labels(
    shifted: Any, total: Any, labels: Any, axis: int, smoothing: float, weights: Any
) -> tuple[Any, Any]:
    """The loss of each sample, and its weight in the mean (None for 1). NaN for a label that is no class.

    The score of the label is selected by comparison, because the derivative of that is one more select, where the
    derivative of a gather is a scatter.
    """
    classes = shifted.shape[axis]
    positions = _along(ops.arange(classes, dtype=labels.dtype), shifted, axis)
    chosen = ops.name(ops.equal(ops.expand_dims(labels, axis), positions), "chosen")
    loss = ops.subtract(ops.squeeze(total, axis), ops.sum(ops.where(chosen, shifted, 0.0), axis))
    share = None if weights is None else ops.sum(ops.where(chosen, weights, 0.0), axis)
    if share is not None:
        loss = ops.multiply(loss, share)
    if smoothing:
        spread = _spread(shifted, total, axis, weights)
        loss = ops.add(ops.multiply(loss, 1 - smoothing), ops.multiply(spread, smoothing))
    is_class = ops.name(ops.logical_and(ops.greater_equal(labels, 0), ops.less(labels, classes)), "is_class")
    return ops.where(is_class, ops.name(loss, "nll"), float("nan")), share


def _against_probabilities(shifted: Any, total: Any, targets: Any, axis: int, smoothing: float, weights: Any) -> Any:
    """The loss of each sample: the sum of ``-q * log(p)``, where a target q of 0 adds nothing even for p = 0."""
    if weights is not None:
        targets = ops.multiply(targets, weights)
    loss = ops.sum(ops.mul_no_nan(targets, ops.subtract(total, shifted)), axis)
    if not smoothing:
        return loss
    spread = _spread(shifted, total, axis, weights)
    return ops.add(ops.multiply(loss, 1 - smoothing), ops.multiply(spread, smoothing))


def _spread(shifted: Any, total: Any, axis: int, weights: Any) -> Any:
    """The loss against the target that is the same for all classes."""
    terms = ops.subtract(total, shifted)
    return ops.mean(terms if weights is None else ops.multiply(terms, weights), axis)


def _alike(loss: str, **tensors: Any) -> list[Any]:
    """Float tensors of one shape, 16-bit ones as f32. Raises `ShapeError` and `DTypeError` with the user's line."""
    named = {name: as_tensor(tensor) for name, tensor in tensors.items()}
    found = " and ".join(f"{name} {type_of(tensor)}" for name, tensor in named.items())
    if len({tuple(tensor.shape) for tensor in named.values()}) > 1:
        raise ShapeError(f"{loss}: {found} must have one shape; nothing is broadcast, so reshape one{_place()}")
    if not all(is_float(tensor.dtype) for tensor in named.values()):
        raise DTypeError(f"{loss}: float tensors are needed, found {found}: use .astype(...){_place()}")
    return [_wide(tensor) for tensor in named.values()]


def _wide(x: Any) -> Any:
    return ops.convert(x, accumulation_dtype(x.dtype))


def _place() -> str:
    place = str(here())
    return f"\n  at {place}" if place else ""


def _reduced(loss: str, values: Any, reduction: str, share: Any = None, kept: Any = None) -> Any:
    """The mean of `values` weighted by `share`, their sum, or the values; those that are not `kept` count 0."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{loss}: reduction must be 'mean', 'sum' or 'none', found {reduction!r}")
    if kept is not None:
        values = ops.where(kept, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return ops.sum(values)
    if share is None and kept is None:
        return ops.mean(values)
    if share is None:
        share = ops.convert(kept, values.dtype)
    elif kept is not None:
        share = ops.where(kept, share, 0.0)
    whole = ops.name(ops.sum(share), "whole")
    return ops.divide(ops.sum(values), ops.where(ops.equal(whole, 0.0), 1.0, whole))
