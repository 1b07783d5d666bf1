"""Primitives that move elements and change none: broadcast, reshape, transpose, slice, pad, concatenate, iota, flip."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import ATOM, Code, dtype_code, fill, python_literal
from antegrad.ir.mlir import Emitter, ints, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, TensorType, is_float
from antegrad.ops.batching import stretched, up

__all__ = ["broadcast_in_dim", "concatenate_p", "flip_p", "iota", "pad_p", "reshape_p", "slice_p", "transpose_p"]


def aligned(x: Code, dims: tuple[int, ...], ndim: int) -> Code:
    """`x` with the axes of size 1 that NumPy's broadcasting needs to see; `dims` are its axes in the result."""
    if dims == tuple(range(ndim - len(dims), ndim)):
        return x
    first = dims[0] if dims else ndim
    index = ", ".join(":" if axis in dims else "None" for axis in range(first, ndim))
    return Code(f"{x.inside(ATOM)}[{index}]")


def transposed(x: Code, order: tuple[int, ...]) -> Code:
    """`x` with its axes in `order`: ``x.T`` or ``x.mT`` where that says it, and `x` itself for the order it has."""
    ndim = len(order)
    if order == tuple(range(ndim)):
        return x
    if order == (*range(ndim - 2), ndim - 1, ndim - 2):
        return Code(f"{x.inside(ATOM)}.{'T' if ndim == 2 else 'mT'}")
    return Code(f"{x.inside(ATOM)}.transpose({order})")


class BroadcastInDim(Primitive):
    """Axis i of x becomes axis ``dims[i]`` of the result, stretched where its size is 1; other axes are new.

    Shapes: x (m, 1), shape (m, n, p) and dims (0, 2) give (m, n, p).
    Edges: `dims` in another order, or a size that is neither 1 nor that of its axis, is a `ShapeError`.
    Derivative: the sum of dy over the axes that were stretched or are new.
    """

    def result(self, x: TensorType, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> TensorType:
        fits = len(dims) == x.ndim and list(dims) == sorted(set(dims)) and all(0 <= dim < len(shape) for dim in dims)
        if not fits or any(size not in (1, shape[dim]) for size, dim in zip(x.shape, dims, strict=True)):
            raise ShapeError(f"broadcast: {x} along axes {dims} does not fit the shape {shape}")
        return x.with_shape(shape)

    def render(self, equation: Equation, *operands: Code) -> Code:
        shape, dims = equation.params["shape"], equation.params["dims"]
        (x,) = operands
        return fill("np.broadcast_to({x}, {shape})", ("x",), (aligned(x, dims, len(shape)),), {"shape": shape})

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        return emitter.broadcast(operands[0], equation.input_types[0], equation.output.type, equation.params["dims"])

    def batch(self, size: int, operands: Any, batched: Any, *, shape: Any, dims: Any) -> Any:
        return ops.bind(self, operands[0], shape=(size, *shape), dims=(0, *up(dims)))

    def vjp(self, dy: Any, y: Any, x: Any, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
        stretched = {dim for dim, size in zip(dims, x.shape, strict=True) if size == 1 and shape[dim] != 1}
        axes = tuple(axis for axis in range(len(shape)) if axis not in dims or axis in stretched)
        return ops.reshape(ops.sum(dy, axes), x.shape)


class Reshape(Primitive):
    """The same elements in row-major order under another shape."""

    name = "reshape"
    numpy = "{x}.reshape({shape})"

    def result(self, x: TensorType, *, shape: tuple[int, ...]) -> TensorType:
        if math.prod(shape) != x.size:
            raise ShapeError(f"reshape: {x} has {x.size} elements, the shape {shape} needs {math.prod(shape)}")
        return x.with_shape(shape)

    def render(self, equation: Equation, *operands: Code) -> Code:
        source, target = equation.input_types[0].shape, equation.params["shape"]
        if len(target) == len(source) + 1 and source:
            for axis in range(len(target)):
                if target == (*source[:axis], 1, *source[axis:]):
                    index = ", ".join("None" if i == axis else ":" for i in range(axis + 1))
                    return Code(f"{operands[0].inside(ATOM)}[{index}]")
        return super().render(equation, *operands)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.reshape {operands[0]} : {types}")

    def batch(self, size: int, operands: Any, batched: Any, *, shape: Any) -> Any:
        return ops.bind(self, operands[0], shape=(size, *shape))

    def vjp(self, dy: Any, y: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
        return ops.reshape(dy, x.shape)


class Transpose(Primitive):
    """Axis i of the result is axis ``permutation[i]`` of x."""

    def result(self, x: TensorType, *, permutation: tuple[int, ...]) -> TensorType:
        if sorted(permutation) != list(range(x.ndim)):
            raise ShapeError(f"transpose: {permutation} does not permute the axes of {x}")
        return x.with_shape(x.shape[axis] for axis in permutation)

    def render(self, equation: Equation, *operands: Code) -> Code:
        return transposed(operands[0], equation.params["permutation"])

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(
            f"stablehlo.transpose {operands[0]}, dims = {ints(equation.params['permutation'])} : {types}"
        )

    def batch(self, size: int, operands: Any, batched: Any, *, permutation: Any) -> Any:
        return ops.bind(self, operands[0], permutation=(0, *up(permutation)))

    def vjp(self, dy: Any, y: Any, x: Any, *, permutation: tuple[int, ...]) -> Any:
        return ops.transpose(dy, tuple(int(axis) for axis in np.argsort(permutation)))


class Slice(Primitive):
    """``x[start:stop:step]`` along every axis, with 0 <= start <= stop <= size and step >= 1."""

    def result(
        self, x: TensorType, *, start: tuple[int, ...], stop: tuple[int, ...], step: tuple[int, ...]
    ) -> TensorType:
        if not len(start) == len(stop) == len(step) == x.ndim:
            raise ShapeError(f"slice: {x} needs {x.ndim} bounds, found {start}, {stop}, {step}")
        for low, high, stride, size in zip(start, stop, step, x.shape, strict=True):
            if not (0 <= low <= high <= size and stride >= 1):
                raise ShapeError(f"slice: [{low}:{high}:{stride}] does not fit an axis of size {size} of {x}")
        return x.with_shape(-(-(h - lo) // s) for lo, h, s in zip(start, stop, step, strict=True))

    def render(self, equation: Equation, *operands: Code) -> Code:
        bounds = (equation.params[key] for key in ("start", "stop", "step"))
        parts = [_slice_code(*bound) for bound in zip(*bounds, equation.input_types[0].shape, strict=True)]
        while parts and parts[-1] == ":":
            parts.pop()
        return Code(f"{operands[0].inside(ATOM)}[{', '.join(parts) or '...'}]")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        bounds = zip(*(equation.params[k] for k in ("start", "stop", "step")), strict=True)
        index = ", ".join(f"{low}:{high}:{step}" if step != 1 else f"{low}:{high}" for low, high, step in bounds)
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.slice {operands[0]} [{index}] : {types}")

    def batch(self, size: int, operands: Any, batched: Any, *, start: Any, stop: Any, step: Any) -> Any:
        return self(operands[0], (0, *start), (size, *stop), (1, *step))

    def vjp(self, dy: Any, y: Any, x: Any, *, start: Any, stop: Any, step: Any) -> Any:
        spans = [(size - 1) * stride + 1 if size else 0 for size, stride in zip(y.shape, step, strict=True)]
        high = tuple(size - low - span for size, low, span in zip(x.shape, start, spans, strict=True))
        return pad_p(dy, ops.zeros((), dy.dtype), start, high, tuple(stride - 1 for stride in step))

    def __call__(self, x: Any, start: Any, stop: Any, step: Any) -> Any:
        return ops.bind(self, x, start=tuple(start), stop=tuple(stop), step=tuple(step))


def _slice_code(start: int, stop: int, step: int, size: int) -> str:
    text = f"{start or ''}:{'' if stop == size else stop}"
    return f"{text}:{step}" if step != 1 else text


def pad_helper(x: Any, fill: Any, low: Any, high: Any, interior: Any) -> Any:
    """x with `interior` fill elements between neighbours and `low`, `high` around it; negative ones cut off."""
    spread = [max(0, (size - 1) * (gap + 1) + 1) if size else 0 for size, gap in zip(x.shape, interior, strict=True)]
    shape = [size + max(before, 0) + max(after, 0) for size, before, after in zip(spread, low, high, strict=True)]
    out = np.full(shape, fill, x.dtype)
    spans = zip(low, spread, interior, strict=True)
    out[tuple(slice(max(b, 0), max(b, 0) + s, gap + 1) for b, s, gap in spans)] = x
    return out[tuple(slice(max(-b, 0), n - max(-a, 0)) for b, a, n in zip(low, high, shape, strict=True))]


class Pad(Primitive):
    """x with `interior` fill elements between neighbours and `low`, `high` around it; negative ones cut off."""

    numpy = "pad_helper({x}, {fill}, {low}, {high}, {interior})"
    helpers = (pad_helper,)

    def __call__(self, x: Any, fill: Any, low: Any, high: Any, interior: Any) -> Any:
        return ops.bind(self, x, fill, low=tuple(low), high=tuple(high), interior=tuple(interior))

    def result(self, x: TensorType, fill: TensorType, *, low: Any, high: Any, interior: Any) -> TensorType:
        if fill != TensorType((), x.dtype):
            raise DTypeError(f"pad: the fill of {x} must be one element of its type, found {fill}")
        if not len(low) == len(high) == len(interior) == x.ndim or any(gap < 0 for gap in interior):
            raise ShapeError(f"pad: {x} needs {x.ndim} paddings, found low {low}, high {high}, interior {interior}")
        sizes = zip(x.shape, low, high, interior, strict=True)
        shape = tuple((max(0, (n - 1) * (gap + 1) + 1) if n else 0) + lo + hi for n, lo, hi, gap in sizes)
        if any(size < 0 for size in shape):
            raise ShapeError(f"pad: {x} has nothing left to cut off with low {low} and high {high}")
        return x.with_shape(shape)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        low, high, interior = (ints(equation.params[key]) for key in ("low", "high", "interior"))
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(
            f"stablehlo.pad {operands[0]}, {operands[1]}, low = {low}, high = {high}, interior = {interior} : {types}"
        )

    def batch(self, size: int, operands: Any, batched: Any, *, low: Any, high: Any, interior: Any) -> Any:
        if batched[1]:
            return NotImplemented
        x, fill = operands
        return self(x, fill, (0, *low), (0, *high), (0, *interior))

    def vjp(self, dy: Any, y: Any, x: Any, fill: Any, *, low: Any, high: Any, interior: Any) -> Any:
        less_low, less_high = (tuple(-n for n in side) for side in (low, high))
        kept = pad_p(dy, ops.zeros((), dy.dtype), less_low, less_high, (0,) * x.ndim)
        dx = slice_p(kept, (0,) * x.ndim, kept.shape, tuple(gap + 1 for gap in interior))
        return dx, ops.sum(dy) - ops.sum(dx)


class Concatenate(Primitive):
    """Operands one after the other along `axis`."""

    def result(self, *operands: TensorType, axis: int) -> TensorType:
        first = operands[0]
        for operand in operands:
            same = operand.ndim == first.ndim and operand.dtype == first.dtype and 0 <= axis < first.ndim
            if not same or any(
                a != b for i, (a, b) in enumerate(zip(operand.shape, first.shape, strict=True)) if i != axis
            ):
                raise ShapeError(f"concatenate: {first} and {operand} do not fit along axis {axis}")
        total = sum(operand.shape[axis] for operand in operands)
        return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))

    def __call__(self, operands: Any, axis: int) -> Any:
        return ops.bind(self, *operands, axis=axis)

    def render(self, equation: Equation, *operands: Code) -> Code:
        inner = ", ".join(operand.text for operand in operands)
        return Code(f"np.concatenate([{inner}], axis={equation.params['axis']})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.concatenate {', '.join(operands)}, dim = {equation.params['axis']} : {types}")

    def batch(self, size: int, operands: Any, batched: Any, *, axis: int) -> Any:
        return self(stretched(operands, batched, size), axis + 1)

    def vjp(self, dy: Any, y: Any, *operands: Any, axis: int) -> Any:
        offset, parts = 0, []
        for operand in operands:
            start = tuple(offset if i == axis else 0 for i in range(y.ndim))
            offset += operand.shape[axis]
            stop = tuple(offset if i == axis else size for i, size in enumerate(y.shape))
            parts.append(slice_p(dy, start, stop, (1,) * y.ndim))
        return tuple(parts)


class Iota(Primitive):
    """0, 1, 2, ... along `axis`, the same along all others.

    Shapes: `shape`, with at least one axis, of any type but bool.
    Edges: a size 0 gives an empty tensor; whole numbers beyond the precision of a float type are rounded.
    Derivative: none.
    """

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype, axis: int = 0) -> Any:
        return ops.bind(self, shape=tuple(shape), dtype=dtype, axis=axis)

    def result(self, *, shape: tuple[int, ...], dtype: np.dtype, axis: int) -> TensorType:
        if not 0 <= axis < len(shape) or dtype == BOOL:
            raise ShapeError(f"iota: no axis {axis} in the shape {shape}, or a bool result")
        return TensorType(shape, dtype)

    def render(self, equation: Equation, *operands: Code) -> Code:
        shape, dtype, axis = (equation.params[key] for key in ("shape", "dtype", "axis"))
        count = f"np.arange({shape[axis]}, dtype={dtype_code(dtype)})"
        if is_float(dtype) and dtype.itemsize == 2:
            count = f"np.arange({shape[axis]}, dtype=np.float32).astype({dtype_code(dtype)})"
        if len(shape) == 1:
            return Code(count)
        return Code(f"np.broadcast_to({aligned(Code(count), (axis,), len(shape)).text}, {python_literal(shape)})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        return emitter.op(f"stablehlo.iota dim = {equation.params['axis']} : {tensor(equation.output.type)}")

    def vjp(self, dy: Any, y: Any, **params: Any) -> tuple[()]:
        return ()


class Flip(Primitive):
    """x with the order of elements reversed along `axes`."""

    numpy = "np.flip({x}, {axes})"

    def __call__(self, x: Any, axes: tuple[int, ...]) -> Any:
        return ops.bind(self, x, axes=axes)

    def result(self, x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        return x

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        axes = ints(equation.params["axes"])
        return emitter.op(f"stablehlo.reverse {operands[0]}, dims = {axes} : {tensor(equation.output.type)}")

    def batch(self, size: int, operands: Any, batched: Any, *, axes: Any) -> Any:
        return self(operands[0], up(axes))

    def vjp(self, dy: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        return flip_p(dy, axes)


broadcast_in_dim = BroadcastInDim()
reshape_p = Reshape()
transpose_p = Transpose()
slice_p = Slice()
pad_p = Pad()
concatenate_p = Concatenate()
iota = Iota()
flip_p = Flip()
