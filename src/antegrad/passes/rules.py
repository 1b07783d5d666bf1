"""The rewriting rules of `simplify`, by primitive. A rule gives the value that replaces an equation, or None.

All of them keep every bit of the result on the host device, except the ones whose docstring states a bound. (A NaN
stays NaN; its sign is nobody's.) One thing is left to NumPy: a sum or a dot adds in the order of memory, so where a
rule saves a copy of what is summed later, the additions may come in another order, with the error bound of any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from antegrad.ir.program import Value
from antegrad.ir.types import TensorType, is_float, is_integer
from antegrad.ops.elementwise import multiply, negative
from antegrad.ops.linalg import dot_general, notation
from antegrad.ops.logic import convert
from antegrad.ops.reduce import reduce_sum
from antegrad.ops.shape import broadcast_in_dim, reshape_p, transpose_p

if TYPE_CHECKING:
    from antegrad.passes.simplify import _Rewriter

Rule = Callable[..., Value | None]
RULES: dict[str, list[Rule]] = {}


def rule(*primitives: str) -> Callable[[Rule], Rule]:
    """Register a rule for the primitives of these names."""

    def register(function: Rule) -> Rule:
        for primitive in primitives:
            RULES.setdefault(primitive, []).append(function)
        return function

    return register


def _is_number(p: _Rewriter, value: Value, number: float) -> bool:
    splat = p.splat(value)
    return splat is not None and bool(splat == number)


@rule("constant")
def uniform(p: _Rewriter, *, value: np.ndarray) -> Value | None:
    """An array of equal numbers is one number, stretched, which other rules recognise."""
    if value.ndim == 0 or value.size == 0:
        return None
    first = np.asarray(value.flat[0])
    same = value.tobytes() == first.tobytes() * value.size
    return p.filled(first, TensorType(value.shape, value.dtype)) if same else None


@rule("multiply")
def multiply_by_one(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """x * 1 is x, and x * -1 is -x."""
    for one, other in ((y, x), (x, y)):
        if _is_number(p, one, 1):
            return other
        if _is_number(p, one, -1):
            return p.emit(negative, other)
    return None


@rule("multiply")
def number_last(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """Numbers stand on the right, where equal products are recognised; IEEE multiplication commutes."""
    return p.emit(multiply, y, x) if p.splat(x) is not None and p.splat(y) is None else None


@rule("multiply")
def scale_by_powers_of_two(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """(x * a) * b is x * (a * b) where a or b is a power of two.

    Scaling by a power of two rounds nothing, so the bits are the same unless ``x * a`` or the result is subnormal or
    overflows. The result is then the more accurate one: ``x * a`` was off by at most half a subnormal step.
    """
    outer, inner = p.splat(y), p.producer(x, multiply)
    if outer is None or inner is None or not is_float(x.type.dtype):
        return None
    first = p.splat(inner.inputs[1])
    if first is None or not (_is_power_of_two(outer) or _is_power_of_two(first)):
        return None
    with np.errstate(over="ignore", under="ignore"):
        product = np.asarray(first * outer, x.type.dtype)
    if not np.isfinite(product) or abs(product) < ml_dtypes.finfo(product.dtype).smallest_normal:
        return None
    return p.emit(multiply, inner.inputs[0], p.filled(product, x.type))


def _is_power_of_two(number: np.ndarray) -> bool:
    value = abs(float(number))
    return 0 < value < math.inf and math.frexp(value)[0] == 0.5


@rule("mul_no_nan")
def harmless_factor(p: _Rewriter, cotangent: Value, factor: Value) -> Value | None:
    """A finite constant factor needs no guard, and neither does a constant cotangent other than 0.

    Only the sign of a zero can differ.
    """
    number, seed = p.splat(factor), p.splat(cotangent)
    if (number is not None and np.isfinite(number)) or (seed is not None and seed != 0):
        return p.emit(multiply, cotangent, factor)
    return None


@rule("add")
def double(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """x + x is x * 2 where x is itself a product with a number, so that the two numbers become one."""
    inner = p.producer(x, multiply)
    if x is y and inner is not None and p.splat(inner.inputs[1]) is not None and is_float(x.type.dtype):
        return p.emit(multiply, x, p.filled(np.asarray(2, x.type.dtype), x.type))
    return None


@rule("add")
def add_nothing(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """x + -0.0 is x for floats, x + 0 for integers. (x + 0.0 is not x where x is -0.0.)"""
    for nothing, other in ((y, x), (x, y)):
        number = p.splat(nothing)
        if number is not None and number == 0 and (is_integer(number.dtype) or np.signbit(number)):
            return other
    return None


@rule("subtract", "left_shift", "right_shift")
def take_nothing(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """x - 0, x << 0 and x >> 0 are x."""
    number = p.splat(y)
    return x if number is not None and number == 0 and not (is_float(number.dtype) and np.signbit(number)) else None


@rule("divide", "power", "truncated_divide")
def divide_by_one(p: _Rewriter, x: Value, y: Value) -> Value | None:
    """x / 1 and x ** 1 are x."""
    return x if _is_number(p, y, 1) else None


@rule("negative")
def double_negative(p: _Rewriter, x: Value) -> Value | None:
    """-(-x) is x."""
    inner = p.producer(x, negative)
    return None if inner is None else inner.inputs[0]


@rule("where")
def decided(p: _Rewriter, condition: Value, x: Value, y: Value) -> Value | None:
    """One value on both sides, or a constant condition, leaves no choice."""
    if x is y:
        return x
    choice = p.splat(condition)
    return None if choice is None else (x if bool(choice) else y)


@rule("convert")
def there_and_back(p: _Rewriter, x: Value, *, dtype: Any) -> Value | None:
    """A value widened to another type and converted back is itself."""
    if x.type.dtype == dtype:
        return x
    inner = p.producer(x, convert)
    if inner is None or inner.inputs[0].type.dtype != dtype:
        return None
    wider = is_float(dtype) and is_float(x.type.dtype) and x.type.dtype.itemsize > dtype.itemsize
    return inner.inputs[0] if wider else None


@rule("reshape")
def reshape_once(p: _Rewriter, x: Value, *, shape: tuple[int, ...]) -> Value | None:
    """A reshape of a reshape is one, and a reshape to the same shape is none."""
    if x.type.shape == shape:
        return x
    inner = p.producer(x, reshape_p)
    if inner is not None:
        return p.emit(reshape_p, inner.inputs[0], shape=shape)
    number = p.splat(x)
    return None if number is None else p.filled(number, x.type.with_shape(shape))


@rule("transpose")
def transpose_once(p: _Rewriter, x: Value, *, permutation: tuple[int, ...]) -> Value | None:
    """A transpose of a transpose is one, and the identical order is none."""
    if permutation == tuple(range(len(permutation))):
        return x
    inner = p.producer(x, transpose_p)
    if inner is not None:
        order = tuple(inner.params["permutation"][axis] for axis in permutation)
        return p.emit(transpose_p, inner.inputs[0], permutation=order)
    number = p.splat(x)
    return None if number is None else p.filled(number, x.type.with_shape(x.type.shape[axis] for axis in permutation))


@rule("broadcast_in_dim")
def broadcast_once(p: _Rewriter, x: Value, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> Value | None:
    """A broadcast of a broadcast, or of a reshape that only adds or removes axes of size 1, is one broadcast."""
    if shape == x.type.shape and dims == tuple(range(len(shape))):
        return x
    inner = p.producer(x, broadcast_in_dim)
    if inner is not None:
        composed = tuple(dims[axis] for axis in inner.params["dims"])
        return p.emit(broadcast_in_dim, inner.inputs[0], shape=shape, dims=composed)
    reshaped = p.producer(x, reshape_p)
    if reshaped is None:
        return None
    (source,) = reshaped.inputs
    if [n for n in source.type.shape if n != 1] != [n for n in x.type.shape if n != 1]:
        return None
    wide = iter([dim for dim, size in zip(dims, x.type.shape, strict=True) if size != 1])
    places: list[int] = []
    for size in source.type.shape:
        places.append(next(wide) if size != 1 else places[-1] + 1 if places else 0)
    if places != sorted(set(places)) or any(place >= len(shape) for place in places):
        return None
    return p.emit(broadcast_in_dim, source, shape=shape, dims=tuple(places))


@rule("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")
def reduce_nothing(p: _Rewriter, x: Value, *, axes: tuple[int, ...]) -> Value | None:
    """A reduction over no axis, or only over axes of size 1, moves nothing.

    Only the sign of a zero can differ: NumPy's sum of -0.0 alone is 0.0.
    """
    if any(x.type.shape[axis] != 1 for axis in axes):
        return None
    return p.emit(reshape_p, x, shape=tuple(n for axis, n in enumerate(x.type.shape) if axis not in axes))


@rule("reduce_sum")
def sum_of_transpose(p: _Rewriter, x: Value, *, axes: tuple[int, ...]) -> Value | None:
    """The sum of a transpose is a sum of the original, where what is left keeps its order.

    The bits stay, because NumPy adds in the order of memory. (A broadcast has no such order.)
    """
    inner = p.producer(x, transpose_p)
    if inner is None:
        return None
    order = inner.params["permutation"]
    left = [order[axis] for axis in range(len(order)) if axis not in axes]
    if left != sorted(left):
        return None
    return p.emit(reduce_sum, inner.inputs[0], axes=tuple(sorted(order[axis] for axis in axes)))


@rule("reduce_sum")
def sum_of_broadcast(p: _Rewriter, x: Value, *, axes: tuple[int, ...]) -> Value | None:
    """The sum of n equal numbers is n times the number.

    The product is rounded once where the sum rounded up to n - 1 times: the relative difference is below n ulps, and a
    zero may differ in sign. A number n that the element type does not hold exactly leaves the sum as it is.
    """
    inner = p.producer(x, broadcast_in_dim)
    if inner is None or not is_float(x.type.dtype):
        return None
    dims, (source,) = inner.params["dims"], inner.inputs
    sizes = dict(zip(dims, source.type.shape, strict=True))
    new = [axis for axis in axes if sizes.get(axis, 1) == 1]
    if not new:
        return None
    count = math.prod(x.type.shape[axis] for axis in new)
    with np.errstate(over="ignore"):
        number = np.asarray(count).astype(x.type.dtype)
    if count == 0 or float(number) != count:
        return None
    kept = tuple(axis for axis in axes if axis not in new)
    kept_source = tuple(dims.index(axis) for axis in kept)
    summed = p.emit(reduce_sum, source, axes=kept_source) if kept else source
    places = [axis for axis in range(x.type.ndim) if axis not in axes]
    shape = tuple(x.type.shape[axis] for axis in places)
    left = [dim for dim in dims if dim not in kept]
    flat = p.emit(reshape_p, summed, shape=tuple(sizes[dim] for dim in left if dim in places))
    wide = p.emit(broadcast_in_dim, flat, shape=shape, dims=tuple(places.index(dim) for dim in left if dim in places))
    return p.emit(multiply, wide, p.filled(number, wide.type))


@rule("dot_general")
def dot_of_transpose(
    p: _Rewriter, x: Value, y: Value, *, contract: Any, batch: Any, precision: str
) -> Value | None:
    """A dot of a transpose contracts other axes of the original, where the order of the result stays.

    NumPy must say both in the same way: with another function it may add in another order.
    """
    for position, operand in enumerate((x, y)):
        inner = p.producer(operand, transpose_p)
        if inner is None:
            continue
        order = inner.params["permutation"]
        used = (*contract[position], *batch[position])
        left = [order[axis] for axis in range(len(order)) if axis not in used]
        if left != sorted(left):
            continue
        operands = [x, y]
        operands[position] = inner.inputs[0]
        params: dict[str, Any] = {
            name: tuple(tuple(order[a] for a in side) if i == position else side for i, side in enumerate(pair))
            for name, pair in (("contract", contract), ("batch", batch))
        }
        after = notation(operands[0].type, operands[1].type, params["contract"], params["batch"])
        if after == notation(x.type, y.type, contract, batch):
            return p.emit(dot_general, *operands, **params, precision=precision)
    return None


@rule("slice")
def slice_everything(p: _Rewriter, x: Value, *, start: Any, stop: Any, step: Any) -> Value | None:
    """A slice of all of x is x."""
    return x if x.type.shape == stop and not any(start) and all(s == 1 for s in step) else None


@rule("pad")
def pad_nothing(p: _Rewriter, x: Value, fill: Value, *, low: Any, high: Any, interior: Any) -> Value | None:
    """Padding of width 0 is none."""
    return None if any(low) or any(high) or any(interior) else x


@rule("concatenate")
def concatenate_one(p: _Rewriter, *operands: Value, axis: int) -> Value | None:
    """One operand, or one that is not empty, stands for all."""
    full = [operand for operand in operands if operand.type.shape[axis]]
    return full[0] if len(full) == 1 else None


