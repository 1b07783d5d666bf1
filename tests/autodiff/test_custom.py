"""Functions with a derivative of their own, and rematerialisation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops

X = np.float32([0.5, -1.0, 2.0])


@ag.custom_vjp
def clipped(x):
    return x * 2


clipped.defvjp(lambda x: (x * 2, None), lambda _, d: (ops.clip(d, -1, 1),))


def test_custom_vjp_is_used_and_only_in_the_derivative():
    np.testing.assert_array_equal(clipped(X), 2 * X)
    np.testing.assert_array_equal(ag.grad(lambda x: ops.sum(clipped(x) * 3))(X), [1, 1, 1])
    np.testing.assert_array_equal(ag.grad(lambda x: ops.sum(clipped(x) * 0.25))(X), [0.25] * 3)


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_custom_vjp_in_a_program(device):
    program = ag.reverse(ag.capture(lambda x: ops.sum(clipped(x) * 3), X))
    value, gradient = program.run(X, device=device)
    assert value == np.sum(X * 6)
    np.testing.assert_array_equal(gradient, [1, 1, 1])


def test_custom_vjp_with_pytrees_and_none():
    @ag.custom_vjp
    def weighted(parameters, x, mask):
        return {"y": parameters["w"] * x + parameters["b"]}

    def backward(residuals, cotangent):
        w, x = residuals
        return {"w": cotangent["y"] * x, "b": cotangent["y"]}, 10 * w * cotangent["y"], None

    weighted.defvjp(lambda p, x, m: ({"y": p["w"] * x + p["b"]}, (p["w"], x)), backward)
    parameters = {"w": X, "b": 2 * X}
    mask = np.array([1, 0, 1])
    found = ag.grad(lambda p, x: ops.sum(weighted(p, x, mask)["y"]), (0, 1))(parameters, 3 * X)
    np.testing.assert_allclose(found[0]["w"], 3 * X)
    np.testing.assert_allclose(found[0]["b"], [1, 1, 1])
    np.testing.assert_allclose(found[1], 10 * X)


def test_custom_vjp_differentiates_again():
    @ag.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, d: (3 * x * x * d,))
    assert ag.grad(ag.grad(lambda x: cube(x)))(2.0) == 12
    assert ag.jvp(lambda x: cube(x), (2.0,), (1.0,))[1] == 12


def test_custom_jvp_gives_both_modes():
    @ag.custom_jvp
    def sine(x):
        return ops.sin(x)

    sine.defjvp(lambda primals, tangents: (ops.sin(primals[0]), 10 * ops.cos(primals[0]) * tangents[0]))
    np.testing.assert_allclose(ag.grad(lambda x: sine(x))(1.0), 10 * np.cos(1), rtol=1e-6)
    np.testing.assert_allclose(ag.jvp(lambda x: sine(x), (1.0,), (2.0,))[1], 20 * np.cos(1), rtol=1e-6)
    np.testing.assert_allclose(ag.grad(ag.grad(lambda x: sine(x)))(1.0), -10 * np.sin(1), rtol=1e-6)


def test_custom_errors():
    @ag.custom_vjp
    def bare(x):
        return x

    with pytest.raises(ag.TraceError, match="bare has no derivative yet"):
        bare(1.0)
    bare.defvjp(lambda x: (x, None), lambda _, d: d)
    with pytest.raises(ag.ShapeError, match="tuple of 1"):
        ag.grad(lambda x: bare(x))(1.0)

    def outer(w):
        @ag.custom_vjp
        def inner(x):
            return x * w

        inner.defvjp(lambda x: (x, None), lambda _, d: (d,))
        return inner(2.0)

    with pytest.raises(ag.TraceError, match=r"inner.*w"):
        ag.grad(outer)(3.0)


def block(x, w):
    hidden = ops.tanh(x @ w)
    gate = ops.sin(hidden @ w)
    return x + gate


W = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
XS = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)


def depth(function, layers):
    def loss(w, x):
        for _ in range(layers):
            x = function(x, w)
        return ops.sum(x)

    return loss


@pytest.mark.parametrize("device", ["host", "cpu"])
@pytest.mark.parametrize("save", ["nothing", "dots", "everything", ("hidden",)])
def test_remat_changes_no_value(save, device):
    plain = ag.reverse(ag.capture(depth(block, 3), W, XS))
    saved = ag.reverse(ag.capture(depth(ag.remat(block, save=save), 3), W, XS))
    for a, b in zip(plain.run(W, XS, device=device), saved.run(W, XS, device=device), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_remat_against_jax():
    def loss(w, x):
        for _ in range(3):
            x = x + jnp.sin(jnp.tanh(x @ w) @ w)
        return jnp.sum(x)

    found = ag.grad(depth(ag.remat(block), 3))(W, XS)
    expected = jax.grad(loss)(W, XS)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.max(np.abs(expected)))


def count(program: ag.Program, name: str) -> int:
    return sum(equation.primitive.name == name for equation in program.all_equations())


def test_remat_saves_what_it_says():
    """The fewer values are saved, the more are computed again, and the less memory is alive at once."""
    programs = {
        save: ag.reverse(ag.capture(depth(ag.remat(block, save=save), 6), W, XS), wrt=["w"])
        for save in ("nothing", "dots", "everything")
    }
    plain = ag.reverse(ag.capture(depth(block, 6), W, XS), wrt=["w"])
    assert count(programs["nothing"], "tanh") == 12
    assert count(programs["dots"], "tanh") == 12
    assert count(programs["everything"], "tanh") == count(plain, "tanh") == 6
    dots = {save: count(program, "dot_general") for save, program in programs.items()}
    assert dots["nothing"] > dots["dots"] == dots["everything"]
    peak = {save: program.cost().peak_bytes for save, program in programs.items()}
    assert peak["nothing"] < peak["everything"]


def test_remat_survives_simplification():
    """The barrier keeps the second computation apart from the first, in the program and in what XLA is given."""
    program = ag.simplify(ag.reverse(ag.capture(depth(ag.remat(block), 1), W, XS)))
    assert count(program, "tanh") == 2
    text = program.stablehlo()
    assert text.count("stablehlo.tanh") == 2
    assert text.count("stablehlo.optimization_barrier") == 1


def test_remat_errors():
    with pytest.raises(ag.NameMissing, match=r"gate.*hidden"):
        ag.remat(block, save=["missing"])(XS, W)
    with pytest.raises(ag.NameMissing, match='"dots"'):
        ag.remat(block, save="some")(XS, W)
