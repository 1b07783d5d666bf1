"""Pooling: the largest, the sum or the mean of the elements in every window of an image."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.mlir import Emitter, ints, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, DTYPES, TensorType, accumulation_dtype, is_float
from antegrad.ops.dispatch import bind
from antegrad.ops.shape import iota, slice_p
from antegrad.ops.spatial import (
    Each,
    Image,
    Padding,
    Pads,
    Sizes,
    Windows,
    block,
    extents,
    inner_axes,
    padded,
    parts,
    tiles,
    weighted_means,
    with_inner_axes,
)

__all__ = ["adaptive_avg_pool", "avg_pool", "max_pool", "reduce_window_max", "sum_pool"]

AT_ONCE = 16
"""The most elements of a window that are compared or added at once; larger windows are pooled axis by axis."""


def reduce_window_max_helper(x: Any, window: Any, strides: Any, padding: Any, dilation: Any) -> Any:
    """The largest element of every window of x, which has the lowest number around it."""
    x = np.pad(x, padding, constant_values=np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf)
    spans = [n - (size - 1) * step for n, size, step in zip(x.shape, window, dilation, strict=True)]
    y = None
    for place in np.ndindex(*window):
        starts = [number * step for number, step in zip(place, dilation, strict=True)]
        part = x[tuple(slice(a, a + n, s) for a, n, s in zip(starts, spans, strides, strict=True))]
        y = part.copy() if y is None else np.maximum(y, part, out=y)
    return y


class ReduceWindowMax(Primitive):
    """Largest element of every window; NaN if any is. The cotangent goes to the first of the largest elements.

    All params have a number, or a pair (before, after) of `padding`, for every axis of x. A window in the padding has
    the lowest number of its type, -inf for floats.

    Shapes: an axis of n and a window of k give ``(n + before + after - k) // stride + 1``, for undilated windows.
    Edges: NaN if any element of the window is; a window that does not fit is a `ShapeError`.
    Derivative: dy at the first of the largest elements of each window, added up.
    """

    helpers = (reduce_window_max_helper,)
    numpy = "reduce_window_max({x}, {window}, {strides}, {padding}, {dilation})"

    def __call__(self, x: Any, window: Sizes, strides: Sizes, padding: Pads, dilation: Sizes) -> Any:
        return bind(self, x, window=window, strides=strides, padding=padding, dilation=dilation)

    def result(self, x: TensorType, *, window: Sizes, strides: Sizes, padding: Pads, dilation: Sizes) -> TensorType:
        if x.dtype == BOOL:
            raise DTypeError(f"reduce_window_max is for number tensors, found {x}: use .astype(...)")
        numbers = (*window, *strides, *dilation, *(n + 1 for pair in padding for n in pair))
        if {len(window), len(strides), len(padding), len(dilation)} != {x.ndim} or min(numbers, default=1) < 1:
            params = f"window {window}, strides {strides}, padding {padding}, dilation {dilation}"
            raise ShapeError(f"reduce_window_max: {x} needs {x.ndim} numbers from 1 up of each, found {params}")
        rows = zip(x.shape, padding, extents(window, dilation), strict=True)
        spaces = [n + sum(pads) - extent for n, pads, extent in rows]
        if any(space < 0 and size > 1 for space, size in zip(spaces, window, strict=True)):
            raise ShapeError(f"reduce_window_max: a window {window}, dilation {dilation}, does not fit into {x}")
        return x.with_shape(max(space // stride + 1, 0) for space, stride in zip(spaces, strides, strict=True))

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        (x,), out, params = equation.input_types, equation.output.type, equation.params
        if out.size == 0:
            return emitter.splat(0, out)
        operand, source = operands[0], x
        if any(map(any, params["padding"])):
            low, high = zip(*params["padding"], strict=True)
            source = x.with_shape(n + a + b for n, a, b in zip(x.shape, low, high, strict=True))
            fill = emitter.constant(_lowest(x.dtype))
            operand = emitter.op(
                f"stablehlo.pad {operand}, {fill}, low = {ints(low)}, high = {ints(high)}, interior = "
                f"{ints((0,) * x.ndim)} : {signature([x, x.with_shape(())], [source])}"
            )
        result = ""
        for bounds in parts(out.shape, params["window"], params["strides"], params["dilation"]):
            index = ", ".join(f"{start}:{stop}:{step}" for start, stop, step in zip(*bounds, strict=True))
            part = emitter.op(f"stablehlo.slice {operand} [{index}] : {signature([source], [out])}")
            result = emitter.op(f"stablehlo.maximum {result}, {part} : {tensor(out)}") if result else part
        return result

    def vjp(self, dy: Any, y: Any, x: Any, **params: Any) -> Any:
        return max_gradient(dy, y, x, **params)

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        more = {key: ((0, 0) if key == "padding" else 1, *value) for key, value in params.items()}
        return bind(self, operands[0], **more)

    def flops(self, equation: Equation) -> int:
        out = equation.output.type
        return math.prod(equation.params["window"]) * out.size if is_float(out.dtype) else 0


def _lowest(dtype: np.dtype) -> np.ndarray:
    return np.asarray(-np.inf if is_float(dtype) else np.iinfo(dtype).min, dtype)


def max_gradient(
    dy: Any, y: Any, x: Any, *, window: Sizes, strides: Sizes, padding: Pads, dilation: Sizes
) -> Any:
    """The cotangent of x, where `y` is the largest element of each window: dy where that was found first.

    The winner of a window is known by the number of its place there. x is cut into blocks as long as the strides, so
    that each window begins with a block and reaches into the next few. Then an element has one place in the window
    that begins with its block, one in the window of the block before, and so on, and it takes the dy of those windows
    in which its place is that of the winner.

    Maximum and gradient take XLA:CPU this part of the time of reduce_window and select_and_scatter (jax 0.10.2,
    128x32x32x64 in f32; windows 2x2 with stride 2, 3x3 with stride 2, 3x3 with stride 1): 0.13, 0.13, 0.12. Padding
    what each place of the window takes to the shape of x, and adding, takes 0.13, 0.36, 0.28.
    """
    low, high = zip(*padding, strict=True)
    reach = tuple(-(-extent // s) for extent, s in zip(extents(window, dilation), strides, strict=True))
    blocks = tuple(-(-(n + a + b) // s) for n, a, b, s in zip(x.shape, low, high, strides, strict=True))

    def number(place: Any) -> int:
        return int(np.ravel_multi_index(tuple(place), tuple(np.multiply(reach, strides))))

    around, winner = padded(x, math.nan, low, high), ops.full(y.shape, -1, "i32")
    for bounds in reversed(parts(y.shape, window, strides, dilation)):
        winner = ops.where(slice_p(around, *bounds) == y, number(bounds[0]), winner)
    before, after = (tuple(map(int, np.subtract(*pair))) for pair in ((reach, 1), (blocks, y.shape)))
    winner = padded(winner, -1, before, after)
    wide = padded(ops.convert(dy, accumulation_dtype(dy.dtype)), 0, before, after)
    apart, inside, taken = with_inner_axes(blocks, (1,) * x.ndim, strides), _inside(strides, number), []
    for shift in np.ndindex(*reach):
        start = tuple(map(int, np.subtract(before, shift)))
        own, given = (ops.reshape(block(z, start, blocks), apart) for z in (winner, wide))
        taken.append(ops.where(own == inside + number(np.multiply(shift, strides)), given, 0))
    whole = ops.reshape(reduce(ops.add, taken), tuple(int(n) for n in np.multiply(blocks, strides)))
    return ops.convert(block(whole, low, x.shape), x.dtype)


def _inside(strides: Sizes, number: Callable[[Any], int]) -> Any:
    """The number of every place in a block, along the axes that `with_inner_axes` adds."""
    rank, total = len(strides) + len(inner_axes(strides)), 0
    moving = [axis for axis, stride in enumerate(strides) if stride > 1]
    for axis, place in zip(moving, inner_axes(strides), strict=True):
        steps = iota((strides[axis],), DTYPES["i32"]) * number(np.eye(len(strides), dtype=int)[axis])
        total = total + ops.reshape(steps, tuple(-1 if other == place else 1 for other in range(rank)))
    return total


reduce_window_max = ReduceWindowMax()


def max_pool(
    x: Any,
    window: Each,
    stride: Each | None = None,
    padding: Padding = "VALID",
    dilation: Each = 1,
    layout: str | None = None,
) -> Any:
    """Largest element of every window: ``y[n, p, c] = max over q of x[n, stride * p + dilation * q - before, c]``.

    Shapes: x (N, H, W, C) gives (N, H', W', C), the sizes and `layout` being those of `conv`; the stride is the window
    unless given. `padding` is that of `conv`, less than the window, and never the largest.
    Edges: NaN where the window has one, with gradient 0. A window larger than the padded x is a `ShapeError`.
    Derivative: dy at the first of the largest elements of the window, in row-major order (`max` splits it evenly).
    """
    image = Image("max_pool", x, layout)
    size, moves = _moves(image, window, stride, padding, dilation)
    x = image.x
    for params in _steps(image, size, moves):
        x = reduce_window_max(x, *params)
    return x


def sum_pool(
    x: Any, window: Each, stride: Each | None = None, padding: Padding = "VALID", layout: str | None = None
) -> Any:
    """Sum of every window: ``y[n, p, c] = sum over q of x[n, stride * p + q - before, c]``, of floats.

    Shapes: those of `max_pool`; 16-bit floats are summed in f32.
    Edges: a window larger than the padded x is a `ShapeError`.
    Derivative: for each element the sum of dy over the windows it is in.
    """
    image = Image("sum_pool", x, layout)
    return ops.convert(_sums(image, *_moves(image, window, stride, padding, 1)), image.x.dtype)


def avg_pool(
    x: Any,
    window: Each,
    stride: Each | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
    layout: str | None = None,
) -> Any:
    """Mean of every window: `sum_pool` divided by the number of elements, of floats.

    Shapes: those of `max_pool`; 16-bit floats are computed in f32.
    Padding: its zeros count as elements, as in torch and flax, unless ``count_include_pad=False`` (TensorFlow).
    Edges: a window larger than the padded x is a `ShapeError`.
    Derivative: for each element the sum of dy over the windows it is in, divided by their numbers of elements.
    """
    image = Image("avg_pool", x, layout)
    size, moves = _moves(image, window, stride, padding, 1)
    sums = _sums(image, size, moves)
    if count_include_pad or not any(map(any, moves.padding)):
        return ops.convert(sums / math.prod(size), image.x.dtype)
    for axis, n, k, stride, (low, _) in zip(image.axes, image.sizes, size, moves.strides, moves.padding, strict=True):
        places = iota(tuple(sums.shape[i] if i == axis else 1 for i in range(sums.ndim)), DTYPES["i32"], axis)
        start = places * stride - low
        sums = sums / ops.convert(ops.minimum(start + k, n) - ops.maximum(start, 0), sums.dtype)
    return ops.convert(sums, image.x.dtype)


def adaptive_avg_pool(x: Any, output_size: Each, layout: str | None = None) -> Any:
    """Means of `output_size` bins along each spatial axis: of m bins the i-th begins at ``i * H // m``, as in torch.

    It ends before ``ceil((i + 1) * H / m)``, so that bins overlap where m does not divide H.

    Shapes: x (N, H, W, C) gives (N, *output_size, C); 16-bit floats are computed in f32.
    Edges: an empty spatial axis is a `ShapeError`.
    Derivative: for each element the sum of dy over its bins, divided by their sizes.
    """
    image = Image("adaptive_avg_pool", x, layout)
    result = image.wide()
    for axis, n, m in zip(image.axes, image.sizes, image.each("output_size", output_size), strict=True):
        if n == 0:
            raise image.error(f"axis {axis} is empty")
        if n % m == 0:
            bins = ops.reshape(result, (*result.shape[:axis], m, n // m, *result.shape[axis + 1 :]))
            result = ops.sum(bins, axis + 1) / (n // m)
        else:
            own, places = (iota((m, n), DTYPES["i32"], axis) for axis in (0, 1))
            held = ((places + 1) * m > own * n) & (places * m < (own + 1) * n)
            result = weighted_means(result, axis, ops.convert(held, "i32"))
    return ops.convert(result, image.x.dtype)


def _moves(image: Image, window: Each, stride: Each | None, padding: Padding, dilation: Each) -> tuple[Sizes, Windows]:
    """The sizes of the window, and how it moves."""
    size = image.each("window", window)
    moves = image.windows(size, size if stride is None else stride, padding, dilation)
    for extent, pads in zip(extents(size, moves.dilation), moves.padding, strict=True):
        if max(pads) >= extent:
            raise image.error(f"padding {moves.padding} must be less than the window, which extends over {extent}")
    return size, moves


def _steps(image: Image, window: Sizes, moves: Windows) -> list[tuple[Any, ...]]:
    """The params of `reduce_window_max`: for all axes, or for one after another where the window is large.

    The last axis comes first, so that the first of the largest elements in row-major order stays the first.
    """
    rows = (window, 1), (moves.strides, 1), (moves.padding, (0, 0)), (moves.dilation, 1)
    groups = [image.axes] if math.prod(window) <= AT_ONCE else [(axis,) for axis in reversed(image.axes)]
    return [tuple(image.whole(numbers, other, axes) for numbers, other in rows) for axes in groups]


def _sums(image: Image, window: Sizes, moves: Windows) -> Any:
    """The sum of every window, in f32 for 16-bit floats."""
    x = image.wide()
    if window == moves.strides:
        low, high = zip(*image.whole(moves.padding, (0, 0)), strict=True)
        size = image.whole(window, 1)
        return ops.sum(tiles(padded(x, 0, low, high), size), inner_axes(size))
    for size, strides, padding, dilation in _steps(image, window, moves):
        x = padded(x, 0, *zip(*padding, strict=True))
        counts = tuple((n - k) // s + 1 for n, k, s in zip(x.shape, size, strides, strict=True))
        x = reduce(ops.add, (slice_p(x, *part) for part in parts(counts, size, strides, dilation)))
    return x
