"""NaN, infinities, sign bits and whole parts: what the tables of other files do not say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import EXACT, devices, run


def with_sign(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.abs(x) * jnp.where(jnp.signbit(y), -1, 1)


CASES = [
    *cases("signbit", "F{0 -0 1 -1 inf -inf}", out="bool"),
    *cases("isposinf", "F{0 1 nan inf -inf}", out="bool"),
    *cases("isneginf", "F{0 1 nan inf -inf}", out="bool"),
    *cases("isclose", "f32[3,5]:1:1.00002", "f32[]:1:1.00002", out="bool"),
    *cases("isclose", "f32{1 0 100}", "f32{1.01 0.001 99}", out="bool", rtol=0.001, atol=0.01),
    *cases("copysign", "F[3,5]", "F[3,5]", jax=with_sign, bound=EXACT),
    *cases("copysign", "f32[4,1]", "f32[3]", jax=with_sign, bound=EXACT),
    *cases("copysign", "f32[]", "f32[0]", jax=with_sign, bound=EXACT),
    *cases("nan_to_num", "F[3,5]", bound=EXACT),
    *cases("nan_to_num", "i32[3]"),
    *cases("trunc", "f32[0]", bound=EXACT),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_nan_has_a_sign_too(dtype: Any) -> None:
    x = np.copysign(np.array([np.nan, np.nan], dtype), np.array([1, -1], dtype))
    for device in devices():
        assert run(ag.capture(ops.signbit, x), [x], device)[0].tolist() == [False, True]


@pytest.mark.parametrize("device", devices())
def test_gradients(device: str) -> None:
    x = np.array([-2, 0, 3, np.nan, np.inf], np.float32)

    def gradient(function: Any) -> list[float]:
        return run(ag.reverse(ag.capture(lambda x: ops.sum(function(x)), x)), [x], device)[1].tolist()

    assert gradient(lambda x: ops.copysign(x, -1.0))[:3] == [1, 0, -1]
    assert gradient(lambda x: ops.copysign(2.0, x)) == [0] * 5
    assert gradient(ops.nan_to_num) == [1, 1, 1, 0, 0]
    assert gradient(ops.trunc) == [0] * 5


def test_limits_are_those_of_the_type() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        found = ops.nan_to_num(np.array([np.inf, -np.inf], dtype))
        limits = ml_dtypes.finfo(dtype)
        assert found.tolist() == [limits.max, limits.min]


def test_integers_are_refused() -> None:
    for function in (ops.signbit, ops.floor, lambda x: ops.isclose(x, x)):
        with pytest.raises(DTypeError, match=r"is for float tensors, found i32\[3\]"):
            function(np.arange(3, dtype=np.int32))
