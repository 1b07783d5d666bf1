"""Activation functions: values, gradients and second derivatives, and what happens at kinks and extremes."""

from __future__ import annotations

import math
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
from tests.support import COMPOSED, devices, run


def smooth(name: str, low: float = -3, high: float = 3, **options: Any) -> list[Case]:
    """One function in every float type, and in f32 as a scalar, empty, and with one element."""
    reference = options.pop("jax", None) or getattr(jax.nn, name)
    shapes = ["F[3,5]", "f32[]", "f32[0]", "f32[1]"]
    return [c for s in shapes for c in cases(name, f"{s}:{low}:{high}", jax=reference, bound=COMPOSED, **options)]


def gelu_by_sigmoid(x: Any, approximate: bool) -> Any:
    return x * jax.nn.sigmoid(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3))


# Where JAX's own form loses digits in f64 (far from 0), the reference is written out.
CASES = [
    *smooth("softplus", -50, 50, jax=lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))),
    *smooth("log_sigmoid"),
    *smooth("log_sigmoid", -50, 50, jax=lambda x: jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))),
    *smooth("silu"),
    *smooth("gelu", -1, 2, jax=jax.nn.gelu, approximate=True),
    *smooth("gelu", -1, 3, jax=jax.nn.gelu, approximate=False),
    *smooth("gelu", -1, 3, jax=lambda x: jax.nn.gelu(x, False)),
    *cases("gelu", "D[3,5]:-3:2", jax=gelu_by_sigmoid, bound=COMPOSED, approximate=True),
    *smooth("mish", -1, 2),
    *smooth("elu"),
    *smooth("elu", alpha=0.5),
    *smooth("celu"),
    *smooth("celu", alpha=0.5),
    *smooth("selu"),
    *smooth("leaky_relu", jax=lambda x, negative_slope=0.01: jax.nn.leaky_relu(x, negative_slope)),
    *smooth("leaky_relu", jax=lambda x, negative_slope: jax.nn.leaky_relu(x, negative_slope), negative_slope=0.25),
    *smooth("relu6", -3, 9),
    *smooth("hard_tanh"),
    *smooth("hard_sigmoid", -5, 5),
    *smooth("hard_silu", -5, 5),
    *smooth("softsign", jax=jax.nn.soft_sign),
    *cases("glu", "F[3,4]", jax=jax.nn.glu, bound=COMPOSED),
    *cases("glu", "F[4,3]", jax=jax.nn.glu, bound=COMPOSED, axis=0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def gradient(function: Any, points: list[float], device: str) -> list[float]:
    x = np.array(points, np.float32)
    program = ag.reverse(ag.capture(lambda x: ops.sum(function(x)), x))
    return run(program, [x], device)[1].tolist()


@pytest.mark.parametrize("device", devices())
def test_case_grad_relu_zero(device: str) -> None:
    assert gradient(ops.relu, [-1, 0, 1], device) == [0, 0, 1]
    assert gradient(ops.relu6, [-1, 0, 3, 6, 7], device) == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("device", devices())
def test_case_grad_softplus_large(device: str) -> None:
    x = np.array([-200, 0, 200], np.float32)
    (value,) = run(ag.capture(ops.softplus, x), [x], device)
    np.testing.assert_array_equal(value, np.array([0, np.log(2), 200], np.float32))
    assert gradient(ops.softplus, [-200, 0, 200], device) == [0, 0.5, 1]
    assert gradient(ops.log_sigmoid, [-200, 0, 200], device) == [1, 0.5, 0]


@pytest.mark.parametrize("device", devices())
def test_gradient_at_kinks(device: str) -> None:
    slope = np.float32(0.01).item()
    assert gradient(ops.leaky_relu, [-1, 0, 1], device) == [slope, slope, 1]
    assert gradient(ops.hard_tanh, [-2, -1, 0, 1, 2], device) == [0, 1, 1, 1, 0]
    assert gradient(ops.elu, [-200, 0, 200], device) == [0, 1, 1]
    assert gradient(partial(ops.celu, alpha=0.5), [-200, 0, 200], device) == [0, 1, 1]


SMOOTH = ["softplus", "log_sigmoid", "silu", "gelu", "mish", "elu", "celu", "selu", "relu6", "softsign"]


@pytest.mark.parametrize("name", SMOOTH)
def test_extremes_are_finite(name: str) -> None:
    x = np.array([-1e4, -100, 100, 1e4], np.float32)
    program = ag.reverse(ag.capture(lambda x: ops.sum(getattr(ops, name)(x)), x))
    for device in devices():
        assert all(np.isfinite(output).all() for output in run(program, [x], device))


@pytest.mark.parametrize("name", ["relu6", "leaky_relu", "hard_tanh", "elu", "softplus"])
def test_nan_stays_nan(name: str) -> None:
    x = np.array([np.nan], np.float32)
    for device in devices():
        assert np.isnan(run(ag.capture(getattr(ops, name), x), [x], device)[0]).all()


def test_bf16_is_rounded_once() -> None:
    x = np.linspace(-4, 4, 257, dtype=np.float32).astype(ag.spec((), "bf16").dtype)
    for name in ("silu", "gelu", "mish", "hard_silu", "softplus", "log_sigmoid", "celu"):
        function = getattr(ops, name)
        exact = function(x.astype(np.float32)).astype(x.dtype)
        np.testing.assert_array_equal(function(x), exact, err_msg=name)


def test_glu_needs_an_even_axis() -> None:
    with pytest.raises(ShapeError, match=r"glu: axis -1 of shape \(2, 3\)"):
        ops.glu(np.zeros((2, 3), np.float32))


def test_the_error_names_the_function() -> None:
    for name in ("gelu", "log_sigmoid", "celu"):
        with pytest.raises(DTypeError, match=rf"{name} is for float tensors, found i32\[3\]"):
            getattr(ops, name)(np.arange(3, dtype=np.int32))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("name", "expected"), [("softplus", 0.25), ("log_sigmoid", -0.25)])
def test_second_derivative_at_0(name: str, expected: float, device: str) -> None:
    """A composition of max and |x| would say 0."""
    x = np.zeros(1, np.float32)
    slope = ag.grad(lambda x: ops.sum(getattr(ops, name)(x)))
    assert run(ag.reverse(ag.capture(lambda x: ops.sum(slope(x)), x)), [x], device)[1].tolist() == [expected]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_keeps_its_digits_in_the_negative_tail(dtype: Any) -> None:
    """The relative error stays below (4 + x**2) eps; with ``1 + erf`` nothing would be left below -6."""
    x = np.linspace(-12, 0, 2001, dtype=dtype)[:-1]
    wide = x.astype(np.float64)
    truth = np.array([v / 2 * math.erfc(-v / math.sqrt(2)) for v in wide])
    own = np.finfo(np.float64).eps * wide**2  # the error of the truth, whose argument is rounded
    program = ag.capture(ops.gelu, x)
    for device in devices():
        (found,) = run(program, [x], device)
        assert (np.abs(found / truth - 1) <= (4 + wide**2) * np.finfo(dtype).eps + own).all(), device
