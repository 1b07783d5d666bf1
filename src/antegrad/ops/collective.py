"""The collectives as primitives. Their gradient is that of the sum of the first outputs of all ranks.

A rank's cotangent counts what its operand adds to the loss of every other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTYPES, TensorType, accumulation_dtype, is_float
from antegrad.ops.dispatch import bind
from antegrad.ops.ranks import (
    Collective,
    Groups,
    all_gather_helper,
    all_reduce_helper,
    all_to_all_helper,
    as_groups,
    axis_index_helper,
    check_axis,
    check_number,
    collective_permute_helper,
    combining,
    group_attributes,
    reduce_scatter_helper,
    size_of,
)

__all__ = [
    "all_gather_p",
    "all_reduce_p",
    "all_to_all_p",
    "axis_index_p",
    "collective_permute_p",
    "reduce_scatter_p",
]

REDUCTIONS = {"sum": ("add", np.add), "max": ("maximum", np.maximum), "min": ("minimum", np.minimum)}


def _turned(emitter: Emitter, bits: str, type: TensorType) -> str:
    """Negative integers with all bits but the sign turned; twice gives what was there.

    The bits of floats become integers of the same order, and back.
    """
    types, width = tensor(type), 8 * type.dtype.itemsize
    sign = emitter.op(f"stablehlo.shift_right_arithmetic {bits}, {emitter.splat(width - 1, type)} : {types}")
    mask = emitter.op(f"stablehlo.and {sign}, {emitter.splat(np.iinfo(type.dtype).max, type)} : {types}")
    return emitter.op(f"stablehlo.xor {bits}, {mask} : {types}")


def _ordered(emitter: Emitter, x: str, type: TensorType, ordered: TensorType, op: str) -> str:
    """Floats as integers of the same order, with NaN at the end that `op` finds: all-reduces of XLA may lose NaN."""
    bits = emitter.op(f"stablehlo.bitcast_convert {x} : {signature([type], [ordered])}")
    flags = type.with_dtype(BOOL)
    nan = emitter.op(f"stablehlo.compare NE, {x}, {x}, FLOAT : {signature([type, type], [flags])}")
    end = emitter.splat(getattr(np.iinfo(ordered.dtype), op), ordered)
    return emitter.op(
        f"stablehlo.select {nan}, {end}, {_turned(emitter, bits, ordered)} : {tensor(flags)}, {tensor(ordered)}"
    )


class AllReduce(Collective):
    """The elements of all ranks combined by `op`, "sum", "max" or "min", in the order of the ranks on the host.

    Shapes: x (...) gives (...).
    Edges: 16-bit floats travel and are added in f32; max and min are NaN where an element is.
    Derivative: of the sum, the sum of dy over the ranks; of max and min it goes in equal shares to the ranks that have
    the element.
    """

    helpers = (all_reduce_helper,)

    def __call__(self, x: Any, op: str, groups: Groups) -> Any:
        return bind(self, x, op=op, groups=groups)

    def traced_helpers(self) -> dict[str, Callable]:
        names = {function: op for op, (_, function) in REDUCTIONS.items()}
        return {"all_reduce_helper": lambda x, combine, groups: self(x, names[combine], as_groups(groups))}

    def result(self, x: TensorType, *, op: str, groups: Groups) -> TensorType:
        check_number(self, x)
        return x

    def template(self, equation: Equation) -> str:
        name = f"np.{REDUCTIONS[equation.params['op']][1].__name__}"
        x = equation.output.type
        wide = accumulation_dtype(x.dtype)
        if wide == x.dtype or equation.params["op"] != "sum":
            return f"all_reduce_helper({{x}}, {name}, {{groups}})"
        return f"all_reduce_helper({{x}}.astype(np.{wide.name}), {name}, {{groups}}).astype({_name(x.dtype)})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        x, op = equation.output.type, equation.params["op"]
        wide = x.with_dtype(accumulation_dtype(x.dtype))
        sent = emitter.convert(operands[0], x, wide)
        if op == "sum" or not is_float(x.dtype):
            return emitter.convert(self._reduced(emitter, equation, sent, wide), wide, x)
        ordered = x.with_dtype(DTYPES[f"i{8 * wide.dtype.itemsize}"])
        found = self._reduced(emitter, equation, _ordered(emitter, sent, wide, ordered, op), ordered)
        bits = _turned(emitter, found, ordered)
        back = emitter.op(f"stablehlo.bitcast_convert {bits} : {signature([ordered], [wide])}")
        return emitter.convert(back, wide, x)

    def _reduced(self, emitter: Emitter, equation: Equation, operand: str, type: TensorType) -> str:
        attributes = group_attributes(emitter, equation.params["groups"])[:-2] + ", use_global_device_ids}>"
        body = combining(type.dtype, REDUCTIONS[equation.params["op"]][0])
        return emitter.op(f'"stablehlo.all_reduce"({operand}) {attributes} {body} : {signature([type], [type])}')

    def batch(self, size: int, operands: Any, batched: Any, *, op: str, groups: Groups) -> Any:
        return self(operands[0], op, groups)

    def vjp(self, dy: Any, y: Any, x: Any, *, op: str, groups: Groups) -> Any:
        total = self(dy, "sum", groups)
        if op == "sum":
            return total
        mine = x == y
        shares = self(ops.convert(mine, dy.dtype), "sum", groups)
        return ops.where(mine, total / ops.where(shares == 0, 1, shares), 0)

    def flops(self, equation: Equation) -> int:
        return equation.output.type.size if is_float(equation.output.type.dtype) else 0

    def received(self, equation: Equation) -> int:
        x, count = equation.output.type, size_of(equation.params["groups"])
        return 2 * (count - 1) * x.with_dtype(accumulation_dtype(x.dtype)).nbytes // count


def _name(dtype: np.dtype) -> str:
    return "bfloat16" if dtype == DTYPES["bf16"] else f"np.{dtype.name}"


class ReduceScatter(Collective):
    """The sum over all ranks, of which each keeps its part along `axis`.

    Shapes: x (..., n * k, ...) over n ranks gives (..., k, ...).
    Edges: 16-bit floats travel and are added in f32.
    Derivative: dy of all ranks, gathered.
    """

    helpers = (reduce_scatter_helper, axis_index_helper)

    def __call__(self, x: Any, axis: int, groups: Groups) -> Any:
        return bind(self, x, axis=axis, groups=groups)

    def traced_helpers(self) -> dict[str, Callable]:
        return {
            "reduce_scatter_helper": lambda x, axis, groups: self(x, axis, as_groups(groups)),
            "axis_index_helper": lambda groups: axis_index_p(as_groups(groups)),
        }

    def result(self, x: TensorType, *, axis: int, groups: Groups) -> TensorType:
        check_number(self, x)
        check_axis(self, x, axis, size_of(groups))
        return x.with_shape(n // size_of(groups) if i == axis else n for i, n in enumerate(x.shape))

    def template(self, equation: Equation) -> str:
        x = equation.output.type
        wide = accumulation_dtype(x.dtype)
        if wide == x.dtype:
            return "reduce_scatter_helper({x}, {axis}, {groups})"
        return f"reduce_scatter_helper({{x}}.astype(np.{wide.name}), {{axis}}, {{groups}}).astype({_name(x.dtype)})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        (x,), y = equation.input_types, equation.output.type
        inner, outer = (type.with_dtype(accumulation_dtype(type.dtype)) for type in (x, y))
        dimension = f"scatter_dimension = {equation.params['axis']} : i64"
        attributes = group_attributes(emitter, equation.params["groups"], dimension)[:-2] + ", use_global_device_ids}>"
        reduced = emitter.op(
            f'"stablehlo.reduce_scatter"({emitter.convert(operands[0], x, inner)}) {attributes} '
            f"{combining(inner.dtype, 'add')} : {signature([inner], [outer])}"
        )
        return emitter.convert(reduced, outer, y)

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int, groups: Groups) -> Any:
        return self(operands[0], axis + 1, groups)

    def vjp(self, dy: Any, y: Any, x: Any, *, axis: int, groups: Groups) -> Any:
        return all_gather_p(dy, axis, groups)

    def flops(self, equation: Equation) -> int:
        return equation.input_types[0].size if is_float(equation.output.type.dtype) else 0

    def received(self, equation: Equation) -> int:
        y = equation.output.type
        return (size_of(equation.params["groups"]) - 1) * y.with_dtype(accumulation_dtype(y.dtype)).nbytes


class AllGather(Collective):
    """The operands of all ranks, one after the other along `axis`.

    Shapes: x (..., k, ...) over n ranks gives (..., n * k, ...).
    Derivative: the sum of dy over the ranks, of which each gets its part.
    """

    helpers = (all_gather_helper,)

    def __call__(self, x: Any, axis: int, groups: Groups) -> Any:
        return bind(self, x, axis=axis, groups=groups)

    def traced_helpers(self) -> dict[str, Callable]:
        return {"all_gather_helper": lambda x, axis, groups: self(x, axis, as_groups(groups))}

    def result(self, x: TensorType, *, axis: int, groups: Groups) -> TensorType:
        check_axis(self, x, axis)
        return x.with_shape(n * size_of(groups) if i == axis else n for i, n in enumerate(x.shape))

    def template(self, equation: Equation) -> str:
        return "all_gather_helper({x}, {axis}, {groups})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        dimension = f"all_gather_dim = {equation.params['axis']} : i64"
        attributes = group_attributes(emitter, equation.params["groups"], dimension)[:-2] + ", use_global_device_ids}>"
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f'"stablehlo.all_gather"({operands[0]}) {attributes} : {types}')

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int, groups: Groups) -> Any:
        return self(operands[0], axis + 1, groups)

    def vjp(self, dy: Any, y: Any, x: Any, *, axis: int, groups: Groups) -> Any:
        return reduce_scatter_p(dy, axis, groups)

    def received(self, equation: Equation) -> int:
        return (size_of(equation.params["groups"]) - 1) * equation.input_types[0].nbytes


class AllToAll(Collective):
    """Part i along `split_axis` goes to rank i; what comes is put together along `concat_axis`.

    Shapes: over n ranks, split_axis becomes n times shorter, and then concat_axis n times longer.
    Derivative: dy the other way.
    """

    helpers = (all_to_all_helper,)

    def __call__(self, x: Any, split_axis: int, concat_axis: int, groups: Groups) -> Any:
        return bind(self, x, split_axis=split_axis, concat_axis=concat_axis, groups=groups)

    def traced_helpers(self) -> dict[str, Callable]:
        return {"all_to_all_helper": lambda x, split, concat, groups: self(x, split, concat, as_groups(groups))}

    def result(self, x: TensorType, *, split_axis: int, concat_axis: int, groups: Groups) -> TensorType:
        check_axis(self, x, split_axis, size_of(groups))
        check_axis(self, x, concat_axis)
        shape = list(x.shape)
        shape[split_axis] //= size_of(groups)
        shape[concat_axis] *= size_of(groups)
        return x.with_shape(shape)

    def template(self, equation: Equation) -> str:
        return "all_to_all_helper({x}, {split_axis}, {concat_axis}, {groups})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        params = equation.params
        split, concat = (f"{name}_dimension = {params[f'{name}_axis']} : i64" for name in ("split", "concat"))
        count = f"split_count = {size_of(params['groups'])} : i64"
        attributes = group_attributes(emitter, params["groups"], split, concat, count)
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f'"stablehlo.all_to_all"({operands[0]}) {attributes} : {types}')

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return self(operands[0], params["split_axis"] + 1, params["concat_axis"] + 1, params["groups"])

    def vjp(self, dy: Any, y: Any, x: Any, *, split_axis: int, concat_axis: int, groups: Groups) -> Any:
        return self(dy, concat_axis, split_axis, groups)

    def received(self, equation: Equation) -> int:
        count = size_of(equation.params["groups"])
        return (count - 1) * equation.output.type.nbytes // count


class CollectivePermute(Collective):
    """The operand of the rank that sends to this one, by `pairs` (source, target); zeros where none does.

    Shapes: x (...) gives (...).
    Derivative: dy the other way.
    """

    helpers = (collective_permute_helper,)

    def __call__(self, x: Any, pairs: tuple[tuple[int, int], ...], groups: Groups) -> Any:
        return bind(self, x, pairs=pairs, groups=groups)

    def traced_helpers(self) -> dict[str, Callable]:
        return {"collective_permute_helper": lambda x, pairs, groups: self(x, pairs, as_groups(groups))}

    def result(self, x: TensorType, *, pairs: tuple[tuple[int, int], ...], groups: Groups) -> TensorType:
        return x

    def template(self, equation: Equation) -> str:
        return "collective_permute_helper({x}, {pairs}, {groups})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        pairs = [list(pair) for pair in equation.params["pairs"]]
        rows = f"dense<{pairs}> : tensor<{len(pairs)}x2xi64>" if pairs else "dense<> : tensor<0x2xi64>"
        handle = f"channel_handle = #stablehlo.channel_handle<handle = {emitter.channel()}, type = 1>"
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(
            f'"stablehlo.collective_permute"({operands[0]}) <{{{handle}, source_target_pairs = {rows}}}> : {types}'
        )

    def batch(self, size: int, operands: Any, batched: Any, *, pairs: Any, groups: Groups) -> Any:
        return self(operands[0], pairs, groups)

    def vjp(self, dy: Any, y: Any, x: Any, *, pairs: tuple[tuple[int, int], ...], groups: Groups) -> Any:
        return self(dy, tuple((target, source) for source, target in pairs), groups)

    def received(self, equation: Equation) -> int:
        return equation.output.type.nbytes


class AxisIndex(Collective):
    """The place of this rank in its group, an i32 scalar."""

    helpers = (axis_index_helper,)
    differentiable = False

    def __call__(self, groups: Groups) -> Any:
        return bind(self, groups=groups)

    def traced_helpers(self) -> dict[str, Callable]:
        return {"axis_index_helper": lambda groups: self(as_groups(groups))}

    def result(self, *, groups: Groups) -> TensorType:
        return TensorType((), DTYPES["i32"])

    def template(self, equation: Equation) -> str:
        return "axis_index_helper({groups})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        groups, out = equation.params["groups"], equation.output.type
        number = emitter.op("stablehlo.partition_id : tensor<ui32>")
        if len(groups) == 1 and groups[0] == tuple(range(len(groups[0]))):
            return emitter.convert(number, TensorType((), DTYPES["u32"]), out)
        places = {rank: place for group in groups for place, rank in enumerate(group)}
        table = emitter.constant(np.array([places[rank] for rank in sorted(places)], np.int32))
        rows = TensorType((len(places),), out.dtype)
        place = tensor(TensorType((), DTYPES["u32"]))
        one = emitter.op(
            f"stablehlo.dynamic_slice {table}, {number}, sizes = [1] : ({tensor(rows)}, {place}) -> "
            f"{tensor(rows.with_shape((1,)))}"
        )
        return emitter.reshape(one, rows.with_shape((1,)), ())

    def received(self, equation: Equation) -> int:
        return 0


all_reduce_p = AllReduce()
reduce_scatter_p = ReduceScatter()
all_gather_p = AllGather()
all_to_all_p = AllToAll()
collective_permute_p = CollectivePermute()
axis_index_p = AxisIndex()
