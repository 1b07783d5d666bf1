"""Different optimizers for different parameters, and parameters that stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from antegrad import tree
from antegrad.errors import SettingError
from antegrad.optim import settings
from antegrad.optim.optimizer import Mask, Optimizer, State, map_leaves, no_change, wide
from antegrad.optim.transforms import merged_readings, named_by_kind

Selector = str | Mask
"""Some parameters: a pattern for their paths, such as ``"blocks.*.w"``, or a mask."""


def groups(optimizers: Mapping[Selector, Optimizer], default: Optimizer | None = None) -> Optimizer:
    """One optimizer from several: each trains the parameters that are chosen for it, as if there were no others.

    ::

        optim.groups({"embed.*": optim.sgd(0.1), lambda path, p: p.ndim < 2: optim.adam(1e-3)}, optim.adamw(1e-3))

    The state has one entry for each optimizer under its kind, as in `chain` (``adam.m.0.w``, ``adam_2.m.1.w``). The
    learning rate of the first is read as ``learning_rate``, those of the others as ``learning_rate_adam_2``. A gradient
    that is not finite is left out by the group that clips it; put the clipping before the groups for all of them.

    Arguments:
      optimizers: by pattern or by mask. A pattern is compared with the whole path of a parameter, in which ``*`` stands
        for any characters, ``?`` for one and ``[...]`` for one of several. A mask is ``mask(path, parameter) -> bool``.
      default: the optimizer of all that is not chosen; None if there must be nothing left.
    Raises `SettingError` for what is no optimizer; and with the structure of the parameters, in `init` and `update`,
    for parameters that are chosen twice or not at all and for a choice without parameters, with all their paths.
    """
    if not optimizers:
        raise SettingError("groups: at least one pattern or mask is needed")
    return partitioned("groups", dict(optimizers), default)


def freeze(optimizer: Optimizer, mask: Selector) -> Optimizer:
    """`optimizer` for the parameters that are not chosen, while the others keep every bit.

    What is frozen has no state, and its update does not depend on its gradient: a training step does not compute that
    gradient, unless something outside asks for it, such as a `clip_by_global_norm` in a chain around this. Inside, as
    in ``freeze(chain(clip_by_global_norm(1.0), adam(1e-3)), "embed.*")``, only what is trained is clipped.

    Arguments:
      optimizer: for the rest. Its state is the entry under its kind: ``adam.m.0.w``.
      mask: what is frozen, as a pattern or a mask as in `groups`.
    Raises `SettingError` as `groups` does.
    """
    frozen = Optimizer("frozen", lambda parameters: {}, _keep)
    return partitioned("freeze", {mask: frozen}, optimizer)


def _keep(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
    return tree.map(lambda leaf: no_change(wide(leaf)), parameters), state


def selects(selector: Selector, path: str, parameter: Any) -> bool:
    """Whether a pattern or a mask chooses the parameter at `path`."""
    return fnmatchcase(path, selector) if isinstance(selector, str) else bool(selector(path, parameter))


def partitioned(owner: str, optimizers: Mapping[Selector, Optimizer], default: Optimizer | None) -> Optimizer:
    """`groups` for the function `owner`, which errors name."""
    parts = [*optimizers.values(), *([default] if default is not None else [])]
    _check_parts(owner, list(optimizers), parts)
    members = named_by_kind(parts)
    selectors = list(optimizers)

    def chosen(leaves: Mapping[str, Any]) -> dict[str, list[str]]:
        """The paths that each member trains."""
        paths = _chosen(owner, selectors, leaves, default is not None)
        return dict(zip(members, paths, strict=True))

    def init(parameters: Any) -> State:
        leaves = tree.named_leaves(parameters)
        return {name: members[name].init(_at(paths, leaves)) for name, paths in chosen(leaves).items()}

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        aligned = map_leaves(owner, lambda path, _, slope: slope, parameters=parameters, gradients=gradients)
        leaves, slopes = tree.named_leaves(parameters), tree.named_leaves(aligned)
        updates, new = {}, {}
        for name, paths in chosen(leaves).items():
            changes, new[name] = members[name].update(_at(paths, slopes), state[name], _at(paths, leaves))
            updates |= changes
        return tree.unflatten(tree.structure(parameters), [updates[path] for path in leaves]), new

    def decays(path: str, parameter: Any) -> bool:
        wanted = [selects(selector, path, parameter) for selector in selectors]
        own = parts[wanted.index(True)] if any(wanted) else default
        return own is not None and own.decays(path, parameter)

    return Optimizer("|".join(part.kind for part in parts), init, update, merged_readings(members), decays)


def _check_parts(owner: str, selectors: Sequence[Any], parts: Sequence[Any]) -> None:
    for selector in selectors:
        if not isinstance(selector, str) and not callable(selector):
            settings.refuse(owner, "a choice of parameters", "a pattern or a mask", selector)
    for part in parts:
        if not isinstance(part, Optimizer):
            settings.refuse(owner, "what trains parameters", "an Optimizer", part)


def _chosen(owner: str, selectors: Sequence[Selector], leaves: Mapping[str, Any], rest: bool) -> list[list[str]]:
    """The paths that each selector chooses, and with `rest` those that none does."""
    chosen = [[path for path, leaf in leaves.items() if selects(selector, path, leaf)] for selector in selectors]
    counts = {path: sum(path in paths for paths in chosen) for path in leaves}
    unclaimed = [path for path, count in counts.items() if not count]
    problems = {
        "chosen by none": [] if rest else unclaimed,
        "chosen twice": [path for path, count in counts.items() if count > 1],
        "choosing no parameter": [_shown(s) for s, paths in zip(selectors, chosen, strict=True) if not paths],
    }
    if any(problems.values()):
        lists = "".join(f"\n  {title} ({len(names)}): {', '.join(names)}" for title, names in problems.items() if names)
        raise SettingError(f"{owner}: every parameter needs one optimizer, and every choice a parameter{lists}")
    return [*chosen, unclaimed] if rest else chosen


def _shown(selector: Selector) -> str:
    return repr(selector) if isinstance(selector, str) else getattr(selector, "__name__", repr(selector))


def _at(paths: Sequence[str], leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {path: leaves[path] for path in paths}
