"""Lion."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.optim import settings
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


def lion(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Optimizer:
    """Lion: every element moves by one learning rate, in the direction of a mean of gradients. With g the gradient::

        p -= learning_rate * (sign(b1 * m + (1 - b1) * g) + weight_decay * p)
        m = b2 * m + (1 - b2) * g

    The sign of 0 is 0. The state is ``{"count", "m"}``, with m in f32 for 16-bit parameters. The same steps as
    ``optax.lion``, whose weight decay is 1e-3. A rate 3 to 10 times smaller than for Adam, and a decay as many times
    larger, are a good start. Source: Chen et al., "Symbolic discovery of optimization algorithms" (2023).

    Arguments:
      learning_rate: a number >= 0, or a function of the number of updates done (see `antegrad.optim.schedules`).
      b1: share of m in the direction, in [0, 1).
      b2: decay of m, in [0, 1).
      weight_decay: share of a parameter that the step takes off, times the learning rate, >= 0 (decoupled).
      mask: which parameters decay, as in `adamw`; None for all.
    Raises `SettingError` for a number outside its range.
    """
    learning_rate = settings.learning_rate("lion", learning_rate)
    b1, b2 = settings.number("lion", "b1", b1, "[0, 1)"), settings.number("lion", "b2", b2, "[0, 1)")
    weight_decay, decays = decaying("lion", weight_decay, mask)

    def init(parameters: Any) -> State:
        return {"count": no_updates_yet(), "m": moments("lion", parameters)}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(learning_rate, state["count"])
        decay = ops.name(rate * weight_decay, "decay")

        def step(path: str, parameter: Any, gradient: Any, m: Any) -> tuple[Any, Any]:
            gradient = in_state_type(gradient, parameter)
            change = ops.multiply(ops.sign(moving_average(m, gradient, b1)), -rate)
            if decays(path, parameter):
                change = shrunk(change, parameter, decay)
            m = labelled(moving_average(m, gradient, b2), "new_m", path)
            return labelled(change, "update", path), m

        updates, new = step_leaves("lion", step, gradients, parameters, m=state["m"])
        return updates, {"count": ops.name(ops.add(state["count"], 1), "new_count"), **new}

    return Optimizer("lion", init, update, {"learning_rate": rate_reading(learning_rate)}, decays)
