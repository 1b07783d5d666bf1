"""What the batching rules of the primitives share. A batched operand has the batch as its first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antegrad import ops
from antegrad.ops.dispatch import as_tensor, bind

__all__: list[str] = []


def leading(x: Any, batched: bool, size: int) -> Any:
    """`x` with the batch axis: as it is where it has one, else repeated for every example."""
    if batched:
        return x
    x = as_tensor(x)
    return bind(ops.broadcast_in_dim, x, shape=(size, *x.shape), dims=tuple(range(1, x.ndim + 1)))


def stretched(operands: Sequence[Any], batched: Sequence[bool], size: int) -> list[Any]:
    """All operands with the batch axis."""
    return [leading(x, flag, size) for x, flag in zip(operands, batched, strict=True)]


def up(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of an example as axes of the batch."""
    return tuple(axis + 1 for axis in axes)
