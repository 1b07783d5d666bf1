"""Forward mode, which is derived from the reverse rules: against JAX, and mixed with reverse mode."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.autodiff.forward import jvp_program
from antegrad.autodiff.reverse import vjp_program
from tests.autodiff.composites import ANTEGRAD, COMPOSITES, JAX, apply, arguments, close
from tests.support import assert_same_bits, devices, run

V, S = ag.spec((3,)), ag.spec(())
X = np.array([0.5, -1.0, 2.0], np.float32)
each = pytest.mark.parametrize("name", list(COMPOSITES))


def tangents(xs: list[np.ndarray]) -> list[np.ndarray]:
    return [np.random.default_rng(3).normal(size=x.shape) for x in xs]


@each
def test_jvp_against_jax(name: str) -> None:
    xs = arguments(name)
    found = ag.jvp(apply(name, ANTEGRAD), xs, tangents(xs))
    with jax.enable_x64(True):
        expected = jax.jit(lambda xs, ts: jax.jvp(apply(name, JAX), xs, ts))(xs, tangents(xs))
    close(found, expected, name)


@pytest.mark.parametrize("name", ["mlp", "attention", "recurrent", "cond_in_scan", "norms", "products", "scatter"])
def test_jvp_of_a_gradient_and_gradient_of_a_jvp(name: str) -> None:
    """The product of the Hessian with a vector, both ways."""
    xs, numbers = arguments(name), tuple(range(len(COMPOSITES[name][1])))
    ts = tangents(xs)

    def forward_over_reverse(library: Any, grad: Any, jvp: Any) -> Any:
        return jvp(lambda *xs: grad(apply(name, library), numbers)(*xs), xs, ts)[1]

    def reverse_over_forward(library: Any, grad: Any, jvp: Any) -> Any:
        return grad(lambda *xs: jvp(apply(name, library), xs, ts)[1], numbers)(*xs)

    with jax.enable_x64(True):
        expected = jax.jit(lambda: forward_over_reverse(JAX, jax.grad, jax.jvp))()
    close(forward_over_reverse(ANTEGRAD, ag.grad, ag.jvp), expected, f"{name}, jvp of grad")
    close(reverse_over_forward(ANTEGRAD, ag.grad, ag.jvp), expected, f"{name}, grad of jvp")


@pytest.mark.parametrize("name", ["mlp", "lstm", "einsum"])
def test_jvp_and_vjp_are_transposes(name: str) -> None:
    """<c, J t> = <J' c, t> for the Jacobian J of the gradient, which is not symmetric in shape."""
    xs = arguments(name)
    ts = tangents(xs)

    def function(*xs: Any) -> Any:
        return ag.grad(apply(name, ANTEGRAD))(*xs)

    value, pushed = ag.jvp(function, xs, ts)
    cotangent = np.random.default_rng(5).normal(size=value.shape)
    _, pullback = ag.vjp(function, *xs)
    pulled = pullback(cotangent)
    assert np.sum(cotangent * pushed) == pytest.approx(sum(np.sum(p * t) for p, t in zip(pulled, ts, strict=True)))


def test_names_of_a_pushforward() -> None:
    program = ag.capture(lambda x, n, w: {"a": x * w, "b": n}, V, ag.spec((3,), "i32"), V)
    pushed = jvp_program(program)
    assert pushed.input_names == ("x", "n", "w", "t_x", "t_w")
    assert pushed.output_names == ("a", "b", "t_a", "t_b")
    assert jvp_program(program, ["w"]).input_names == ("x", "n", "w", "t_w")


def test_the_tangent_of_an_integer_is_zero() -> None:
    pushed = jvp_program(ag.capture(lambda x: (x * 2, (x > 0).astype("i32"), x > 0), V))
    for device in devices():
        found = run(pushed, [X, X], device)
        assert_same_bits(found[4], np.zeros(3, np.int32), device)
        assert_same_bits(found[5], np.zeros(3, bool), device)


def test_captured_inputs_stay_last() -> None:
    table = np.linspace(0, 1, 210).reshape(3, 70).astype(np.float32)
    pushed = jvp_program(ag.capture(lambda x: x @ table, V))
    assert pushed.input_names == ("x", "t_x", "table")
    np.testing.assert_allclose(pushed.run(X, X, device="host")[1], X @ table, rtol=1e-6)
    pulled = vjp_program(ag.capture(lambda x: x @ table, V))
    assert pulled.input_names == ("x", "d_out", "table")


def test_a_pushforward_has_no_more_equations_than_it_needs() -> None:
    """tanh(x) * w along (t, s): the forward pass, and a few products and one sum."""
    pushed = jvp_program(ag.capture(lambda x, w: ops.tanh(x) * w, V, V))
    assert len([eq for eq in pushed.equations if eq.primitive.name not in ("constant", "broadcast_in_dim")]) <= 9


def test_outputs_that_are_inputs_and_twice_the_same() -> None:
    value, tangent = ag.jvp(lambda x: (x, x, x * 2), [X], [X + 1])
    for found, expected in zip((*value, *tangent), (X, X, 2 * X, X + 1, X + 1, 2 * X + 2), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()])
def test_empty_and_scalar(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 2.0)
    _, tangent = ag.jvp(lambda x: x * x, [x], [np.ones(shape)])
    assert_same_bits(tangent, np.full(shape, 4.0), str(shape))


def test_linear_functions_are_their_own_derivative() -> None:
    matrix = np.arange(12.0).reshape(3, 4)
    _, tangent = ag.jvp(lambda x: x @ matrix, [np.zeros(3)], [np.array([1.0, 2.0, 3.0])])
    np.testing.assert_array_equal(tangent, np.array([1.0, 2.0, 3.0]) @ matrix)


def test_through_remat() -> None:
    """The barrier that keeps the second computation apart lets tangents through."""
    x = np.array([0.3, 1.0, -2.0])
    _, tangent = ag.jvp(ag.remat(lambda t: ops.sin(ops.sin(t))), [x], [np.ones(3)])
    np.testing.assert_allclose(tangent, np.cos(np.sin(x)) * np.cos(x))
