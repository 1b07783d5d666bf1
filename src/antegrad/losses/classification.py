"""Losses of classes and of probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import AntegradError, DTypeError, SettingError, ShapeError
from antegrad.ir.types import is_float, is_integer, type_of
from antegrad.losses.reduction import alike, place, present, reduced, shares, wide
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.dispatch import as_tensor
from antegrad.optim import settings


class LabelError(AntegradError, ValueError):
    """A label that is no class; the message has its index and value."""


def kl_divergence(
    log_predictions: Any, targets: Any, *, axis: int = -1, sample_weights: Any = None, reduction: str = "mean"
) -> Any:
    """``sum(targets * (log(targets) - log_predictions))`` along `axis`: the divergence KL(targets || predictions).

    Both are float tensors of one shape: log-probabilities (see `ops.log_softmax`) and probabilities. A target of 0 adds
    nothing, even where the prediction is log 0 = -inf. The mean is over what is left when `axis` is summed
    (``reduction="batchmean"`` of torch). Source: Kullback and Leibler, "On information and sufficiency" (1951).
    """
    log_predictions, targets = alike("kl_divergence", log_predictions=log_predictions, targets=targets)
    axis = normalize_axis(axis, targets, "kl_divergence")
    share = shares("kl_divergence", sample_weights, targets, axis)
    log_predictions, targets = present(share, log_predictions, targets, axis=axis)
    logs = ops.log(ops.where(ops.equal(targets, 0.0), 1.0, targets))
    terms = ops.mul_no_nan(targets, ops.subtract(logs, log_predictions))
    return reduced("kl_divergence", ops.sum(terms, axis), reduction, share)


def binary_cross_entropy_with_logits(
    logits: Any, targets: Any, *, sample_weights: Any = None, reduction: str = "mean"
) -> Any:
    """``-targets * log(sigmoid(logits)) - (1 - targets) * log(1 - sigmoid(logits))``, of float tensors of one shape.

    Computed as ``max(logits, 0) - logits * targets + log1p(exp(-|logits|))``, which no logit makes overflow. `targets`
    are probabilities, 0 or 1 mostly.
    """
    logits, targets = alike("binary_cross_entropy_with_logits", logits=logits, targets=targets)
    share = shares("binary_cross_entropy_with_logits", sample_weights, logits)
    logits, targets = present(share, logits, targets)
    tail = ops.log1p(ops.exp(ops.negative(ops.abs(logits))))
    straight = ops.subtract(ops.maximum(logits, 0.0), ops.multiply(logits, targets))
    return reduced("binary_cross_entropy_with_logits", ops.add(straight, tail), reduction, share)


def hinge(scores: Any, targets: Any, *, sample_weights: Any = None, reduction: str = "mean") -> Any:
    """``max(0, 1 - targets * scores)``, of float tensors of one shape, for targets -1 and 1.

    The gradient is 0 at the kink. As ``optax.hinge_loss``. Source: Cortes and Vapnik, "Support-vector networks" (1995).
    """
    scores, targets = alike("hinge", scores=scores, targets=targets)
    share = shares("hinge", sample_weights, scores)
    scores, targets = present(share, scores, targets)
    return reduced("hinge", ops.relu(ops.subtract(1.0, ops.multiply(targets, scores))), reduction, share)


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    axis: int = -1,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    weights: Any = None,
    sample_weights: Any = None,
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
      sample_weights: a factor for each sample, as for all losses. The labels of samples of weight 0 are not checked.
    Returns a scalar, or the loss of each sample (0 if ignored) in the shape of `logits` without `axis`.
    Source of smoothing: Szegedy et al., "Rethinking the Inception architecture for computer vision" (2016).
    """
    label_smoothing = settings.number("cross_entropy", "label_smoothing", label_smoothing, "[0, 1]")
    logits, labels, axis = _classified(logits, labels, axis, ignore_index)
    share = shares("cross_entropy", sample_weights, logits, axis)
    if weights is not None:
        weights = _class_weights(weights, logits, axis)
    top = ops.name(ops.stop_gradient(ops.max(logits, axis, keepdims=True)), "top")
    shifted = ops.subtract(logits, ops.where(ops.isfinite(top), top, 0.0))
    total = ops.log(ops.sum(ops.name(ops.exp(shifted), "exponentials"), axis, keepdims=True))
    if is_float(labels.dtype):
        (targets,) = present(share, labels, axis=axis)
        loss = _against_probabilities(shifted, total, targets, axis, label_smoothing, weights)
        return reduced("cross_entropy", loss, reduction, share)
    _check_present(labels, logits.shape[axis], ignore_index, sample_weights)
    (labels,) = present(share, labels, fill=0)
    loss, counted = _against_labels(shifted, total, labels, axis, label_smoothing, weights)
    if ignore_index is not None:
        kept = ops.name(ops.not_equal(labels, ignore_index), "kept")
        loss = ops.where(kept, loss, 0.0)
        counted = ops.convert(kept, loss.dtype) if counted is None else ops.where(kept, counted, 0.0)
    return reduced("cross_entropy", loss, reduction, share, counted)


def sequence_cross_entropy(
    logits: Any,
    labels: Any,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    sample_weights: Any = None,
    reduction: str = "mean",
) -> Any:
    """`cross_entropy` of float logits (batch, time, classes) and integer labels (batch, time), and nothing else.

    The mean is over all tokens that count, not a mean of means over sequences. `sample_weights` of shape (batch,) weigh
    whole sequences, those of shape (batch, time) single tokens. The logits at time t are compared with the label at t:
    shift the labels before. Raises `ShapeError` for other shapes.
    """
    logits, labels = as_tensor(logits), as_tensor(labels)
    if logits.ndim != 3 or labels.shape != logits.shape[:-1] or not is_integer(labels.dtype):
        raise ShapeError(
            "sequence_cross_entropy: logits (batch, time, classes) and integer labels (batch, time) are needed, found "
            f"{type_of(logits)} and {type_of(labels)}{place()}"
        )
    return cross_entropy(
        logits,
        labels,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        sample_weights=sample_weights,
        reduction=reduction,
    )


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
        position = f"[{', '.join(map(str, index))}]" if index else ""
        ignored = "" if ignore_index is None else f" or {ignore_index}, which is ignored"
        raise LabelError(
            f"labels{position} is {array[index]}, expected a class from 0 to {classes - 1}{ignored}; "
            f"{np.count_nonzero(wrong)} of {array.size} labels are none"
        )


def _check_present(labels: Any, classes: int, ignore_index: int | None, sample_weights: Any) -> None:
    """`check_labels` of the samples that count; nothing where that or the labels are traced."""
    if isinstance(labels, ops.Tensor) or isinstance(sample_weights, ops.Tensor):
        return
    if sample_weights is not None:
        weights = np.asarray(sample_weights)
        labels = np.where(weights.reshape(weights.shape + (1,) * (labels.ndim - weights.ndim)) != 0, labels, 0)
    check_labels(labels, classes, ignore_index)


def _classified(logits: Any, labels: Any, axis: int, ignore_index: int | None) -> tuple[Any, Any, int]:
    """Logits and labels of `cross_entropy`, checked against each other, in the types to compute with."""
    logits, labels = as_tensor(logits), as_tensor(labels)
    if not is_float(logits.dtype):
        raise DTypeError(f"cross_entropy: logits are float, found {type_of(logits)}{place()}")
    axis = normalize_axis(axis, logits, "cross_entropy")
    if is_integer(labels.dtype):
        expected = (*logits.shape[:axis], *logits.shape[axis + 1 :])
        labels = ops.convert(labels, "i32") if labels.dtype.itemsize < 4 else labels
    elif is_float(labels.dtype):
        expected = logits.shape
        if ignore_index is not None:
            raise SettingError("cross_entropy: ignore_index is for integer labels, found probabilities")
        labels = wide(labels)
    else:
        raise DTypeError(f"cross_entropy: labels are integers or probabilities, found {type_of(labels)}{place()}")
    if labels.shape != expected:
        kind = "integer labels" if is_integer(labels.dtype) else "probabilities"
        raise ShapeError(
            f"cross_entropy: {kind} for logits {type_of(logits)} with the classes along axis {axis} must have shape "
            f"{expected}, found {labels.shape}{place()}"
        )
    return wide(logits), labels, axis


def _class_weights(weights: Any, logits: Any, axis: int) -> Any:
    """The weights of the classes, shaped to broadcast along `axis`."""
    weights, classes = as_tensor(weights), logits.shape[axis]
    if weights.shape != (classes,):
        raise ShapeError(f"cross_entropy: weights must have shape ({classes},), found {weights.shape}{place()}")
    return _along(ops.convert(weights, logits.dtype), logits, axis)


def _along(vector: Any, like: Any, axis: int) -> Any:
    return ops.reshape(vector, tuple(-1 if own == axis else 1 for own in range(like.ndim)))


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
    counted = None if weights is None else ops.sum(ops.where(chosen, weights, 0.0), axis)
    if counted is not None:
        loss = ops.mul_no_nan(counted, loss)
    if smoothing:
        spread = _spread(shifted, total, axis, weights)
        loss = ops.add(ops.multiply(loss, 1 - smoothing), ops.multiply(spread, smoothing))
    is_class = ops.name(ops.logical_and(ops.greater_equal(labels, 0), ops.less(labels, classes)), "is_class")
    return ops.where(is_class, ops.name(loss, "nll"), float("nan")), counted


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
    return ops.mean(terms if weights is None else ops.mul_no_nan(weights, terms), axis)
