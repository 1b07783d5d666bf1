"""Transforms of gradients, and `chain`, which puts them before an optimizer."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from antegrad import ops, tree
from antegrad.errors import SettingError
from antegrad.optim import settings
from antegrad.optim.optimizer import (
    Optimizer,
    Reading,
    State,
    global_norm,
    labelled,
    map_leaves,
    no_change,
    wide,
)


def clip_by_global_norm(max_norm: float) -> Optimizer:
    """All gradients times ``min(1, max_norm / norm)``, with `global_norm` of all of them together.

    A norm that is inf or NaN means that the step is left out: the gradients become 0 and the count in the state
    ``{"skipped"}`` grows by one. `chain` then also keeps parameters, moments and step counts of what follows as they
    were. Source: Pascanu et al., "On the difficulty of training recurrent neural networks" (2013).

    Raises `SettingError` unless `max_norm` is in [0, inf).
    """
    max_norm = settings.number("clip_by_global_norm", "max_norm", max_norm, "[0, inf)")

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        norm = global_norm(gradients)
        finite = ops.name(ops.isfinite(norm), "finite")
        scale = ops.name(ops.where(ops.greater(norm, max_norm), ops.divide(max_norm, norm), 1.0), "scale")

        def clipped(path: str, gradient: Any) -> Any:
            gradient = wide(gradient)
            scaled = ops.multiply(gradient, ops.convert(scale, gradient.dtype))
            return labelled(ops.where(finite, scaled, 0.0), "clipped", path)

        result = map_leaves("clip_by_global_norm", clipped, gradients=gradients)
        skipped = ops.add(state["skipped"], ops.convert(ops.logical_not(finite), "i32"))
        return result, {"skipped": ops.name(skipped, "new_skipped")}

    def init(parameters: Any) -> State:
        return {"skipped": ops.zeros((), "i32")}

    return Optimizer("clip_by_global_norm", init, update, {"skipped": itemgetter("skipped")})


def clip_by_value(max_value: float) -> Optimizer:
    """Every element of the gradients moved into [-max_value, max_value]; NaN stays NaN. Without state.

    Raises `SettingError` unless `max_value` is in [0, inf].
    """
    max_value = settings.number("clip_by_value", "max_value", max_value, "[0, inf]")

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        return tree.map(lambda gradient: ops.clip(gradient, -max_value, max_value), gradients), state

    return Optimizer("clip_by_value", lambda parameters: {}, update)


def chain(*parts: Optimizer) -> Optimizer:
    """One optimizer from transforms and an optimizer: each part's updates are the gradients of the next.

    The state has one entry for each part under its kind (``clip_by_global_norm.skipped``, ``adam.m.0.w``), with a
    number behind a kind that stands there before: ``clip_by_value_2``. When a part leaves a step out, no parameter
    changes and the states of the other parts stay as they are.

    Raises `SettingError` for no parts, for what is no optimizer, and for an `ema` that is not the last part.
    """
    _check_parts(parts)
    members = named_by_kind(parts)

    def init(parameters: Any) -> State:
        return {name: part.init(parameters) for name, part in members.items()}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        updates, new, skips = gradients, {}, {}
        for name, part in members.items():
            updates, new[name] = part.update(updates, state[name], parameters)
            if (skipped := part.readings.get("skipped")) is not None:
                skips[name] = ops.name(ops.not_equal(skipped(new[name]), skipped(state[name])), "skip")
        for name in members:
            new[name] = _kept([skip for other, skip in skips.items() if other != name], state[name], new[name])
        return (_kept(list(skips.values()), tree.map(no_change, updates), updates) if skips else updates), new

    def decays(path: str, parameter: Any) -> bool:
        return any(part.decays(path, parameter) for part in parts)

    return Optimizer("+".join(part.kind for part in parts), init, update, merged_readings(members), decays)


def _check_parts(parts: Sequence[Any]) -> None:
    if not parts:
        raise SettingError("chain: at least one optimizer or transform is needed")
    for part in parts:
        if not isinstance(part, Optimizer):
            settings.refuse("chain", "each part", "an Optimizer", part)
    if any("ema" in re.split(r"[+|]", part.kind) for part in parts[:-1]):
        raise SettingError("chain: ema stands last, because it averages the parameters after the whole update")


def named_by_kind(parts: Sequence[Optimizer]) -> dict[str, Optimizer]:
    """The parts by their kinds, with a number behind a kind that stands there before."""
    kinds = [part.kind for part in parts]
    names = [f"{kind}_{n}" if (n := kinds[: i + 1].count(kind)) > 1 else kind for i, kind in enumerate(kinds)]
    return dict(zip(names, parts, strict=True))


def _kept(skips: Sequence[Any], old: Any, new: Any) -> Any:
    """The tree `old` if any of `skips` is true, else `new`."""
    if not skips:
        return new
    skip = functools.reduce(ops.logical_or, skips)
    return tree.map(lambda before, after: ops.where(skip, before, after), old, new)


def merged_readings(members: Mapping[str, Optimizer]) -> dict[str, Reading]:
    """The readings of all members from a state with one entry for each.

    Counts of skipped steps are added. What else two members read, the later one reads under its name:
    ``learning_rate_adam_2``.
    """
    readings: dict[str, Reading] = {}
    for name, part in members.items():
        for key, reading in part.readings.items():
            own = functools.partial(lambda name, reading, state: reading(state[name]), name, reading)
            if key not in readings:
                readings[key] = own
            elif key == "skipped":
                readings[key] = _sum_of(readings[key], own)
            else:
                readings[f"{key}_{name}"] = own
    return readings


def _sum_of(first: Reading, second: Reading) -> Reading:
    return lambda state: ops.add(first(state), second(state))
