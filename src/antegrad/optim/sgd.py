"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.errors import SettingError
from antegrad.optim import settings
from antegrad.optim.decay import decaying, penalized
from antegrad.optim.optimizer import (
    Mask,
    Optimizer,
    Schedule,
    State,
    in_state_type,
    labelled,
    moments,
    no_updates_yet,
    rate_at,
    rate_reading,
    step_leaves,
)


def sgd(
    learning_rate: float | Schedule,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Optimizer:
    """``b = momentum * b + g; p -= learning_rate * b``, with ``g + momentum * b`` in the place of b under `nesterov`.

    The state is ``{"count", "momentum"}``, without momentum ``{"count"}`` alone. The same steps as ``torch.optim.SGD``
    and ``optax.sgd``. Source: Sutskever et al., "On the importance of initialization and momentum in deep learning"
    (2013), in the form of torch, in which the learning rate multiplies the momentum.

    Arguments:
      learning_rate: a number >= 0, or a function of the number of updates done (see `antegrad.optim.schedules`).
      momentum: share of the last step that is kept, in [0, 1).
      nesterov: whether the step looks ahead along the momentum.
      weight_decay: factor of an L2 penalty, >= 0: g is ``gradient + weight_decay * p``, as in torch.
      mask: which parameters decay, as in `adamw`; None for all.
    Raises `SettingError` for a number outside its range, and for `nesterov` without momentum.
    """
    learning_rate = settings.learning_rate("sgd", learning_rate)
    momentum = settings.number("sgd", "momentum", momentum, "[0, 1)")
    weight_decay, decays = decaying("sgd", weight_decay, mask)
    if settings.flag("sgd", "nesterov", nesterov) and not momentum:
        raise SettingError("sgd: nesterov looks ahead along the momentum, and momentum is 0")

    def init(parameters: Any) -> State:
        zeros = moments("sgd", parameters)
        return {"count": no_updates_yet(), "momentum": zeros} if momentum else {"count": no_updates_yet()}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(learning_rate, state["count"])
        count = ops.name(ops.add(state["count"], 1), "new_count")

        def step(path: str, parameter: Any, gradient: Any, *last: Any) -> tuple[Any, ...]:
            gradient = in_state_type(gradient, parameter)
            if decays(path, parameter):
                gradient = penalized(gradient, parameter, weight_decay)
            if not last:
                return (labelled(ops.multiply(gradient, -rate), "update", path),)
            heavy = labelled(ops.add(ops.multiply(*last, momentum), gradient), "new_momentum", path)
            ahead = ops.add(ops.multiply(heavy, momentum), gradient) if nesterov else heavy
            return labelled(ops.multiply(ahead, -rate), "update", path), heavy

        slots = {"momentum": state["momentum"]} if momentum else {}
        updates, new = step_leaves("sgd", step, gradients, parameters, **slots)
        return updates, {"count": count, **new}

    return Optimizer("sgd", init, update, {"learning_rate": rate_reading(learning_rate)}, decays)
