"""Elementwise operations: values, gradients and second derivatives, by element type and by shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import EXACT


def unary(name: str, low: float, high: float, **options: Any) -> list[Case]:
    """One function within [low, high]: every float type, and f32 as a scalar and empty."""
    shapes = ["F[3,5]", "f32[]", "f32[0]"]
    return [case for shape in shapes for case in cases(name, f"{shape}:{low}:{high}", **options)]


def binary(name: str, first: str = "-2:2", second: str = "-2:2", **options: Any) -> list[Case]:
    """Two operands within their bounds: every float type, and f32 broadcast in every direction."""
    shapes = ["F[3,5] F[3,5]", "f32[] f32[]", "f32[0] f32[1]", "f32[4,1] f32[3]", "f32[2,3] f32[]"]
    shapes += ["f64[2,1,3] f64[4,1]"]
    pairs = [(f"{x}:{first}", f"{y}:{second}") for x, y in map(str.split, shapes)]
    return [case for pair in pairs for case in cases(name, *pair, **options)]


CASES = [
    *binary("add", bound=EXACT),
    *binary("subtract", bound=EXACT),
    *binary("multiply", bound=EXACT),
    *cases("divide", "F[3,5]", "F[3,5]:0.5:2", bound=EXACT),
    *binary("divide", second="0.5:2")[4:],  # by a broadcast divisor: XLA multiplies by 1 / y
    *binary("mul_no_nan", jax=jnp.multiply, bound=EXACT),
    *binary("maximum", bound=EXACT),
    *binary("minimum", bound=EXACT),
    *binary("arctan2"),
    *binary("power", first="0.5:2"),
    *binary("truncated_remainder", first="-3:3", second="0.7:2", jax=jnp.fmod, bound=EXACT),
    *binary("remainder", first="-3:3", second="0.7:2", bound=EXACT),
    *binary("floor_divide", first="-9:9", second="0.5:2", bound=EXACT, derivative=False),
    *unary("negative", -2, 2, bound=EXACT),
    *unary("abs", -2, 2, bound=EXACT),
    *unary("sign", -2, 2, bound=EXACT),
    *unary("square", -2, 2, bound=EXACT),
    *unary("reciprocal", 0.5, 2, bound=EXACT),
    *unary("relu", -2, 2, jax=jax.nn.relu, bound=EXACT),
    *unary("exp", -5, 5),
    *unary("expm1", -2, 2),
    *unary("exp2", -5, 5),
    *unary("log", 0.3, 9),
    *unary("log2", 1.3, 9),
    *unary("log10", 1.3, 9),
    *unary("log1p", -0.9, 9),
    *unary("sqrt", 0.1, 9, bound=EXACT),
    *unary("rsqrt", 0.3, 9, jax=jax.lax.rsqrt),
    *unary("cbrt", 0.1, 9),
    *unary("sin", -7, 7),
    *unary("cos", -7, 7),
    *unary("tan", -1, 1),
    *unary("tanh", -2, 2),
    *unary("sigmoid", -3, 3, jax=jax.nn.sigmoid),
    *unary("erf", -3, 3, jax=jax.scipy.special.erf),
    *unary("erfinv", -0.9, 0.9, jax=jax.scipy.special.erfinv),
    *cases("fma", "D[3,5]", "D[3,5]", "D[3,5]", jax=lambda x, y, z: x * y + z, bound=EXACT),
    *cases("fma", "f32[4,1]", "f32[3]", "f32[]", jax=lambda x, y, z: x * y + z, bound=EXACT),
    *unary("floor", -9, 9, bound=EXACT),
    *unary("ceil", -9, 9, bound=EXACT),
    *unary("round", -9, 9, bound=EXACT),
    *unary("trunc", -9, 9, bound=EXACT),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)
