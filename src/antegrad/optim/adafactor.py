"""Adafactor."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops, tree
from antegrad.ir.types import accumulation_dtype
from antegrad.optim import settings
from antegrad.optim.decay import decaying, shrunk
from antegrad.optim.optimizer import (
    Mask,
    Optimizer,
    Schedule,
    State,
    check_parameters,
    in_state_type,
    labelled,
    no_updates_yet,
    rate_at,
    rate_reading,
    step_leaves,
    wide,
)


def adafactor(
    learning_rate: float | Schedule | None = None,
    decay_rate: float = 0.8,
    clip_threshold: float = 1.0,
    eps: float = 1e-30,
    scale_parameter: bool = True,
    smallest_scale: float = 1e-3,
    smallest_factored: int = 128,
    weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Optimizer:
    """Adafactor: Adam's second moment kept as a row and a column. With g (n, m) the gradient and t = 1 at first::

        share = t ** -decay_rate
        row = (1 - share) * row + share * mean(g * g + eps, -1)             column likewise, along -2
        u = g / sqrt(row * column / mean(row))                              u = u / max(1, rms(u) / clip_threshold)
        p -= learning_rate * (max(smallest_scale, rms(p)) * u + weight_decay * p)

    rms is the root of the mean of squares. A tensor of more axes has a row and a column for each matrix of its last two
    axes; one whose last two sizes are not both `smallest_factored` or more keeps the whole moment v. The state is
    ``{"count", "row", "column", "v"}``, each by path and f32 for 16-bit parameters. Source: Shazeer and Stern,
    "Adafactor: adaptive learning rates with sublinear memory cost" (2018), algorithms 4 and 6.

    The same steps as ``optax.adafactor`` for tensors of two axes (it factors the two longest of more) and without
    decay, which it does not scale by the learning rate; and as ``torch.optim.Adafactor`` where it matters little that
    its eps is a bound, with ``lr=0.01`` for no learning rate here.

    Arguments:
      learning_rate: a number >= 0, a function of the number of updates done, or None for the relative step of the
        paper, ``min(0.01, 1 / sqrt(t))``.
      decay_rate: how fast the share of a new gradient in the moments falls, in (0, 1].
      clip_threshold: largest rms of u, > 0; inf for no clipping.
      eps: added to the squares, > 0.
      scale_parameter: whether a step is in proportion to the rms of the parameter, which is at least `smallest_scale`
        (> 0).
      smallest_factored: size from which two axes are factored, >= 1.
      weight_decay: share of a parameter that the step takes off, times the learning rate, >= 0 (decoupled).
      mask: which parameters decay, as in `adamw`; None for all.
    Raises `SettingError` for a number outside its range.
    """
    step_size = settings.learning_rate("adafactor", _relative_step if learning_rate is None else learning_rate)
    decay_rate = settings.number("adafactor", "decay_rate", decay_rate, "(0, 1]")
    clip_threshold = settings.number("adafactor", "clip_threshold", clip_threshold, "(0, inf]")
    eps = settings.number("adafactor", "eps", eps, "(0, inf)")
    smallest_scale = settings.number("adafactor", "smallest_scale", smallest_scale, "(0, inf)")
    smallest_factored = settings.whole("adafactor", "smallest_factored", smallest_factored, 1)
    settings.flag("adafactor", "scale_parameter", scale_parameter)
    weight_decay, decays = decaying("adafactor", weight_decay, mask)

    def init(parameters: Any) -> State:
        check_parameters("adafactor", parameters)
        state: State = {"count": no_updates_yet(), "row": {}, "column": {}, "v": {}}
        for path, leaf in tree.named_leaves(parameters).items():
            for slot, shape in _slots(leaf.shape, smallest_factored).items():
                state[slot][path] = ops.zeros(shape, accumulation_dtype(leaf.dtype))
        return state

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        rate = rate_at(step_size, state["count"])
        decay = ops.name(rate * weight_decay, "decay")
        count = ops.name(ops.add(state["count"], 1), "new_count")
        new: State = {"count": count, "row": {}, "column": {}, "v": {}}

        def step(path: str, parameter: Any, gradient: Any) -> tuple[Any]:
            gradient = in_state_type(gradient, parameter)
            share = _share(count, decay_rate, gradient.dtype)
            squares = ops.add(ops.square(gradient), eps)
            moments = {}
            for slot in _slots(parameter.shape, smallest_factored):
                moments[slot] = labelled(_moved(slot, state[slot][path], squares, share), f"new_{slot}", path)
                new[slot][path] = moments[slot]
            change = ops.multiply(gradient, _inverse_root(**moments))
            if clip_threshold < float("inf"):
                change = ops.divide(change, ops.maximum(ops.divide(_rms(change), clip_threshold), 1.0))
            if scale_parameter:
                change = ops.multiply(change, ops.maximum(_rms(wide(parameter)), smallest_scale))
            change = ops.multiply(change, -rate)
            if decays(path, parameter):
                change = shrunk(change, parameter, decay)
            return (labelled(change, "update", path),)

        return step_leaves("adafactor", step, gradients, parameters)[0], new

    return Optimizer("adafactor", init, update, {"learning_rate": rate_reading(step_size)}, decays)


def _relative_step(count: Any) -> Any:
    """``min(0.01, 1 / sqrt(t))``."""
    return ops.minimum(ops.rsqrt(ops.add(ops.convert(count, "f32"), 1.0)), 0.01)


def _share(count: Any, decay_rate: float, dtype: np.dtype) -> Any:
    """``t ** -decay_rate``, exactly 1 for t = 1."""
    return ops.name(ops.exp(ops.multiply(ops.log(ops.convert(count, dtype)), -decay_rate)), "share")


def _slots(shape: tuple[int, ...], smallest_factored: int) -> dict[str, tuple[int, ...]]:
    """The moments of a parameter, with their shapes."""
    if len(shape) >= 2 and min(shape[-2:]) >= smallest_factored:
        return {"row": shape[:-1], "column": (*shape[:-2], shape[-1])}
    return {"v": shape}


def _moved(slot: str, moment: Any, squares: Any, share: Any) -> Any:
    """A moment after one more gradient, whose squares have the given share."""
    new = squares if slot == "v" else ops.mean(squares, -1 if slot == "row" else -2)
    return ops.add(ops.multiply(moment, ops.subtract(1.0, share)), ops.multiply(new, share))


def _inverse_root(row: Any = None, column: Any = None, v: Any = None) -> Any:
    """``1 / sqrt(v)``, with v from its row and column where it is factored; their product alone could underflow."""
    if v is not None:
        return ops.rsqrt(v)
    relative = ops.divide(row, ops.mean(row, -1, keepdims=True))
    return ops.multiply(ops.expand_dims(ops.rsqrt(relative), -1), ops.expand_dims(ops.rsqrt(column), -2))


def _rms(x: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(x)))
