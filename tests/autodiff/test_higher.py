"""`grad`, `value_and_grad`, `vjp` and `jvp` on Python functions: arguments, pytrees, nesting, errors."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops
from antegrad.ops.dispatch import current_builder
from tests.support import devices, run

X = np.array([0.5, -1.0, 2.0])
Y = np.array([1.0, 3.0, -2.0])
Pair = namedtuple("Pair", ["left", "right"])


def scaled(x: Any, y: Any, z: Any = 2.0) -> Any:
    return ops.sum(ops.sin(x) * y * z)


def test_value_and_gradient() -> None:
    value, gradient = ag.value_and_grad(scaled)(X, Y)
    assert value == pytest.approx(2 * np.sum(np.sin(X) * Y))
    np.testing.assert_allclose(gradient, 2 * np.cos(X) * Y)


@pytest.mark.parametrize(
    ("argnums", "picked"),
    [(0, "x"), (1, "y"), (-1, "z"), ("y", "y"), ((0, 1), "xy"), (("z", 0), "zx"), ([1], "y"), ((0, 0), "xx"), ((), "")],
)
def test_argnums(argnums: Any, picked: str) -> None:
    expected = {"x": 2 * np.cos(X) * Y, "y": 2 * np.sin(X), "z": np.sum(np.sin(X) * Y)}
    found = ag.grad(scaled, argnums)(X, Y, np.float64(2))
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(picked)
    for gradient, name in zip(found, picked, strict=True):
        np.testing.assert_allclose(gradient, expected[name])


def test_a_single_name_gives_no_tuple() -> None:
    assert isinstance(ag.grad(scaled, "y")(X, Y), np.ndarray)
    assert isinstance(ag.grad(scaled, ["y"])(X, Y), tuple)


@pytest.mark.parametrize(
    ("argnums", "error", "message"),
    [
        (5, ag.ShapeError, "no argument 5; the function was called with 2"),
        (-3, ag.ShapeError, "no argument -3"),
        ("w", ag.NameMissing, "no argument 'w'; the function has x, y"),
    ],
)
def test_wrong_argnums(argnums: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ag.grad(scaled, argnums)(X, Y)


def test_pytrees_go_in_and_gradients_of_their_structure_come_out() -> None:
    def loss(tree: Any) -> Any:
        return ops.sum(tree["a"][0] * tree["a"][1]) + tree["p"].left * tree["p"].right

    tree = {"a": [X, Y], "p": Pair(np.float64(3), np.float64(4)), "none": None}
    gradient = ag.grad(loss)(tree)
    assert jax.tree_util.tree_structure(gradient) == jax.tree_util.tree_structure(tree)
    np.testing.assert_array_equal(gradient["a"][0], Y)
    assert gradient["p"] == Pair(4.0, 3.0)


def test_the_gradient_of_a_module_is_a_module() -> None:
    model = nn.Sequential(nn.Dense(3, 2, key=ag.random.key(0), dtype="f64"), ops.tanh)
    gradient = ag.grad(lambda model, x: ops.sum(model(x)))(model, X[None])
    assert type(gradient) is nn.Sequential
    assert list(gradient.named_parameters()) == ["0.w", "0.b"]
    slope = 1 - np.tanh(X[None] @ model[0].w + model[0].b) ** 2
    np.testing.assert_allclose(gradient.named_parameters()["0.w"], X[:, None] @ slope)


def test_has_aux() -> None:
    def loss(x: Any, y: Any) -> Any:
        hidden = ops.sin(x)
        return ops.sum(hidden * y), {"hidden": hidden, "count": (x > 0).sum()}

    (value, aux), gradient = ag.value_and_grad(loss, has_aux=True)(X, Y)
    assert value == pytest.approx(np.sum(np.sin(X) * Y))
    np.testing.assert_allclose(aux["hidden"], np.sin(X))
    assert aux["count"] == 2
    gradient_again, aux_again = ag.grad(loss, has_aux=True)(X, Y)
    np.testing.assert_array_equal(gradient_again, gradient)
    assert aux_again["count"] == 2


@pytest.mark.parametrize(
    ("function", "has_aux", "message"),
    [
        (lambda x: (ops.sum(x), x), False, "one scalar loss, is needed, found 2 outputs.*has_aux=True"),
        (lambda x: [], False, "found 0 outputs"),
        (lambda x: ops.sum(x), True, r"a pair \(loss, aux\).*found 1 outputs"),
        (lambda x: (ops.sum(x), x, x), True, r"a pair \(loss, aux\).*found 3 outputs"),
        (lambda x: ((ops.sum(x), x), x), True, r"a pair \(loss, aux\)"),
        (lambda x: x, False, r"scalar float.*found f64\[3\]"),
        (lambda x: (x, x), True, r"scalar float.*found f64\[3\]"),
        (lambda x: (x > 0).sum(), False, r"scalar float.*found i32\[\]"),
    ],
)
def test_what_is_no_loss(function: Callable[..., Any], has_aux: bool, message: str) -> None:
    with pytest.raises(ag.ShapeError, match=message):
        ag.grad(function, has_aux=has_aux)(X)


@pytest.mark.parametrize("value", [3, np.int32(3), True, np.array([1, 2], np.uint8)])
def test_case_grad_int_input(value: Any) -> None:
    def square(speed: Any) -> Any:
        return ops.sum(speed.astype("f32") ** 2)

    message = r"grad of square with respect to argument speed: it is .*not a float.*3\.0 or x\.astype\('f32'\)"
    with pytest.raises(ag.DTypeError, match=message):
        ag.grad(square)(value)


def test_an_integer_inside_a_tree_is_named() -> None:
    with pytest.raises(ag.DTypeError, match=r"with respect to argument step: it is i32\[\]"):
        ag.grad(lambda state: state["w"].sum())({"w": X, "step": 3})


@pytest.mark.parametrize(
    ("value", "dtype"), [(3.0, "f32"), (np.float64(3), "f64"), (np.float32(3), "f32"), (np.float16(3), "f16")]
)
def test_the_gradient_has_the_type_of_its_argument(value: Any, dtype: str) -> None:
    gradient = ag.grad(lambda x: x * x)(value)
    assert gradient == 6
    assert str(ag.ir.types.type_of(gradient)) == f"{dtype}[]"


def test_vjp() -> None:
    def function(x: Any, n: Any, pair: Any) -> Any:
        return {"a": x * pair[0], "b": ops.sum(x) * pair[1], "n": n + 1}

    value, pullback = ag.vjp(function, X, np.int32(4), (Y, np.float64(3)))
    np.testing.assert_array_equal(value["a"], X * Y)
    assert value["n"] == 5
    d_x, d_n, (d_y, d_z) = pullback({"a": np.ones(3), "b": np.float64(2), "n": np.int32(7)})
    np.testing.assert_allclose(d_x, Y + 6)
    assert d_n is None
    np.testing.assert_array_equal(d_y, X)
    assert d_z == 2 * X.sum()


def test_a_pullback_can_be_called_again() -> None:
    _, pullback = ag.vjp(lambda x: ops.sin(x), X)
    for cotangent in (np.ones(3), Y, np.zeros(3)):
        np.testing.assert_allclose(pullback(cotangent)[0], np.cos(X) * cotangent)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ag.vjp(lambda x: (x, x), X)[1](X), ag.ShapeError, "2 cotangents are needed, found 1"),
        (lambda: ag.vjp(lambda x: x, X)[1](np.ones(4)), ag.ShapeError, r"f64\[4\]"),
        (lambda: ag.vjp(lambda x: x, X)[1](np.ones(3, np.float32)), ag.DTypeError, r"f32\[3\]"),
        (lambda: ag.jvp(lambda x: x, [X], [X, X]), ag.ShapeError, "1 tangents are needed, found 2"),
        (lambda: ag.jvp(lambda x: x, [X], [np.ones(4)]), ag.ShapeError, r"f64\[4\]"),
        (lambda: ag.jvp(lambda x: x, [X], [np.ones(3, np.float32)]), ag.DTypeError, r"f32\[3\]"),
    ],
)
def test_cotangents_and_tangents_that_do_not_fit(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_jvp_of_trees_with_integers() -> None:
    """The tangent of an integer leaf is passed over, whatever it is."""

    def function(tree: Any) -> Any:
        return tree["x"] * 2, tree["n"]

    value, tangent = ag.jvp(function, [{"x": X, "n": np.int32(3)}], [{"x": Y, "n": np.int32(0)}])
    np.testing.assert_array_equal(value[0], 2 * X)
    np.testing.assert_array_equal(tangent[0], 2 * Y)
    assert tangent[1] == 0


# Nesting.


def cube(x: Any) -> Any:
    return x * x * x


def test_derivatives_of_derivatives() -> None:
    third = ag.grad(ag.grad(ag.grad(lambda x: cube(x) * x)))
    assert third(np.float64(2)) == 48


def test_a_gradient_inside_a_capture_inside_a_gradient() -> None:
    """The inner function closes over the outer variable, so both levels matter: d/dx (x * d/dy (x * y**3))."""

    def outer(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return x * cube(y)

        return x * ag.grad(inner)(x * 2)

    def by_hand(x: float) -> float:  # x * x * 3 * (2 x)**2 = 12 x**4
        return 48 * x**3

    assert ag.grad(outer)(np.float64(1.5)) == pytest.approx(by_hand(1.5))
    program = ag.reverse(ag.capture(outer, np.float64(1.5)))
    for device in devices():
        assert run(program, [np.float64(1.5)], device)[1] == pytest.approx(by_hand(1.5))


def test_perturbation_confusion() -> None:
    """The classical trap: d/dx (x * d/dy (x + y)) is 1, not 2."""
    assert ag.grad(lambda x: x * ag.grad(lambda y: x + y)(np.float64(1)))(np.float64(1)) == 1
    _, tangent = ag.jvp(lambda x: x * ag.jvp(lambda y: x + y, [x], [x * 0 + 1])[1], [np.float64(1)], [np.float64(1)])
    assert tangent == 1


def test_vjp_inside_a_capture() -> None:
    def function(x: Any, cotangent: Any) -> Any:
        value, pullback = ag.vjp(lambda t: ops.sin(t) * x, x)
        return value, pullback(cotangent)[0]

    program = ag.capture(function, X, Y)
    for device in devices():
        value, pulled = run(program, [X, Y], device)
        np.testing.assert_allclose(value, np.sin(X) * X, rtol=1e-14)
        np.testing.assert_allclose(pulled, np.cos(X) * X * Y, rtol=1e-14)


def test_a_pullback_that_outlives_its_capture_is_refused() -> None:
    kept: list[Any] = []

    def function(x: Any) -> Any:
        value, pullback = ag.vjp(ops.sin, x)
        kept.append(pullback)
        return value

    ag.capture(function, X)
    with pytest.raises(ag.TraceError, match="outside the capture that made it"):
        kept[0](np.ones(3))


def test_a_pullback_from_outside_used_inside_a_capture() -> None:
    _, pullback = ag.vjp(ops.sin, X)
    program = ag.capture(lambda c: pullback(c)[0], Y)
    np.testing.assert_allclose(run(program, [Y], "host")[0], np.cos(X) * Y)


def test_gradients_inside_a_loop() -> None:
    """Newton's method for cube(x) = 2, whose step is written with `grad`."""

    def function(x: Any) -> Any:
        return ag.fori_loop(0, 8, lambda i, x: x - (cube(x) - 2) / ag.grad(cube)(x), x)

    assert function(np.float64(1)) == pytest.approx(2 ** (1 / 3))
    program = ag.reverse(ag.capture(function, np.float64(1)))
    assert run(program, [np.float64(1)], "host")[1] == pytest.approx(0, abs=1e-9)


def test_gradient_of_a_function_that_captures_a_large_array() -> None:
    table = np.linspace(0, 1, 300).reshape(3, 100)
    np.testing.assert_allclose(ag.grad(lambda x: ops.sum(ops.sin(x @ table)))(X), table @ np.cos(X @ table))
    program = ag.capture(ag.grad(lambda x: ops.sum(ops.sin(x @ table))), X)
    assert program.input_names == ("x", "table")


def test_an_error_inside_leaves_no_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        ag.grad(lambda x: ag.grad(lambda y: y * (1 // 0))(x))(X)
    assert current_builder() is None


def test_wrappers_keep_names_and_parameters() -> None:
    assert ag.grad(scaled).__name__ == "grad_scaled"
    assert ag.capture(ag.grad(scaled, "y"), X, Y).input_names == ("x", "y")


def test_gradient_of_a_function_without_parameters_in_its_signature() -> None:
    assert ag.grad(lambda *values: values[0] * values[1], (0, 1))(np.float64(2), np.float64(3)) == (3.0, 2.0)


def test_against_jax_with_several_trees() -> None:
    def loss(library: Any) -> Callable[..., Any]:
        return lambda p, q: library.sum(library.tanh(p["w"] @ q[0] + p["b"])) * library.sum(q[1])

    p = {"w": np.arange(6.0).reshape(2, 3) / 5, "b": np.ones(2)}
    q = (X, Y)
    import jax.numpy as jnp

    with jax.enable_x64(True):
        expected = jax.grad(loss(jnp), (0, 1))(p, q)
    found = ag.grad(loss(ops), (0, 1))(p, q)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for a, b in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def keyed(x: Any, w: Any = 3.0, *, scale: Any = 1.0) -> Any:
    return ops.sum(x * w * scale)


def test_keyword_arguments_are_traced_in_their_places() -> None:
    x, two = np.array([1.0, 2.0]), np.float64(2)
    np.testing.assert_array_equal(ag.grad(keyed)(x, w=two), [2, 2])
    np.testing.assert_array_equal(ag.grad(keyed)(x, scale=two), [6, 6])
    assert ag.grad(keyed, argnums="w")(x, w=two, scale=two) == 6
    value, gradient = ag.value_and_grad(keyed, argnums=("x", "w"))(w=two, x=x)
    assert value == 6
    np.testing.assert_array_equal(gradient[1], 3)
    np.testing.assert_array_equal(ag.jacobian(keyed)(x, scale=two), [6, 6])
    np.testing.assert_array_equal(ag.hessian(lambda x, k: ops.sum(x * x * k))(x, k=two), [[4, 0], [0, 4]])
    np.testing.assert_array_equal(ag.vmap(keyed)(x, w=x, scale=x), [1, 8])


def test_a_keyword_is_not_taken_for_a_dict_argument() -> None:
    """Both calls have one structure of arguments, and mean different things."""

    def function(x: Any, options: Any = None, *, scale: Any = 1.0) -> Any:
        return x * scale + (0 if options is None else 10 * options["scale"])

    compiled = ag.compile(function, device="host")
    x = np.float64(1)
    assert compiled(x, scale=np.float64(2)) == 2
    assert compiled(x, {"scale": np.float64(2)}) == 21
    assert compiled(x, scale=np.float64(3)) == 3
    assert compiled.executables == 2


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="scales"):
        ag.grad(keyed)(np.float64(1), scales=2.0)


REFUSED = {
    "tangent type": (lambda x, n: ag.jvp(lambda x: x + 1.0, (x,), (n,)), ag.DTypeError, r"of x must be f32\[2\]"),
    "tangent shape": (lambda x, n: ag.jvp(lambda x: x + 1.0, (x,), (x[:1],)), ag.ShapeError, r"found f32\[1\]"),
    "cotangent": (lambda x, n: ag.vjp(lambda x: -x, x)[1](x[0]), ag.ShapeError, r"cotangent of out must be f32\[2\]"),
    "structure": (lambda x, n: ag.vjp(lambda x: {"q": x, "p": x}, x)[1]([x, x]), ag.ShapeError, "a cotangent like"),
    "vector": (lambda x, n: ag.hvp(lambda x: ops.sum(x * x), (x,), (x[:1],)), ag.ShapeError, "tangent of x"),
    "several": (lambda x, n: ag.jacobian(lambda x, y: x * y, argnums=(0, 1))(x, x), ag.ShapeError, "one argument"),
    "argnums": (lambda x, n: ag.grad(lambda x: ops.sum(x), argnums=1.0)(x), ag.NameMissing, "position or the name"),
}


@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_tangents_that_do_not_fit_are_refused_at_once_and_in_a_capture(
    wrong: Any, error: type[Exception], message: str
) -> None:
    x, n = np.ones(2, np.float32), np.ones(2, np.int32)
    with pytest.raises(error, match=message):
        wrong(x, n)
    with pytest.raises(error, match=message):
        ag.capture(wrong, x, n)
