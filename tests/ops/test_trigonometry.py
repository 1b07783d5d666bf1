"""Inverse trigonometric and hyperbolic functions: values, derivatives, edges, and accuracy against NumPy's own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, assert_same_bits, assert_within, devices, run


def unary(name: str, low: float, high: float, **options: Any) -> list[Case]:
    """One function within [low, high]: every float type, and f32 as a scalar and empty."""
    return [case for shape in ("F[3,5]", "f32[]", "f32[0]") for case in cases(name, f"{shape}:{low}:{high}", **options)]


CASES = [
    *unary("arcsin", -0.9, 0.9),
    *unary("arccos", -0.9, 0.9),
    *unary("arctan", -3, 3),
    *unary("sinh", -3, 3),
    *unary("cosh", -3, 3),
    *unary("arcsinh", -3, 3),
    *unary("arccosh", 1.2, 4),
    *unary("arctanh", 0.45, 0.75),  # nearer to 0 JAX loses digits in f64
    *unary("deg2rad", -180, 180),
    *unary("rad2deg", -4, 4),
    *unary("sinc", 0.3, 0.9),
    *cases("sinc", "f64{0.6 -1.3 2.4 -3.5}", bound=COMPOSED),
    *cases("hypot", "F[3,5]:0.5:2", "F[3,5]:0.5:2"),
    *cases("hypot", "f32[]", "f32[]"),
    *cases("hypot", "f64[4,1]:0.5:2", "f64[3]:0.5:2"),
    *cases("hypot", "f32[0]", "f32[1]"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


RANGES = {
    "arcsin": [(-1, 1), (1e-9, 1e-3), (1 - 1e-4, 1)],
    "arccos": [(-1, 1), (-1, -1 + 1e-4), (1 - 1e-4, 1)],
    "arctan": [(-3, 3), (1e-9, 1e-3), (1e3, 1e9)],
    "sinh": [(-1.5, 1.5), (1e-9, 1e-3), (-89, 89)],
    "cosh": [(-1.5, 1.5), (-89, 89)],
    "arcsinh": [(-3, 3), (1e-9, 1e-3), (1e3, 1e9), (1e20, 1e38)],
    "arccosh": [(1, 1.0001), (1, 9), (1e3, 1e9), (1e20, 1e38)],
    "arctanh": [(-1, 1), (1e-9, 1e-3), (1 - 1e-4, 1)],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", RANGES)
def test_4_ulp_over_the_whole_range(name: str, dtype: Any, rng: np.random.Generator) -> None:
    """The truth is NumPy's function in long double, which is the C library's."""
    x = np.concatenate([rng.uniform(low, high, 2000) for low, high in RANGES[name]]).astype(dtype)
    with np.errstate(divide="ignore"):
        truth = getattr(np, name)(x.astype(np.longdouble)).astype(np.float64)
    program = ag.capture(getattr(ops, name), x)
    for device in devices():
        assert_within(run(program, [x], device)[0], truth, 4, f"{name} on {device}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hypot_neither_overflows_nor_vanishes(dtype: Any) -> None:
    big, small = np.finfo(dtype).max / 2, np.finfo(dtype).tiny * 4
    x, y = np.array([3, 3, 0, np.inf, -np.inf], dtype), np.array([4, 4, 0, np.nan, 1], dtype)
    x[:2] *= [big / 4, small]
    y[:2] *= [big / 4, small]
    expected = np.array([5 * (big / 4), 5 * small, 0, np.inf, np.inf], dtype)
    for device in devices():
        assert_within(run(ag.capture(ops.hypot, x, y), [x, y], device)[0], expected.astype(np.float64), 2, device)


@pytest.mark.parametrize("device", devices())
def test_hypot_has_no_gradient_at_the_origin(device: str) -> None:
    x = np.array([0, 3, 0], np.float32)
    y = np.array([0, 4, -2], np.float32)
    _, dx, dy = run(ag.reverse(ag.capture(lambda x, y: ops.sum(ops.hypot(x, y)), x, y)), [x, y], device)
    np.testing.assert_allclose(dx, [0, 0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(dy, [0, 0.8, -1], rtol=1e-6)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("name", "edge", "slope"), [
    ("arcsin", 1, np.inf), ("arcsin", -1, np.inf), ("arccos", 1, -np.inf), ("arccosh", 1, np.inf),
    ("arctanh", 1, np.inf), ("arctanh", -1, np.inf),
])  # fmt: skip
def test_gradient_at_the_edge(name: str, edge: float, slope: float, device: str) -> None:
    """Infinite where the function is used, 0 where a select leaves it out."""
    x = np.array([edge], np.float32)
    function = getattr(ops, name)
    used = ag.reverse(ag.capture(lambda x: ops.sum(function(x)), x))
    unused = ag.reverse(ag.capture(lambda x: ops.sum(ops.where(x == edge, 0, function(x))), x))
    assert run(used, [x], device)[1].tolist() == [slope]
    assert run(unused, [x], device)[1].tolist() == [0]


@pytest.mark.parametrize("device", devices())
def test_sinc_at_whole_numbers(device: str) -> None:
    x = np.array([0, 1, -1, 2, 7, 1e6, 16777216.0], np.float32)
    (found,) = run(ag.capture(ops.sinc, x), [x], device)
    assert np.abs(found).tolist() == [1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("device", devices())
def test_sinc_keeps_its_digits_near_0(device: str) -> None:
    """The first derivative is -pi**2 x / 3 there, the second -pi**2 / 3."""
    x = np.array([0, 1e-300, 1e-9, 1e-5, -1e-3, 0.1, 0.2499, 0.2501])
    slope = ag.grad(lambda x: ops.sum(ops.sinc(x)))
    first, second = run(ag.capture(lambda x: (slope(x), ag.grad(lambda x: ops.sum(slope(x)))(x)), x), [x], device)
    z = np.pi * x.astype(np.longdouble)
    series = [(-1) ** k * np.longdouble(1) / np.prod(np.arange(1, 2 * k + 2, dtype=np.longdouble)) for k in range(12)]
    expected = [
        sum(2 * k * c * z ** (2 * k - 1) for k, c in enumerate(series) if k) * np.pi,
        sum(2 * k * (2 * k - 1) * c * z ** (2 * k - 2) for k, c in enumerate(series) if k) * np.longdouble(np.pi) ** 2,
    ]
    np.testing.assert_allclose(first, np.asarray(expected[0], np.float64), rtol=1e-14)
    np.testing.assert_allclose(second, np.asarray(expected[1], np.float64), rtol=4e-14)


def test_signed_zeros_stay() -> None:
    x = np.array([0.0, -0.0], np.float32)
    for name in ("arcsin", "arctan", "sinh", "arcsinh", "arctanh", "deg2rad", "rad2deg"):
        for device in devices():
            assert_same_bits(run(ag.capture(getattr(ops, name), x), [x], device)[0], x, f"{name} on {device}")


def test_numpy_functions_of_traced_tensors() -> None:
    x = np.linspace(0.1, 0.9, 5, dtype=np.float32)
    for name in ("arcsin", "arctan", "sinh", "cosh", "arcsinh", "arctanh", "deg2rad", "sinc"):
        found = ag.capture(getattr(np, name), x).run(x)
        np.testing.assert_allclose(found, np.asarray(getattr(jnp, name)(x)), rtol=1e-6, err_msg=name)
