"""Comparison, selection, conversion and bits: every element type."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from antegrad import ops
from antegrad.ir.types import DTYPES
from tests.ops.certification import GROUPS, Case, cases, check_derivatives, check_forward
from tests.support import EXACT

COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def comparison(name: str) -> list[Case]:
    """Small ranges, so that there are ties, and a few broadcasts."""
    numbers = cases(name, "N[4,5]:0:3", "N[4,5]:0:3", out="bool")
    rest = [("bool[7]", "bool[7]"), ("f32[]", "f32[]"), ("f32[0]", "f32[0]"), ("i32[4,1]", "i32[3]"), ("u8[]", "u8[2,2]")]
    return [*numbers, *(case for x, y in rest for case in cases(name, x, y, out="bool"))]


def conversion(source: str) -> list[Case]:
    """From one type to every other, for values that both hold."""
    text = f"{source}[3,5]" if source == "bool" else f"{source}[3,5]:0:9"
    return [
        case
        for target in DTYPES
        for case in cases(
            "convert", text, dtype=target, out=target, wide=False, bound=EXACT, differences=target == source,
            of=lambda x, dtype: ops.convert(x, dtype),
            jax=lambda x, dtype: x.astype(DTYPES[dtype]),
        )
    ]  # fmt: skip


CASES = [
    *(case for name in COMPARISONS for case in comparison(name)),
    *cases("where", "bool[3,4]", "A[3,4]", "A[3,4]", of=ops.where, bound=EXACT, out="A"),
    *cases("where", "bool[4]", "D[3,4]", "D[3,1]", bound=EXACT, out="D"),
    *cases("where", "bool[2,1]", "D[]", "D[3]", bound=EXACT, out="D"),
    *cases("where", "bool[]", "f32[2]", "f32[2]", bound=EXACT, out="f32"),
    *cases("where", "bool[0]", "f32[0]", "f32[]", bound=EXACT, out="f32"),
    *cases("clip", "N[3,5]", "N[]:1:2", "N[]:3:4", bound=EXACT),
    *cases("clip", "D[3,5]", "D[5]:-1:0", "D[3,1]:0.5:1", bound=EXACT),
    *cases("clip", "f32[7]", low=-1.0, high=1.0, jax=lambda x, low, high: jnp.clip(x, low, high), bound=EXACT),
    *cases("clip", "f32[7]", low=-1, jax=lambda x, low: jnp.clip(x, low), bound=EXACT),
    *cases("clip", "f32[7]", high=1, jax=lambda x, high: jnp.clip(x, max=high), bound=EXACT),
    *cases("isnan", "F{0 1 nan inf -inf}", out="bool"),
    *cases("isinf", "F{0 1 nan inf -inf}", out="bool"),
    *cases("isfinite", "F{0 1 nan inf -inf}", out="bool"),
    *cases("logical_and", "A[3,5]", "A[3,5]", out="bool"),
    *cases("logical_or", "A[3,5]", "A[3,5]", out="bool"),
    *cases("logical_xor", "A[3,5]", "A[3,5]", out="bool"),
    *cases("logical_not", "A[3,5]", out="bool"),
    *cases("bitwise_and", "I[3,5]:0:127", "I[5]:0:127"),
    *cases("bitwise_or", "I[3,5]:0:127", "I[5]:0:127"),
    *cases("bitwise_xor", "I[3,5]:0:127", "I[5]:0:127"),
    *cases("bitwise_and", "bool[3,5]", "bool[5]"),
    *cases("bitwise_or", "bool[3,5]", "bool[5]"),
    *cases("bitwise_xor", "bool[3,5]", "bool[5]"),
    *cases("invert", "I[3,5]"),
    *cases("invert", "bool[3,5]"),
    *cases("left_shift", "I[3,5]", "I[5]:0:7"),
    *cases("right_shift", "I[3,5]", "I[5]:0:7"),
    *cases("bitcast", "f32[3]", dtype="i32", out="i32", wide=False, jax=lambda x, dtype: x.view(DTYPES[dtype])),
    *cases("bitcast", "u32[3]", dtype="f32", out="f32", wide=False, jax=lambda x, dtype: x.view(DTYPES[dtype])),
    *cases("bitcast", "f64[3]", dtype="u64", out="u64", wide=False, jax=lambda x, dtype: x.view(DTYPES[dtype])),
    *cases("bitcast", "bf16[3]", dtype="u16", out="u16", wide=False, jax=lambda x, dtype: x.view(DTYPES[dtype])),
    *cases("bitcast", "i8[]", dtype="u8", out="u8", wide=False, jax=lambda x, dtype: x.view(DTYPES[dtype])),
    *cases("stop_gradient", "N[3,5]", jax=jax.lax.stop_gradient, bound=EXACT, differences=False),
    *(case for source in DTYPES for case in conversion(source)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)
