"""A moving average of the weights, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from antegrad import ops, tree
from antegrad.errors import SettingError, ShapeError
from antegrad.optim import settings
from antegrad.optim.optimizer import (
    Optimizer,
    State,
    apply_updates,
    bias_correction,
    check_parameters,
    labelled,
    map_leaves,
    no_updates_yet,
    wide,
)


def ema(decay: float, debias: bool = False) -> Optimizer:
    """A transform at the end of a `chain`: ``average += share * (p - average)``, with p the updated parameters.

    ``chain(adamw(3e-4), ema(0.999))`` trains as adamw does: updates pass unchanged. The share is ``1 - decay``, and the
    average begins with the parameters of `init`. With `debias` it is ``(1 - decay) / (1 - decay**t)`` in step t: the
    first is 1, so that nothing is left of what training began with, and the average is that of Adam's bias correction.
    A step that another part of the chain leaves out changes neither average nor count.

    The state is ``{"count", "average"}``, its own count and f32 for 16-bit parameters; `averaged` reads it. Source:
    Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992), with geometric weights.

    Arguments:
      decay: how much of the average is kept in a step, in [0, 1): about ``1 / (1 - decay)`` steps are averaged.
      debias: whether the average is that of the updated parameters alone.
    Raises `SettingError` for a number outside its range.
    """
    decay = settings.number("ema", "decay", decay, "[0, 1)")
    settings.flag("ema", "debias", debias)

    def init(parameters: Any) -> State:
        check_parameters("ema", parameters)
        return {"count": no_updates_yet(), "average": tree.map(_copied, parameters)}

    def update(updates: Any, state: State, parameters: Any) -> tuple[Any, State]:
        count = ops.name(ops.add(state["count"], 1), "new_count")

        def moved(path: str, average: Any, parameter: Any) -> Any:
            share: Any = 1 - decay
            if debias:
                share = ops.name(ops.divide(share, bias_correction(ops.convert(count, average.dtype), decay)), "share")
            away = ops.subtract(wide(parameter), average)
            return labelled(ops.add(average, ops.multiply(away, share)), "new_average", path)

        stepped = apply_updates(parameters, updates)
        return updates, {"count": count, "average": map_leaves("ema", moved, average=state["average"], new=stepped)}

    return Optimizer("ema", init, update)


def averaged(state: State, parameters: Any) -> Any:
    """The averaged weights that `ema` keeps in `state`, in the structure and the element types of `parameters`.

    A parameter of which there is no average, such as one that `freeze` left out, is returned as it is.

    Arguments:
      state: the state of an optimizer with an `ema`, however deep, or the entry of one `ema` in it.
      parameters: the current parameters.
    Raises `SettingError` for a state without an average and for two averages of one parameter, and `ShapeError` where
    an average does not fit the parameters.
    """
    pairs = list(_averages(state))
    averages = dict(pairs)
    if not pairs:
        raise SettingError("averaged: the state has no average of the weights: put optim.ema(...) last in a chain")
    if len(averages) < len(pairs):
        raise SettingError("averaged: the state has two averages of the weights: pass one entry, such as 'ema_2'")
    named = tree.named_leaves(parameters)
    for path, average in averages.items():
        if path not in named or named[path].shape != average.shape:
            found = f"shape {named[path].shape}" if path in named else "nothing"
            raise ShapeError(f"averaged: at {path!r} the average has shape {average.shape} and parameters has {found}")
    leaves = [ops.convert(averages.get(path, leaf), leaf.dtype) for path, leaf in named.items()]
    return tree.unflatten(tree.structure(parameters), leaves)


def _averages(state: Any) -> Iterator[tuple[str, Any]]:
    """Path and average of each parameter, for every `ema` in `state`."""
    if not isinstance(state, Mapping):
        return
    if set(state) == {"count", "average"}:
        yield from tree.named_leaves(state["average"]).items()
    else:
        for entry in state.values():
            yield from _averages(entry)


def _copied(leaf: Any) -> Any:
    """A leaf in the type of the state and in memory of its own, because parameters and state are both donated."""
    return ops.add(wide(leaf), -0.0)
