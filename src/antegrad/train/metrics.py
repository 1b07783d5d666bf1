"""Metrics: from predictions and targets to one value for each sample, which the training loop weights and averages.

    trainer = train.Trainer(model, losses.cross_entropy, optimizer, metrics={"accuracy": metrics.accuracy})

A value for each sample and not their mean, so that what fills up the last batch of an epoch counts nothing. For the
same reason there is no metric here that is not a mean over samples; `perplexity` is a function of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import accumulation_dtype, is_float, is_integer, type_of
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor, here
from antegrad.optim.settings import whole

__all__ = ["accuracy", "mean_absolute_error", "mean_squared_error", "perplexity", "top_k"]

Metric = Callable[[Any, Any], Any]


def accuracy(prediction: Any, target: Any) -> Any:
    """1 where the class with the highest score is the label, else 0.

    Shapes: scores (..., classes) and integer labels (...) give f32 (...).
    Edges: of equal scores the first counts as the highest. A sample with a label that is no class (also one that the
    loss ignores), or whose label has a NaN as score, counts as wrong; a NaN elsewhere in the row as a higher score.
    """
    return _among_best("accuracy", prediction, target, 1)


def top_k(k: int) -> Metric:
    """The metric that is 1 where the label is among the `k` classes with the highest scores, else 0.

    Shapes and edges: as `accuracy`, which is ``top_k(1)``. Raises `SettingError` for a `k` that is no whole number of
    at least 1, and `ShapeError` for predictions with fewer classes.
    """
    k = whole("top_k", "k", k, 1)
    name = f"top_{k}"

    def metric(prediction: Any, target: Any) -> Any:
        return _among_best(name, prediction, target, k)

    metric.__name__ = metric.__qualname__ = name
    return metric


def mean_absolute_error(prediction: Any, target: Any) -> Any:
    """``|prediction - target|``, averaged over all axes but the first.

    Shapes: float tensors (samples, ...) of one shape give (samples,); 16-bit floats are computed in f32.
    """
    prediction, target = _alike("mean_absolute_error", prediction, target)
    return _each_sample(ops.abs(ops.subtract(prediction, target)))


def mean_squared_error(prediction: Any, target: Any) -> Any:
    """``(prediction - target) ** 2``, averaged over all axes but the first.

    Shapes: float tensors (samples, ...) of one shape give (samples,); 16-bit floats are computed in f32.
    """
    prediction, target = _alike("mean_squared_error", prediction, target)
    return _each_sample(ops.square(ops.subtract(prediction, target)))


def perplexity(loss: Any) -> Any:
    """``exp(loss)`` of a mean cross-entropy in nats: of how many equally likely classes a guess has this loss.

    The mean comes first, so this is no metric of a trainer: take ``perplexity(history["val_loss"][-1])``.
    Shapes: any float tensor gives one of its shape; f32 for a Python number.
    Edges: a loss that f32 cannot hold the result of (above 88.7) gives inf.
    """
    return ops.exp(loss)


def _among_best(metric: str, prediction: Any, target: Any, k: int) -> Any:
    """1 where fewer than `k` classes have a higher score than the label.

    Counting them needs no sort, and a NaN, with which no comparison holds, cannot pass for a low score.
    """
    scores, labels = _classified(metric, as_tensor(prediction), as_tensor(target))
    classes = scores.shape[-1]
    if k > classes:
        raise misfit(f"{metric}: the scores are {type_of(scores)}, expected at least {k} classes along the last axis")
    places = ops.arange(classes, dtype=labels.dtype)
    labels = ops.expand_dims(labels, -1)
    chosen = ops.name(ops.equal(places, labels), "chosen")
    score = ops.sum(ops.where(chosen, scores, 0.0), -1, keepdims=True)
    tied = ops.logical_and(ops.equal(scores, score), ops.greater_equal(places, labels))
    not_higher = ops.name(ops.logical_or(ops.less(scores, score), tied), "not_higher")
    higher = classes - ops.sum(ops.convert(not_higher, "i32"), -1)
    return ops.convert(ops.logical_and(ops.any(chosen, -1), ops.less(higher, k)), "f32")


def _classified(metric: str, scores: Any, labels: Any) -> tuple[Any, Any]:
    """Scores and labels that fit each other, narrow labels as i32, in which all classes have a number."""
    found = f"scores {type_of(scores)} and labels {type_of(labels)}"
    if not is_float(scores.dtype) or not is_integer(labels.dtype):
        raise _wrong_type(f"{metric}: float scores and integer labels are needed, found {found}")
    if scores.ndim == 0 or scores.shape[:-1] != labels.shape:
        raise misfit(f"{metric}: labels have the shape of the scores without the last axis, found {found}")
    return scores, ops.convert(labels, "i32") if labels.dtype.itemsize < 4 else labels


def _alike(metric: str, prediction: Any, target: Any) -> list[Any]:
    """Float tensors of one shape with an axis for the samples, 16-bit ones as f32."""
    tensors = as_tensor(prediction), as_tensor(target)
    found = " and ".join(
        f"{name} {type_of(tensor)}" for name, tensor in zip(("prediction", "target"), tensors, strict=True)
    )
    if not all(is_float(tensor.dtype) for tensor in tensors):
        raise _wrong_type(f"{metric}: float tensors are needed, found {found}: use .astype(...)")
    if tensors[0].shape != tensors[1].shape or tensors[0].ndim == 0:
        raise misfit(f"{metric}: one shape with the samples along the first axis is needed, found {found}")
    return [ops.convert(tensor, accumulation_dtype(tensor.dtype)) for tensor in tensors]


def _each_sample(values: Any) -> Any:
    return ops.mean(values, tuple(range(1, values.ndim))) if values.ndim > 1 else values


def _wrong_type(message: str) -> DTypeError:
    """The error, with the user's line."""
    place = str(here())
    return DTypeError(f"{message}\n  at {place}" if place else message)
