"""log gamma, digamma and polygamma: values, derivatives and poles.

Their accuracy is 4 ulp where they are not near one of their zeros below 0. There two large numbers cancel (the
reflection and the function of 1 - x), and the error is measured in eps of the larger of 1 and those parts.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import scipy.special

import antegrad as ag
from antegrad import ops
from antegrad.errors import ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, assert_same_bits, assert_within, devices, run


def unary(name: str, low: float, high: float, **options: Any) -> list[Case]:
    """One function within [low, high]: every float type, and f32 as a scalar and empty."""
    return [case for shape in ("F[3,5]", "f32[]", "f32[0]") for case in cases(name, f"{shape}:{low}:{high}", **options)]


def polygamma(n: int, low: float, high: float, **options: Any) -> list[Case]:
    def by_jax(x: jax.Array, n: int) -> jax.Array:
        return jax.scipy.special.polygamma(n, x)

    return unary("polygamma", low, high, of=lambda x, n: ops.polygamma(n, x), jax=by_jax, n=n, **options)


# Where the functions of JAX themselves keep their digits in f64; the tests below have the rest of the range.
CASES = [
    *unary("lgamma", 5, 12, jax=jax.lax.lgamma, bound=COMPOSED),
    *cases("lgamma", "f64[9]:12:30", jax=jax.lax.lgamma, bound=COMPOSED),
    *cases("lgamma", "f64{-0.7 -1.3 -3.6 0.1 0.3 0.6}", jax=jax.lax.lgamma, bound=COMPOSED, derivative=False),
    *unary("digamma", 2, 9, jax=jax.lax.digamma, bound=COMPOSED),
    *cases("digamma", "f64{0.2 0.4 0.7}", jax=jax.lax.digamma, bound=COMPOSED, differences=False),
    *polygamma(0, 2, 9, bound=COMPOSED),
    *polygamma(1, 0.5, 4, bound=COMPOSED),
    *polygamma(2, 0.5, 4, bound=COMPOSED),
    *polygamma(5, 1, 4, bound=COMPOSED)[1:],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def points(rng: np.random.Generator, *ranges: tuple[float, float], dtype: Any) -> np.ndarray:
    return np.concatenate([np.exp(rng.uniform(np.log(low), np.log(high), 500)) for low, high in ranges]).astype(dtype)


def check_ulps(function: Any, x: np.ndarray, truth: np.ndarray, allowed: float) -> None:
    program = ag.capture(function, x)
    for device in devices():
        assert_within(run(program, [x], device)[0], truth, allowed, device)


def true_lgamma(x: np.ndarray) -> np.ndarray:
    """log gamma in long double, by its Taylor series about 1 and 2, elsewhere by Stirling's series for x + 40."""
    x = x.astype(np.longdouble)
    product, far = np.ones_like(x), x.copy()
    for _ in range(40):
        product = np.where(x < 1e3, product * far, product)
        far = np.where(x < 1e3, far + 1, far)
    series = sum(c / far ** (2 * k + 1) for k, c in enumerate([1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188]))
    half_log = np.log(2 * np.arccos(np.longdouble(-1))) / 2
    general = (far - 0.5) * (np.log(far) - 1) + (half_log - 0.5) + series - np.log(product)
    step = np.where(x < 1.5, x - 1, x - 2)
    euler = np.longdouble("0.57721566490153286060651209")
    taylor = -euler * step + sum(scipy.special.zeta(k) * (-step) ** k / k for k in range(2, 60))
    taylor += np.where(x < 1.5, 0, np.log1p(np.maximum(step, -0.5)))
    near = np.minimum(np.abs(x - 1), np.abs(x - 2)) < 0.25
    return np.where(near, taylor, general).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lgamma_is_within_4_ulp_above_0(dtype: Any, rng: np.random.Generator) -> None:
    """Near its zeros 1 and 2 as well."""
    x = points(rng, (1e-8, 0.5), (0.5, 1.5), (1.5, 4), (4, 12), (12, 1e3), (1e3, 1e30), dtype=dtype)
    near = np.concatenate([1 + rng.uniform(-1e-3, 1e-3, 200), 2 + rng.uniform(-1e-3, 1e-3, 200)]).astype(dtype)
    x = np.concatenate([x, near])
    with np.errstate(all="ignore"):
        truth = true_lgamma(x)
    check_ulps(ops.lgamma, x, truth, 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digamma_and_trigamma_above_0(dtype: Any, rng: np.random.Generator) -> None:
    """About the zero of digamma, 1.4616, its error is measured in eps. The truth, of scipy, has an error in f64 too."""
    x = points(rng, (1e-6, 0.5), (0.5, 1.36), (1.56, 3), (3, 12), (12, 1e8), dtype=dtype)
    wide = x.astype(np.float64)
    check_ulps(ops.digamma, x, scipy.special.digamma(wide), 5 if dtype == np.float32 else 12)
    check_ulps(lambda x: ops.polygamma(1, x), x, scipy.special.polygamma(1, wide), 4 if dtype == np.float32 else 8)
    near = np.linspace(1.36, 1.56, 501, dtype=dtype)
    truth = scipy.special.digamma(near.astype(np.float64))
    for device in devices():
        (found,) = run(ag.capture(ops.digamma, near), [near], device)
        assert np.abs(found - truth).max() < 2 * np.finfo(dtype).eps * 0.2, device


@pytest.mark.parametrize("n", [2, 3, 8, 15])
def test_polygamma_of_higher_order(n: int, rng: np.random.Generator) -> None:
    """The error grows with the order: the power n + 1 of x + k multiplies its rounding."""
    x = rng.uniform(0.5, 60, 500).astype(np.float32)
    truth = scipy.special.polygamma(n, x.astype(np.float64))
    check_ulps(lambda x: ops.polygamma(n, x), x, truth, max(4, 2 * n))


@pytest.mark.parametrize(("name", "by_scipy"), [("lgamma", "gammaln"), ("digamma", "digamma")])
def test_reflection(name: str, by_scipy: str, rng: np.random.Generator) -> None:
    x = -points(rng, (1e-6, 0.5), (0.5, 30), dtype=np.float32)
    wide, function = x.astype(np.float64), getattr(scipy.special, by_scipy)
    truth = function(wide)
    largest = np.maximum(np.abs(truth), np.abs(function(1 - wide)))
    program = ag.capture(getattr(ops, name), x)
    for device in devices():
        error = np.abs(run(program, [x], device)[0] - truth)
        assert (error <= 6 * np.finfo(np.float32).eps * np.maximum(1, largest)).all(), device


def test_polygamma_reflection(rng: np.random.Generator) -> None:
    """By the recurrence from x + 7, to which the truth adds (-1)**n n! / (x + k)**(n + 1)."""
    x = rng.uniform(-5.9, -0.1, 300).astype(np.float32)
    wide = x.astype(np.float64)
    for n in (1, 2, 5):
        parts = [(-1) ** n * math.factorial(n) / (wide + k) ** (n + 1) for k in range(7)]
        truth = scipy.special.polygamma(n, wide + 7) - sum(parts)
        largest = np.maximum.reduce([np.abs(part) for part in parts])
        for device in devices():
            (found,) = run(ag.capture(lambda x, n=n: ops.polygamma(n, x), x), [x], device)
            assert (np.abs(found - truth) <= (8 + 2 * n) * np.finfo(np.float32).eps * largest).all(), (n, device)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_poles_and_infinities(dtype: Any) -> None:
    x = np.array([0.0, -0.0, -1, -2, -1e20, np.inf, -np.inf, np.nan, 1e38], dtype)
    inf, nan = np.inf, np.nan
    expected = {
        ops.lgamma: [inf, inf, inf, inf, inf, inf, inf, nan],
        ops.digamma: [-inf, inf, nan, nan, nan, inf, nan, nan],
        lambda x: ops.polygamma(1, x): [inf, inf, inf, inf, inf, 0, nan, nan],
        lambda x: ops.polygamma(2, x): [-inf, inf, nan, nan, nan, -0.0, nan, nan],
    }
    for function, values in expected.items():
        program = ag.capture(function, x)
        for device in devices():
            (found,) = run(program, [x], device)
            assert_same_bits(found[:-1], np.array(values, dtype), device)
            assert not np.isnan(found[-1])


@pytest.mark.parametrize("device", devices())
def test_an_unselected_pole_has_no_gradient(device: str) -> None:
    x = np.array([0, -1, 2], np.float32)
    for function in (ops.lgamma, ops.digamma, lambda x: ops.polygamma(1, x)):
        loss = ag.capture(lambda x, function=function: ops.sum(ops.where(x > 0, function(x), 0)), x)
        gradient = run(ag.reverse(loss), [x], device)[1]
        assert gradient[:2].tolist() == [0, 0]
        assert np.isfinite(gradient[2])


@pytest.mark.parametrize("order", [-1, 1.5, True, "1"])
def test_polygamma_needs_a_whole_order(order: Any) -> None:
    with pytest.raises(ShapeError, match="polygamma: the order must be a whole number >= 0, found"):
        ops.polygamma(order, np.ones(3, np.float32))


def test_vmap_of_polygamma() -> None:
    x = np.linspace(0.5, 4, 6, dtype=np.float32).reshape(3, 2)
    mapped = ag.capture(ag.vmap(lambda x: ops.polygamma(2, x)), x)
    assert [equation.primitive.name for equation in mapped.equations] == ["polygamma"]
    assert_same_bits(np.asarray(mapped.run(x, device="host")), ops.polygamma(2, x), "vmap")
