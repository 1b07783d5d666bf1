"""Running sums, products and extrema along an axis, and the linear recurrence that their gradients are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, array, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTYPES, TensorType, accumulation_dtype, is_float, is_integer
from antegrad.ops.arrays import misfit, normalize_axis, ravel
from antegrad.ops.batching import stretched
from antegrad.ops.composition import composed
from antegrad.ops.control import scan_p
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.elementwise import mul_no_nan
from antegrad.ops.shape import pad_p
from antegrad.ops.statistics import countable, floating, widened

__all__ = [
    "cumlogsumexp", "cummax", "cummax_p", "cummin", "cummin_p", "cumprod", "cumprod_p", "cumsum", "cumsum_p", "diff",
    "linear_recurrence_p",
]  # fmt: skip


class Cumulative(Primitive):
    """Base of the cumulative operations along `axis`, from its end if `reverse`.

    `function` names NumPy's, `stablehlo` the operation that combines two elements.
    """

    function = ""
    sums = False
    """Whether it adds or multiplies, so that its accumulator matters."""

    def __call__(self, x: Any, axis: int, reverse: bool = False) -> Any:
        return bind(self, x, axis=axis, reverse=reverse)

    def result(self, x: TensorType, *, axis: int, reverse: bool) -> TensorType:
        if not 0 <= axis < x.ndim:
            raise ShapeError(f"{self.name}: {axis} is not an axis of {x}")
        if self.sums and x.dtype == BOOL:
            raise DTypeError(f"{self.name} is for number tensors, found {x}: use .astype(...)")
        return x

    def identity(self, dtype: np.dtype) -> Any:
        raise self.missing("identity", "lowered to StableHLO")

    def render(self, equation: Equation, *operands: Code) -> Code:
        dtype, reverse = equation.output.type.dtype, equation.params["reverse"]
        wide = accumulation_dtype(dtype) if self.sums else dtype
        typed = ", dtype={wide}" if self.sums and (wide != dtype or is_integer(dtype)) else ""
        x = "np.flip({x}, {axis})" if reverse else "{x}"
        template = f"{self.function}({x}, axis={{axis}}{typed})" + (".astype({dtype})" if wide != dtype else "")
        template = f"np.flip({template}, {{axis}})" if reverse else template
        return fill(template, ("x",), operands, {**equation.params, "wide": wide, "dtype": dtype})

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        # XLA:CPU turns a window over the whole axis into sums of blocks. For f32 of 100, 10,000 and 1,000,000 elements
        # it took 0.02, 0.17 and 9.5 ms (0.2 s to compile); doubling 0.03, 0.13 and 80 ms (0.4 s); pairs 0.01, 0.09 and
        # 3.8 ms (1.5 s); a loop 0.01, 0.07 and 3.2 ms, which on a GPU would be a kernel an element.
        (type,), axis = equation.input_types, equation.params["axis"]
        if type.size == 0:
            return operands[0]
        inner = type.with_dtype(accumulation_dtype(type.dtype) if self.sums else type.dtype)
        count, scalar = type.shape[axis], TensorType((), inner.dtype)
        operand = emitter.convert(operands[0], type, inner)
        start = emitter.constant(np.asarray(self.identity(inner.dtype), inner.dtype))
        window = array([count if place == axis else 1 for place in range(type.ndim)])
        edges = [0, count - 1] if equation.params["reverse"] else [count - 1, 0]
        padding = [edges if place == axis else [0, 0] for place in range(type.ndim)]
        element = tensor(scalar)
        result = emitter.op(
            f'"stablehlo.reduce_window"({operand}, {start}) <{{window_dimensions = {window}, padding = '
            f"dense<{padding}> : tensor<{type.ndim}x2xi64>}}> ({{ ^bb0(%a: {element}, %b: {element}): "
            f"%c = stablehlo.{self.stablehlo} %a, %b : {element} stablehlo.return %c : {element} }}) : "
            f"{signature([inner, scalar], [inner])}"
        )
        return emitter.convert(result, inner, type)

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int, reverse: bool) -> Any:
        return self(operands[0], axis + 1, reverse)

    def flops(self, equation: Equation) -> int:
        return equation.output.type.size if is_float(equation.output.type.dtype) else 0


def _before(x: Any, axis: int, reverse: bool, first: float) -> Any:
    """For each element the one before it along `axis` (after it if `reverse`), and `first` for that which has none."""
    low = tuple((-1 if reverse else 1) if place == axis else 0 for place in range(x.ndim))
    return pad_p(x, np.asarray(first, x.dtype), low, tuple(-n for n in low), (0,) * x.ndim)


class Cumsum(Cumulative):
    """Sum of the elements so far."""

    function = "np.cumsum"
    stablehlo = "add"
    sums = True

    def identity(self, dtype: np.dtype) -> Any:
        return 0

    def vjp(self, dy: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        return self(dy, axis, not reverse)


class Cumprod(Cumulative):
    """Product of the elements so far.

    Its gradient is the product before an element times what the later ones make of the cotangents, a recurrence, so
    that nothing is divided by an element that may be 0.
    """

    function = "np.cumprod"
    stablehlo = "multiply"
    sums = True

    def identity(self, dtype: np.dtype) -> Any:
        return 1

    def vjp(self, dy: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        later = linear_recurrence_p(_before(x, axis, not reverse, 0), dy, axis, not reverse)
        return mul_no_nan(later, _before(y, axis, reverse, 1))


class CumulativeExtremum(Cumulative):
    """Base of the running extrema. The cotangent goes to the first element that holds the extremum."""

    def vjp(self, dy: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        previous = _before(y, axis, reverse, 0)
        start = ops.iota(x.shape, DTYPES["i32"], axis) == (x.shape[axis] - 1 if reverse else 0)
        held = ((y == previous) | (previous != previous)) & ~start
        factors = ops.convert(_before(held, axis, not reverse, False), dy.dtype)
        return ops.where(held, 0, linear_recurrence_p(factors, dy, axis, not reverse))


class Cummax(CumulativeExtremum):
    """Largest element so far; NaN from the first NaN on."""

    function = "np.maximum.accumulate"
    stablehlo = "maximum"

    def identity(self, dtype: np.dtype) -> Any:
        return False if dtype == BOOL else -np.inf if is_float(dtype) else np.iinfo(dtype).min


class Cummin(CumulativeExtremum):
    """Smallest element so far; NaN from the first NaN on."""

    function = "np.minimum.accumulate"
    stablehlo = "minimum"

    def identity(self, dtype: np.dtype) -> Any:
        return True if dtype == BOOL else np.inf if is_float(dtype) else np.iinfo(dtype).max


def linear_recurrence_helper(a: Any, x: Any, axis: Any, reverse: Any) -> Any:
    """h[i] = a[i] * h[i-1] + x[i] along axis (from its end if reverse), pair by pair; 0 times anything is 0."""

    def times(p: Any, q: Any) -> Any:
        return np.where((p == 0) | (q == 0), 0, p * q)

    def scan(a: Any, x: Any) -> Any:
        if len(x) < 2:
            return x
        h = x.copy()
        h[1::2] = scan(times(a[1::2], a[:-1:2]), times(a[1::2], x[:-1:2]) + x[1::2])
        h[2::2] += times(a[2::2], h[1:-1:2])
        return h

    order = slice(None, None, -1 if reverse else 1)
    h = scan(np.moveaxis(a, axis, 0)[order], np.moveaxis(x, axis, 0)[order])
    return np.moveaxis(h[order], 0, axis)


class LinearRecurrence(Primitive):
    """``h[i] = a[i] * h[i-1] + x[i]`` along `axis`, from its end if `reverse`; the first element is that of x.

    It takes O(n) work, in O(log n) steps on the host and O(sqrt(n)) on XLA, and is its own derivative. Neighbouring
    factors are multiplied, which may overflow where the recurrence itself would not: 0 times anything is 0, so that a
    cotangent of 0 stays 0.

    Source: Blelloch, "Prefix sums and their applications" (1990).
    """

    numpy = "linear_recurrence_helper({a}, {x}, axis={axis}, reverse={reverse})"
    helpers = (linear_recurrence_helper,)

    def __call__(self, a: Any, x: Any, axis: int, reverse: bool = False) -> Any:
        return ops.convert(bind(self, widened(a), widened(x), axis=axis, reverse=reverse), x.dtype)

    def result(self, a: TensorType, x: TensorType, *, axis: int, reverse: bool) -> TensorType:
        if a != x or not 0 <= axis < x.ndim:
            raise ShapeError(f"{self.name}: {a} and {x} along axis {axis}, which need one type with that axis")
        if not is_float(x.dtype) or x.dtype.itemsize < 4:
            raise DTypeError(f"{self.name} is for f32 and f64, found {x}: use .astype('f32')")
        return x

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        program = composed(_recurrence, *equation.input_types, **equation.params)
        return emitter.body(program, operands)[0]

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int, reverse: bool) -> Any:
        return bind(self, *stretched(operands, batched, size), axis=axis + 1, reverse=reverse)

    def vjp(self, dy: Any, y: Any, a: Any, x: Any, *, axis: int, reverse: bool) -> Any:
        later = self(_before(a, axis, not reverse, 0), dy, axis, not reverse)
        return mul_no_nan(later, _before(y, axis, reverse, 0)), later

    def flops(self, equation: Equation) -> int:
        return 5 * equation.output.type.size


def _recurrence(a: Any, x: Any, axis: int, reverse: bool) -> Any:
    """`linear_recurrence_helper` in the operations of `ops`, since XLA has no scan of two operands."""

    def turned(x: Any) -> Any:
        return ops.flip(x, 0) if reverse else x

    a, x = (turned(ops.moveaxis(v, axis, 0)) for v in (a, x))
    h = _by_rows(a, x) if len(x) > ROW else _stepwise(a, x)
    return ops.moveaxis(turned(h), 0, axis)


ROW = 32
"""Longest axis that is gone through step by step."""


def _by_rows(a: Any, x: Any) -> Any:
    """Along axis 0: cut into about as many rows as each has steps, which all go at once, then one loop over the rows.

    The code has one size for every axis. For f32 of 100, 1,000 and 100,000 elements XLA:CPU took 0.7, 0.6 and 0.9 s to
    compile and 0.1, 0.2 and 4 ms to run it; pair by pair as on the host 1.8, 4.8 and 6.9 s, and 0.2, 0.4 and 7 ms.
    """
    count, steps = len(x), math.isqrt(len(x) - 1) + 1
    rows = -(-count // steps)

    def cut(x: Any) -> Any:
        padded = ops.pad(x, ((0, rows * steps - count), *[(0, 0)] * (x.ndim - 1)))
        return ops.moveaxis(ops.reshape(padded, (rows, steps, *x.shape[1:])), 1, 0)

    within, factors = _stepwise(cut(a), cut(x), products=True)
    ends = _stepwise(factors[-1], within[-1])
    h = within + _times(factors, _before(ends, 0, False, 0))
    return ops.reshape(ops.moveaxis(h, 0, 1), (rows * steps, *x.shape[1:]))[:count]


def _stepwise(a: Any, x: Any, products: bool = False) -> Any:
    """The recurrence along axis 0, and with `products` the products of the factors so far too."""
    row = TensorType(x.shape[1:], x.dtype)
    step, first = (_step_with_product, (0, 1)) if products else (_step, (0,))
    carry = [ops.full(row.shape, number, row.dtype) for number in first]
    body = composed(step, *[row] * (len(carry) + 2))
    results = bind(scan_p, *carry, a, x, body=body, counts=(0, len(carry)), length=len(x), reverse=False)
    return results[len(carry) :] if products else results[-1]


def _step(h: Any, a: Any, x: Any) -> Any:
    h = _times(a, h) + x
    return h, h


def _step_with_product(h: Any, product: Any, a: Any, x: Any) -> Any:
    h, product = _times(a, h) + x, _times(a, product)
    return h, product, h, product


def _times(p: Any, q: Any) -> Any:
    return ops.where((p == 0) | (q == 0), 0, p * q)


cumsum_p = Cumsum()
cumprod_p = Cumprod()
cummax_p = Cummax()
cummin_p = Cummin()
linear_recurrence_p = LinearRecurrence()


def _along(primitive: Cumulative, x: Any, axis: int | None, reverse: bool) -> Any:
    x = ravel(x) if axis is None else as_tensor(x)
    return primitive(x, 0 if axis is None else normalize_axis(axis, x, primitive.name), reverse)


def cumsum(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Cumulative sum along `axis`: ``y[i] = x[0] + ... + x[i]``, or from the end if `reverse`.

    Shapes: x (..., n, ...) gives the same shape; axis None flattens. bool counts as i32, and 16-bit floats are
        accumulated in f32.
    Edges: an empty axis gives an empty result; integers wrap.
    Derivative: the cumulative sum of dy from the other end.
    """
    return _along(cumsum_p, countable(x), axis, reverse)


def cumprod(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Cumulative product along `axis`: ``y[i] = x[0] * ... * x[i]``, or from the end if `reverse`.

    Shapes: x (..., n, ...) gives the same shape; axis None flattens. bool counts as i32, and 16-bit floats are
        multiplied in f32.
    Edges: an empty axis gives an empty result; integers wrap.
    Derivative: ``dx[j] = sum(dy[i] * product of x[0..i] without x[j] for i >= j)``, exact where factors are 0.
    """
    return _along(cumprod_p, countable(x), axis, reverse)


def cummax(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Cumulative maximum along `axis`: ``y[i] = max(x[0], ..., x[i])``, or from the end if `reverse`.

    Shapes: x (..., n, ...) gives the same shape; axis None flattens.
    Edges: NaN from the first NaN on; an empty axis gives an empty result.
    Derivative: dy[i] goes to the first element (the last if `reverse`) that holds the maximum y[i], and to the first
        NaN.
    """
    return _along(cummax_p, x, axis, reverse)


def cummin(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Cumulative minimum along `axis`: ``y[i] = min(x[0], ..., x[i])``, or from the end if `reverse`.

    Shapes: x (..., n, ...) gives the same shape; axis None flattens.
    Edges: NaN from the first NaN on; an empty axis gives an empty result.
    Derivative: dy[i] goes to the first element (the last if `reverse`) that holds the minimum y[i], and to the first
        NaN.
    """
    return _along(cummin_p, x, axis, reverse)


def cumlogsumexp(x: Any, axis: int | None = None, reverse: bool = False) -> Any:
    """Cumulative ``log(sum(exp(x)))`` along `axis`: ``y[i] = log(exp(x[0]) + ... + exp(x[i]))``, without overflow.

    Shapes: x (..., n, ...) gives the same shape; axis None flattens. From the end if `reverse`; in f32 for 16-bit
        floats.
    Edges: -inf where all elements so far are -inf.
    Derivative: ``dx[j] = sum(dy[i] * exp(x[j] - y[i]) for i >= j)``; 0 for an element of -inf.
    """
    x = floating(x, "cumlogsumexp")
    x, place = (ravel(x), 0) if axis is None else (x, normalize_axis(axis, x, "cumlogsumexp"))
    wide = widened(x)
    top = ops.stop_gradient(cummax_p(wide, place, reverse))
    previous = _before(top, place, reverse, 0)
    shrink = ops.exp(ops.where(previous == top, 0, previous - top))
    finite = ops.where(ops.isfinite(top), top, 0)
    total = linear_recurrence_p(shrink, ops.exp(wide - finite), place, reverse)
    nothing = total == 0
    result = ops.where(nothing, -math.inf, ops.log(ops.where(nothing, 1, total)) + finite)
    return ops.convert(result, x.dtype)


def diff(x: Any, n: int = 1, axis: int = -1) -> Any:
    """Differences of neighbours along `axis`, `n` times: ``y[i] = x[i + 1] - x[i]``.

    Shapes: x (..., m, ...) gives (..., max(m - n, 0), ...); bool gives whether neighbours differ.
    Edges: unsigned integers wrap. A negative n is a `ShapeError`.
    Derivative: ``dx[i] = dy[i - 1] - dy[i]``, n times.
    """
    x = as_tensor(x)
    place = normalize_axis(axis, x, "diff")
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise misfit(f"diff: the number of times must be an integer >= 0, found {n!r}")
    before = (slice(None),) * place
    for _ in range(n):
        later, earlier = (ops.getitem(x, (*before, part)) for part in (slice(1, None), slice(None, -1)))
        x = later != earlier if x.dtype == BOOL else ops.subtract(later, earlier)
    return x
