"""Reading and writing by index. An index past the end is clamped, in the value, the gradient and on every device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import ATOM, Code, fill
from antegrad.ir.mlir import Emitter, array, ints, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import TensorType, accumulation_dtype, is_integer
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import bind

__all__ = ["dynamic_slice_p", "dynamic_update_slice_p", "scatter_p", "take_p"]


def _need_integers(operation: str, *indices: TensorType) -> None:
    for index in indices:
        if not is_integer(index.dtype):
            raise DTypeError(f"{operation}: an index must be an integer, found {index}")


def _flattened(x: Any, indices: Any, axis: int) -> tuple[Any, Any]:
    """A batched `x` with its batch and its axis `axis` merged to one first axis, and indices into that."""
    count, size = x.shape[0], x.shape[axis + 1]
    moved = ops.moveaxis(x, axis + 1, 1)
    rows = ops.reshape(moved, (count * size, *moved.shape[2:]))
    offsets = ops.reshape(ops.arange(count) * size, (count, *(1,) * (indices.ndim - 1)))
    return rows, _clamped(indices, size) + offsets


def _clamped(indices: Any, size: int) -> Any:
    """Indices as i32, clamped in a type that holds every one of them."""
    wide = ops.convert(indices, "i32") if indices.dtype.itemsize < 4 else indices
    return ops.convert(ops.clip(wide, 0, max(size - 1, 0)), "i32")


def _index_axes_to(axis: int, index_axes: int, others: int) -> tuple[int, ...]:
    """The order that moves the axes of the index, which stand behind the batch, to the place `axis` of an example."""
    before = range(1 + index_axes, 1 + index_axes + axis)
    after = range(1 + index_axes + axis, 1 + index_axes + others)
    return (0, *before, *range(1, 1 + index_axes), *after)


class Take(Primitive):
    """``x`` along `axis` at `indices`, which must count from 0 and are clamped to what there is."""

    numpy = "np.take({x}, {indices}, axis={axis}, mode='clip')"

    def render(self, equation: Equation, *operands: Code) -> Code:
        x, indices = equation.input_types
        if indices.dtype != np.dtype(np.uint64):
            return super().render(equation, *operands)
        # NumPy reads the largest of them as negative.
        top = max(x.shape[equation.params["axis"]] - 1, 0)
        clipped = fill(f"np.minimum({{indices}}, np.uint64({top}))", ("indices",), operands[1:], {})
        return super().render(equation, operands[0], clipped)

    def __call__(self, x: Any, indices: Any, axis: int) -> Any:
        return bind(self, x, indices, axis=axis)

    def result(self, x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
        _need_integers("take", indices)
        if not 0 <= axis < x.ndim:
            raise ShapeError(f"take: {axis} is not an axis of {x}")
        if x.shape[axis] == 0 and indices.size:
            raise ShapeError(f"take: {x} has no element along axis {axis}")
        return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        (x, indices), axis = equation.input_types, equation.params["axis"]
        out = equation.output.type
        if out.size == 0:
            return emitter.splat(0, out)
        offset = (*range(axis), *range(axis + indices.ndim, out.ndim))
        sizes = [1 if i == axis else size for i, size in enumerate(x.shape)]
        return emitter.op(
            f'"stablehlo.gather"({operands[0]}, {operands[1]}) <{{dimension_numbers = #stablehlo.gather<'
            f"offset_dims = {ints(offset)}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}], "
            f"index_vector_dim = {indices.ndim}>, slice_sizes = {array(sizes)}, indices_are_sorted = false}}> : "
            f"{signature([x, indices], [out])}"
        )

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int) -> Any:
        x, indices = operands
        if not batched[1]:
            return self(x, indices, axis + 1)
        if not batched[0]:
            return ops.moveaxis(self(x, indices, axis), axis, 0)
        rows, places = _flattened(x, indices, axis)
        found = self(rows, places, 0)
        return ops.transpose(found, _index_axes_to(axis, indices.ndim - 1, x.ndim - 2))

    def vjp(self, dy: Any, y: Any, x: Any, indices: Any, *, axis: int) -> Any:
        return scatter_p(ops.zeros_like(x), indices, dy, axis, "add"), None


def scatter_helper(x: Any, indices: Any, updates: Any, axis: Any, combine: Any) -> Any:
    """x with updates combined along axis at the clamped indices, repeated ones one after the other."""
    out = x.copy()
    top = min(x.shape[axis] - 1, np.iinfo(indices.dtype).max)
    combine.at(out, (slice(None),) * axis + (np.clip(indices, 0, top),), updates)
    return out


def scatter_set_helper(x: Any, indices: Any, updates: Any, axis: Any) -> Any:
    """x with updates in place along axis at the clamped indices; the last of repeated indices wins."""
    out = x.copy()
    top = min(x.shape[axis] - 1, np.iinfo(indices.dtype).max)
    out[(slice(None),) * axis + (np.clip(indices, 0, top),)] = updates
    return out


COMBINE = {"add": np.add, "multiply": np.multiply, "max": np.maximum, "min": np.minimum}
"""The modes of a scatter that combine what is there with what comes: NumPy's function, which XLA calls the same."""


class Scatter(Primitive):
    """`x` with `updates` set, or combined as `mode` says, along `axis` at `indices`, which are clamped.

    Repeated indices combine one after the other, or the last of them wins. Sums and products of 16-bit floats are
    accumulated in f32.
    """

    helpers = (scatter_helper, scatter_set_helper)

    def __call__(self, x: Any, indices: Any, updates: Any, axis: int, mode: str) -> Any:
        return bind(self, x, indices, updates, axis=axis, mode=mode)

    def traced_helpers(self) -> dict[str, Callable]:
        modes = {function: mode for mode, function in COMBINE.items()}

        def combined(x: Any, indices: Any, updates: Any, axis: int, combine: Any) -> Any:
            return self(x, indices, updates, axis, modes[combine])

        return {"scatter_helper": combined, "scatter_set_helper": partial(self, mode="set")}

    def result(self, x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, mode: str) -> TensorType:
        _need_integers("scatter", indices)
        expected = x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
        if updates != expected:
            raise ShapeError(f"scatter: {x} at {indices} along axis {axis} takes updates {expected}, found {updates}")
        if x.shape[axis] == 0 and indices.size:
            raise ShapeError(f"scatter: {x} has no element along axis {axis}")
        return x

    def render(self, equation: Equation, *operands: Code) -> Code:
        mode, axis, dtype = equation.params["mode"], equation.params["axis"], equation.output.type.dtype
        template = "scatter_set_helper({x}, {indices}, {updates}, axis={axis})"
        if mode != "set":
            template = f"scatter_helper({{x}}, {{indices}}, {{updates}}, {{axis}}, np.{COMBINE[mode].__name__})"
        wide = _accumulator(equation)
        if wide != dtype:
            template = template.replace("{x}", "{x}.astype({wide})").replace("{updates}", "{updates}.astype({wide})")
            template += ".astype({dtype})"
        return fill(template, self.operand_names, operands, {"axis": axis, "wide": wide, "dtype": dtype})

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        wide, (source, indices, changes) = _accumulator(equation), equation.input_types
        if changes.size == 0:
            return operands[0]
        x, updates = source.with_dtype(wide), changes.with_dtype(wide)
        converted = emitter.convert(operands[0], source, x), operands[1], emitter.convert(operands[2], changes, updates)
        return emitter.convert(self._scatter(emitter, equation, (x, indices, updates), converted), x, source)

    def _scatter(
        self, emitter: Emitter, equation: Equation, types: tuple[TensorType, ...], operands: tuple[str, ...]
    ) -> str:
        (x, indices, updates), axis, mode = types, equation.params["axis"], equation.params["mode"]
        window = (*range(axis), *range(axis + indices.ndim, updates.ndim))
        top = emitter.splat(min(x.shape[axis] - 1, np.iinfo(indices.dtype).max), indices)
        bottom = emitter.splat(0, indices)
        clamped = emitter.op(f"stablehlo.clamp {bottom}, {operands[1]}, {top} : {tensor(indices)}")
        scalar = tensor(TensorType((), x.dtype))
        combine = "" if mode == "set" else f"%c = stablehlo.{COMBINE[mode].__name__} %a, %b : {scalar} "
        result = "%c" if combine else "%b"
        return emitter.op(
            f'"stablehlo.scatter"({operands[0]}, {clamped}, {operands[2]}) <{{scatter_dimension_numbers = '
            f"#stablehlo.scatter<update_window_dims = {ints(window)}, inserted_window_dims = [{axis}], "
            f"scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {indices.ndim}>, "
            f"indices_are_sorted = false, unique_indices = false}}> ({{ ^bb0(%a: {scalar}, %b: {scalar}): "
            f"{combine}stablehlo.return {result} : {scalar} }}) : {signature([x, indices, updates], [x])}"
        )

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int, mode: str) -> Any:
        x, indices, updates = stretched(operands, batched, size)
        order = _index_axes_to(axis, indices.ndim - 1, x.ndim - 2)
        rows, places = _flattened(x, indices, axis)
        moved = ops.transpose(updates, tuple(int(i) for i in np.argsort(order)))
        changed = self(rows, places, moved, 0, mode)
        return ops.moveaxis(ops.reshape(changed, (size, x.shape[axis + 1], *rows.shape[1:])), 1, axis + 1)

    def vjp(self, dy: Any, y: Any, x: Any, indices: Any, updates: Any, *, axis: int, mode: str) -> Any:
        dx, d_updates = _SCATTER_RULES[mode](dy, y, x, indices, updates, axis)
        return dx, None, d_updates


def _add_rule(dy: Any, y: Any, x: Any, indices: Any, updates: Any, axis: int) -> tuple[Any, Any]:
    return dy, take_p(dy, indices, axis)


def _set_rule(dy: Any, y: Any, x: Any, indices: Any, updates: Any, axis: int) -> tuple[Any, Any]:
    """Of repeated indices the last receives the cotangent, as it alone is in the result."""
    order = ops.reshape(ops.arange(indices.size), indices.shape)
    last = scatter_p(ops.full((x.shape[axis],), -1, "i32"), indices, order, 0, "set")
    wins = take_p(last, indices, 0) == order
    wins = ops.reshape(wins, (*(1,) * axis, *indices.shape, *(1,) * (x.ndim - axis - 1)))
    untouched = ops.reshape(last == -1, (*(1,) * axis, x.shape[axis], *(1,) * (x.ndim - axis - 1)))
    return ops.where(untouched, dy, 0), ops.where(wins, take_p(dy, indices, axis), 0)


def _extremum_rule(dy: Any, y: Any, x: Any, indices: Any, updates: Any, axis: int) -> tuple[Any, Any]:
    """The cotangent of each place is split evenly among all that tie for the extremum there."""
    kept, won = x == y, updates == take_p(y, indices, axis)
    ties = scatter_p(ops.convert(kept, dy.dtype), indices, ops.convert(won, dy.dtype), axis, "add")
    share = dy / ties
    return ops.where(kept, share, 0), ops.where(won, take_p(share, indices, axis), 0)


def _multiply_rule(dy: Any, y: Any, x: Any, indices: Any, updates: Any, axis: int) -> tuple[Any, Any]:
    factors = scatter_p(ops.ones_like(x), indices, updates, axis, "multiply")
    return dy * factors, take_p(dy * x, indices, axis) * _other_updates(updates, indices, x.shape[axis], axis)


def _other_updates(updates: Any, indices: Any, size: int, axis: int) -> Any:
    """For each update the product of all others with the same index, exact where updates are 0.

    Brought in the order of the indices, it is the product before times the product after each update, two recurrences
    that start anew where the index changes.
    """
    if updates.size == 0:
        return updates
    places = ops.ravel(_clamped(indices, size))
    order = ops.argsort(places)
    lead, rest = math.prod(updates.shape[:axis]), math.prod(updates.shape[axis + indices.ndim :])
    rows = ops.take_p(ops.reshape(updates, (lead, indices.size, rest)), order, 1)
    column = ops.expand_dims(ops.take_p(places, order, 0), 1)
    others = _product_before(rows, column, reverse=False) * _product_before(rows, column, reverse=True)
    return ops.reshape(ops.take_p(others, ops.argsort(order), 1), updates.shape)


def _product_before(rows: Any, places: Any, reverse: bool) -> Any:
    """Along axis 1 the product of the rows before each one (after it if `reverse`) that have the same place."""
    rest, ends = (slice(None, -1), slice(1, None)) if reverse else (slice(1, None), slice(None, -1))
    same = places[rest] == places[ends]
    none = ops.zeros((1, 1), "bool")
    same = ops.concatenate([same, none] if reverse else [none, same])
    gap = ops.zeros_like(rows[:, :1])
    factors = ops.concatenate([rows[:, ends], gap] if reverse else [gap, rows[:, ends]], axis=1)
    start = ops.broadcast_to(ops.where(same, ops.zeros((), rows.dtype), 1), rows.shape)
    return ops.linear_recurrence_p(ops.where(same, factors, 0), start, 1, reverse)


_SCATTER_RULES = {
    "add": _add_rule, "set": _set_rule, "max": _extremum_rule, "min": _extremum_rule, "multiply": _multiply_rule,
}  # fmt: skip


def _accumulator(equation: Equation) -> np.dtype:
    """The element type in which a scatter adds up or multiplies."""
    dtype = equation.output.type.dtype
    return accumulation_dtype(dtype) if equation.params["mode"] in ("add", "multiply") else dtype


def dynamic_slice_helper(x: Any, starts: Any, sizes: Any) -> Any:
    """The block of x of the given sizes that begins at starts, moved back inside where it would stick out."""
    place = [min(max(int(start), 0), n - size) for start, n, size in zip(starts, x.shape, sizes, strict=True)]
    return x[tuple(slice(start, start + size) for start, size in zip(place, sizes, strict=True))]


def dynamic_update_slice_helper(x: Any, update: Any, starts: Any) -> Any:
    """x with the block that begins at starts replaced by update."""
    sizes = update.shape
    place = [min(max(int(start), 0), n - size) for start, n, size in zip(starts, x.shape, sizes, strict=True)]
    out = x.copy()
    out[tuple(slice(start, start + size) for start, size in zip(place, sizes, strict=True))] = update
    return out


def _starts(operands: tuple[Code, ...]) -> str:
    inner = ", ".join(operand.text for operand in operands)
    return f"({inner},)" if len(operands) == 1 else f"({inner})"


class DynamicSlice(Primitive):
    """A block of fixed `sizes` that begins at computed `starts`, moved back inside where it would stick out."""

    helpers = (dynamic_slice_helper,)

    def __call__(self, x: Any, starts: Any, sizes: tuple[int, ...]) -> Any:
        return bind(self, x, *starts, sizes=sizes)

    def result(self, x: TensorType, *starts: TensorType, sizes: tuple[int, ...]) -> TensorType:
        _need_integers("dynamic_slice", *starts)
        if not len(starts) == len(sizes) == x.ndim or any(not 0 <= s <= n for s, n in zip(sizes, x.shape, strict=True)):
            raise ShapeError(f"dynamic_slice: sizes {sizes} with {len(starts)} starts do not fit {x}")
        return x.with_shape(sizes)

    def render(self, equation: Equation, *operands: Code) -> Code:
        sizes = equation.params["sizes"]
        return Code(f"dynamic_slice_helper({operands[0].text}, {_starts(operands[1:])}, {sizes})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        if not equation.params["sizes"]:
            return operands[0]
        return emitter.op(
            f"stablehlo.dynamic_slice {', '.join(operands)}, sizes = {ints(equation.params['sizes'])} : {types}"
        )

    def batch(self, size: int, operands: Any, batched: Any, *, sizes: Any) -> Any:
        if any(batched[1:]):
            return NotImplemented
        return self(operands[0], (np.asarray(0, np.int32), *operands[1:]), (size, *sizes))

    def vjp(self, dy: Any, y: Any, x: Any, *starts: Any, sizes: tuple[int, ...]) -> Any:
        return (dynamic_update_slice_p(ops.zeros_like(x), dy, starts), *(None for _ in starts))


class DynamicUpdateSlice(Primitive):
    """`x` with the block that begins at computed `starts` replaced by `update` (moved back inside as in a slice)."""

    helpers = (dynamic_update_slice_helper,)

    def __call__(self, x: Any, update: Any, starts: Any) -> Any:
        return bind(self, x, update, *starts)

    def result(self, x: TensorType, update: TensorType, *starts: TensorType) -> TensorType:
        _need_integers("dynamic_update_slice", *starts)
        fits = len(starts) == update.ndim == x.ndim and update.dtype == x.dtype
        if not fits or any(s > n for s, n in zip(update.shape, x.shape, strict=True)):
            raise ShapeError(f"dynamic_update_slice: {update} with {len(starts)} starts does not fit {x}")
        return x

    def render(self, equation: Equation, *operands: Code) -> Code:
        return Code(
            f"dynamic_update_slice_helper({operands[0].text}, {operands[1].text}, {_starts(operands[2:])})", ATOM
        )

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        if len(operands) == 2:
            return operands[1]
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.dynamic_update_slice {', '.join(operands)} : {types}")

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        if any(batched[2:]):
            return NotImplemented
        x, update = stretched(operands[:2], batched[:2], size)
        return self(x, update, (np.asarray(0, np.int32), *operands[2:]))

    def vjp(self, dy: Any, y: Any, x: Any, update: Any, *starts: Any) -> Any:
        kept = dynamic_update_slice_p(dy, ops.zeros_like(update), starts)
        return (kept, dynamic_slice_p(dy, starts, update.shape), *(None for _ in starts))


take_p = Take()
scatter_p = Scatter()
dynamic_slice_p = DynamicSlice()
dynamic_update_slice_p = DynamicUpdateSlice()
