"""Muon: momentum, orthogonalized."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from antegrad import ops, tree
from antegrad.errors import ShapeError
from antegrad.ir.types import type_of
from antegrad.optim import settings
from antegrad.optim.adam import adamw
from antegrad.optim.decay import decaying, shrunk
from antegrad.optim.optimizer import (
    Mask,
    Optimizer,
    Schedule,
    State,
    in_state_type,
    labelled,
    moments,
    moving_average,
    no_updates_yet,
    rate_at,
    rate_reading,
    step_leaves,
)
from antegrad.optim.partition import Selector, partitioned, selects

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial ``a x + b x**3 + c x**5``: five times on a number from 0.003 to 1 it gives 0.68 to 1.21."""


def matrices(path: str, parameter: Any) -> bool:
    """The mask of the tensors with two axes or more."""
    return parameter.ndim >= 2


def muon(
    learning_rate: float | Schedule,
    hidden: Selector = matrices,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
    rest: Optimizer | None = None,
    steps: int = 5,
    consistent_rms: float | None = None,
    stacked: Selector | None = None,
) -> Optimizer:
    """Muon for the hidden weights, another optimizer for the rest. With g the gradient of a matrix::

        m = momentum * m + (1 - momentum) * g       u = momentum * m + (1 - momentum) * g, or m without `nesterov`
        p -= learning_rate * (scale * orthogonalized(u) + weight_decay * p)

    orthogonalized brings the singular values near 1, by `steps` Newton-Schulz iterations, in f32 for 16-bit parameters.
    A matrix is (inputs, outputs), as in ``x @ w``; the kernel of a convolution becomes one by joining all axes but the
    last. scale is ``sqrt(max(1, outputs / inputs))``, or ``consistent_rms * sqrt(max(inputs, outputs))``, which for 0.2
    gives updates of the size of Adam's. Embeddings, the last layer, biases and gains belong to `rest`.

    The state is ``{"muon": {"count", "m"}, "adamw": ...}``. The same steps as ``torch.optim.Muon`` on the transposed
    weights, but for its arithmetic in bf16, and as ``optax.contrib.muon`` without nesterov (its nesterov has a bias
    correction). Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024);
    consistent_rms: Liu et al., "Muon is scalable for LLM training" (2025).

    Arguments:
      learning_rate: a number >= 0, or a function of the number of updates done (see `antegrad.optim.schedules`).
      hidden: which parameters are orthogonalized, as a pattern or a mask as in `groups`, such as
        ``lambda path, p: p.ndim >= 2 and not path.startswith(("embed", "head"))``.
      momentum: share of m that is kept, in [0, 1).
      nesterov: whether the step looks ahead along the momentum.
      weight_decay: share of a parameter that the step takes off, times the learning rate, >= 0 (decoupled).
      mask: which parameters decay, as in `adamw`; None for all.
      rest: the optimizer of the other parameters; None for `adamw` with the same rate, decay and mask.
      steps: Newton-Schulz iterations, >= 1.
      consistent_rms: > 0, or None.
      stacked: which of the hidden weights are stacks of layers along their first axis, each a matrix of its own.
    Raises `SettingError` for a number outside its range and for `hidden` without a parameter, `ShapeError` for a hidden
    weight that is no matrix.
    """
    matrix_part = _matrix_optimizer(
        learning_rate, momentum, nesterov, *decaying("muon", weight_decay, mask), steps, consistent_rms, stacked
    )
    rest = adamw(learning_rate, weight_decay=weight_decay, mask=mask) if rest is None else rest
    return replace(partitioned("muon", {hidden: matrix_part}, rest), kind="muon")


def _matrix_optimizer(
    learning_rate: float | Schedule,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    decays: Mask,
    steps: int,
    consistent_rms: float | None,
    stacked: Selector | None,
) -> Optimizer:
    learning_rate = settings.learning_rate("muon", learning_rate)
    momentum = settings.number("muon", "momentum", momentum, "[0, 1)")
    settings.flag("muon", "nesterov", nesterov)
    steps = settings.whole("muon", "steps", steps, 1)
    if consistent_rms is not None:
        consistent_rms = settings.number("muon", "consistent_rms", consistent_rms, "(0, inf)")

    def init(parameters: Any) -> State:
        for path, leaf in tree.named_leaves(parameters).items():
            _matrix_shape(path, leaf, stacked)
        return {"count": no_updates_yet(), "m": moments("muon", parameters)}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(learning_rate, state["count"])
        decay = ops.name(rate * weight_decay, "decay")

        def step(path: str, parameter: Any, gradient: Any, m: Any) -> tuple[Any, Any]:
            gradient = in_state_type(gradient, parameter)
            m = labelled(moving_average(m, gradient, momentum), "new_m", path)
            ahead = moving_average(m, gradient, momentum) if nesterov else m
            shape = _matrix_shape(path, parameter, stacked)
            direction = ops.reshape(orthogonalized(ops.reshape(ahead, shape), steps), parameter.shape)
            change = ops.multiply(direction, -rate * _scale(shape[-2], shape[-1], consistent_rms))
            if decays(path, parameter):
                change = shrunk(change, parameter, decay)
            return labelled(change, "update", path), m

        updates, new = step_leaves("muon", step, gradients, parameters, m=state["m"])
        return updates, {"count": ops.name(ops.add(state["count"], 1), "new_count"), **new}

    return Optimizer("muon", init, update, {"learning_rate": rate_reading(learning_rate)}, decays)


def _matrix_shape(path: str, parameter: Any, stacked: Selector | None) -> tuple[int, ...]:
    """The shape (inputs, outputs) in which a parameter is orthogonalized, behind the layers of a stack."""
    layers = parameter.shape[:1] if stacked is not None and selects(stacked, path, parameter) else ()
    sizes = parameter.shape[len(layers) :]
    if len(sizes) < 2:
        raise ShapeError(
            f"muon: the hidden weight {path or 'at the root'!r} is {type_of(parameter)}"
            f"{', a stack' if layers else ''}, and only matrices can be orthogonalized: leave it out of `hidden`"
        )
    return (*layers, math.prod(sizes[:-1]), sizes[-1])


def _scale(inputs: int, outputs: int, consistent_rms: float | None) -> float:
    if consistent_rms is None:
        return math.sqrt(max(1.0, outputs / inputs)) if inputs else 1.0
    return consistent_rms * math.sqrt(max(inputs, outputs))


def orthogonalized(x: Any, steps: int = 5, eps: float = 1e-8) -> Any:
    """Float (..., m, n) matrices ``U S V.T`` to about ``U V.T``: `steps` Newton-Schulz iterations from ``x / |x|``.

    After five, the singular values that were above 0.003 of ``|x|`` lie between 0.68 and 1.21. Zeros stay zeros.
    """
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    x = ops.swapaxes(x, -1, -2) if tall else x
    size = ops.sqrt(ops.sum(ops.square(x), (-2, -1), keepdims=True))
    x = ops.divide(x, ops.add(size, eps))
    for _ in range(steps):
        gram = ops.matmul(x, ops.swapaxes(x, -1, -2))
        factor = ops.add(ops.multiply(gram, b), ops.multiply(ops.matmul(gram, gram), c))
        x = ops.add(ops.multiply(x, a), ops.matmul(factor, x))
    return ops.swapaxes(x, -1, -2) if tall else x
