"""Decompositions, systems and determinants: against JAX, by what they leave, at singular matrices, in batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops, tree
from antegrad.errors import DTypeError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, in_f64
from tests.support import array, assert_close, assert_same_bits, devices, run


def dominant(library: Any, x: Any) -> Any:
    """`x` with a diagonal that outweighs the rest of each row, as elements are below 2."""
    size = x.shape[-1]
    return x / 2 + 2 * size * library.eye(size, dtype=x.dtype)


def regular(library: Any, x: Any) -> Any:
    """A well conditioned matrix whose rows are in an order that needs exchanges, and whose inverse is another order."""
    rows = dominant(library, x)
    return library.concatenate([rows[..., 1:, :], rows[..., :1, :]], -2)


def on(make: Callable[[Any, Any], Any], ours: Callable[..., Any], jax: Callable[..., Any], name: str) -> Any:
    """Cases of `ours` on matrices that `make` forms of the first operand."""
    return partial(
        cases,
        name,
        of=lambda x, *rest, **params: ours(make(ops, x), *rest, **params),
        jax=lambda x, *rest, **params: jax(make(jnp, x), *rest, **params),
    )


def lu_by_jax(x: jax.Array) -> Any:
    return jax.lax.linalg.lu(x)


def solve_triangular(
    a: jax.Array, b: jax.Array, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False
) -> jax.Array:
    return jax.scipy.linalg.solve_triangular(a, b, trans=int(transpose), lower=lower, unit_diagonal=unit_diagonal)


def from_the_right(a: jax.Array, b: jax.Array, **params: Any) -> jax.Array:
    return jax.lax.linalg.triangular_solve(a, b, left_side=False, lower=True)


choleskys = on(dominant, ops.cholesky, jnp.linalg.cholesky, "cholesky")
triangles = on(dominant, ops.triangular_solve, solve_triangular, "triangular_solve")
lus = on(lambda _, x: x, ops.lu, lu_by_jax, "lu")
solves = on(regular, ops.solve, jnp.linalg.solve, "solve")
inverses = on(regular, ops.inverse, jnp.linalg.inv, "inverse")
slogdets = on(regular, ops.slogdet, lambda x: tuple(jnp.linalg.slogdet(x)), "slogdet")
dets = on(regular, ops.det, jnp.linalg.det, "det")

CASES = [
    *choleskys("D[3,3]"),
    *choleskys("D[1,1]"),
    *choleskys("D[0,0]"),
    *choleskys("D[2,1,4,4]"),
    *choleskys("f32[0,3,3]"),
    *choleskys("f64[33,33]", derivative=False),
    *choleskys("f64[69,69]", derivative=False),
    *triangles("D[3,3]", "D[3,2]"),
    *triangles("D[3,3]", "D[3]"),
    *triangles("D[3,3]", "D[3,2]", lower=False),
    *triangles("D[3,3]", "D[3,2]", transpose=True),
    *triangles("D[3,3]", "D[3,2]", lower=False, transpose=True, unit_diagonal=True),
    *triangles("D[2,4,4]", "D[2,4,1]", unit_diagonal=True),
    *triangles("D[1,1]", "D[1,1]"),
    *triangles("D[0,0]", "D[0,3]"),
    *triangles("D[3,3]", "D[3,0]"),
    *on(dominant, partial(ops.triangular_solve, left=False), from_the_right, "triangular_solve")("D[3,3]", "D[2,3]"),
    *lus("D[3,3]"),
    *lus("f64[5,3]"),
    *lus("f64[3,5]"),
    *lus("D[2,3,2,2]"),
    *lus("D[1,1]"),
    *lus("D[0,0]"),
    *lus("f64[70,66]", derivative=False),
    *lus("f64[2,66,70]", derivative=False),
    *solves("D[3,3]", "D[3,2]"),
    *solves("D[4,4]", "D[4]"),
    *solves("D[2,3,3]", "D[2,3,2]"),
    *solves("D[1,1]", "D[1]"),
    *solves("D[0,0]", "D[0,2]"),
    *solves("f64[70,70]", "f64[70,3]", derivative=False),
    *inverses("D[3,3]"),
    *inverses("D[2,1,4,4]"),
    *inverses("D[1,1]"),
    *inverses("D[0,0]"),
    *inverses("f64[40,40]", derivative=False),
    *slogdets("D[3,3]"),
    *slogdets("D[2,4,4]"),
    *slogdets("D[1,1]"),
    *slogdets("D[0,0]"),
    *dets("D[0,0]", derivative=False),
    *dets("D[1,1]"),
    *dets("D[2,2]"),
    *dets("D[2,3,3]"),
    *dets("D[5,5]"),
    *on(regular, ops.inv, jnp.linalg.inv, "inv")("D[2,2]"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    """Results within a multiple of n epsilons of the largest element, integers exactly, on both devices and at once."""
    truth = in_f64(case.ask_jax, *case.widened())
    at_once, program = tree.leaves(case.call(*case.arrays)), ag.capture(case.call, *case.arrays)
    size, epsilon = case.arrays[0].shape[-1], float(ml_dtypes.finfo(case.arrays[0].dtype).eps)
    for device in devices():
        for result, early, expected in zip(run(program, case.arrays, device), at_once, truth, strict=True):
            if device == "host":
                assert_same_bits(result, np.asarray(early), "host against at once")
            if result.dtype == np.int32:
                assert (result == expected).all()
            else:
                assert result.dtype == case.arrays[0].dtype
                assert_close(result, expected, 8 * max(size, 1) * epsilon, device)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def backward_error(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    """The residual of ``a @ x = b``, in epsilons, relative to what a and x have: 1 is as good as rounding a and b."""
    wide, solution = a.astype(np.float64), x.astype(np.float64)
    scale = np.abs(wide).sum(-1).max() * np.abs(solution).max()
    return float(np.abs(wide @ solution - b).max() / scale / np.finfo(a.dtype).eps)


ILL = {
    "hilbert": 1 / (np.arange(12)[:, None] + np.arange(12) + 1),
    "scaled rows": array("f64[20,20]") * np.logspace(-30, 30, 20)[:, None],
    "scaled columns": array("f64[20,20]") * np.logspace(-15, 15, 20),
    "small pivot": np.array([[1e-20, 1], [1, 1]]),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("matrix", ILL.values(), ids=ILL)
def test_solve_is_backward_stable(matrix: np.ndarray, device: str) -> None:
    b = array(f"f64[{len(matrix)},2]")
    x = ag.capture(ops.solve, matrix, b).run(matrix, b, device=device)
    assert backward_error(matrix, x, b) < 4
    scaled = np.abs(matrix @ x - b) / (np.abs(matrix) @ np.abs(x) + np.abs(b))
    assert scaled.max() < 1e-13


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_factors_give_the_matrix_back(device: str, dtype: type) -> None:
    x = array("f64[100,100]").astype(dtype)
    spd = x @ x.T + np.eye(100, dtype=dtype)
    lower = ag.capture(ops.cholesky, spd).run(spd, device=device)
    assert_close(lower @ lower.T, spd, 40 * np.finfo(dtype).eps, "cholesky")
    packed, _, order = ag.capture(ops.lu, x).run(x, device=device)
    product = (np.tril(packed, -1) + np.eye(100)) @ np.triu(packed)
    assert_close(product, x[order], 100 * np.finfo(dtype).eps, "lu")
    assert np.abs(np.tril(packed, -1)).max() <= 1


SINGULAR = np.array([[1, 2], [2, 4]], np.float64)
ZERO_FIRST = np.array([[0, 1], [0, 0]], np.float64)
REGULAR = np.array([[2, 1], [1, 3]], np.float64)


@pytest.mark.parametrize("device", devices())
def test_only_the_singular_matrices_of_a_batch_are_nan(device: str) -> None:
    x = np.stack([SINGULAR, REGULAR, ZERO_FIRST, np.zeros((2, 2))])
    b = np.ones((4, 2, 1))
    functions: list[Callable[..., Any]] = [
        ops.inverse, lambda x: ops.solve(x, b), lambda x: ops.triangular_solve(x, b, lower=False),
        ops.cholesky, ops.slogdet, ops.det,
    ]  # fmt: skip
    inverse, solution, triangle, factor, (sign, logarithm), det = (
        ag.capture(f, x).run(x, device=device) for f in functions
    )
    for result in (inverse, solution):
        assert np.isnan(result[[0, 2, 3]]).all()
        assert np.isfinite(result[1]).all()
    assert np.isnan(triangle[2:]).all()
    assert np.isfinite(triangle[:2]).all()
    assert (np.isnan(factor[[0, 2, 3]]) == np.tri(2, dtype=bool)).all()
    assert (factor[:, 0, 1] == 0).all()
    assert sign.tolist() == [0, 1, 0, 0]
    assert logarithm[[0, 2, 3]].tolist() == [-np.inf] * 3
    assert det[[0, 2, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("device", devices())
def test_gradients_at_singular_matrices(device: str) -> None:
    def gradient(function: Callable[..., Any], x: np.ndarray) -> np.ndarray:
        return ag.reverse(ag.capture(lambda x: ops.sum(function(x)), x)).run(x, device=device)[1]

    assert gradient(ops.det, SINGULAR).tolist() == [[4, -2], [-2, 1]]
    assert gradient(ops.det, ZERO_FIRST).tolist() == [[0, 0], [-1, 0]]
    assert gradient(ops.det, np.zeros((1, 1))).tolist() == [[1]]
    assert gradient(ops.det, np.ones((3, 3))).tolist() == np.zeros((3, 3)).tolist()
    assert np.isnan(gradient(ops.det, np.ones((4, 4)))).any()
    for function in (ops.inverse, lambda x: ops.slogdet(x)[1], ops.cholesky):
        assert np.isnan(gradient(function, SINGULAR)).all()


@pytest.mark.parametrize("device", devices())
def test_the_other_triangle_is_not_read(device: str) -> None:
    a, b = array("f64[3,3]:1:2"), array("f64[3,2]")
    full = a.copy()
    full[np.triu_indices(3, 1)] = np.nan
    solve = ag.capture(ops.triangular_solve, a, b)
    assert_close(solve.run(full, b, device=device), solve.run(np.tril(a), b, device=device), 1e-15, device)


@pytest.mark.parametrize("device", devices())
def test_pivots(device: str) -> None:
    """The first of equal candidates, and the first NaN before anything else."""
    ties = np.array([[1, 5, 2], [-1, 1, 1], [1, 2, 3]], np.float64)
    packed, pivots, order = ag.capture(ops.lu, ties).run(ties, device=device)
    assert (pivots.tolist(), order.tolist()) == ([0, 1, 2], [0, 1, 2])
    assert packed.tolist() == [[1, 5, 2], [-1, 6, 3], [1, -0.5, 2.5]]
    broken = np.array([[1, 5], [np.nan, 1], [np.inf, np.nan]])
    packed, pivots, order = ag.capture(ops.lu, broken).run(broken, device=device)
    assert (pivots.tolist(), order.tolist()) == ([1, 1], [1, 0, 2])


@pytest.mark.parametrize("device", devices())
def test_logabsdet_where_the_determinant_overflows(device: str) -> None:
    x = np.eye(40) * -1e10
    sign, logarithm = ag.capture(ops.slogdet, x).run(x, device=device)
    assert sign == 1
    assert_close(logarithm, np.asarray(40 * np.log(1e10)), 1e-14, device)


def test_leading_axes_broadcast() -> None:
    a, b = regular(np, array("f64[3,1,4,4]")), array("f64[2,4,2]")
    assert_close(ops.solve(a, b), np.linalg.solve(a, b), 1e-14, "solve")
    vector = array("f64[4]")
    assert_close(ops.solve(a, vector), np.linalg.solve(a, vector), 1e-14, "solve of a vector")
    lower = np.tril(a[:, :, ::-1])
    assert_close(ops.triangular_solve(lower, b), np.linalg.solve(lower, b), 1e-14, "triangular_solve")


def test_vmap() -> None:
    a, b = regular(np, array("f64[3,4,4]")), array("f64[3,4]")
    assert_close(ag.vmap(ops.solve)(a, b), np.linalg.solve(a, b[..., None])[..., 0], 1e-14, "solve")
    assert_close(ag.vmap(ops.det)(a), np.linalg.det(a), 1e-14, "det")
    spd = a @ np.swapaxes(a, -1, -2)
    assert_close(ag.vmap(ops.cholesky)(spd), np.linalg.cholesky(spd), 1e-14, "cholesky")


def test_printed_text_comes_back() -> None:
    def everything(x: Any, b: Any) -> Any:
        factors = ops.cholesky(x @ x.T), *ops.lu(x), *ops.slogdet(x), ops.det(x)
        return *factors, ops.inverse(x), ops.solve(x, b), ops.triangular_solve(x, b, lower=False)

    arrays = regular(np, array("f64[4,4]")), array("f64[4,2]")
    program = ag.capture(everything, *arrays)
    again = ag.from_python(program.python())
    for found, expected in zip(run(again, arrays, "cpu"), run(program, arrays, "cpu"), strict=True):
        assert_same_bits(found, expected, "printed and traced again")


def test_functions_of_numpy_on_traced_tensors() -> None:
    x = dominant(np, array("f64[4,4]"))
    x = x + x.T

    def everything(x: Any) -> Any:
        linalg = np.linalg
        sign, logarithm = linalg.slogdet(x)
        return linalg.cholesky(x), linalg.det(x), linalg.inv(x), linalg.solve(x, x[0]), sign, logarithm

    for found, expected in zip(run(ag.capture(everything, x), [x], "cpu"), everything(x), strict=True):
        assert_close(found, np.asarray(expected), 1e-14, "np.linalg")


REFUSED = {
    "sixteen-bits": (lambda x: ops.inverse(x.astype("bf16")), DTypeError, r"f32 and f64, found bf16\[2,2\].*astype"),
    "integers": (lambda x: ops.det(x.astype("i32")), DTypeError, "f32 and f64"),
    "not-square": (lambda x: ops.cholesky(x[:1]), ShapeError, r"cholesky.*square.*f32\[1,2\]"),
    "vector": (lambda x: ops.slogdet(x[0]), ShapeError, r"two axes.*f32\[2\]"),
    "rows": (lambda x: ops.solve(x, ops.ones((3, 2))), ShapeError, r"solve.*f32\[2,2\] and f32\[3,2\]"),
    "row-vector": (lambda x: ops.triangular_solve(x, x[0], left=False), ShapeError, r"f32\[2,2\] and f32\[2\]"),
    "batches": (
        lambda x: ops.solve(ops.broadcast_to(x, (2, 2, 2)), ops.ones((3, 2, 2))), ShapeError, "before the last two"
    ),
    "types": (lambda x: ops.solve(x, ops.ones((2, 2), "i32")), DTypeError, "solve.*f32 and i32"),
}  # fmt: skip


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ag.capture(function, ag.spec((2, 2)))
