"""The fused multiply-add, the error function and its inverse."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, assert_same_bits, devices, run

F32 = np.float32


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


CASES = [
    *cases("erf", "F[3,5]", jax=jax.lax.erf, bound=COMPOSED),
    *cases("erf", "f32[]", jax=jax.lax.erf, bound=COMPOSED),
    *cases("erf", "f32[0]", jax=jax.lax.erf, bound=COMPOSED),
    *cases("erf", "f64[50]:-7:7", jax=jax.lax.erf, bound=COMPOSED, derivative=False),
    *cases("erfinv", "F[3,5]:-0.9:0.9", jax=jax.lax.erf_inv, bound=COMPOSED),
    *cases("erfinv", "f32[]:0.1:0.9", jax=jax.lax.erf_inv, bound=COMPOSED),
    *cases("erfinv", "f32[2,0]", jax=jax.lax.erf_inv, bound=COMPOSED),
    *cases("fma", "D[3,5]:1:2", "D[3,5]:1:2", "D[5]:1:2", jax=multiply_add),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.derivative], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def normal_arguments() -> np.ndarray:
    """All 2**23 numbers of which `random.normal` takes the inverse error function in f32."""
    return np.arange(2**23, dtype=F32) / F32(2**22) - F32(1 - 2**-24)


def test_erfinv_of_every_argument_of_normal() -> None:
    x = normal_arguments()
    assert np.unique(x).size == x.size
    assert np.abs(x).max() < 1
    expected = np.asarray(jax.jit(jax.lax.erf_inv)(x))
    program = ag.capture(ops.erfinv, ag.spec(x.shape))
    for device in devices():
        assert_same_bits(run(program, [x], device)[0], expected, device)


def test_erf_has_the_bits_of_xla() -> None:
    x = np.linspace(-5, 5, 1_000_001, dtype=F32)
    expected = np.asarray(jax.jit(jax.lax.erf)(x))
    program = ag.capture(ops.erf, ag.spec(x.shape))
    for device in devices():
        assert_same_bits(run(program, [x], device)[0], expected, device)


def test_erfinv64_inverts_erf() -> None:
    """To 40 ulp of its result, through the slope of erf; near 1 the complement tells more than erf itself."""
    x = np.concatenate([np.linspace(0.001, 0.999, 1001), 1 - 2.0 ** -np.arange(2, 50)])
    program = ag.capture(ops.erfinv, x)
    for device in devices():
        (found,) = run(program, [x], device)
        low = np.abs(np.array([math.erf(y) for y in found]) - x) - np.spacing(x)
        high = np.abs(np.array([math.erfc(y) for y in found]) - (1 - x)) - np.spacing(1 - x)
        slope = 2 / math.sqrt(math.pi) * np.exp(-found * found)
        assert (np.minimum(low, high) <= 40 * np.spacing(found) * slope).all(), device
        assert_same_bits(run(program, [-x], device)[0], -found, device)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges(dtype: Any) -> None:
    x = np.array([-1, 1, 0, -0.0, 1.5, -2, np.nan, np.inf], dtype)
    wanted = np.array([-np.inf, np.inf, 0, -0.0, np.nan, np.nan, np.nan, np.nan], dtype)
    large = np.array([-np.inf, np.inf, 0, -0.0, 9, -9, np.nan, 1e30], dtype)
    ends = np.array([-1, 1, 0, -0.0, 1, -1, np.nan, 1], dtype)
    program = ag.capture(lambda x, y: (ops.erfinv(x), ops.erf(y)), x, large)
    for device in devices():
        inverse, direct = run(program, [x, large], device)
        assert_same_bits(inverse, wanted, device)
        assert_same_bits(direct, ends, device)


def test_erfinv_gradient_that_is_not_selected_is_0_at_the_edge() -> None:
    loss = ag.capture(lambda x: ops.where(ops.abs(x) < 1, ops.erfinv(x), 0).sum(), np.array([1, 0.5], F32))
    for device in devices():
        gradient = run(ag.reverse(loss), [np.array([1, 0.5], F32)], device)[1]
        assert gradient[0] == 0, device
        assert np.isfinite(gradient[1]), device


def exact(x: Any, y: Any, z: Any) -> Fraction:
    return Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))


def rounded(value: Fraction, dtype: Any) -> Any:
    """The nearest number of a float type, halves to the even one, found from its neighbours."""
    near = dtype(float(value))
    options = [np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))]
    return min(options, key=lambda n: (abs(Fraction(float(n)) - value), int(n.view(f"u{n.itemsize}")) % 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal(2000).astype(dtype) for _ in range(3))
    z *= np.exp2(rng.integers(-60, 60, 2000)).astype(dtype)
    # Near cancellation, and halfway between two f32, where a second rounding would show.
    z[:500] = -(x * y)[:500]
    z[500:600] = (x * y)[500:600] * dtype(2**24)
    expected = np.array([rounded(exact(*numbers), dtype) for numbers in zip(x, y, z, strict=True)])
    program = ag.capture(ops.fma, x, y, z)
    for device in devices():
        assert_same_bits(run(program, [x, y, z], device)[0], expected, device)
    assert (x * y + z != expected).any()


def test_fma_where_rounding_to_f64_first_would_be_wrong() -> None:
    """The exact sum lies below the middle of two f32, by less than f64 can tell."""
    x, y, z = F32(2**-12 + 2**-27), F32(2**-12 - 2**-27), F32(1 + 2**-23)
    assert F32(float(x) * float(y) + float(z)) == F32(1 + 2**-22)
    for device in devices():
        (found,) = run(ag.capture(ops.fma, x, y, z), [x, y, z], device)
        assert found == rounded(exact(x, y, z), F32) == F32(1 + 2**-23), device


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_of_what_is_not_finite(dtype: Any) -> None:
    big = np.finfo(dtype).max
    x = np.array([np.inf, np.inf, np.nan, big, big, 0, -0.0], dtype)
    y = np.array([1, 0, 1, 2, 1, np.inf, 1], dtype)
    z = np.array([1, 1, 1, 0, -np.inf, 0, -0.0], dtype)
    with np.errstate(all="ignore"):
        expected = x * y + z
    program = ag.capture(ops.fma, x, y, z)
    for device in devices():
        assert_same_bits(run(program, [x, y, z], device)[0], expected, device)


def test_fma_refuses_16_bits() -> None:
    with pytest.raises(DTypeError, match="fma is for f32 and f64, found f16"):
        ops.fma(*np.ones((3, 2), np.float16))
