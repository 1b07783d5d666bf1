"""Norms of vectors, and of whole tensors."""

from __future__ import annotations

import math
from typing import Any

from antegrad import ops
from antegrad.ir.types import type_of
from antegrad.ops.arrays import Axes, misfit, normalize_axes
from antegrad.ops.statistics import floating, sqrt_flat_at_zero, widened

__all__ = ["norm"]


def norm(x: Any, ord: float | str | None = None, axis: Axes = None, keepdims: bool = False) -> Any:
    """Norm over `axis`, by default the Euclidean one: ``sqrt(sum(x ** 2))``.

    `ord` is 1 (``sum(|x|)``), 2, inf (``max(|x|)``), -inf (``min(|x|)``), 0 (how many are not 0), or any other p for
    ``sum(|x| ** p) ** (1 / p)``, each over one axis; "fro" is the Euclidean one over two.

    Shapes: x (..., n, ...) gives (..., ...); without `ord` any axes, or all. In f32 for 16-bit floats.
    Edges: another number of axes than `ord` takes is a `ShapeError`.
    Derivative: 0 at the zero vector, and for elements that are 0 unless p is inf or -inf, which split dy evenly among
        ties.
    """
    x = floating(x, "norm")
    axes = normalize_axes(axis, x, "norm")
    needed = None if ord is None else 2 if ord == "fro" else 1
    if needed is not None and len(axes) != needed:
        raise misfit(f"norm: ord={ord!r} is over {needed} axes, found axis {axis} of {type_of(x)}")
    if isinstance(ord, str) and ord != "fro":
        raise misfit(f"norm: ord must be a number or 'fro', found {ord!r}")
    wide = widened(x)
    if ord is None or isinstance(ord, str) or ord == 2:
        result = sqrt_flat_at_zero(ops.sum(ops.square(wide), axes, keepdims))
    elif math.isinf(ord):
        result = (ops.max if ord > 0 else ops.min)(ops.abs(wide), axes, keepdims)
    elif ord == 0:
        result = ops.sum(ops.convert(wide != 0, wide.dtype), axes, keepdims)
    else:
        result = ops.sum(ops.abs(wide), axes, keepdims) if ord == 1 else _power_norm(wide, ord, axes, keepdims)
    return ops.convert(result, x.dtype)


def _power_norm(x: Any, p: float, axes: Axes, keepdims: bool) -> Any:
    """``sum(|x| ** p) ** (1 / p)``, with powers and roots of 0 kept out of the gradient."""
    zero, of_zero = x == 0, 0 if p > 0 else math.inf
    powers = ops.where(zero, of_zero, ops.power(ops.abs(ops.where(zero, 1, x)), p))
    total = ops.sum(powers, axes, keepdims)
    nothing = total == of_zero
    return ops.where(nothing, 0, ops.power(ops.where(nothing, 1, total), 1 / p))
