"""Contractions: `dot_general`, and the products of vectors, matrices and tensors in terms of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import ATOM, Code, dtype_code, fill
from antegrad.ir.mlir import Emitter, ints, signature
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, TensorType, accumulation_dtype, is_float, type_of
from antegrad.ops.arrays import misfit, normalize_axis
from antegrad.ops.batching import up
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.promotion import unify
from antegrad.ops.shape import transposed

__all__ = [
    "dot", "dot_general", "inner", "kron", "matmul", "matrix_power", "outer", "tensordot", "vdot",
]  # fmt: skip

Dims = tuple[int, ...]
Pair = tuple[Dims, Dims]
"""Axes of the first operand and the corresponding axes of the second."""


class DotGeneral(Primitive):
    """Sum of products over the `contract` axes of both operands, one result for each index of the `batch` axes.

    Shapes: the `batch` axes, then what is left of x, then what is left of y. 16-bit floats are summed in f32.
    Edges: the sum over an empty axis is 0.
    Derivative: for each operand the product of dz with the other.

    With `precision` ``"default"`` an accelerator may round f32 operands (NVIDIA GPUs to TF32, TPUs to bf16);
    ``"highest"`` forbids it. The pass `passes.precision` sets it for a whole program.
    """

    def __call__(self, x: Any, y: Any, contract: Pair, batch: Pair = ((), ()), precision: str = "default") -> Any:
        return bind(self, x, y, contract=contract, batch=batch, precision=precision)

    def result(self, x: TensorType, y: TensorType, *, contract: Pair, batch: Pair, precision: str) -> TensorType:
        if x.dtype != y.dtype or x.dtype == BOOL:
            raise DTypeError(f"dot: operands of one number type are needed, found {x} and {y}")
        shape = _dot_shape(x.shape, y.shape, contract, batch)
        if shape is None:
            raise ShapeError(_misfit(x, y, contract, batch))
        return x.with_shape(shape)

    def render(self, equation: Equation, *operands: Code) -> Code:
        dtype = equation.output.type.dtype
        wide = accumulation_dtype(dtype)
        if wide != dtype:
            operands = tuple(Code(f"{code.inside(ATOM)}.astype({dtype_code(wide)})") for code in operands)
        product = _product(equation, *operands)
        return product if wide == dtype else Code(f"{product.inside(ATOM)}.astype({dtype_code(dtype)})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        params, target = equation.params, equation.output.type
        x, y = zip(operands, equation.input_types, strict=True)
        wide = target.with_dtype(accumulation_dtype(target.dtype))
        if _of_matrices(equation):
            product = _emit_matrices(emitter, equation, operands, wide)
        elif _is_column(equation):
            (left, right), precision = params["contract"], params["precision"]
            row = _emit_dot(emitter, y, x, (right, left), ((), ()), precision, wide.with_shape(target.shape[::-1]))
            product = emitter.reshape(row, wide.with_shape(target.shape[::-1]), target.shape)
        else:
            product = _emit_dot(emitter, x, y, params["contract"], params["batch"], params["precision"], wide)
        return emitter.convert(product, wide, target)

    def vjp(self, dy: Any, y: Any, a: Any, b: Any, *, contract: Pair, batch: Pair, precision: str) -> Any:
        of_a = _cotangent(dy, a, b, contract, batch, precision, first=True)
        return of_a, _cotangent(dy, b, a, (contract[1], contract[0]), (batch[1], batch[0]), precision, first=False)

    def batch(self, size: int, operands: Any, batched: Any, *, contract: Pair, batch: Pair, precision: str) -> Any:
        x, y = operands
        contract = up(contract[0]) if batched[0] else contract[0], up(contract[1]) if batched[1] else contract[1]
        inner = up(batch[0]) if batched[0] else batch[0], up(batch[1]) if batched[1] else batch[1]
        if all(batched):
            return self(x, y, contract, ((0, *inner[0]), (0, *inner[1])), precision)
        place = len(inner[0]) if batched[0] else len(inner[0]) + len(free(x, contract[0], inner[0]))
        return ops.moveaxis(self(x, y, contract, inner, precision), place, 0)

    def flops(self, equation: Equation) -> int:
        contracted = math.prod(equation.input_types[0].shape[axis] for axis in equation.params["contract"][0])
        return 2 * contracted * equation.output.type.size if is_float(equation.output.type.dtype) else 0


def _of_matrices(equation: Equation) -> bool:
    """Whether the product is one of matrices when its contracted and its other axes are merged, and not one already.

    A layer on [batch, length, features] has the gradient of its weight as a product over two axes. XLA:CPU copies the
    operands of such a product into another order first, and not those of a product of matrices, with the same numbers.
    """
    contract, batch = equation.params["contract"], equation.params["batch"]
    x, y = equation.input_types
    if batch[0] or not contract[0] or x.ndim == y.ndim == 2:
        return False
    return all(_matrix_axis(*side) is not None for side in ((x, contract[0]), (y, contract[1])))


def _matrix_axis(x: TensorType, contracted: Dims) -> int | None:
    """Which axis of x as a matrix the merged contracted axes are; None where they are neither first nor last."""
    count = len(contracted)
    if contracted == tuple(range(count)):
        return 0
    return 1 if contracted == tuple(range(x.ndim - count, x.ndim)) else None


def _emit_matrices(emitter: Emitter, equation: Equation, operands: Sequence[str], result: TensorType) -> str:
    (left, right), names, axes, sizes = equation.params["contract"], [], [], []
    for operand, type, contracted in zip(operands, equation.input_types, (left, right), strict=True):
        inner = math.prod(type.shape[axis] for axis in contracted)
        outer = math.prod(type.shape[axis] for axis in free(type, contracted, ()))
        axis = _matrix_axis(type, contracted) or 0
        shape = (outer, inner) if axis else (inner, outer)
        names.append((emitter.reshape(operand, type, shape), type.with_shape(shape)))
        axes.append((axis,))
        sizes.append(outer)
    matrix = result.with_shape(sizes)
    x, y = names
    product = _emit_dot(emitter, x, y, (axes[0], axes[1]), ((), ()), equation.params["precision"], matrix)
    return emitter.reshape(product, matrix, result.shape)


def _is_column(equation: Equation) -> bool:
    """Whether the product is ``x.T @ y`` with one column.

    XLA:CPU walks down the columns of x for it, against the order of memory. The same product as a row, ``y.T @ x``, is
    read along the rows: a step of the disc, which has one such product, takes 12 % less time.
    """
    x, y = equation.input_types
    leading = equation.params["contract"] == ((0,), (0,)) and not equation.params["batch"][0]
    return leading and x.ndim == y.ndim == 2 and y.shape[1] == 1


def _emit_dot(
    emitter: Emitter,
    x: tuple[str, TensorType],
    y: tuple[str, TensorType],
    contract: Pair,
    batch: Pair,
    precision: str,
    result: TensorType,
) -> str:
    batching = f"batching_dims = {ints(batch[0])} x {ints(batch[1])}, " if batch[0] else ""
    exact = "" if precision == "default" else f", precision = [{precision.upper()}, {precision.upper()}]"
    return emitter.op(
        f"stablehlo.dot_general {x[0]}, {y[0]}, {batching}"
        f"contracting_dims = {ints(contract[0])} x {ints(contract[1])}{exact} : {signature([x[1], y[1]], [result])}"
    )


def free(x: Any, contract: Sequence[int], batch: Sequence[int]) -> Dims:
    """The axes that are neither contracted nor batch."""
    return tuple(axis for axis in range(len(x.shape)) if axis not in contract and axis not in batch)


@lru_cache(maxsize=4096)
def _dot_shape(x: Dims, y: Dims, contract: Pair, batch: Pair) -> Dims | None:
    """The shape of the result; None when the paired axes differ in size. Remembered, because layers repeat."""
    for left, right in (contract, batch):
        if [x[axis] for axis in left] != [y[axis] for axis in right]:
            return None
    used = {*contract[0], *batch[0]}, {*contract[1], *batch[1]}
    own = [size for axis, size in enumerate(x) if axis not in used[0]]
    return (*(x[axis] for axis in batch[0]), *own, *(size for axis, size in enumerate(y) if axis not in used[1]))


def _misfit(x: TensorType, y: TensorType, contract: Pair, batch: Pair) -> str:
    """What does not fit: the first pair of axes that differ."""

    def sizes_of(pair: Pair) -> tuple[list[int], list[int]]:
        return [x.shape[axis] for axis in pair[0]], [y.shape[axis] for axis in pair[1]]

    kind = "contracted" if sizes_of(contract)[0] != sizes_of(contract)[1] else "batch"
    left, right = contract if kind == "contracted" else batch
    found = sizes_of((left, right))
    sizes = " and ".join(str(side[0]) if len(side) == 1 else str(side) for side in found)
    return (
        f"matmul of {x} and {y}: the {kind} axes must agree, found sizes {sizes} "
        f"(axis {', '.join(map(str, left))} of {x}, axis {', '.join(map(str, right))} of {y})"
    )


def _cotangent(dy: Any, a: Any, b: Any, contract: Pair, batch: Pair, precision: str, first: bool) -> Any:
    """The cotangent of operand `a`, the `first` or the second; `contract` and `batch` list the axes of a first."""
    free_a, free_b = free(a, contract[0], batch[0]), free(b, contract[1], batch[1])
    count = len(batch[0])
    leading = tuple(range(count))
    if first:
        of_b = tuple(range(dy.ndim - len(free_b), dy.ndim))
        product = dot_general(dy, b, (of_b, free_b), (leading, batch[1]), precision)
        order = (*batch[0], *free_a, *_paired(contract))
    else:
        of_b = tuple(range(count, count + len(free_b)))
        product = dot_general(b, dy, (free_b, of_b), (batch[1], leading), precision)
        order = (*batch[0], *_paired(contract), *free_a)
    return ops.transpose(product, tuple(int(i) for i in np.argsort(order)))


def _paired(contract: Pair) -> Dims:
    """The contracted axes of the first operand in the order in which they appear in the second."""
    return tuple(contract[0][i] for i in np.argsort(contract[1], kind="stable"))


def notation(x: TensorType, y: TensorType, contract: tuple[Dims, Dims], batch: tuple[Dims, Dims]) -> str:
    """How NumPy says a contraction: ``@`` where it can, else ``outer``, ``tensordot`` or ``einsum``.

    Transposing an operand changes no bit on the host as long as the notation stays the same.
    """
    count, single = len(batch[0]), len(contract[0]) == 1
    if single and x.ndim == y.ndim == count + 2:
        return "@"
    if count:
        return "einsum"
    if single and y.ndim <= 2 and (x.ndim == 2 or contract[0] == (x.ndim - 1,)):
        return "@"
    return "tensordot" if contract[0] or x.ndim != 1 or y.ndim != 1 else "outer"


def _product(equation: Equation, x: Code, y: Code) -> Code:
    contract, batch = equation.params["contract"], equation.params["batch"]
    x_type, y_type = equation.input_types
    match notation(x_type, y_type, contract, batch):
        case "@":
            x = transposed(x, (*batch[0], *free(x_type, contract[0], batch[0]), *contract[0]))
            y = transposed(y, (*batch[1], *contract[1], *free(y_type, contract[1], batch[1])))
            return fill("{x} @ {y}", ("x", "y"), (x, y), {})
        case "outer":
            return fill("np.outer({x}, {y})", ("x", "y"), (x, y), {})
        case "tensordot":
            return fill("np.tensordot({x}, {y}, axes={axes})", ("x", "y"), (x, y), {"axes": contract})
    letters = {"subscripts": _letters(equation)}
    return fill("np.einsum({subscripts}, {x}, {y}, optimize=True)", ("x", "y"), (x, y), letters)


def _letters(equation: Equation) -> str:
    """The contraction as einsum writes it: ``abc,adc->abd``."""
    (left, right), (batch_left, batch_right) = equation.params["contract"], equation.params["batch"]
    x_type, y_type = equation.input_types
    x = list("abcdefghijklm"[: x_type.ndim])
    y = list("nopqrstuvwxyz"[: y_type.ndim])
    for axis, partner in zip((*right, *batch_right), (*left, *batch_left), strict=True):
        y[axis] = x[partner]
    out = [x[axis] for axis in (*batch_left, *free(x_type, left, batch_left))]
    out += [y[axis] for axis in free(y_type, right, batch_right)]
    return f"{''.join(x)},{''.join(y)}->{''.join(out)}"


dot_general = DotGeneral()


def matmul(x: Any, y: Any) -> Any:
    """Matrix product of the last two axes: ``z[..., i, k] = sum_j x[..., i, j] * y[..., j, k]``; also ``x @ y``.

    Shapes: x (..., m, n) and y (..., n, k) give (..., m, k); leading axes broadcast. A vector is a row on the left and
    a column on the right, whose axis the result lacks. 16-bit floats are summed in f32.
    Edges: the sum over an empty axis is 0. Raises `ShapeError` for a scalar or sizes that differ.
    Derivative: ``dz @ y.T`` and ``x.T @ dz``.
    """
    x, y = unify("matmul", x, y)
    if not x.ndim or not y.ndim:
        raise misfit(f"matmul of {type_of(x)} and {type_of(y)}: a scalar is no matrix; use multiply")
    if y.ndim <= 2:
        return dot_general(x, y, ((x.ndim - 1,), (y.ndim - 2 if y.ndim == 2 else 0,)))
    if x.ndim == 1:
        return dot_general(x, y, ((0,), (y.ndim - 2,)))
    try:
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        found = f"{type_of(x)} and {type_of(y)}"
        raise misfit(f"matmul of {found}: the axes before the last two must broadcast together") from None
    x = ops.broadcast_to(x, (*lead, *x.shape[-2:]))
    y = ops.broadcast_to(y, (*lead, *y.shape[-2:]))
    axes = tuple(range(len(lead)))
    return dot_general(x, y, ((x.ndim - 1,), (y.ndim - 2,)), (axes, axes))


def dot(x: Any, y: Any) -> Any:
    """Sum of products over the last axis of x and the last but one of y (the only one of a vector).

    Shapes: x (..., n) and y (***, n, k) give (..., ***, k); a scalar multiplies. 16-bit floats are summed in f32.
    Edges: the sum over an empty axis is 0.
    Derivative: that of `dot_general`, a product with the other operand.
    """
    x, y = unify("dot", x, y)
    if not x.ndim or not y.ndim:
        return x * y
    return dot_general(x, y, ((x.ndim - 1,), (max(y.ndim - 2, 0),)))


def vdot(x: Any, y: Any) -> Any:
    """Sum of the products of all elements in order: ``sum(x * y)``.

    Shapes: two shapes of one size give a scalar. 16-bit floats are summed in f32.
    Edges: 0 for empty operands. Raises `ShapeError` when the sizes differ.
    Derivative: ``dz * y`` and ``dz * x``.
    """
    return dot(ops.ravel(x), ops.ravel(y))


def inner(x: Any, y: Any) -> Any:
    """Sum of products over the last axis of both: ``z[..., ***] = sum_i x[..., i] * y[***, i]``.

    Shapes: x (..., n) and y (***, n) give (..., ***); a scalar multiplies. 16-bit floats are summed in f32.
    Edges: the sum over an empty axis is 0.
    Derivative: that of `dot_general`, a product with the other operand.
    """
    x, y = unify("inner", x, y)
    return dot_general(x, y, ((x.ndim - 1,), (y.ndim - 1,))) if x.ndim and y.ndim else x * y


def outer(x: Any, y: Any) -> Any:
    """Every product of an element of x with one of y, both flattened: ``z[i, k] = x[i] * y[k]``.

    Shapes: sizes m and n give (m, n).
    Edges: empty where an operand is.
    Derivative: ``dz @ y`` and ``dz.T @ x``.
    """
    return ops.expand_dims(ops.ravel(x), 1) * ops.ravel(y)


def kron(x: Any, y: Any) -> Any:
    """Kronecker product, blocks of y scaled by the elements of x: ``z[i * m + j] = x[i] * y[j]`` along each axis.

    Shapes: the sizes of each axis are multiplied; the operand of fewer axes gets axes of size 1 in front.
    Edges: empty where an operand is.
    Derivative: sums of the blocks of dz with the other operand.
    """
    x, y = unify("kron", x, y)
    ndim = max(x.ndim, y.ndim)
    left, right = ((1,) * (ndim - z.ndim) + z.shape for z in (x, y))
    spread = ops.reshape(x, [n for size in left for n in (size, 1)])
    product = spread * ops.reshape(y, [n for size in right for n in (1, size)])
    return ops.reshape(product, [m * n for m, n in zip(left, right, strict=True)])


def tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Sum of products over the last `axes` axes of x and the first of y, or over the two listed sets of axes.

    Shapes: what is left of x, then what is left of y. 16-bit floats are summed in f32.
    Edges: the sum over an empty axis is 0; with ``axes=0`` every product. Raises `ShapeError` for sizes that differ.
    Derivative: that of `dot_general`, a product with the other operand.
    """
    x, y = unify("tensordot", x, y)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise misfit(f"tensordot of {type_of(x)} and {type_of(y)}: there are no {axes} axes to sum over")
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        left, right = ((side,) if isinstance(side, int) else tuple(side) for side in axes)
    left = tuple(normalize_axis(axis, x, "tensordot") for axis in left)
    right = tuple(normalize_axis(axis, y, "tensordot") for axis in right)
    if len(left) != len(right):
        raise misfit(f"tensordot: as many axes of each operand are needed, found {axes}")
    return dot_general(x, y, (left, right))


def matrix_power(x: Any, n: int) -> Any:
    """The product of `n` factors x, by repeated squaring; of the inverse for a negative `n`.

    Shapes: x (..., m, m) gives the same; a negative `n` takes f32 and f64.
    Edges: the identity for ``n = 0``; NaN for a negative `n` where x is singular.
    Derivative: that of the products.
    """
    x = as_tensor(x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise misfit(f"matrix_power: a square matrix is needed, or a batch of them, found {type_of(x)}")
    if n == 0:
        return ops.broadcast_to(ops.eye(x.shape[-1], dtype=x.dtype), x.shape)
    base = result = ops.inverse(x) if n < 0 else x
    for bit in f"{abs(n):b}"[1:]:
        result = result @ result
        result = result @ base if bit == "1" else result
    return result
