"""What a training step minimises, as one captured function: model, loss and metrics over a weighted batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from antegrad import nn, ops, tree
from antegrad.capture import capture
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.names import identifier
from antegrad.ir.program import Program
from antegrad.ir.types import DTYPES, is_float, spec, type_of
from antegrad.passes.simplify import simplify

KEY = spec((2,), "u32")
Loss = Callable[..., Any]


@dataclass(frozen=True)
class Objective:
    """A model with its loss and metrics.

    `loss` is called as ``loss(prediction, target, sample_weights=w, reduction="sums")`` when it takes these keywords,
    as all of `antegrad.losses` do. Another function of ``(prediction, target)`` must give one loss a sample (or an
    element, in the shape of the prediction or the target), or one scalar, the mean, for batches that are always whole.
    `metrics` give one value a sample each; they are weighted as the loss is.
    """

    model: Any
    loss: Loss
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return identifier(type(self.model).__name__.lower())

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The paths of what the optimizer changes."""
        state = nn.state_paths(self.model)
        return tuple(path for path in tree.named_leaves(self.model) if path not in state)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The paths of what the layers change."""
        state = nn.state_paths(self.model)
        return tuple(path for path in tree.named_leaves(self.model) if path in state)

    def leaves(self, parameters: Mapping[str, Any], state: Mapping[str, Any]) -> list[Any]:
        """The arrays of both, by path, in the order of the model's leaves."""
        values = {**parameters, **state}
        return [values[path] for path in tree.named_leaves(self.model)]

    def training(self, x: Any, y: Any, *, weighted: bool, mean: bool, ranks: int = 1) -> Program:
        """Model, batch, key and perhaps sample weights, to what is differentiated and what is reported.

        Outputs: the objective (the mean of the losses, or with ``mean=False`` their sum divided by
        `exact_scale` of the batch), then what `sums` gives, and every array of the state as the layers left it.
        `ranks` share the statistics of a batch.
        """

        def forward(model: Any, x: Any, y: Any, key: Any, weights: Any = None) -> Any:
            prediction, changed = nn.training_call(
                model, as_input(x), key=key, sample_weights=weights, ranks=ranks
            )
            sums = self.sums(ops.name(prediction, "prediction"), y, weights)
            named = tree.named_leaves(changed)
            # The sum is made smaller too, so that gradients of 16-bit parameters stay in range.
            objective = _quotient(*sums[:2]) if mean else sums[0] / exact_scale(batch_size(x))
            return ops.name(objective, "loss"), sums, [named[path] for path in self.state_names]

        weights = [spec((batch_size(x),))] if weighted else []
        program = capture(forward, self.model, x, y, KEY, *weights, name=self.name)
        loss = program.output_types[0]
        if loss.shape != () or not is_float(loss.dtype):
            needed = "a float scalar or one float a sample"
            raise ShapeError(f"the loss {_called(self.loss)} must give {needed}, found {loss}")
        return simplify(program)

    def evaluation(self, x: Any, y: Any, *, weighted: bool) -> Program:
        """Model, batch and perhaps sample weights to the sums of the losses, of the weights, and of each metric."""

        def evaluate(model: Any, x: Any, y: Any, weights: Any = None) -> Any:
            return self.sums(ops.name(model(as_input(x)), "prediction"), y, weights)

        weights = [spec((batch_size(x),))] if weighted else []
        return simplify(capture(evaluate, self.model, x, y, *weights, name=f"{self.name}_evaluation"))

    def prediction(self, x: Any) -> Program:
        """Model and batch to the model's result."""
        return simplify(capture(lambda model, x: model(as_input(x)), self.model, x, name=f"{self.name}_prediction"))

    def sums(self, prediction: Any, y: Any, weights: Any) -> list[Any]:
        """The sum of the losses and that of their weights; where there are metrics, of the samples' and of each metric.

        A loss may count otherwise than by samples, such as by tokens that are not ignored; metrics count samples.
        """
        size = batch_size(y if tree.leaves(y) else prediction)
        total, count = self._loss_sums(prediction, y, weights)
        found = [ops.name(total, "total"), ops.name(count, "count")]
        if self.metrics:
            samples = ops.full((), size, "f32") if weights is None else ops.sum(weights)
            found.append(ops.name(samples, "samples"))
        for name, metric in self.metrics.items():
            values = _checked(f"the metric {name!r}", metric(prediction, y), prediction, y, weights)
            mean = _weighted_mean(values, weights)
            found.append(mean * ops.convert(found[2], mean.dtype))
        return found

    @property
    def reported(self) -> int:
        """How many numbers `sums` gives."""
        return 2 + (1 + len(self.metrics) if self.metrics else 0)

    def means(self, sums: Sequence[float]) -> dict[str, float]:
        """``loss`` and each metric, of what `sums` gave for all batches together."""
        total, count, *rest = sums
        samples, metrics = (rest[0], rest[1:]) if rest else (0.0, [])
        means = {name: value / (samples or 1.0) for name, value in zip(self.metrics, metrics, strict=True)}
        return {"loss": total / (count or 1.0), **means}

    def _loss_sums(self, prediction: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        if _takes(self.loss, "sample_weights", "reduction"):
            return self.loss(prediction, y, sample_weights=weights, reduction="sums")
        what = f"the loss {_called(self.loss)}"
        values = _checked(what, self.loss(prediction, y), prediction, y, weights)
        if not is_float(values.dtype):
            raise DTypeError(f"{what} must give floats, found {type_of(values)}")
        mean = _weighted_mean(values, weights)
        size = batch_size(y if tree.leaves(y) else prediction)
        count = ops.full((), size, mean.dtype) if weights is None else ops.sum(weights)
        return mean * count, count


def as_input(x: Any) -> Any:
    """A batch as a model takes it: u8 images as f32 from 0 to 1, all else as it is."""
    return tree.map(lambda leaf: ops.convert(leaf, "f32") / 255 if leaf.dtype == np.uint8 else leaf, x)


def as_input_type(x: Any) -> Any:
    """The types that `as_input` gives."""
    return tree.map(lambda type: type.with_dtype(DTYPES["f32"]) if type.dtype == np.uint8 else type, x)


def exact_scale(size: int) -> int:
    """The largest power of two up to `size`: dividing by it, and multiplying by it later, rounds nothing."""
    return 1 << (size.bit_length() - 1)


def batch_size(x: Any) -> int:
    """The size of the first axis of a batch."""
    return type_of(tree.leaves(x)[0]).shape[0]


def _quotient(total: Any, count: Any) -> Any:
    return total / ops.where(count == 0, 1, count)


def _weighted_mean(values: Any, weights: Any) -> Any:
    """The mean of `values`, whose first axis are the samples, in f32."""
    values = ops.convert(values, "f32") if values.dtype != np.float64 else values
    if weights is None:
        return ops.mean(values)
    each = ops.mean(ops.reshape(values, (values.shape[0], -1)), 1) if values.ndim > 1 else values
    kept = ops.where(weights == 0, 0, each)
    return _quotient(ops.sum(kept * weights), ops.sum(weights))


def _checked(what: str, values: Any, prediction: Any, y: Any, weights: Any) -> Any:
    """`values`, if they are one a sample or one an element, or a mean where no sample has to be left out."""
    shape = getattr(values, "shape", None)
    if shape is None:
        raise ShapeError(f"{what} must give one value a sample, found {type(values).__name__}")
    if shape == () and weights is not None:
        raise ShapeError(
            f"{what} gives one scalar, so the samples that fill the last batch up cannot be left out: give one "
            "value a sample, or take a batch size that divides the number of samples"
        )
    size = batch_size(y if tree.leaves(y) else prediction)
    if shape != () and shape[0] != size:
        raise ShapeError(f"{what} must give one value a sample, of which there are {size}, found {type_of(values)}")
    known = tree.leaves((prediction, y))
    if len(shape) > 1 and all(leaf.shape[: len(shape)] != shape for leaf in known):
        found = ", ".join(str(type_of(leaf)) for leaf in known)
        raise ShapeError(
            f"{what} gives {type_of(values)} for {found}, which is neither one value a sample nor one an element: "
            "reshape what was broadcast, or take the mean over the other axes"
        )
    return values


def _takes(function: Callable[..., Any], *keywords: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return all(keyword in parameters for keyword in keywords)


def _called(function: Callable[..., Any]) -> str:
    return repr(getattr(function, "__name__", function))


def batch_type(arrays: Any, size: int) -> Any:
    """The types of a batch of `size` rows of `arrays`, an array or a pytree of them or of their types."""
    return tree.map(lambda leaf: type_of(leaf).with_shape((size, *leaf.shape[1:])), arrays)
