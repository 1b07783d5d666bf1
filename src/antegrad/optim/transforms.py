"""Transforms of gradients, and `chain`, which puts them before an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antegrad import ops, tree
from antegrad.optim.optimizer import Optimizer, State, global_norm, labelled, wide


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

        def clipped(gradient: Any) -> Any:
            gradient = wide(gradient)
            return ops.where(finite, ops.multiply(gradient, ops.convert(scale, gradient.dtype)), 0.0)

        skipped = ops.add(state["skipped"], ops.convert(ops.logical_not(finite), "i32"))
        return tree.map(clipped, gradients), {"skipped": ops.name(skipped, "skipped")}

    return Optimizer("clip_by_global_norm", lambda parameters: {"skipped": ops.zeros((), "i32")}, update, dict)


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
    names = _unique([part.kind for part in parts])
    members = dict(zip(names, parts, strict=True))

    def init(parameters: Any) -> State:
        return {name: part.init(parameters) for name, part in members.items()}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        updates, new, skips = gradients, {}, {}
        for name, part in members.items():
            updates, new[name] = part.update(updates, state[name], parameters)
            if "skipped" in (report := part.report(new[name])):
                skips[name] = ops.not_equal(report["skipped"], part.report(state[name])["skipped"])
        for name in members:
            new[name] = _unless([skip for other, skip in skips.items() if other != name], state[name], new[name])
        return _unless(list(skips.values()), tree.map(ops.zeros_like, updates), updates), new

    def report(state: State) -> dict[str, Any]:
        reports = [part.report(state[name]) for name, part in members.items()]
        merged = {key: value for found in reports for key, value in found.items()}
        skipped = [found["skipped"] for found in reports if "skipped" in found]
        return merged | ({"skipped": sum(skipped[1:], skipped[0])} if skipped else {})

    return Optimizer("+".join(part.kind for part in parts), init, update, report)
