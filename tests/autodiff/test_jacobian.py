"""Whole derivatives against JAX, on arrays and pytrees, in both modes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops


def ours(parameters, x):
    h = ops.tanh(x @ parameters["w"] + parameters["b"])
    return {"h": h, "norm": ops.sum(h * h)}


def theirs(parameters, x):
    h = jnp.tanh(x @ parameters["w"] + parameters["b"])
    return {"h": h, "norm": jnp.sum(h * h)}


@pytest.fixture
def point(rng):
    parameters = {"w": rng.normal(size=(3, 2)).astype(np.float32), "b": rng.normal(size=(2,)).astype(np.float32)}
    return parameters, rng.normal(size=(4, 3)).astype(np.float32)


def assert_trees_close(found, expected):
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for a, b in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("argnum", [0, 1])
def test_jacobian_of_pytrees(point, mode, argnum):
    expected = jax.jacrev(theirs, argnum)(*point)
    assert_trees_close(ag.jacobian(ours, argnum, mode)(*point), expected)


def test_jacobian_by_argument_name(point):
    np.testing.assert_array_equal(ag.jacobian(ours, "x")(*point)["norm"], ag.jacobian(ours, 1)(*point)["norm"])


def test_hessian(rng):
    a = rng.normal(size=(3, 3)).astype(np.float32)
    x = rng.normal(size=(3,)).astype(np.float32)
    found = ag.hessian(lambda x: ops.sum(ops.sin(a @ x)) + ops.prod(x))(x)
    expected = jax.hessian(lambda x: jnp.sum(jnp.sin(a @ x)) + jnp.prod(x))(x)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found, np.asarray(found).T, rtol=1e-5, atol=1e-6)


def test_hvp_is_hessian_times_vector(rng):
    x, v = rng.normal(size=(2, 5)).astype(np.float32)

    def f(x):
        return ops.sum(ops.exp(x) * x * x)

    (found,) = ag.hvp(f, (x,), (v,))
    np.testing.assert_allclose(found, ag.hessian(f)(x) @ v, rtol=2e-5)


def test_linearize_is_linear(point):
    _parameters, x = point
    value, push = ag.linearize(lambda x: ops.sin(x) * x, x)
    np.testing.assert_allclose(value, np.sin(x) * x, rtol=1e-6)
    np.testing.assert_allclose(push(2 * x), 2 * push(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(push(x), jax.jvp(lambda x: jnp.sin(x) * x, (x,), (x,))[1], rtol=1e-5, atol=1e-6)


def test_inside_a_capture(point):
    _, x = point
    program = ag.capture(lambda x: ag.jacobian(lambda y: ops.sum(y * y, axis=0))(x), x)
    np.testing.assert_allclose(program.run(x), jax.jacrev(lambda y: jnp.sum(y * y, axis=0))(x), rtol=1e-6)


def test_refusals():
    with pytest.raises(ag.DTypeError, match="float"):
        ag.jacobian(lambda x: x * x, mode="forward")(np.arange(3))
    with pytest.raises(ag.ShapeError, match="sideways"):
        ag.jacobian(lambda x: x, mode="sideways")  # pyright: ignore[reportArgumentType]
