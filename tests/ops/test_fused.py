"""The primitives of `ops.fused`: values, short gradients, batches and printed modules."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ops.fused import gelu_p, log_softmax_p, softmax_p, standardize_p
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, devices, run

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5, 6))


def written_out(x: Any, axes: tuple[int, ...], eps: float, centered: bool) -> Any:
    deviation = x - ops.mean(x, axes, keepdims=True) if centered else x
    scale = ops.rsqrt(ops.mean(deviation * deviation, axes, keepdims=True) + eps)
    return deviation * scale, scale


FUNCTIONS = {
    "standardize": (lambda x: standardize_p(x, (2,), 1e-3), lambda x: written_out(x, (2,), 1e-3, True)),
    "standardize axes": (lambda x: standardize_p(x, (0, 2), 0.1), lambda x: written_out(x, (0, 2), 0.1, True)),
    "standardize uncentered": (
        lambda x: standardize_p(x, (1,), 0.1, False),
        lambda x: written_out(x, (1,), 0.1, False),
    ),
    "softmax": (lambda x: softmax_p(x, (1, 2)), lambda x: ops.exp(x) / ops.sum(ops.exp(x), (1, 2), keepdims=True)),
    "log_softmax": (lambda x: log_softmax_p(x, (2,)), lambda x: x - ops.log(ops.sum(ops.exp(x), 2, keepdims=True))),
    "gelu": (
        lambda x: gelu_p(x, True),
        lambda x: x / 2 * (1 + ops.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x))),
    ),
}  # fmt: skip


def in_jax(x: jax.Array, axes: tuple[int, ...] = (1,), eps: float = 1e-2, centered: bool = True) -> jax.Array:
    deviation = x - jnp.mean(x, axes, keepdims=True) if centered else x
    return deviation / jnp.sqrt(jnp.mean(deviation**2, axes, keepdims=True) + eps)


def standardized(x: Any, axes: tuple[int, ...] = (1,), eps: float = 1e-2, centered: bool = True) -> Any:
    return standardize_p(x, axes, eps, centered)[0]


def scale(x: Any) -> Any:
    return standardize_p(x, (0, 2), 1e-2)[1]


standardize = partial(cases, "standardize_p", of=standardized, jax=in_jax, bound=COMPOSED)

CASES = [
    *standardize("F[4,6]"),
    *standardize("f64[2,3,4]", axes=(0, 2)),
    *standardize("f64[3,5]", centered=False),
    *standardize("f32{5 5 5 5 -1 1}[2,3]", derivative=False),
    *standardize("f64[4,1]"),
    *standardize("f64[0,3]"),
    *cases(
        "standardize_p", "f64[2,3,4]", of=scale, bound=COMPOSED,
        jax=lambda x: 1 / jnp.sqrt(jnp.var(x, (0, 2), keepdims=True) + 1e-2),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_what_its_operations_are(name: str, device: str) -> None:
    """Every result, and first and second derivatives by all of them, in f64."""
    weights = [RNG.standard_normal(np.shape(y)) for y in ag.tree.leaves(FUNCTIONS[name][0](X))]

    def loss(function: Any, x: Any) -> Any:
        return sum(ops.sum(w * y) for w, y in zip(weights, ag.tree.leaves(function(x)), strict=True))

    def twice(function: Any) -> Any:
        first = ag.grad(lambda x: loss(function, x))
        return lambda x: (function(x), first(x), ag.grad(lambda x: ops.sum(ops.sin(first(x))))(x))

    found, expected = (run(ag.capture(twice(each), X), [X], device) for each in FUNCTIONS[name])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_is_one_equation(name: str) -> None:
    function, _ = FUNCTIONS[name]
    batched = ag.capture(ag.vmap(function), np.stack([X, X * 2]))
    names = [equation.primitive.name for equation in batched.equations]
    assert names.count(name.split()[0]) == 1
    assert "scan" not in names
    for position, x in enumerate((X, X * 2)):
        found = ag.tree.leaves(batched.run(np.stack([X, X * 2]), device="host"))
        for a, b in zip(found, ag.tree.leaves(function(x)), strict=True):
            np.testing.assert_allclose(a[position], b, rtol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_printed_module_is_the_same_program(name: str) -> None:
    program = ag.capture(FUNCTIONS[name][0], X)
    again = ag.from_python(program.python())
    assert [e.primitive.name for e in again.equations] == [e.primitive.name for e in program.equations]
    for a, b in zip(*(ag.tree.leaves(each.run(X, device="host")) for each in (again, program)), strict=True):
        np.testing.assert_array_equal(a, b)


def program_name(function: Any, type: ag.TensorType) -> str:
    """The name of the one primitive that `function` is."""
    return ag.capture(function, type).equations[0].primitive.name


def test_what_the_gradient_keeps() -> None:
    """One array of the size of x: the result, or x itself for GELU."""
    type = ag.spec((64, 128))
    for function in (ops.softmax, ops.log_softmax, lambda x: standardize_p(x, (1,), 1e-5)[0]):
        report = ag.residuals(lambda x, function=function: ops.sum(ops.sin(function(x))), type)
        whole = [row for row in report.rows if row.type.size == type.size and row.origin != "input"]
        assert [row.origin for row in whole] == [program_name(function, type)], "the result"
    report = ag.residuals(lambda x: ops.sum(ops.gelu(x)), type)
    assert [row.origin for row in report.rows] == ["input"]


def test_gradients_at_masked_scores_are_zero() -> None:
    scores = np.array([[-np.inf, 0.0, 1.0], [-np.inf] * 3], np.float32)
    gradient = np.asarray(ag.grad(lambda x: ops.sum(ops.softmax(x)[:, 1:] * 3))(scores))
    assert np.isfinite(gradient).all()
    assert gradient[0, 0] == 0
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize("x", [np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32)])
def test_empty(x: np.ndarray) -> None:
    for device in devices():
        for function in (ops.softmax, ops.log_softmax, ops.gelu):
            assert run(ag.capture(function, x), [x], device)[0].shape == x.shape


def test_types_are_refused() -> None:
    with pytest.raises(ag.DTypeError, match="softmax is for float"):
        softmax_p(np.arange(3), (0,))
    with pytest.raises(ag.ShapeError, match="not axes"):
        standardize_p(np.ones(3, np.float32), (1,), 1e-5)
