"""Transforms of gradients, and `chain`, which puts them before an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from antegrad import ops, tree
from antegrad.optim.optimizer import Optimizer, Reading, State, global_norm, labelled, map_leaves, wide


def clip_by_global_norm(max_norm: float) -> Optimizer:
    """All gradients times ``min(1, max_norm / norm)``, with `global_norm` of all of them together.

    A norm that is inf or NaN means that the step is left out: the gradients become 0 and the count in the state
    ``{"skipped"}`` grows by one. `chain` then also keeps parameters, moments and step counts of what follows as they
    were. Source: Pascanu et al., "On the difficulty of training recurrent neural networks" (2013).

    Raises `ValueError` for a negative or infinite `max_norm`.
    """
    if not 0 <= max_norm < float("inf"):
        raise ValueError(f"clip_by_global_norm: max_norm must be a finite number >= 0, found {max_norm!r}")

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        norm = global_norm(gradients)
        finite = ops.name(ops.isfinite(norm), "finite")
        scale = ops.name(ops.where(ops.greater(norm, max_norm), ops.divide(max_norm, norm), 1.0), "scale")

        def clipped(path: str, gradient: Any) -> tuple[Any]:
            gradient = wide(gradient)
            scaled = ops.multiply(gradient, ops.convert(scale, gradient.dtype))
            return (labelled(ops.where(finite, scaled, 0.0), "clipped", path),)

        (result,) = map_leaves("clip_by_global_norm", clipped, gradients=gradients)
        skipped = ops.add(state["skipped"], ops.convert(ops.logical_not(finite), "i32"))
        return result, {"skipped": ops.name(skipped, "new_skipped")}

    def init(parameters: Any) -> State:
        return {"skipped": ops.zeros((), "i32")}

    return Optimizer("clip_by_global_norm", init, update, {"skipped": itemgetter("skipped")})


def clip_by_value(max_value: float) -> Optimizer:
    """Every element of the gradients moved into [-max_value, max_value]; NaN stays NaN. Without state.

    Raises `ValueError` for a negative `max_value`.
    """
    if not max_value >= 0:
        raise ValueError(f"clip_by_value: max_value must be >= 0, found {max_value!r}")

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        return tree.map(lambda gradient: ops.clip(gradient, -max_value, max_value), gradients), state

    return Optimizer("clip_by_value", lambda parameters: {}, update)


def chain(*parts: Optimizer) -> Optimizer:
    """One optimizer from transforms and an optimizer: each part's updates are the gradients of the next.

    The state has one entry for each part under its kind (``clip_by_global_norm.skipped``, ``adam.m.0.w``), with a
    number behind a kind that stands there before: ``clip_by_value_2``. When a part leaves a step out, all updates are
    0 and the states of the other parts stay as they are.

    Raises `ValueError` for no parts.
    """
    if not parts:
        raise ValueError("chain: at least one optimizer or transform is needed")
    members = dict(zip(_unique([part.kind for part in parts]), parts, strict=True))

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
        return (_kept(list(skips.values()), tree.map(ops.zeros_like, updates), updates) if skips else updates), new

    return Optimizer("+".join(part.kind for part in parts), init, update, _merged_readings(members))


def _unique(kinds: Sequence[str]) -> list[str]:
    """The kinds with a number behind each one that stands there before."""
    return [f"{kind}_{n}" if (n := kinds[: i + 1].count(kind)) > 1 else kind for i, kind in enumerate(kinds)]


def _kept(skips: Sequence[Any], old: Any, new: Any) -> Any:
    """The tree `old` if any of `skips` is true, else `new`."""
    if not skips:
        return new
    skip = functools.reduce(ops.logical_or, skips)
    return tree.map(lambda before, after: ops.where(skip, before, after), old, new)


def _merged_readings(members: Mapping[str, Optimizer]) -> dict[str, Reading]:
    """The readings of all parts from the state of the chain; their counts of skipped steps are added."""
    readings: dict[str, Reading] = {}
    for name, part in members.items():
        for key, reading in part.readings.items():
            own = functools.partial(lambda name, reading, state: reading(state[name]), name, reading)
            earlier = readings.get(key) if key == "skipped" else None
            readings[key] = own if earlier is None else _sum_of(earlier, own)
    return readings


def _sum_of(first: Reading, second: Reading) -> Reading:
    return lambda state: ops.add(first(state), second(state))
