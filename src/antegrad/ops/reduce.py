"""Reductions over axes. Sums of 16-bit floats are accumulated in f32; integer sums keep their type and wrap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import ATOM, Code, fill
from antegrad.ir.mlir import Emitter, ints, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTYPES, TensorType, accumulation_dtype, is_float, is_integer
from antegrad.ops.batching import up

__all__ = ["argmax_p", "argmin_p", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"]


class Reduction(Primitive):
    """Base of the reductions: `function` names NumPy's, `stablehlo` the operation that combines two elements."""

    function = ""
    accepts_bool = False
    reduces = True

    def __call__(self, x: Any, axes: tuple[int, ...]) -> Any:
        return ops.bind(self, x, axes=axes)

    def result(self, x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        if list(axes) != sorted(set(axes)) or any(not 0 <= axis < x.ndim for axis in axes):
            raise ShapeError(f"{self.name}: {axes} are not axes of {x}")
        if (x.dtype == BOOL) != self.accepts_bool:
            needed = "bool" if self.accepts_bool else "number"
            raise DTypeError(f"{self.name} is for {needed} tensors, found {x}: use .astype(...)")
        return x.with_shape(size for axis, size in enumerate(x.shape) if axis not in axes)

    def render(self, equation: Equation, *operands: Code) -> Code:
        (x,), axes, dtype = equation.input_types, equation.params["axes"], equation.output.type.dtype
        axis = "" if len(axes) == x.ndim else f"axis={axes[0]}" if len(axes) == 1 else f"axis={axes}"
        wide = accumulation_dtype(dtype)
        if wide != dtype and self.sums:
            template = f"{{x}}.astype({{wide}}).{self.function}({axis}).astype({{dtype}})"
            return fill(template, ("x",), operands, {"wide": wide, "dtype": dtype})
        if is_integer(dtype) and self.sums:
            axis += f"{', ' if axis else ''}dtype={{dtype}}"
        return fill(f"{{x}}.{self.function}({axis})", ("x",), operands, {"dtype": dtype})

    def batch(self, size: int, operands: Any, batched: Any, *, axes: Any) -> Any:
        return self(operands[0], up(axes))

    sums = False
    """Whether the reduction adds or multiplies, so that its accumulator matters."""

    def identity(self, dtype: np.dtype) -> Any:
        raise self.missing("identity", "lowered to StableHLO")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        (source,), target = equation.input_types, equation.output.type
        wide = accumulation_dtype(source.dtype) if self.sums else source.dtype
        inner, outer = source.with_dtype(wide), target.with_dtype(wide)
        operand = emitter.convert(operands[0], source, inner)
        start = emitter.constant(np.asarray(self.identity(wide), wide))
        types = signature([inner, TensorType((), wide)], [outer])
        reduced = emitter.op(
            f"stablehlo.reduce({operand} init: {start}) applies stablehlo.{self.stablehlo} "
            f"across dimensions = {ints(equation.params['axes'])} : {types}"
        )
        return emitter.convert(reduced, outer, target)

    def flops(self, equation: Equation) -> int:
        return equation.input_types[0].size if is_float(equation.output.type.dtype) else 0


def stretched(y: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """`y`, a reduction over `axes`, broadcast back to `shape`."""
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    return ops.bind(ops.broadcast_in_dim, y, shape=shape, dims=kept)


class ReduceSum(Reduction):
    """Sum over `axes`.

    Shapes: x (..., n, ...) gives (..., ...).
    Edges: 0 over an empty axis; integers wrap.
    Derivative: dy for each element.
    """

    function = "sum"
    stablehlo = "add"
    sums = True

    def identity(self, dtype: np.dtype) -> Any:
        return 0

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        return stretched(dy, axes, x.shape)


class ReduceProd(Reduction):
    """Product over `axes`.

    Shapes: x (..., n, ...) gives (..., ...).
    Edges: 1 over an empty axis; integers wrap.
    Derivative: dy times the product of all others, exact where factors are 0.
    """

    function = "prod"
    stablehlo = "multiply"
    sums = True

    def identity(self, dtype: np.dtype) -> Any:
        return 1

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        return stretched(dy, axes, x.shape) * _product_of_others(x, axes)


def _product_of_others(x: Any, axes: tuple[int, ...]) -> Any:
    """For each element the product of all others of its reduction: those before it times those after it."""
    order = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
    moved = ops.transpose(x, order)
    kept = moved.shape[: x.ndim - len(axes)]
    count = math.prod(moved.shape[len(kept) :])
    rows = ops.reshape(moved, (*kept, count))
    before, after = (_exclusive_product(rows, reverse) for reverse in (False, True))
    return ops.transpose(ops.reshape(before * after, moved.shape), tuple(int(i) for i in np.argsort(order)))


def _exclusive_product(rows: Any, reverse: bool) -> Any:
    """Along the last axis, the product of all elements before each one (after it if `reverse`)."""
    if rows.shape[-1] == 0:
        return rows
    one = ops.ones_like(rows[..., :1])
    shifted = [rows[..., 1:], one] if reverse else [one, rows[..., :-1]]
    return ops.cumprod(ops.concatenate(shifted, axis=-1), axis=-1, reverse=reverse)


class Extremum(Reduction):
    """Base of max and min. The cotangent is split evenly among the ties."""

    def result(self, x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        out = super().result(x, axes=axes)
        if math.prod(x.shape[axis] for axis in axes) == 0 and out.size:
            raise ShapeError(f"{self.name}: {x} has no element along {axes}, so no extremum")
        return out

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        ties = x == stretched(y, axes, x.shape)
        share = dy / ops.sum(ops.convert(ties, dy.dtype), axes)
        return ops.where(ties, stretched(share, axes, x.shape), 0)


class ReduceMax(Extremum):
    """Largest element over `axes`; NaN if any is.

    Shapes: x (..., n, ...) gives (..., ...).
    Edges: an empty axis is a `ShapeError`.
    Derivative: dy, split evenly among the ties.
    """

    function = "max"
    stablehlo = "maximum"

    def identity(self, dtype: np.dtype) -> Any:
        return -np.inf if is_float(dtype) else np.iinfo(dtype).min


class ReduceMin(Extremum):
    """Smallest element over `axes`; NaN if any is.

    Shapes: x (..., n, ...) gives (..., ...).
    Edges: an empty axis is a `ShapeError`.
    Derivative: dy, split evenly among the ties.
    """

    function = "min"
    stablehlo = "minimum"

    def identity(self, dtype: np.dtype) -> Any:
        return np.inf if is_float(dtype) else np.iinfo(dtype).max


class ReduceAnd(Reduction):
    """Whether all elements over `axes` are true.

    Shapes: x (..., n, ...) gives (..., ...).
    Edges: true over an empty axis.
    Derivative: none.
    """

    function = "all"
    stablehlo = "and"
    accepts_bool = True
    differentiable = False

    def identity(self, dtype: np.dtype) -> Any:
        return True


class ReduceOr(Reduction):
    """Whether any element over `axes` is true.

    Shapes: x (..., n, ...) gives (..., ...).
    Edges: false over an empty axis.
    Derivative: none.
    """

    function = "any"
    stablehlo = "or"
    accepts_bool = True
    differentiable = False

    def identity(self, dtype: np.dtype) -> Any:
        return False


class ArgExtremum(Primitive):
    """Base of argmax and argmin: the first position of the extremum along `axis`, or of the first NaN, as i32."""

    differentiable = False
    direction = ""

    def __call__(self, x: Any, axis: int) -> Any:
        return ops.bind(self, x, axis=axis)

    def result(self, x: TensorType, *, axis: int) -> TensorType:
        if not 0 <= axis < x.ndim:
            raise ShapeError(f"{self.name}: {axis} is not an axis of {x}")
        if x.shape[axis] == 0:
            raise ShapeError(f"{self.name}: {x} has no element along axis {axis}")
        return TensorType((*x.shape[:axis], *x.shape[axis + 1 :]), DTYPES["i32"])

    def render(self, equation: Equation, *operands: Code) -> Code:
        text = f"np.{self.name}({operands[0].text}, axis={equation.params['axis']})"
        return Code(f"{text}.astype(np.int32)", ATOM)

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int) -> Any:
        return self(operands[0], axis + 1)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        (source,), target, axis = equation.input_types, equation.output.type, equation.params["axis"]
        positions = source.with_dtype(DTYPES["i32"])
        iota = emitter.op(f"stablehlo.iota dim = {axis} : {tensor(positions)}")
        lowest = self.lowest(source.dtype)
        start = emitter.constant(np.asarray(lowest, source.dtype))
        zero = emitter.constant(np.asarray(0, np.int32))
        key, index = TensorType((), source.dtype), TensorType((), DTYPES["i32"])
        types = signature([source, positions, key, index], [target.with_dtype(source.dtype), target])
        result = emitter.op(
            f'"stablehlo.reduce"({operands[0]}, {iota}, {start}, {zero}) <{{dimensions = array<i64: {axis}>}}> '
            f"({self._region(key)}) : {types}",
            results=2,
        )
        return f"{result}#1"

    def lowest(self, dtype: np.dtype) -> Any:
        raise self.missing("lowest", "lowered to StableHLO")

    def _region(self, key: TensorType) -> str:
        """Keep (value, position) a if a is NaN first, else beats b, else ties with b and comes first."""
        k, i, b = tensor(key), tensor(TensorType((), DTYPES["i32"])), tensor(TensorType((), BOOL))
        compare = f"({k}, {k}) -> {b}"
        return (
            f"{{ ^bb0(%a: {k}, %i: {i}, %b: {k}, %j: {i}): "
            f"%wins = stablehlo.compare {self.direction}, %a, %b : {compare} "
            f"%anan = stablehlo.compare NE, %a, %a : {compare} "
            f"%bnan = stablehlo.compare NE, %b, %b : {compare} "
            f"%first = stablehlo.compare LT, %i, %j : ({i}, {i}) -> {b} "
            f"%same = stablehlo.compare EQ, %a, %b : {compare} "
            f"%bothnan = stablehlo.and %anan, %bnan : {b} "
            f"%tie = stablehlo.or %same, %bothnan : {b} "
            f"%earlier = stablehlo.and %tie, %first : {b} "
            f"%notb = stablehlo.not %bnan : {b} "
            f"%onlya = stablehlo.and %anan, %notb : {b} "
            f"%better = stablehlo.or %wins, %onlya : {b} "
            f"%take = stablehlo.or %better, %earlier : {b} "
            f"%value = stablehlo.select %take, %a, %b : {b}, {k} "
            f"%place = stablehlo.select %take, %i, %j : {b}, {i} "
            f"stablehlo.return %value, %place : {k}, {i} }}"
        )


class Argmax(ArgExtremum):
    """Position of the largest element along `axis`."""

    direction = "GT"

    def lowest(self, dtype: np.dtype) -> Any:
        return False if dtype == BOOL else -np.inf if is_float(dtype) else np.iinfo(dtype).min


class Argmin(ArgExtremum):
    """Position of the smallest element along `axis`."""

    direction = "LT"

    def lowest(self, dtype: np.dtype) -> Any:
        return True if dtype == BOOL else np.inf if is_float(dtype) else np.iinfo(dtype).max


reduce_sum = ReduceSum()
reduce_prod = ReduceProd()
reduce_max = ReduceMax()
reduce_min = ReduceMin()
reduce_and = ReduceAnd()
reduce_or = ReduceOr()
argmax_p = Argmax()
argmin_p = Argmin()
