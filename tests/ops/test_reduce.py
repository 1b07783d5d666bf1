"""Reductions, and the means, variances and exponentials composed of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, EXACT, SUM, devices, run


def over_axes(name: str, types: str, bounds: str = "", few: bool = False, **options: Any) -> list[Case]:
    """All axes in each of `types`; then, in the first of them, one, several and no axes, kept and dropped."""
    first = {"F": "f64", "I": "i32", "b": "bool", "A": "f64"}[types[0]]
    shapes = [("3,4", {"axis": 0}), ("2,3,4", {"axis": (1, -1), "keepdims": True}), ("2,3", {"axis": ()})]
    if not few:
        shapes += [("3,4", {"axis": -1, "keepdims": True}), ("2,3,4", {"axis": (0, 2)}), ("", {}), ("1", {})]
        shapes += [("0,3", {"axis": 1}), ("2,0,3", {"axis": (0, 2)})]
    by_type = [case for type in types.split() for case in cases(name, f"{type}[4,5]{bounds}", **options)]
    return by_type + [c for s, axes in shapes for c in cases(name, f"{first}[{s}]{bounds}", **axes, **options)]


def sum_as(x: jax.Array, **axes: Any) -> jax.Array:
    """In the type of x, or i32 for bool, where JAX widens."""
    return jnp.sum(x, **axes, dtype="int32" if x.dtype == bool else x.dtype)


def prod_as(x: jax.Array, **axes: Any) -> jax.Array:
    return jnp.prod(x, **axes, dtype="int32" if x.dtype == bool else x.dtype)


def norm(x: jax.Array, axis: Any = None, keepdims: bool = False) -> jax.Array:
    return jnp.sqrt(jnp.sum(x * x, axis, keepdims=keepdims))


def averaged(x: Any, weights: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return ops.average(x, axis, weights, keepdims)


def averaged_in_jax(x: jax.Array, weights: jax.Array, axis: Any = None, keepdims: bool = False) -> jax.Array:
    return jnp.average(x, axis, weights, keepdims=keepdims)


ORDERS = [1, 2, 0, 3, 1.5, 0.5, -1, -2.5, np.inf, -np.inf]
vector_norm = partial(cases, "norm", jax=jnp.linalg.norm, bound=COMPOSED)
average = partial(cases, "average", of=averaged, jax=averaged_in_jax, bound=COMPOSED)


CASES = [
    *over_axes("sum", "F I", jax=sum_as, bound=SUM),
    *over_axes("sum", "bool", few=True, jax=sum_as, out="i32"),
    *over_axes("prod", "F I", ":-2:2", jax=prod_as, bound=COMPOSED),
    *over_axes("prod", "bool", few=True, jax=prod_as, out="i32"),
    *over_axes("max", "A", ":0:1", bound=EXACT),
    *over_axes("min", "A", ":0:1", few=True, bound=EXACT),
    *over_axes("all", "A", ":0:2", few=True, out="bool"),
    *over_axes("any", "A", ":0:1", out="bool"),
    *cases("argmax", "A[4,5]", out="i32"),
    *cases("argmax", "f32[4,5]", axis=0, out="i32"),
    *cases("argmax", "f32[4,5]", axis=-1, keepdims=True, out="i32"),
    *cases("argmax", "i32[4,5]:0:2", axis=1, out="i32"),
    *cases("argmax", "f32[0,3]", axis=1, out="i32"),
    *cases("argmax", "f32[1]", keepdims=True, out="i32"),
    *cases("argmin", "A[4,5]", out="i32"),
    *cases("argmin", "f32[4,5]", axis=0, out="i32"),
    *cases("argmin", "f32[4,5]", axis=-1, keepdims=True, out="i32"),
    *cases("argmin", "i32[4,5]:0:2", axis=1, out="i32"),
    *over_axes("mean", "F", bound=SUM),
    *over_axes("var", "F", bound=COMPOSED),
    *over_axes("std", "F", few=True, bound=COMPOSED)[:-1],
    *cases("var", "F[3,4]", bound=COMPOSED, axis=0, ddof=1),
    *cases("std", "F[3,4]", bound=COMPOSED, axis=1, ddof=1, keepdims=True),
    *over_axes("norm", "F", few=True, jax=norm, bound=COMPOSED),
    *[case for ord in ORDERS for case in vector_norm("f64[3,4]", ord=ord, axis=1)],
    *vector_norm("F[5]", ord=3),
    *vector_norm("F[3,4]", ord=1, axis=0, keepdims=True),
    *vector_norm("f64[2,3,4]", ord="fro", axis=(0, 2)),
    *cases("ptp", "D[3,4]", axis=1, bound=EXACT),
    *cases("ptp", "I[5]:0:4", keepdims=True),
    *over_axes("count_nonzero", "A", ":0:1", few=True, out="i32"),
    *average("D[3,4]", "D[3,4]:0.5:2"),
    *average("F[3,4]:1:2", "F[4]:0.5:2", axis=1),
    *average("f64[2,3,4]", "f64[3]:0.5:2", axis=1, keepdims=True),
    *cases("average", "f64[3,4]", axis=0, bound=SUM),
    *over_axes("nansum", "F", few=True, bound=SUM),
    *over_axes("nanmean", "F", few=True, bound=SUM),
    *over_axes("nanmax", "F", ":0:3", few=True, bound=EXACT),
    *over_axes("nanmin", "F", few=True, bound=EXACT),
    *[
        case
        for name in ("nansum", "nanmean", "nanmax", "nanmin")
        for case in cases(name, "f64{1 nan 2 -1 nan nan}[2,3]", axis=1, bound=SUM, derivative=False)
    ],
    *cases("nansum", "I[3,4]", jax=sum_as, axis=0),
    *cases("nanmax", "I[3,4]", axis=0),
    *over_axes("logsumexp", "F", few=True, jax=jax.nn.logsumexp, bound=COMPOSED),
    *cases("softmax", "F[3,4]", jax=jax.nn.softmax, bound=COMPOSED),
    *cases("softmax", "D[3,4]", jax=jax.nn.softmax, bound=COMPOSED, axis=0),
    *cases("softmax", "f64[2,3,4]", jax=jax.nn.softmax, bound=COMPOSED, axis=(0, 2)),
    *cases("softmax", "f32[0,3]", jax=jax.nn.softmax, bound=COMPOSED),
    *cases("softmax", "f32[1]:-90:90", jax=jax.nn.softmax, bound=COMPOSED),
    *cases("log_softmax", "F[3,4]", jax=jax.nn.log_softmax, bound=COMPOSED),
    *cases("log_softmax", "D[3,4]", jax=jax.nn.log_softmax, bound=COMPOSED, axis=0),
    *cases("log_softmax", "f64[2,3,4]", jax=jax.nn.log_softmax, bound=COMPOSED, axis=(0, 2)),
    *cases("log_softmax", "f32[0,3]", jax=jax.nn.log_softmax, bound=COMPOSED),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("ord", [None, *ORDERS])
def test_norms_are_flat_at_zero(ord: Any, device: str) -> None:
    """At the zero vector, and for an element that is 0 of another; a negative order is 0 there."""
    x = np.array([[0, 0, 0], [0, 3, 4]], np.float64)
    program = ag.reverse(ag.capture(lambda x: ops.sum(ops.norm(x, ord, axis=1)), x))
    total, gradient = run(program, [x], device)
    expected = np.linalg.norm(x[1], ord) if ord not in (-1, -2.5) else 0
    np.testing.assert_allclose(total, expected, 1e-14)
    if ord == -np.inf:
        np.testing.assert_array_equal(gradient, 0)
    else:
        assert not gradient[0].any()
        assert gradient[1, 0] == 0
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("device", devices())
def test_nan_gets_no_gradient(device: str) -> None:
    x = np.array([[1, np.nan, 3], [np.nan, np.nan, np.nan]])
    functions = ops.nansum, ops.nanmean, ops.nanmax, ops.nanmin
    for function, first in zip(functions, ([1, 0, 1], [0.5, 0, 0.5], [0, 0, 1], [1, 0, 0]), strict=True):
        program = ag.reverse(ag.capture(lambda x, f=function: ops.sum(f(x, 1)), x))
        np.testing.assert_array_equal(run(program, [x], device)[1], [first, [0, 0, 0]])


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "max-of-nothing": (lambda x: ops.max(x[0:0]), ShapeError),
    "min-of-nothing": (lambda x: ops.min(x[0:0], axis=0), ShapeError),
    "argmax-of-nothing": (lambda x: ops.argmax(x[0:0], axis=0), ShapeError),
    "axis-twice": (lambda x: ops.sum(x, axis=(0, -2)), ShapeError),
    "axis-out-of-range": (lambda x: ops.sum(x, axis=2), ShapeError),
    "axis-float": (lambda x: ops.sum(x, axis=1.0), ShapeError),  # pyright: ignore[reportArgumentType]
    "axis-text": (lambda x: ops.mean(x, axis="0"), ShapeError),  # pyright: ignore[reportArgumentType]
    "axes-float": (lambda x: ops.max(x, axis=(0, 0.5)), ShapeError),  # pyright: ignore[reportArgumentType]
    "mean-of-integers": (lambda x: ops.mean(ops.convert(x, "i32")), DTypeError),
    "softmax-of-integers": (lambda x: ops.softmax(ops.convert(x, "i32")), DTypeError),
    "norm-of-two-axes": (lambda x: ops.norm(x, 1), ShapeError),
    "norm-fro-of-one-axis": (lambda x: ops.norm(x, "fro", axis=0), ShapeError),
    "norm-nuclear": (lambda x: ops.norm(x, "nuc", axis=0), ShapeError),
    "average-weights": (lambda x: ops.average(x, 1, x[0, :2]), ShapeError),
    "average-weights-no-axis": (lambda x: ops.average(x, None, x[0]), ShapeError),
    "average-integers": (lambda x: ops.average(x, 1, np.array([1, 2, 3])), DTypeError),
}
"""What a tensor of shape (2, 3) does not have."""


@pytest.mark.parametrize(("function", "error"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception]) -> None:
    """The same error at once and in a capture, where it names this file."""
    with pytest.raises(error):
        function(np.zeros((2, 3), np.float32))
    with pytest.raises(error, match=r"test_reduce\.py"):
        ag.capture(function, ag.spec((2, 3)))
