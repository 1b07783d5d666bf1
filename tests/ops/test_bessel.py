"""Scaled modified Bessel functions: values, derivatives, edges, and accuracy over the whole range."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import scipy.special

import antegrad as ag
from antegrad import ops
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, assert_within, devices, run

REFERENCE = {"i0e": jax.lax.bessel_i0e, "i1e": jax.lax.bessel_i1e}

CASES = [
    case
    for name, reference in REFERENCE.items()
    for operand in ("F[3,5]:0.5:4", "f64[5]:-1:-0.3", "f64[5]:9:20", "f32[]", "f32[0]", "f32[1]")
    for case in cases(name, operand, jax=reference, bound=COMPOSED)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "allowed"), [("i0e", 8), ("i1e", 12)])
def test_accuracy(name: str, allowed: float, dtype: Any, rng: np.random.Generator) -> None:
    """The terms of the series cancel in part, near 0 and below 8, where i1e is a fifteenth of the first of them."""
    x = np.concatenate([rng.uniform(-9, 9, 3000), rng.uniform(9, 1e3, 1000), rng.uniform(-1e-6, 1e-6, 100)])
    x = x.astype(dtype)
    own = 0 if dtype == np.float32 else allowed
    truth = getattr(scipy.special, name)(x.astype(np.float64))
    for device in devices():
        (found,) = run(ag.capture(getattr(ops, name), x), [x], device)
        assert_within(found, truth, allowed + own, f"{name} on {device}")


@pytest.mark.parametrize("device", devices())
def test_gradients_at_0_and_infinity(device: str) -> None:
    x = np.array([0, -0.0, np.inf, -np.inf], np.float32)
    for name, expected in (("i0e", [0, 0, 0, 0]), ("i1e", [0.5, 0.5, 0, 0])):
        program = ag.reverse(ag.capture(lambda x, name=name: ops.sum(getattr(ops, name)(x)), x))
        np.testing.assert_allclose(run(program, [x], device)[1], expected, atol=1e-7)
