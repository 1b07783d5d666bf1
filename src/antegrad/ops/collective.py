"""Collectives: what travels between the ranks, the devices that run one program together.

Every rank must come to the same collectives in the same order; one inside a branch that only some ranks take would wait
for ever. `ranks` says who takes part: a number N for the ranks 0 to N-1, or groups such as ``((0, 1), (2, 3))``, which
exchange among themselves. A result over one rank is the operand itself, and no equation.

The gradient of a program with collectives is that of the sum of the first outputs of all ranks: a rank's cotangent
counts what its operand adds to the loss of every other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, SettingError, ShapeError
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, element, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTYPES, TensorType, accumulation_dtype, is_float
from antegrad.ops.arrays import normalize_axis
from antegrad.ops.dispatch import as_tensor, bind

__all__ = [
    "all_gather",
    "all_gather_p",
    "all_reduce",
    "all_reduce_p",
    "all_to_all",
    "all_to_all_p",
    "axis_index",
    "axis_index_p",
    "collective_permute",
    "collective_permute_p",
    "reduce_scatter",
    "reduce_scatter_p",
]

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


def _attributes(emitter: Emitter, groups: Groups, *more: str) -> str:
    rows = f"dense<{[list(group) for group in groups]}> : tensor<{len(groups)}x{size_of(groups)}xi64>"
    handle = f"channel_handle = #stablehlo.channel_handle<handle = {emitter.channel()}, type = 1>"
    return f"<{{{', '.join([*more, handle, f'replica_groups = {rows}'])}}}>"


def _body(dtype: np.dtype, operation: str) -> str:
    scalar = f"tensor<{element(dtype)}>"
    return (
        f"({{ ^bb0(%left: {scalar}, %right: {scalar}): %both = stablehlo.{operation} %left, %right : {scalar} "
        f"stablehlo.return %both : {scalar} }})"
    )


def _check_number(primitive: Primitive, x: TensorType) -> None:
    if x.dtype == BOOL:
        raise DTypeError(f"{primitive.name} is for numbers, found {x}: use .astype(...)")


def _check_axis(primitive: Primitive, x: TensorType, axis: int, parts: int = 1) -> None:
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"{primitive.name}: {axis} is no axis of {x}")
    if x.shape[axis] % parts:
        raise ShapeError(
            f"{primitive.name}: axis {axis} of {x} does not divide into {parts} parts of one size: pad it to a multiple"
        )


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
        _check_number(self, x)
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
        attributes = _attributes(emitter, equation.params["groups"])[:-2] + ", use_global_device_ids}>"
        body = _body(type.dtype, REDUCTIONS[equation.params["op"]][0])
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
        _check_number(self, x)
        _check_axis(self, x, axis, size_of(groups))
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
        attributes = _attributes(emitter, equation.params["groups"], dimension)[:-2] + ", use_global_device_ids}>"
        reduced = emitter.op(
            f'"stablehlo.reduce_scatter"({emitter.convert(operands[0], x, inner)}) {attributes} '
            f"{_body(inner.dtype, 'add')} : {signature([inner], [outer])}"
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
        _check_axis(self, x, axis)
        return x.with_shape(n * size_of(groups) if i == axis else n for i, n in enumerate(x.shape))

    def template(self, equation: Equation) -> str:
        return "all_gather_helper({x}, {axis}, {groups})"

    def lower(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        dimension = f"all_gather_dim = {equation.params['axis']} : i64"
        attributes = _attributes(emitter, equation.params["groups"], dimension)[:-2] + ", use_global_device_ids}>"
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
        _check_axis(self, x, split_axis, size_of(groups))
        _check_axis(self, x, concat_axis)
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
        attributes = _attributes(emitter, params["groups"], split, concat, count)
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


def all_reduce(x: Any, ranks: Ranks, op: str = "sum") -> Any:
    """`x` of all ranks combined: "sum", "mean", "max" or "min".

    Shapes: x (...) gives (...), on every rank the same.
    Edges: 16-bit floats travel and are added in f32; max and min are NaN where an element is. Raises `SettingError` for
    another op or ranks that are none, and `DTypeError` for bool and for a mean of integers.
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
    total = all_reduce_p(x, "sum" if op == "mean" else op, groups)
    return total / size_of(groups) if op == "mean" else total


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
