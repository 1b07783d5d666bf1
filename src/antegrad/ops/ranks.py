"""Ranks, the devices that run one program together: who exchanges with whom, and what all collectives share.

On the host the collectives are printed as calls of the helpers below, which exchange between the threads of the ranks
(see `runtime.lockstep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad.errors import DTypeError, SettingError, ShapeError
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, element
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, TensorType

__all__: list[str] = []

Groups = tuple[tuple[int, ...], ...]
Ranks = int | Sequence[Sequence[int]]


def as_groups(ranks: Ranks) -> Groups:
    """The groups that `ranks` names; a `SettingError` unless they are of one size and have each rank from 0 on once."""
    if isinstance(ranks, (int, np.integer)) and not isinstance(ranks, bool) and ranks >= 1:
        return (tuple(range(int(ranks))),)
    if isinstance(ranks, Sequence) and ranks and all(isinstance(group, Sequence) and group for group in ranks):
        every = [rank for group in ranks for rank in group]
        whole = all(isinstance(rank, (int, np.integer)) and not isinstance(rank, bool) for rank in every)
        if whole and sorted(every) == list(range(len(every))) and len({len(group) for group in ranks}) == 1:
            return tuple(tuple(int(rank) for rank in group) for group in ranks)
    raise SettingError(
        "ranks must be a number of at least 1, or groups of one size in which every rank from 0 on stands once, such "
        f"as ((0, 1), (2, 3)); found {ranks!r}"
    )


def exchange_helper(x: Any, what: Any, groups: Any) -> Any:
    """What each rank of this rank's group passes, in the order of the group: returns when all have come to `what`."""
    import threading

    thread = threading.current_thread()
    if not hasattr(thread, "exchange"):
        raise RuntimeError(f"this is a program for the ranks {groups}: run it by antegrad.parallel.lockstep")
    return thread.exchange(x, what, groups)  # pyright: ignore[reportAttributeAccessIssue]


def all_reduce_helper(x: Any, combine: Any, groups: Any) -> Any:
    """x of all ranks of the group, combined in the order of the group."""
    total, *others = exchange_helper(x, f"all_reduce of {combine.__name__}", groups)
    for other in others:
        total = combine(total, other)
    return total


def reduce_scatter_helper(x: Any, axis: Any, groups: Any) -> Any:
    """This rank's part, along the axis, of the sum of x over the group."""
    total, *others = exchange_helper(x, f"reduce_scatter along {axis}", groups)
    for other in others:
        total = total + other
    return np.split(total, len(others) + 1, axis)[axis_index_helper(groups)]


def all_gather_helper(x: Any, axis: Any, groups: Any) -> Any:
    """x of all ranks of the group, one after the other along the axis."""
    return np.concatenate(exchange_helper(x, f"all_gather along {axis}", groups), axis)


def all_to_all_helper(x: Any, split_axis: Any, concat_axis: Any, groups: Any) -> Any:
    """Part i of this rank's x goes to rank i of the group; what comes is put together in the order of the group."""
    mine = axis_index_helper(groups)
    everyone = exchange_helper(x, f"all_to_all from {split_axis} to {concat_axis}", groups)
    return np.concatenate([np.split(each, len(everyone), split_axis)[mine] for each in everyone], concat_axis)


def collective_permute_helper(x: Any, pairs: Any, groups: Any) -> Any:
    """x of the rank that sends to this one; zeros where none does."""
    everyone, mine = exchange_helper(x, f"collective_permute by {pairs}", groups), axis_index_helper(groups)
    return next((np.copy(everyone[source]) for source, target in pairs if target == mine), np.zeros_like(x))


def axis_index_helper(groups: Any) -> Any:
    """The place of this rank in its group."""
    import threading

    rank = getattr(threading.current_thread(), "rank", None)
    if rank is None:
        raise RuntimeError(f"this is a program for the ranks {groups}: run it by antegrad.parallel.lockstep")
    return next(np.array(list(group).index(rank), np.int32) for group in groups if rank in group)


class Collective(Primitive):
    """Base of the collectives. Their last param `groups` says who exchanges with whom."""

    communicates = True

    def groups_text(self, equation: Equation) -> str:
        groups = equation.params["groups"]
        ranges = [f"range({len(group)})" if group == tuple(range(len(group))) else repr(group) for group in groups]
        return f"[{', '.join(ranges)}]"

    def template(self, equation: Equation) -> str:
        raise self.missing("template", "printed as Python or run on the host")

    def render(self, equation: Equation, *operands: Code) -> Code:
        text = self.template(equation).replace("{groups}", self.groups_text(equation))
        return fill(text, self.operand_names, operands, equation.params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        out = equation.output.type
        return self.lower(emitter, equation, *operands) if out.size else emitter.splat(0, out)

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        """`emit` for results that have elements."""
        raise self.missing("lower", "lowered to StableHLO", equation.source)

    def received(self, equation: Equation) -> int:
        """Bytes that one rank gets from the others, in the algorithms that move the fewest (rings)."""
        raise self.missing("received", "costed")


def size_of(groups: Groups) -> int:
    return len(groups[0])


def group_attributes(emitter: Emitter, groups: Groups, *more: str) -> str:
    rows = f"dense<{[list(group) for group in groups]}> : tensor<{len(groups)}x{size_of(groups)}xi64>"
    handle = f"channel_handle = #stablehlo.channel_handle<handle = {emitter.channel()}, type = 1>"
    return f"<{{{', '.join([*more, handle, f'replica_groups = {rows}'])}}}>"


def combining(dtype: np.dtype, operation: str) -> str:
    scalar = f"tensor<{element(dtype)}>"
    return (
        f"({{ ^bb0(%left: {scalar}, %right: {scalar}): %both = stablehlo.{operation} %left, %right : {scalar} "
        f"stablehlo.return %both : {scalar} }})"
    )


def check_number(primitive: Primitive, x: TensorType) -> None:
    if x.dtype == BOOL:
        raise DTypeError(f"{primitive.name} is for numbers, found {x}: use .astype(...)")


def check_axis(primitive: Primitive, x: TensorType, axis: int, parts: int = 1) -> None:
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"{primitive.name}: {axis} is no axis of {x}")
    if x.shape[axis] % parts:
        raise ShapeError(
            f"{primitive.name}: axis {axis} of {x} does not divide into {parts} parts of one size: pad it to a multiple"
        )
