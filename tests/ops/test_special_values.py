"""NaN, infinities, signed zeros and the ends of the range: the host, XLA and JAX give the same, zeros by their sign.

The sign of a zero is left open where IEEE 754 or StableHLO leave it open: max and min of 0 and -0, and sign(-0).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.ops.certification import Case, cases, check_forward
from tests.support import COMPOSED, EXACT, SUM

NUMBERS = "{0 -0 1 -1 0.5 -0.5 1.5 -1.5 2.5 -2.5 3 -3 inf -inf nan max min tiny}"
BELOW_MAX = NUMBERS.replace(" max min", "")
GRID = "{0 -0 1 -1 0.5 -2.5 3 inf -inf nan max min tiny}"


def unary(name: str, types: str = "F", values: str = NUMBERS, signs: bool = True, **options: Any) -> list[Case]:
    return cases(name, f"{types}{values}", signs=signs, **options)


def binary(name: str, types: str = "F", values: str = GRID, signs: bool = True, **options: Any) -> list[Case]:
    """Every pair of values, in full: XLA turns a division by a broadcast tensor into a product with 1 / y."""
    square = f"{types}{values}[{len(values.split())},{len(values.split())}]"
    return cases(name, f"{square}.T", square, signs=signs, **options)


CASES = [
    *unary("negative", bound=EXACT),
    *unary("abs", bound=EXACT),
    *unary("sign", bound=EXACT, signs=False),
    *unary("relu", bound=EXACT, signs=False, jax=lambda x: jnp.maximum(x, 0)),
    *unary("square", bound=EXACT),
    *unary("reciprocal", values="{0 -0 1 -1 0.5 -0.5 4 inf -inf nan}", bound=EXACT),
    *unary("floor", bound=EXACT),
    *unary("ceil", bound=EXACT),
    *unary("round", bound=EXACT),
    *unary("trunc", bound=EXACT),
    *unary("sqrt", bound=EXACT),
    *unary("exp"),
    *unary("expm1"),
    *unary("exp2"),
    *unary("log"),
    *unary("log2"),
    *unary("log10"),
    *unary("log1p"),
    *unary("rsqrt", jax=jax.lax.rsqrt),
    *unary("cbrt"),
    *unary("sin"),
    *unary("cos"),
    *unary("tan"),
    *unary("tanh"),
    *unary("sigmoid", jax=jax.nn.sigmoid),
    *unary("arcsin"),
    *unary("arccos"),
    *unary("arctan"),
    *unary("sinh"),
    *unary("cosh"),
    *unary("arcsinh", values=BELOW_MAX),
    *unary("arccosh"),
    *unary("arctanh"),
    *unary("deg2rad"),
    *unary("rad2deg"),
    *unary("softplus", jax=lambda x: jnp.logaddexp(x, 0)),
    *unary("symlog", jax=lambda x: jnp.sign(x) * jnp.log1p(jnp.abs(x))),
    *unary("symexp", jax=lambda x: jnp.sign(x) * jnp.expm1(jnp.abs(x))),
    *unary("erfc", jax=jax.scipy.special.erfc, bound=COMPOSED),
    *unary("ndtr", jax=jax.scipy.special.ndtr, bound=COMPOSED),
    *unary("i0e", jax=jax.lax.bessel_i0e, bound=COMPOSED),
    *unary("i1e", jax=jax.lax.bessel_i1e, bound=COMPOSED),
    *unary("signbit", out="bool"),
    *unary("isposinf", out="bool"),
    *unary("isneginf", out="bool"),
    *unary("nan_to_num", values="{0 -0 1 -1 inf -inf nan max min}", bound=EXACT, jax=jnp.nan_to_num, wide=False),
    *unary("nan_to_num", bound=EXACT, jax=jnp.nan_to_num, nan=7.0, posinf=2.0, neginf=-3.0),
    *binary("copysign", bound=EXACT),
    *binary("hypot", types="D"),
    *binary("logaddexp", types="D"),
    *binary("isclose", out="bool"),
    *binary("isclose", out="bool", equal_nan=True),
    *binary("add", bound=EXACT),
    *binary("subtract", bound=EXACT),
    *binary("multiply", bound=EXACT),
    *binary("divide", bound=EXACT),
    *binary("maximum", bound=EXACT, signs=False),
    *binary("minimum", bound=EXACT, signs=False),
    *binary("arctan2"),
    *binary("power"),
    *binary("truncated_remainder", bound=EXACT, jax=jnp.fmod),
    *binary("remainder", bound=EXACT),
    *binary("floor_divide", bound=EXACT),
    *binary("equal", out="bool"),
    *binary("not_equal", out="bool"),
    *binary("less", out="bool"),
    *binary("less_equal", out="bool"),
    *binary("greater", out="bool"),
    *binary("greater_equal", out="bool"),
    *unary("clip", low=-1.0, high=1.0, jax=lambda x, low, high: jnp.clip(x, low, high), bound=EXACT),
    *unary("max", values="{1 nan 3}", bound=EXACT),
    *unary("min", values="{1 nan 3}", bound=EXACT),
    *unary("max", values="{-inf -inf}", bound=EXACT),
    *unary("min", values="{inf inf}", bound=EXACT),
    *unary("sum", values="{inf -inf 1}", bound=SUM),
    *unary("sum", values="{inf 1}", bound=SUM),
    *unary("sum", values="{nan 1}", bound=SUM),
    *unary("sum", values="{}", bound=EXACT),
    *unary("prod", values="{inf 0}", bound=EXACT),
    *unary("prod", values="{}", bound=EXACT),
    *unary("mean", values="{inf 1}", bound=SUM),
    *unary("mean", values="{}", bound=EXACT),
    *unary("var", values="{}", bound=EXACT),
    *unary("logsumexp", values="{}", jax=jax.nn.logsumexp, bound=EXACT),
    *unary("logsumexp", values="{-inf -inf}", jax=jax.nn.logsumexp, bound=EXACT),
    *unary("logsumexp", values="{inf 1}", jax=jax.nn.logsumexp, bound=EXACT),
    *unary("logsumexp", values="{nan 1}", jax=jax.nn.logsumexp, bound=EXACT),
    *unary("logsumexp", values="{10000 10000}", jax=jax.nn.logsumexp, bound=COMPOSED),
    *unary("softmax", values="{-inf 1 2}", jax=jax.nn.softmax, bound=COMPOSED),
    *unary("softmax", values="{nan 1 2}", jax=jax.nn.softmax, bound=COMPOSED),
    *unary("all", types="A", values="{}", out="bool"),
    *unary("any", types="A", values="{}", out="bool"),
    *unary("all", values="{nan 1}", out="bool"),
    *unary("any", values="{0 -0}", out="bool"),
    *unary("argmax", values="{1 3 3 2}", out="i32"),
    *unary("argmax", values="{1 nan 3 nan}", out="i32"),
    *unary("argmax", values="{-inf -inf}", out="i32"),
    *unary("argmax", values="{-0 0}", out="i32"),
    *unary("argmin", values="{3 1 1 2}", out="i32"),
    *unary("argmin", values="{1 nan -3 nan}", out="i32"),
    *unary("argmin", values="{inf inf}", out="i32"),
    *unary("argmin", values="{0 -0}", out="i32"),
    *unary("argmax", types="I", values="{min min}", out="i32"),
    *unary("argmin", types="I", values="{max max}", out="i32"),
    *unary("sort", values="{3 nan -inf 0 -0 inf -1 nan 0}", bound=EXACT),
    *unary("sort", values="{}", bound=EXACT),
    *unary("argsort", values="{3 nan -inf 0 -0 inf -1 nan 0}", out="i32"),
    *unary("norm", values="{0 0}", jax=lambda x: jnp.sqrt(jnp.sum(x * x)), bound=EXACT),
    *unary("norm", values="{inf 1}", jax=lambda x: jnp.sqrt(jnp.sum(x * x)), bound=EXACT),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)
