"""What travels between the ranks, the devices that run one program together.

Every rank must come to the same collectives in the same order; one inside a branch that only some ranks take would wait
for ever. `ranks` says who takes part: a number N for the ranks 0 to N-1, or groups such as ``((0, 1), (2, 3))``, which
exchange among themselves. A result over one rank is the operand itself, and no equation.

The gradient of a program with collectives is that of the sum of the first outputs of all ranks: a rank's cotangent
counts what its operand adds to the loss of every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError, SettingError
from antegrad.ir.types import accumulation_dtype, is_float
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.collective import (
    REDUCTIONS,
    all_gather_p,
    all_reduce_p,
    all_to_all_p,
    axis_index_p,
    collective_permute_p,
    reduce_scatter_p,
)
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.ranks import Ranks, as_groups, size_of

__all__ = ["all_gather", "all_reduce", "all_to_all", "axis_index", "collective_permute", "reduce_scatter"]


def all_reduce(x: Any, ranks: Ranks, op: str = "sum") -> Any:
    """`x` of all ranks combined: "sum", "mean", "max" or "min".

    Shapes: x (...) gives (...), on every rank the same.
    Edges: 16-bit floats travel, are added and divided in f32; max and min are NaN where an element is. Raises
        `SettingError` for another op or ranks that are none, and `DTypeError` for bool and for a mean of integers.
    Derivative: the sum of dy over the ranks (for the mean their mean); for max and min the ranks that have the element
    get it, in equal shares.
    """
    groups, x = as_groups(ranks), as_tensor(x)
    if op not in (*REDUCTIONS, "mean"):
        raise SettingError(f"all_reduce: op must be sum, mean, max or min, found {op!r}")
    if op == "mean" and not is_float(x.dtype):
        raise DTypeError(f"all_reduce: a mean needs floats, found {x.dtype}: use .astype(...)")
    if size_of(groups) == 1:
        return x
    if op != "mean":
        return all_reduce_p(x, op, groups)
    total = all_reduce_p(ops.convert(x, accumulation_dtype(x.dtype)), "sum", groups)
    return ops.convert(total / size_of(groups), x.dtype)


def reduce_scatter(x: Any, ranks: Ranks, axis: int = 0) -> Any:
    """The sum of `x` over all ranks, of which each keeps its part along `axis`.

    Shapes: x (..., n * k, ...) over n ranks gives (..., k, ...); `ShapeError` where n does not divide the axis.
    Edges: 16-bit floats travel and are added in f32.
    Derivative: dy of all ranks, gathered along the axis.
    """
    groups, x = as_groups(ranks), as_tensor(x)
    axis = normalize_axis(axis, x, "reduce_scatter")
    return x if size_of(groups) == 1 else reduce_scatter_p(x, axis, groups)


def all_gather(x: Any, ranks: Ranks, axis: int = 0) -> Any:
    """`x` of all ranks, one after the other along `axis`.

    Shapes: x (..., k, ...) over n ranks gives (..., n * k, ...), on every rank the same.
    Edges: none; the elements stay as they are.
    Derivative: the sum of dy over the ranks, of which each gets its part.
    """
    groups, x = as_groups(ranks), as_tensor(x)
    axis = normalize_axis(axis, x, "all_gather")
    return x if size_of(groups) == 1 else all_gather_p(x, axis, groups)


def all_to_all(x: Any, ranks: Ranks, split_axis: int, concat_axis: int) -> Any:
    """Part i of `x` along `split_axis` goes to rank i; what comes is put together along `concat_axis`.

    Shapes: over n ranks, split_axis becomes n times shorter, and then concat_axis n times longer; `ShapeError` where n
    does not divide split_axis.
    Edges: none; the elements stay as they are.
    Derivative: dy the other way.
    """
    groups, x = as_groups(ranks), as_tensor(x)
    split, concat = (normalize_axis(axis, x, "all_to_all") for axis in (split_axis, concat_axis))
    return x if size_of(groups) == 1 else all_to_all_p(x, split, concat, groups)


def collective_permute(x: Any, ranks: int, pairs: Sequence[tuple[int, int]]) -> Any:
    """`x` of the rank that sends to this one, by `pairs` (source, target); zeros where none does.

    Shapes: x (...) gives (...).
    Edges: raises `SettingError` where a rank stands twice among the sources or the targets, or is none of 0 to
    ranks - 1.
    Derivative: dy the other way.
    """
    groups, x = as_groups(ranks), as_tensor(x)
    if groups != (tuple(range(size_of(groups))),):
        raise SettingError(f"collective_permute: ranks must be a number, found {ranks!r}: the pairs say who takes part")
    pairs = _checked_pairs(pairs, size_of(groups))
    if size_of(groups) == 1:
        return x if pairs else ops.zeros_like(x)
    return collective_permute_p(x, pairs, groups)


def _checked_pairs(pairs: Any, count: int) -> tuple[tuple[int, int], ...]:
    try:
        checked = tuple((index(source), index(target)) for source, target in pairs)
        sides = tuple(zip(*checked, strict=True))
    except (TypeError, ValueError):
        raise SettingError(f"collective_permute: pairs (source, target) of ranks are needed, found {pairs!r}") from None
    for side in sides:
        if len(set(side)) != len(side) or not set(side) <= set(range(count)):
            raise SettingError(
                f"collective_permute: each of {count} ranks may send once and receive once, found pairs {checked}"
            )
    return checked


def axis_index(ranks: Ranks) -> Any:
    """The place of this rank in its group, an i32 scalar.

    Shapes: gives ().
    Edges: 0 where there is one rank.
    Derivative: none.
    """
    groups = as_groups(ranks)
    return ops.zeros((), "i32") if size_of(groups) == 1 else axis_index_p(groups)
