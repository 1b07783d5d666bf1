"""Containers of layers that run side by side: `Residual` and `Parallel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal

from antegrad import ops
from antegrad.errors import SettingError
from antegrad.ir.types import type_of
from antegrad.nn.layers import as_layer
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit


class Residual(Module):
    """``body(x) + x``, or ``body(x) + shortcut(x)``.

    Parameters: ``body....`` and ``shortcut....``. Both sides must have one type; nothing is broadcast.
    Source: He et al. (2015), arXiv:1512.03385.
    """

    body: Module
    shortcut: Module | None

    def __init__(self, body: Callable[..., Any], shortcut: Callable[..., Any] | None = None) -> None:
        self._set(body=as_layer(body), shortcut=None if shortcut is None else as_layer(shortcut))

    def __call__(self, x: Any) -> Any:
        y, kept = self.body(x), x if self.shortcut is None else self.shortcut(x)
        if type_of(y) != type_of(kept):
            beside = "what went in is" if self.shortcut is None else "its shortcut makes"
            raise misfit(
                f"Residual adds its body and its shortcut, which must have one type: of {type_of(x)} the body makes "
                f"{type_of(y)}, and {beside} {type_of(kept)}"
            )
        return ops.add(y, kept)


class Parallel(Module):
    """Every one of `branches` on the same input; results are added, or concatenated along the last axis.

    Parameters: ``0....``, ``1....`` by the place of the branch. All results must have one type, or for "concatenate"
    differ in the last axis alone; nothing is broadcast.
    """

    branches: tuple[Any, ...]
    combine: Literal["sum", "concatenate"] = static(default="sum")

    transparent = "branches"

    def __init__(
        self, branches: Sequence[Callable[..., Any]], combine: Literal["sum", "concatenate"] = "sum"
    ) -> None:
        if combine not in ("sum", "concatenate"):
            raise SettingError(f"Parallel: combine must be 'sum' or 'concatenate', found {combine!r}")
        if not branches:
            raise SettingError("Parallel needs at least one branch")
        self._set(branches=tuple(map(as_layer, branches)), combine=combine)

    def __call__(self, x: Any) -> Any:
        found = [branch(x) for branch in self.branches]
        types = [type_of(y) for y in found]
        added = self.combine == "sum"
        if len({(t.shape if added else t.shape[:-1], t.ndim, t.dtype) for t in types}) > 1:
            joins = "concatenates the last axis of its branches, which must agree in all others"
            does = "adds its branches, which must have one type" if added else joins
            raise misfit(f"Parallel {does}: of {type_of(x)} they make {', '.join(map(str, types))}")
        return reduce(ops.add, found) if added else ops.concatenate(found, axis=-1)
