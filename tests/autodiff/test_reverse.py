"""Reverse mode: gradients and second derivatives of composite functions against JAX, and the rules of the interface."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Program
from tests.autodiff.composites import ANTEGRAD, COMPOSITES, JAX, apply, arguments, close, weighted
from tests.support import assert_same_bits, devices, run

V, S = ag.spec((3,)), ag.spec(())
X = np.array([0.5, -1.0, 2.0], np.float32)
each = pytest.mark.parametrize("name", list(COMPOSITES))


@each
def test_gradient_against_jax(name: str) -> None:
    """In f64, on every device, to 1e-10."""
    xs = arguments(name)
    gradient = ag.reverse(ag.capture(apply(name, ANTEGRAD), *xs))
    with jax.enable_x64(True):
        value, expected = jax.jit(jax.value_and_grad(apply(name, JAX), tuple(range(len(xs)))))(*xs)
    for device in devices():
        found = run(gradient, xs, device)
        close(found, [value, *expected], f"{name} on {device}")


@each
def test_second_derivative_against_jax(name: str) -> None:
    """The gradient of a weighted sum of the gradient."""
    xs = arguments(name)
    weights = [np.random.default_rng(1).normal(size=x.shape) for x in xs]
    numbers = tuple(range(len(xs)))

    def second(library: Any, grad: Any) -> Any:
        return grad(lambda *xs: weighted(library, grad(apply(name, library), numbers)(*xs), weights), numbers)

    with jax.enable_x64(True):
        expected = jax.jit(second(JAX, jax.grad))(*xs)
    close(second(ANTEGRAD, ag.grad)(*xs), expected, name)


@pytest.mark.parametrize("name", [name for name in COMPOSITES if name != "stopped"])
def test_gradient_against_finite_differences(name: str) -> None:
    """Along a random direction, of fourth order. (Differences do not stop at `stop_gradient`.)"""
    xs = arguments(name)
    rng = np.random.default_rng(2)
    direction = [rng.normal(size=x.shape) for x in xs]
    program = ag.capture(apply(name, ANTEGRAD), *xs)

    def loss(step: float) -> float:
        return float(run(program, [x + step * d for x, d in zip(xs, direction, strict=True)], "host")[0])

    h = 1e-4
    slope = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
    gradients = run(ag.reverse(program), xs, "host")[1:]
    assert sum(float(np.sum(g * d)) for g, d in zip(gradients, direction, strict=True)) == pytest.approx(
        slope, rel=1e-7
    )


def test_two_runs_give_the_same_bits() -> None:
    for name in ("attention", "lstm", "einsum"):
        xs = arguments(name)
        results = [run(ag.reverse(ag.capture(apply(name, ANTEGRAD), *xs)), xs, "host") for _ in range(2)]
        for first, second in zip(*results, strict=True):
            assert_same_bits(first, second, name)


# What goes in and comes out.


def loss(params: Any, x: Any) -> Any:
    return ops.sum(ops.tanh(x * params["a"]) * params["b"]["c"])


PROGRAM = ag.capture(loss, {"a": V, "b": {"c": V}}, V)


@pytest.mark.parametrize(
    ("wrt", "outputs"),
    [
        (None, "out d_a d_b.c d_x"),
        (["x"], "out d_x"),
        (["x", "a"], "out d_x d_a"),
        ("a", "out d_a"),
        (["b"], "out d_b.c"),
        (["b", "b.c", "b"], "out d_b.c"),
        ([], "out"),
    ],
)
def test_with_respect_to_names_and_prefixes(wrt: Any, outputs: str) -> None:
    gradient = ag.reverse(PROGRAM, wrt)
    assert " ".join(gradient.output_names) == outputs
    assert gradient.input_names == PROGRAM.input_names
    assert gradient.name == "loss_gradient"


def test_a_name_comes_before_a_prefix() -> None:
    program = ag.capture(lambda w, params: ops.sum(w) * params["w"]["b"], V, {"w": {"b": 1.0}})
    assert program.input_names == ("w", "w.b")
    assert ag.reverse(program, ["w"]).output_names == ("out", "d_w")
    found, (d_w, d_params) = ag.value_and_grad(lambda w, p: ops.sum(w) * p["w"]["b"], (0, 1))(
        X, {"w": {"b": np.float32(3)}}
    )
    assert found == 4.5
    np.testing.assert_array_equal(d_w, [3, 3, 3])
    assert d_params["w"]["b"] == 1.5


def test_an_unknown_name_is_refused_with_the_list() -> None:
    with pytest.raises(ag.NameMissing, match=r"loss has no input 'w'; it has a, b\.c, x"):
        ag.reverse(PROGRAM, ["w"])


@pytest.mark.parametrize("dtype", ["i32", "u8", "bool"])
def test_case_grad_int_input(dtype: str) -> None:
    """Refused by name, with what to do; and left out by default."""
    program = ag.capture(lambda x, n: ops.sum(x) * ops.sum(n.astype("f32")), V, ag.spec((3,), dtype))
    with pytest.raises(ag.DTypeError, match=rf"with respect to n: it is {dtype}\[3\], not a float.*x\.astype\('f32'\)"):
        ag.reverse(program, ["n"])
    assert ag.reverse(program).output_names == ("out", "d_x")
    with pytest.raises(ag.DTypeError, match=r"with respect to n: it is .*, not a float"):
        ag.reverse(ag.capture(lambda n: n.astype("f32").sum(), ag.spec((3,), dtype)))


def test_a_program_without_inputs() -> None:
    with pytest.raises(ag.NameMissing, match="has no inputs"):
        ag.reverse(ag.capture(lambda: ops.zeros(())))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: x, r"f32\[3\]"),
        (lambda x: x.sum().reshape((1,)), r"f32\[1\]"),
        (lambda x: x.sum().astype("i32"), r"i32\[\]"),
        (lambda x: x.sum() > 0, r"bool\[\]"),
        (lambda x: None, "None"),
    ],
)
def test_a_loss_that_is_no_float_scalar(function: Any, found: str) -> None:
    with pytest.raises(
        ag.ShapeError, match=rf"scalar float as the first output of program, found {found}.*mean or sum"
    ):
        ag.reverse(ag.capture(function, V))


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
def test_case_grad_unused_input(dtype: str) -> None:
    """Zeros of its shape and type, for an input that the loss does not reach or reaches only through integers."""
    w = ag.spec((2, 3), dtype)
    program = ag.capture(lambda x, w, v: ops.sum(x) + (v > 0).sum().astype("f32"), V, w, w)
    given = [X, *np.ones((2, 2, 3), w.dtype)]
    for device in devices():
        for unused in run(ag.reverse(program), given, device)[2:]:
            assert_same_bits(unused, np.zeros((2, 3), w.dtype), device)


def test_other_outputs_come_along() -> None:
    program = ag.capture(lambda x: (ops.sum(x * x), x * 2, {"n": (x > 0).sum()}), V)
    found = run(ag.reverse(program), [X], "host")
    np.testing.assert_array_equal(found[1], X * 2)
    assert found[2] == 2
    np.testing.assert_array_equal(found[3], X * 2)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x, [1.0]),
        (lambda x: (x, x, x * 2), [1.0]),
        (lambda x: x + x, [2.0]),
        (lambda x: x * x, [6.0]),
        (lambda x: x * x + x, [7.0]),
        (lambda x: ops.where(x > 0, x, x), [1.0]),
        (lambda x: (ops.concatenate([x[None], x[None]]) * np.array([1, 10], np.float32)).sum(), [11.0]),
        (lambda x: ops.stack([x, x, x]).sum(), [3.0]),
        (lambda x: ops.maximum(x, x), [1.0]),
    ],
)
def test_case_grad_same_operand_twice(function: Any, expected: list[float]) -> None:
    """And outputs that are inputs, and the same value returned twice."""
    for device in devices():
        found = run(ag.reverse(ag.capture(function, S)), [np.float32(3)], device)
        assert found[-1] == expected[0]


def test_captured_arrays_are_constants_of_the_gradient() -> None:
    table = np.linspace(-1, 1, 210).reshape(3, 70).astype(np.float32)
    program = ag.capture(lambda x: ops.sum(ops.sin(x @ table)), V)
    gradient = ag.reverse(program)
    assert gradient.input_names == ("x", "table")
    assert gradient.argument_count == 1
    for device in devices():
        np.testing.assert_allclose(run(gradient, [X], device)[1], table @ np.cos(X @ table), rtol=1e-5)
    with_respect_to_it = run(ag.reverse(program, ["table"]), [X], "host")[1]
    np.testing.assert_allclose(with_respect_to_it, np.outer(X, np.cos(X @ table)), rtol=1e-5)


def test_captured_arrays_twice_differentiated() -> None:
    table = np.linspace(-1, 1, 210).reshape(3, 70).astype(np.float32)

    def inner(x: Any) -> Any:
        return ops.sum(ops.sin(x @ table))

    second = ag.reverse(ag.capture(lambda x: ops.sum(ag.grad(inner)(x)), V))
    assert second.argument_count == 1
    expected = -table @ (np.sin(X @ table) * table.sum(axis=0))
    np.testing.assert_allclose(run(second, [X], "host")[1], expected, rtol=1e-4)


def test_the_gradient_program_can_be_differentiated_again() -> None:
    """`reverse` of `reverse`: its first output is still the loss, and every output has a name of its own."""
    twice = ag.reverse(ag.reverse(ag.capture(lambda x: ops.sum(x * x), V)))
    assert twice.output_names == ("out", "d_x", "d_x_1")
    assert_same_bits(run(twice, [X], "host")[2], X * 2, "d_x_1")


def test_names_and_places_of_the_gradient() -> None:
    def net(x: Any, w: Any) -> Any:
        hidden = ops.tanh(x @ w)
        error = hidden - 1
        return ops.mean(error * error)

    gradient = ag.reverse(ag.capture(net, ag.spec((5, 3)), ag.spec((3, 2))), ["w"])
    text = gradient.python()
    assert text.index("# forward") < text.index("hidden = np.tanh(x @ w)") < text.index("# backward")
    assert "d_w = x.T @ (error * " in text
    for equation in gradient.equations:
        if equation.primitive.name not in ("constant", "broadcast_in_dim"):
            assert equation.source.file == __file__, equation.primitive


def test_pieces_that_no_cotangent_reaches_are_not_in_the_gradient() -> None:
    def net(x: Any) -> Any:
        unread = ops.exp(ops.tanh(x))
        return ops.sum(x), unread.sum()

    backward = [eq.primitive.name for eq in ag.reverse(ag.capture(net, V)).equations if eq.source.part == "backward"]
    assert set(backward) <= {"constant", "broadcast_in_dim"}


def grows_linearly(program: Program) -> int:
    return len(ag.reverse(program).equations)


def test_a_value_used_many_times_does_not_blow_up() -> None:
    """Each layer uses its input twice; the gradient of 30 of them has a few equations for each."""

    def function(x: Any) -> Any:
        for _ in range(30):
            x = x * x + x
        return x

    assert grows_linearly(ag.capture(function, S)) < 30 * 8
