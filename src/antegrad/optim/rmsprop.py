"""RMSProp."""

from __future__ import annotations

from typing import Any

from antegrad import ops
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
    moving_average,
    no_updates_yet,
    rate_at,
    rate_reading,
    step_leaves,
)


def rmsprop(
    learning_rate: float | Schedule,
    decay: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Optimizer:
    """RMSProp: the gradient over the root of the mean of its squares. With g the gradient::

        v = decay * v + (1 - decay) * g * g
        b = momentum * b + g / (sqrt(v) + eps)
        p -= learning_rate * b

    `centered` takes the square of the mean ``m = decay * m + (1 - decay) * g`` off v, which leaves the variance of g
    (never below 0, where torch can give NaN). The state is ``{"count", "v"}`` and ``"m"`` and ``"momentum"`` where they
    are used, f32 for 16-bit parameters. The same steps as ``torch.optim.RMSprop``. `optax.rmsprop` differs: eps stands
    within the root unless ``eps_in_sqrt=False``, decay is 0.9, the learning rate multiplies what enters the momentum
    (the same while the rate is constant), and there is no weight decay.
    Source: Tieleman and Hinton, "Lecture 6.5: RMSProp" (2012); centered: Graves, "Generating sequences with recurrent
    neural networks" (2013).

    Arguments:
      learning_rate: a number >= 0, or a function of the number of updates done (see `antegrad.optim.schedules`).
      decay: of the means, in [0, 1); torch calls it alpha.
      eps: added to the root, > 0.
      momentum: share of the last step that is kept, in [0, 1).
      centered: whether to divide by the standard deviation.
      weight_decay: factor of an L2 penalty, >= 0: g is ``gradient + weight_decay * p``, as in torch.
      mask: which parameters decay, as in `adamw`; None for all.
    Raises `SettingError` for a number outside its range.
    """
    learning_rate = settings.learning_rate("rmsprop", learning_rate)
    decay = settings.number("rmsprop", "decay", decay, "[0, 1)")
    eps = settings.number("rmsprop", "eps", eps, "(0, inf)")
    momentum = settings.number("rmsprop", "momentum", momentum, "[0, 1)")
    weight_decay, decays = decaying("rmsprop", weight_decay, mask)
    optional = {"m": settings.flag("rmsprop", "centered", centered), "momentum": bool(momentum)}
    slots = ["v", *(slot for slot, used in optional.items() if used)]

    def init(parameters: Any) -> State:
        return {"count": no_updates_yet(), **{slot: moments("rmsprop", parameters) for slot in slots}}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(learning_rate, state["count"])

        def step(path: str, parameter: Any, gradient: Any, *old: Any) -> tuple[Any, ...]:
            new = dict(zip(slots, old, strict=True))
            gradient = in_state_type(gradient, parameter)
            if decays(path, parameter):
                gradient = penalized(gradient, parameter, weight_decay)
            new["v"] = labelled(moving_average(new["v"], ops.square(gradient), decay), "new_v", path)
            spread = new["v"]
            if centered:
                new["m"] = labelled(moving_average(new["m"], gradient, decay), "new_m", path)
                spread = ops.maximum(ops.subtract(spread, ops.square(new["m"])), 0.0)
            change = ops.divide(gradient, ops.add(ops.sqrt(spread), eps))
            if momentum:
                change = ops.add(ops.multiply(new["momentum"], momentum), change)
                new["momentum"] = labelled(change, "new_momentum", path)
            return labelled(ops.multiply(change, -rate), "update", path), *new.values()

        old = {slot: state[slot] for slot in slots}
        updates, new = step_leaves("rmsprop", step, gradients, parameters, **old)
        return updates, {"count": ops.name(ops.add(state["count"], 1), "new_count"), **new}

    return Optimizer("rmsprop", init, update, {"learning_rate": rate_reading(learning_rate)}, decays)
