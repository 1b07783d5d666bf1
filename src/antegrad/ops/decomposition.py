"""What the operations on matrices, the last two axes of a tensor, share; Cholesky factors and triangular systems.

Axes before the last two are a batch. All are for f32 and f64: in 16 bits the factors would keep two or three digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import TensorType, is_float, type_of
from antegrad.ops.arrays import misfit
from antegrad.ops.batching import stretched
from antegrad.ops.composition import composed
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.promotion import unify

__all__ = ["cholesky", "triangular_solve"]

PANEL = 64
"""Columns that are eliminated one by one; more are halved, so that most of the work is a matrix product."""


class Decomposition(Primitive):
    """Base of the operations on matrices: f32 or f64, the leading axes a batch.

    What StableHLO lacks is emitted as the composition `formula`.
    """

    def __call__(self, *operands: Any, **params: Any) -> Any:
        return bind(self, *operands, **params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str | tuple[str, ...]:
        program = composed(self.formula, *equation.input_types, **equation.params)
        results = emitter.body(program, operands)
        return tuple(results) if self.multiple_results else results[0]

    def formula(self, *operands: Any, **params: Any) -> Any:
        """The operation, written with those of `ops`."""
        raise self.missing("emit` or `formula", "lowered to StableHLO")

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        return bind(self, *stretched(operands, batched, size), **params)

    def matrix(self, x: TensorType, caller: str = "") -> TensorType:
        """`x`, which must be a matrix of f32 or f64, or a batch of them; an error names the `caller`, if not this."""
        name = caller or self.name
        if not is_float(x.dtype) or x.dtype.itemsize < 4:
            raise DTypeError(f"{name} is for f32 and f64, found {x}: use .astype('f32')")
        if x.ndim < 2:
            raise ShapeError(f"{name}: a matrix of two axes is needed, or a batch of them, found {x}")
        return x

    def square(self, x: TensorType, caller: str = "") -> TensorType:
        """`x`, which must be square as well."""
        if self.matrix(x, caller).shape[-1] != x.shape[-2]:
            raise ShapeError(f"{caller or self.name}: a square matrix is needed, found {x} with sizes {x.shape[-2:]}")
        return x

    def system(self, a: TensorType, b: TensorType) -> TensorType:
        """The type of x in ``a @ x = b``."""
        if self.square(a).dtype != self.matrix(b).dtype:
            raise DTypeError(f"{self.name}: operands of one element type are needed, found {a} and {b}")
        if a.shape[:-1] != b.shape[:-1]:
            raise ShapeError(f"{self.name}: the rows of {a} and {b} must agree, and the axes before them")
        return b


def diagonal(x: Any) -> Any:
    """The diagonal of square matrices."""
    size = x.shape[-1]
    return ops.reshape(x, (*x.shape[:-2], size * size))[..., :: size + 1]


def mirrored(x: Any) -> Any:
    """The matrices transposed."""
    return ops.swapaxes(x, -1, -2)


def cholesky_helper(x: Any) -> Any:
    """np.linalg.cholesky, with NaN for a matrix that is not positive definite."""

    def factor(matrix: Any) -> Any:
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return np.zeros_like(matrix)

    try:
        lower = np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        lower = np.stack([factor(matrix) for matrix in x.reshape(-1, *x.shape[-2:])]).reshape(x.shape)
    definite = np.all(np.diagonal(lower, axis1=-2, axis2=-1) > 0, axis=-1)
    return np.where(definite[..., None, None], lower, np.tril(np.full_like(x, np.nan)))


class Cholesky(Decomposition):
    """The lower triangular factor of symmetric matrices, of which the lower triangle is read."""

    numpy = "cholesky_helper({x})"
    helpers = (cholesky_helper,)

    def result(self, x: TensorType) -> TensorType:
        return self.square(x)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        type = equation.output.type
        if type.size == 0:
            return operands[0]
        factor = operands[0]
        if type.shape[-1] <= PANEL:  # XLA's own steps cost too much for larger ones
            factor = emitter.op(f"stablehlo.cholesky {factor}, lower = true : {tensor(type)}")
        return emitter.body(composed(self.formula, type), [factor])[0]

    def formula(self, x: Any) -> Any:
        """The factor; of up to `PANEL` columns `x` is what XLA gives, which has anything above the diagonal.

        NaN for an indefinite matrix, of which XLA may give some finite columns.
        """
        factor = x if x.shape[-1] <= PANEL else self._halved(x)
        definite = ops.all(diagonal(factor) > 0, -1)
        return ops.tril(ops.where(definite[..., None, None], factor, math.nan))

    def _halved(self, x: Any) -> Any:
        """The factor of the first half, then of what that leaves of the second."""
        half = x.shape[-1] // 2
        first, across, last = x[..., :half, :half], x[..., half:, :half], x[..., half:, half:]
        top = self(first)
        left = mirrored(triangular_solve_p(top, mirrored(across)))
        below = ops.concatenate([left, self(last - left @ mirrored(left))], -1)
        return ops.concatenate([ops.concatenate([top, ops.zeros_like(mirrored(across))], -1), below], -2)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        inner = ops.tril(mirrored(y) @ ops.tril(dy))
        inner = inner - ops.eye(x.shape[-1], dtype=x.dtype) * inner / 2
        half = triangular_solve_p(y, inner, transpose=True)
        whole = triangular_solve_p(y, mirrored(half), transpose=True)
        return (whole + mirrored(whole)) / 2

    def flops(self, equation: Equation) -> int:
        return equation.output.type.size * equation.output.type.shape[-1] // 3


def triangular_solve_helper(a: Any, b: Any, lower: Any, transpose: Any, unit_diagonal: Any) -> Any:
    """x with a @ x = b, row by row; NaN where the diagonal of a has a zero."""
    if transpose:
        a, lower = np.swapaxes(a, -1, -2), not lower
    x, size = b.copy(), a.shape[-1]
    for row in range(size) if lower else range(size - 1, -1, -1):
        known = slice(0, row) if lower else slice(row + 1, size)
        x[..., row, :] -= (a[..., row, None, known] @ x[..., known, :])[..., 0, :]
        if not unit_diagonal:
            x[..., row, :] /= a[..., row, row, None]
    if not unit_diagonal:
        x[np.any(np.diagonal(a, axis1=-2, axis2=-1) == 0, axis=-1)] = np.nan
    return x


class TriangularSolve(Decomposition):
    """``x`` with ``a @ x = b``, or ``a.T @ x = b``; one triangle of `a` is read, without its diagonal if that is 1."""

    numpy = "triangular_solve_helper({a}, {b}, lower={lower}, transpose={transpose}, unit_diagonal={unit_diagonal})"
    helpers = (triangular_solve_helper,)

    def __call__(
        self, a: Any, b: Any, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
    ) -> Any:
        return bind(self, a, b, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)

    def result(
        self, a: TensorType, b: TensorType, *, lower: bool, transpose: bool, unit_diagonal: bool
    ) -> TensorType:
        return self.system(a, b)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        params, type = equation.params, equation.output.type
        if type.size == 0:
            return operands[1]
        lower, unit = str(params["lower"]).lower(), str(params["unit_diagonal"]).lower()
        turned = "TRANSPOSE" if params["transpose"] else "NO_TRANSPOSE"
        x = emitter.op(
            f'"stablehlo.triangular_solve"({operands[0]}, {operands[1]}) <{{left_side = true, lower = {lower}, '
            f"unit_diagonal = {unit}, transpose_a = #stablehlo<transpose {turned}>}}> : "
            f"{signature(equation.input_types, [type])}"
        )
        if params["unit_diagonal"]:
            return x
        return emitter.body(composed(self.formula, equation.input_types[0], type), [operands[0], x])[0]

    def formula(self, a: Any, x: Any) -> Any:
        """XLA's result, NaN where the diagonal has a zero."""
        return ops.where(ops.any(diagonal(a) == 0, -1)[..., None, None], math.nan, x)

    def vjp(
        self, dy: Any, y: Any, a: Any, b: Any, *, lower: bool, transpose: bool, unit_diagonal: bool
    ) -> Any:
        d_b = self(a, dy, lower, not transpose, unit_diagonal)
        product = y @ mirrored(d_b) if transpose else d_b @ mirrored(y)
        inside = int(unit_diagonal)
        return -(ops.tril(product, -inside) if lower else ops.triu(product, inside)), d_b

    def flops(self, equation: Equation) -> int:
        return equation.input_types[0].shape[-1] * equation.output.type.size


cholesky_p = Cholesky()
triangular_solve_p = TriangularSolve()


def cholesky(x: Any) -> Any:
    """Lower triangular factor of a symmetric positive definite matrix: ``L @ L.T = x``.

    Shapes: x (..., n, n) gives (..., n, n), with zeros above the diagonal; f32 and f64.
    Edges: x is symmetrised first, ``(x + x.T) / 2``; the lower triangle is NaN where x is not positive definite.
    Derivative: symmetric, and NaN where the factor is.
    Source: Murray, "Differentiation of the Cholesky decomposition" (2016).
    """
    x = as_tensor(x)
    cholesky_p.square(TensorType(x.shape, x.dtype))
    return bind(cholesky_p, (x + mirrored(x)) / 2)


def triangular_solve(
    a: Any, b: Any, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False, left: bool = True
) -> Any:
    """``x`` with ``a @ x = b`` for a triangular `a`; ``a.T @ x = b`` with `transpose`; ``x @ a = b`` without `left`.

    Shapes: a (..., n, n), b (n) or (..., n, k), or (..., k, n) without `left`; leading axes broadcast; x is as b.
    Edges: the other triangle is not read, nor the diagonal with `unit_diagonal`; NaN where the diagonal has a 0.
    Derivative: d_b solves the transposed system, d_a is the triangle of ``-d_b @ x.T``.
    """
    a, b, vector = system("triangular_solve", a, b, left)
    if not left:
        return mirrored(triangular_solve_p(a, mirrored(b), lower, not transpose, unit_diagonal))
    x = triangular_solve_p(a, b, lower, transpose, unit_diagonal)
    return x[..., 0] if vector else x


def system(operation: str, a: Any, b: Any, left: bool = True) -> tuple[Any, Any, bool]:
    """`a` and `b` of ``a @ x = b`` with one element type and one batch, `b` as columns; whether it was a vector."""
    a, b = unify(operation, a, b)
    vector = b.ndim == 1 and left
    columns = ops.expand_dims(b, 1) if vector else b
    axis = -2 if left else -1
    if a.ndim < 2 or columns.ndim < 2 or a.shape[-1] != a.shape[-2] or columns.shape[axis] != a.shape[-1]:
        found = f"found {type_of(a)} and {type_of(b)}"
        raise misfit(f"{operation}: a square matrix and a right-hand side of as many rows are needed, {found}")
    try:
        lead = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    except ValueError:
        found = f"{type_of(a)} and {type_of(b)}"
        raise misfit(f"{operation}: the axes before the last two must broadcast together, found {found}") from None
    return (*(ops.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, columns)), vector)
