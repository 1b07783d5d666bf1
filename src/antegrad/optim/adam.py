"""Adam and AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.optim import settings
from antegrad.optim.decay import decaying, shrunk
from antegrad.optim.optimizer import (
    Mask,
    Optimizer,
    Schedule,
    State,
    bias_correction,
    labelled,
    moments,
    moving_average,
    no_updates_yet,
    rate_at,
    rate_reading,
    step_leaves,
)


def adam(learning_rate: float | Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Adam, with bias correction. With g the gradient and t = 1 for the first update::

        m = b1 * m + (1 - b1) * g           v = b2 * v + (1 - b2) * g * g
        p -= learning_rate * (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + eps)

    The state is ``{"count", "m", "v"}``; both moments are f32 for 16-bit parameters. Source: Kingma and Ba, "Adam: a
    method for stochastic optimization" (2015), algorithm 1, in the order of operations of its section 2: the
    corrections are scalars that are computed once a step. The same steps as ``torch.optim.Adam`` and ``optax.adam``.

    Arguments:
      learning_rate: a number, or a function of the number of updates done (see `antegrad.optim.schedules`).
      b1, b2: decay of the first and of the second moment, each in [0, 1).
      eps: added to the root of the corrected second moment, > 0.
    Raises `SettingError` for a number outside its range.
    """
    return _adam("adam", learning_rate, b1, b2, eps, 0.0, None)


def adamw(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    mask: Mask | None = None,
) -> Optimizer:
    """`adam` with decoupled weight decay: the step also takes ``learning_rate * weight_decay * p`` off, with the old p.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), with the decay scaled by the learning
    rate as in ``torch.optim.AdamW`` and ``optax.adamw``.

    Arguments:
      learning_rate, b1, b2, eps: as in `adam`.
      weight_decay: share of a parameter that the step takes off, times the learning rate, >= 0.
      mask: ``mask(path, parameter) -> bool``, whether a parameter decays; None for all, as in torch. `decay_matrices`
        leaves biases and gains alone; `decay_report` prints what a mask does.
    Raises `SettingError` for a number outside its range.
    """
    return _adam("adamw", learning_rate, b1, b2, eps, weight_decay, mask)


def _adam(
    kind: str,
    learning_rate: float | Schedule,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    mask: Mask | None,
) -> Optimizer:
    learning_rate = settings.learning_rate(kind, learning_rate)
    b1, b2 = settings.number(kind, "b1", b1, "[0, 1)"), settings.number(kind, "b2", b2, "[0, 1)")
    eps = settings.number(kind, "eps", eps, "(0, inf)")
    weight_decay, decays = decaying(kind, weight_decay, mask)

    def init(parameters: Any) -> State:
        return {"count": no_updates_yet(), "m": moments(kind, parameters), "v": moments(kind, parameters)}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(learning_rate, state["count"])
        decay = ops.name(rate * weight_decay, "decay")
        count = ops.name(ops.add(state["count"], 1), "new_count")
        scales: dict[np.dtype, tuple[Any, Any]] = {}

        def step(path: str, parameter: Any, gradient: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
            if m.dtype not in scales:
                scales[m.dtype] = _scales(count, rate, b1, b2, eps, m.dtype)
            step_size, floor = scales[m.dtype]
            gradient = ops.convert(gradient, m.dtype)
            m = labelled(moving_average(m, gradient, b1), "new_m", path)
            v = labelled(moving_average(v, ops.square(gradient), b2), "new_v", path)
            change = ops.divide(ops.multiply(m, step_size), ops.add(ops.sqrt(v), floor))
            if decays(path, parameter):
                change = shrunk(change, parameter, decay)
            return labelled(change, "update", path), m, v

        updates, new = step_leaves(kind, step, gradients, parameters, m=state["m"], v=state["v"])
        return updates, {"count": count, **new}

    return Optimizer(kind, init, update, {"learning_rate": rate_reading(learning_rate)}, decays)


def _scales(count: Any, rate: Any, b1: float, b2: float, eps: float, dtype: np.dtype) -> tuple[Any, Any]:
    """The two numbers that make ``m * step_size / (sqrt(v) + floor)`` the bias-corrected step down.

    ``m / c1 / (sqrt(v / c2) + eps)`` is ``m * (sqrt(c2) / c1) / (sqrt(v) + eps * sqrt(c2))``.
    """
    steps = ops.name(ops.convert(count, dtype), "t")
    root = ops.name(ops.sqrt(bias_correction(steps, b2)), "root")
    step_size = ops.divide(ops.multiply(root, -rate), bias_correction(steps, b1))
    return ops.name(step_size, "step_size"), ops.name(ops.multiply(root, eps), "floor")
