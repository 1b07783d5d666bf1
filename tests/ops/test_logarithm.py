"""Sums of exponentials, products with a logarithm, log-odds: values, derivatives and edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, assert_same_bits, assert_within, devices, run


def unary(name: str, low: float, high: float, **options: Any) -> list[Case]:
    """One function within [low, high]: every float type, and f32 as a scalar and empty."""
    return [case for shape in ("F[3,5]", "f32[]", "f32[0]") for case in cases(name, f"{shape}:{low}:{high}", **options)]


def binary(name: str, first: str, second: str, **options: Any) -> list[Case]:
    """Two operands within their bounds: every float type, a scalar, and broadcasts."""
    shapes = ["F[3,5] F[3,5]", "f32[] f32[]", "f64[4,1] f64[3]", "f32[0] f32[1]"]
    pairs = [(f"{x}:{first}", f"{y}:{second}") for x, y in map(str.split, shapes)]
    return [case for pair in pairs for case in cases(name, *pair, **options)]


def symlog(x: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


CASES = [
    *binary("logaddexp", "0:3", "0:3"),
    *binary("logaddexp2", "0:3", "0:3", bound=COMPOSED),
    *binary("xlogy", "-2:2", "1.3:3", jax=jax.scipy.special.xlogy),
    *binary("xlog1py", "-2:2", "0.3:3", jax=jax.scipy.special.xlog1py),
    *unary("logit", 0.1, 0.25, jax=jax.scipy.special.logit, bound=COMPOSED, differences=False),
    *cases("logit", "f64[9]:0.6:0.7", jax=jax.scipy.special.logit, bound=COMPOSED),
    *unary("log1mexp", 0.3, 2, jax=lambda x: jnp.log(-jnp.expm1(-x)), bound=COMPOSED),
    *unary("symlog", -3, 3, jax=symlog),
    *unary("symexp", -3, 3, jax=symexp),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def gradients(function: Any, *arrays: np.ndarray, device: str) -> list[list[float]]:
    program = ag.reverse(ag.capture(lambda *xs: ops.sum(function(*xs)), *arrays))
    return [gradient.tolist() for gradient in run(program, arrays, device)[1:]]


@pytest.mark.parametrize("device", devices())
def test_logaddexp_at_infinities_and_ties(device: str) -> None:
    inf = np.inf
    x = np.array([-inf, inf, inf, -inf, 5, 1000], np.float32)
    y = np.array([-inf, inf, -inf, 2, 5, 1000], np.float32)
    (value,) = run(ag.capture(ops.logaddexp, x, y), [x, y], device)
    assert_within(value, np.array([-inf, inf, inf, 2, 5 + np.log(2), 1000 + np.log(2)]), 1, device)
    assert gradients(ops.logaddexp, x, y, device=device) == [[0, 0.5, 1, 0, 0.5, 0.5], [0, 0.5, 0, 1, 0.5, 0.5]]


@pytest.mark.parametrize("device", devices())
def test_second_derivative_of_logaddexp_at_a_tie(device: str) -> None:
    """A composition of max and |x - y| would say 0."""
    x = np.array([1.5])
    slope = ag.grad(lambda x: ops.sum(ops.logaddexp(x, x[::-1] * 0 + 1.5)))
    second = run(ag.reverse(ag.capture(lambda x: ops.sum(slope(x)), x)), [x], device)[1]
    assert second.tolist() == [0.25]


@pytest.mark.parametrize("device", devices())
def test_products_with_0(device: str) -> None:
    inf = np.inf
    x, y = np.array([0, 0, 0, 2, 2], np.float32), np.array([0, inf, -1, 0, -3], np.float32)
    (value,) = run(ag.capture(ops.xlogy, x, y), [x, y], device)
    assert_same_bits(value, np.array([0, 0, 0, -inf, np.nan], np.float32), device)
    assert gradients(ops.xlogy, x, y, device=device)[1][:4] == [0, 0, 0, inf]
    assert gradients(ops.xlogy, x, y, device=device)[0][0] == -inf
    (value,) = run(ag.capture(ops.xlog1py, x, y), [x, y - 1], device)
    assert_same_bits(value[:4], np.array([0, 0, 0, -inf], np.float32), device)


@pytest.mark.parametrize("device", devices())
def test_entropy_of_a_sure_event(device: str) -> None:
    p = np.array([1, 0, 0], np.float32)
    assert run(ag.capture(lambda p: -ops.sum(ops.xlogy(p, p)), p), [p], device)[0] == 0


@pytest.mark.parametrize("device", devices())
def test_symlog_and_symexp_have_slope_1_at_0(device: str) -> None:
    x = np.array([0, -0.0, 1, -1], np.float32)
    assert gradients(ops.symlog, x, device=device) == [[1, 1, 0.5, 0.5]]
    assert gradients(ops.symexp, x[:2], device=device) == [[1, 1]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logit_and_log1mexp_keep_their_digits(dtype: Any, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(0, 1, 2000), 0.5 + rng.uniform(-1e-4, 1e-4, 500)]).astype(dtype)
    wide = x.astype(np.longdouble)
    odds = np.where(np.abs(wide - 0.5) < 0.1, 2 * np.arctanh(2 * wide - 1), np.log(wide) - np.log1p(-wide))
    positive = np.concatenate([rng.uniform(0, 3, 2000), rng.uniform(0, 80, 500), rng.uniform(0, 1e-6, 100)])
    positive = positive.astype(dtype)
    truth = np.log(-np.expm1(-positive.astype(np.longdouble)))
    truth = np.where(positive > 1, np.log1p(-np.exp(-positive.astype(np.longdouble))), truth)
    for device in devices():
        (found,) = run(ag.capture(ops.logit, x), [x], device)
        assert_within(found, odds.astype(np.float64), 4, f"logit on {device}")
        (found,) = run(ag.capture(ops.log1mexp, positive), [positive], device)
        assert_within(found, truth.astype(np.float64), 4, f"log1mexp on {device}")


@pytest.mark.parametrize("device", devices())
def test_edges(device: str) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([0, 1, 0.5, -0.1, 1.1, nan, inf], np.float32)
    odds, small = run(ag.capture(lambda x: (ops.logit(x), ops.log1mexp(x)), x), [x], device)
    assert_same_bits(odds, np.array([-inf, inf, 0, nan, nan, nan, nan], np.float32), device)
    assert small[0] == -inf
    assert np.isnan(small[[3, 5]]).all()
    assert small[6] == 0
    np.testing.assert_allclose(gradients(ops.logit, np.array([0.5, 0.25, 0.9]), device=device)[0], [4, 16 / 3, 100 / 9])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_2_are_exact(dtype: Any) -> None:
    """Else the floor of log2 would be one too low for some of them."""
    whole = np.arange(-126, 128) if dtype == np.float32 else np.arange(-1022, 1024)
    x = np.ldexp(np.ones(len(whole), dtype), whole)
    for device in devices():
        assert_same_bits(run(ag.capture(ops.log2, x), [x], device)[0], whole.astype(dtype), device)


def test_softplus_inverts_log_of_expm1() -> None:
    x = np.linspace(-30, 30, 1001)
    for device in devices():
        (found,) = run(ag.capture(ops.softplus, x), [x], device)
        assert_within(found, -scipy.special.log_expit(-x), 4, device)


def test_the_error_names_the_function() -> None:
    for name in ("xlogy", "xlog1py", "logaddexp2", "logaddexp"):
        with pytest.raises(DTypeError, match=rf"{name} is for float tensors, found i32\[3\]"):
            getattr(ops, name)(np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32))
