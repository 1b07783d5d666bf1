"""Sorting: stable, ascending, NaN last, both zeros equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.code import Code
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTYPES, TensorType, is_float
from antegrad.ops.arrays import normalize_axis, ravel
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import as_tensor, bind

__all__ = ["argsort", "sort", "sort_p"]


def sort_helper(operands: Any, axis: Any) -> Any:
    """All operands in the order that sorts the first along axis: stable, NaN last."""
    keys = operands[0] if operands[0].dtype.kind in "fiub" else operands[0].astype(np.float32)
    order = np.argsort(keys, axis=axis, kind="stable")
    return tuple(np.take_along_axis(operand, order, axis) for operand in operands)


class Sort(Primitive):
    """All operands reordered along `axis` by the first of them: stable, ascending, NaN last, -0 equal to 0."""

    helpers = (sort_helper,)
    multiple_results = True

    def __call__(self, operands: Any, axis: int) -> Any:
        return bind(self, *operands, axis=axis)

    def result(self, *operands: TensorType, axis: int) -> tuple[TensorType, ...]:
        first = operands[0]
        if not 0 <= axis < first.ndim or any(operand.shape != first.shape for operand in operands):
            raise ShapeError(f"sort: axis {axis} of operands {', '.join(map(str, operands))}, which need one shape")
        return operands

    def render(self, equation: Equation, *operands: Code) -> Code:
        inner = ", ".join(operand.text for operand in operands)
        inner = f"({inner},)" if len(operands) == 1 else f"({inner})"
        return Code(f"sort_helper({inner}, axis={equation.params['axis']})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        types, count = equation.input_types, len(operands)
        names = [f"%{side}{i}" for i in range(count) for side in "ab"]
        scalars = [tensor(TensorType((), type.dtype)) for type in types for _ in "ab"]
        arguments = ", ".join(f"{name}: {scalar}" for name, scalar in zip(names, scalars, strict=True))
        result = emitter.op(
            f'"stablehlo.sort"({", ".join(operands)}) <{{dimension = {equation.params["axis"]} : i64, '
            f"is_stable = true}}> ({{ ^bb0({arguments}): {_less(TensorType((), types[0].dtype))} }}) : "
            f"{signature(types, types)}",
            results=count,
        )
        return (result,) if count == 1 else tuple(f"{result}#{i}" for i in range(count))

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int) -> Any:
        return self(stretched(operands, batched, size), axis + 1)

    def vjp(self, dy: Any, y: Any, *operands: Any, axis: int) -> Any:
        positions = ops.iota(operands[0].shape, DTYPES["i32"], axis)
        order = sort_p((operands[0], positions), axis)[1]
        back = sort_p((order, positions), axis)[1]
        return tuple(None if part is None else ops.take_along_axis(part, back, axis) for part in dy)


def _less(key: TensorType) -> str:
    """The region that compares two keys: a < b, or only b is NaN."""
    k, b = tensor(key), tensor(TensorType((), BOOL))
    compare = f"({k}, {k}) -> {b}"
    less = f"%less = stablehlo.compare LT, %a0, %b0 : {compare} "
    if not is_float(key.dtype):
        return f"{less}stablehlo.return %less : {b}"
    return (
        f"{less}%number = stablehlo.compare EQ, %a0, %a0 : {compare} "
        f"%nan = stablehlo.compare NE, %b0, %b0 : {compare} "
        f"%last = stablehlo.and %number, %nan : {b} "
        f"%before = stablehlo.or %less, %last : {b} "
        f"stablehlo.return %before : {b}"
    )


sort_p = Sort()


def _sorted(operation: str, x: Any, axis: int | None, descending: bool, positions: bool) -> Any:
    """`x` sorted, or the positions that sort it.

    A stable descending order is the stable ascending one of the reversed axis, reversed.
    """
    x, axis = (ravel(x), 0) if axis is None else (as_tensor(x), axis)
    place = normalize_axis(axis, x, operation)
    operands = (x, ops.iota(x.shape, DTYPES["i32"], place)) if positions else (x,)
    if not descending:
        return sort_p(operands, place)[-1]
    return ops.flip(sort_p([ops.flip(operand, place) for operand in operands], place)[-1], place)


def sort(x: Any, axis: int | None = -1, descending: bool = False) -> Any:
    """`x` in ascending order along `axis`, or in descending order.

    Shapes: that of x; axis None flattens.
    Edges: NaN come last, in descending order first; both zeros are equal.
    Derivative: dy put back to where each element came from; equal elements keep their order.
    """
    return _sorted("sort", x, axis, descending, positions=False)


def argsort(x: Any, axis: int | None = -1, descending: bool = False) -> Any:
    """The positions (i32) that bring `x` in ascending order along `axis`, or in descending order.

    Shapes: that of x; axis None flattens.
    Edges: equal elements keep their order; NaN come last, in descending order first.
    Derivative: none.
    """
    return _sorted("argsort", x, axis, descending, positions=True)
