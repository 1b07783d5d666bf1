"""Linear systems, inverses and determinants of square matrices, through LU with partial pivoting.

A matrix with an exact 0 among its pivots is singular: systems and inverses are then NaN, and nothing is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.ir.code import Code, fill
from antegrad.ir.program import Equation
from antegrad.ir.types import TensorType, type_of
from antegrad.ops.decomposition import Decomposition, diagonal, mirrored, system, triangular_solve_p
from antegrad.ops.dispatch import as_tensor, bind
from antegrad.ops.elementwise import mul_no_nan
from antegrad.ops.lu import lu_p, rows_at
from antegrad.ops.shape import transposed

__all__ = ["det", "inv", "inverse", "slogdet", "solve"]


def solve_helper(a: Any, b: Any) -> Any:
    """np.linalg.solve, with NaN for a singular matrix."""

    def one(matrix: Any, right: Any) -> Any:
        try:
            return np.linalg.solve(matrix, right)
        except np.linalg.LinAlgError:
            return np.full_like(right, np.nan)

    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        pairs = zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True)
        return np.stack([one(*pair) for pair in pairs]).reshape(b.shape)


class Solve(Decomposition):
    """``x`` with ``a @ x = b``, or ``a.T @ x = b``: XLA then finds that a gradient needs no other LU than the value."""

    helpers = (solve_helper,)

    def __call__(self, a: Any, b: Any, transpose: bool = False) -> Any:
        return bind(self, a, b, transpose=transpose)

    def result(self, a: TensorType, b: TensorType, *, transpose: bool) -> TensorType:
        return self.system(a, b)

    def render(self, equation: Equation, *operands: Code) -> Code:
        a, b = operands
        if equation.params["transpose"]:
            count = equation.input_types[0].ndim
            a = transposed(a, (*range(count - 2), count - 1, count - 2))
        return fill("solve_helper({a}, {b})", ("a", "b"), (a, b), {})

    def formula(self, a: Any, b: Any, *, transpose: bool) -> Any:
        packed, _, order = lu_p(a)
        if transpose:
            x = triangular_solve_p(packed, b, lower=False, transpose=True)
            x = triangular_solve_p(packed, x, transpose=True, unit_diagonal=True)
            return rows_at(x, ops.argsort(order, -1))
        x = triangular_solve_p(packed, rows_at(b, order), unit_diagonal=True)
        return triangular_solve_p(packed, x, lower=False)

    def vjp(self, dy: Any, y: Any, a: Any, b: Any, *, transpose: bool) -> Any:
        d_b = self(a, dy, not transpose)
        return -(y @ mirrored(d_b) if transpose else d_b @ mirrored(y)), d_b

    def flops(self, equation: Equation) -> int:
        size, columns = equation.input_types[0].shape[-1], equation.output.type.size
        return size * (2 * equation.input_types[0].size // 3 + 2 * columns)


def inverse_helper(x: Any) -> Any:
    """np.linalg.inv, with NaN for a singular matrix."""

    def one(matrix: Any) -> Any:
        try:
            return np.linalg.inv(matrix)
        except np.linalg.LinAlgError:
            return np.full_like(matrix, np.nan)

    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError:
        return np.stack([one(matrix) for matrix in x.reshape(-1, *x.shape[-2:])]).reshape(x.shape)


class Inverse(Decomposition):
    """``y`` with ``x @ y = y @ x = 1``."""

    numpy = "inverse_helper({x})"
    helpers = (inverse_helper,)

    def result(self, x: TensorType) -> TensorType:
        return self.square(x)

    def formula(self, x: Any) -> Any:
        return solve_p(x, ops.broadcast_to(ops.eye(x.shape[-1], dtype=x.dtype), x.shape))

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return -(mirrored(y) @ dy @ mirrored(y))

    def flops(self, equation: Equation) -> int:
        return 2 * equation.output.type.size * equation.output.type.shape[-1]


class Slogdet(Decomposition):
    """Sign of the determinant, and the logarithm of its absolute value."""

    numpy = "np.linalg.slogdet({x})"
    multiple_results = True

    def result(self, x: TensorType) -> tuple[TensorType, ...]:
        return (self.square(x).with_shape(x.shape[:-2]),) * 2

    def formula(self, x: Any) -> Any:
        packed, pivots, _ = lu_p(x)
        pivot = diagonal(packed)
        return ops.prod(ops.sign(pivot), -1) * _parity(pivots, x), ops.sum(ops.log(ops.abs(pivot)), -1)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        if dy[1] is None:
            return None
        return mul_no_nan(dy[1][..., None, None], mirrored(inverse(x)))

    def flops(self, equation: Equation) -> int:
        return 2 * equation.input_types[0].size * equation.input_types[0].shape[-1] // 3


def _parity(pivots: Any, x: Any) -> Any:
    """1 where the number of exchanges is even, -1 where it is odd."""
    still = pivots == ops.arange(pivots.shape[-1])
    return ops.prod(ops.convert(ops.where(still, 1, -1), x.dtype), -1)


solve_p = Solve()
inverse_p = Inverse()
slogdet_p = Slogdet()


def solve(a: Any, b: Any) -> Any:
    """``x`` with ``a @ x = b``.

    Shapes: a (..., n, n), b (n) or (..., n, k), as in NumPy 2; leading axes broadcast; x is as b. f32 and f64.
    Edges: x is NaN where a is singular: where one of its pivots is exactly 0.
    Derivative: d_b solves ``a.T @ d_b = dx``, and ``d_a = -d_b @ x.T``.
    """
    a, b, vector = system("solve", a, b)
    x = solve_p(a, b)
    return x[..., 0] if vector else x


def inverse(x: Any) -> Any:
    """``y`` with ``x @ y = y @ x = 1``; also called `inv`. To solve a system, `solve` costs less and is more accurate.

    Shapes: x (..., n, n) gives the same; f32 and f64.
    Edges: y is NaN where x is singular: where one of its pivots is exactly 0.
    Derivative: ``-y.T @ dy @ y.T``.
    """
    return inverse_p(as_tensor(x))


inv = inverse


def slogdet(x: Any) -> tuple[Any, Any]:
    """``(sign, logabsdet)`` with ``det(x) = sign * exp(logabsdet)``, where the determinant itself may overflow.

    Shapes: x (..., n, n) gives two of (...); f32 and f64.
    Edges: 0 and -inf where x is singular; 1 and 0 for n = 0.
    Derivative: of logabsdet, the transposed inverse, NaN where x is singular; the sign has none.
    """
    return slogdet_p(as_tensor(x))


def det(x: Any) -> Any:
    """Determinant: a polynomial of the elements up to n = 3, beyond that the product of the pivots of LU.

    Shapes: x (..., n, n) gives (...); f32 and f64.
    Edges: 0 where x is singular; 1 for n = 0.
    Derivative: the cofactors, ``det(x) * inverse(x).T``; where x is singular, exact up to n = 3, NaN beyond.
    """
    x = as_tensor(x)
    solve_p.square(type_of(x), "det")
    if x.shape[-1] <= 3:
        return _small_det(x)
    packed, pivots, _ = lu_p(x)
    return ops.prod(diagonal(packed), -1) * _parity(pivots, x)


def _small_det(x: Any) -> Any:
    """By the first row; the triple product for n = 3."""
    size = x.shape[-1]
    if size == 0:
        return ops.ones(x.shape[:-2], x.dtype)
    first, rest = x[..., 0, :], x[..., 1:, :]
    if size == 1:
        return first[..., 0]
    if size == 2:
        return first[..., 0] * rest[..., 0, 1] - first[..., 1] * rest[..., 0, 0]
    return sum(first[..., i] * _small_det(rest[..., [(i + 1) % 3, (i + 2) % 3]]) for i in range(3))
