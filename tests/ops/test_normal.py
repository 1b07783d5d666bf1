"""The complementary error function and the normal distribution function: values, derivatives, tails."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, assert_same_bits, assert_within, devices, run

CASES = [
    case
    for name, reference in (("erfc", jax.scipy.special.erfc), ("ndtr", jax.scipy.special.ndtr))
    for operand in ("F[3,5]:-1:1", "f64[5]:1:2", "f64[5]:-3:-1", "f32[]", "f32[0]", "f32[1]")
    for case in cases(name, operand, jax=reference, bound=COMPOSED)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize(("dtype", "end"), [(np.float32, 9), (np.float64, 26)])
def test_erfc_is_within_5_ulp_in_the_tail(dtype: Any, end: float, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-6, 3, 3000), rng.uniform(0, end, 3000)]).astype(dtype)
    truth = np.array([math.erfc(v) for v in x.astype(np.float64)])
    program = ag.capture(ops.erfc, x)
    for device in devices():
        assert_within(run(program, [x], device)[0], truth, 5, device)


def test_ndtr_adds_up_to_1(rng: np.random.Generator) -> None:
    x = rng.uniform(-5, 5, 1000).astype(np.float32)
    for device in devices():
        low, high = run(ag.capture(lambda x: (ops.ndtr(x), ops.ndtr(-x)), x), [x], device)
        np.testing.assert_allclose(low.astype(np.float64) + high, 1, atol=1.2e-7)
        truth = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.astype(np.float64)])
        assert np.abs(low - truth).max() < 2e-7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends(dtype: Any) -> None:
    x = np.array([-np.inf, np.inf, -40, 40, np.nan, 0], dtype)
    program = ag.capture(lambda x: (ops.erfc(x), ops.ndtr(x)), x)
    for device in devices():
        complement, distribution = run(program, [x], device)
        assert_same_bits(complement, np.array([2, 0, 2, 0, np.nan, 1], dtype), device)
        assert_same_bits(distribution[:2], np.array([0, 1], dtype), device)
        assert distribution[3] == 1
        assert abs(distribution[5] - 0.5) <= np.finfo(dtype).eps
