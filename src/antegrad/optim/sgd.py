"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.optim.optimizer import (
    Optimizer,
    Schedule,
    State,
    labelled,
    map_leaves,
    moments,
    no_updates_yet,
    rate_at,
    rate_reading,
    wide,
)


def sgd(learning_rate: float | Schedule, momentum: float = 0.0, nesterov: bool = False) -> Optimizer:
    """``b = momentum * b + g; p -= learning_rate * b``, with ``g + momentum * b`` in the place of b under `nesterov`.

    The state is ``{"count", "momentum"}``, without momentum ``{"count"}`` alone. The same steps as ``torch.optim.SGD``
    and ``optax.sgd``. Source: Sutskever et al., "On the importance of initialization and momentum in deep learning"
    (2013), in the form of torch, in which the learning rate multiplies the momentum.

    Arguments:
      learning_rate: a number, or a function of the number of updates done (see `antegrad.optim.schedules`).
      momentum: share of the last step that is kept, in [0, 1).
    Raises `ValueError` for a momentum outside [0, 1), and for `nesterov` without momentum.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"sgd: momentum must be in [0, 1), found {momentum!r}")
    if nesterov and not momentum:
        raise ValueError("sgd: nesterov looks ahead along the momentum, and momentum is 0")

    def init(parameters: Any) -> State:
        zeros = moments("sgd", parameters)
        return {"count": no_updates_yet(), "momentum": zeros} if momentum else {"count": no_updates_yet()}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(learning_rate, state["count"])
        count = ops.name(ops.add(state["count"], 1), "new_count")

        def plain(path: str, _: Any, gradient: Any) -> tuple[Any]:
            return (labelled(ops.multiply(wide(gradient), -rate), "update", path),)

        def heavy(path: str, _: Any, gradient: Any, last: Any) -> tuple[Any, Any]:
            gradient = wide(gradient)
            step = labelled(ops.add(ops.multiply(last, momentum), gradient), "new_momentum", path)
            ahead = ops.add(ops.multiply(step, momentum), gradient) if nesterov else step
            return labelled(ops.multiply(ahead, -rate), "update", path), step

        trees = {"parameters": parameters, "gradients": gradients}
        if not momentum:
            return map_leaves("sgd", plain, **trees)[0], {"count": count}
        updates, steps = map_leaves("sgd", heavy, **trees, momentum=state["momentum"])
        return updates, {"count": count, "momentum": steps}

    return Optimizer("sgd", init, update, {"learning_rate": rate_reading(learning_rate)})
