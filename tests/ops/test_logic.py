"""Comparison, selection, conversion and bits: every element type."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from antegrad import ops
from antegrad.ir.types import DTYPES, SHORT_NAMES
from tests.ops.certification import GROUPS, Case, cases, check_derivatives, check_forward
from tests.support import EXACT

COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def comparison(name: str) -> list[Case]:
    """Small ranges, so that there are ties, and a few broadcasts."""
    numbers = cases(name, "N[4,5]:0:3", "N[4,5]:0:3", out="bool")
    rest = ["bool[7] bool[7]", "f32[] f32[]", "f32[0] f32[0]", "i32[4,1] i32[3]", "u8[] u8[2,2]"]
    return [*numbers, *(case for pair in rest for case in cases(name, *pair.split(), out="bool"))]


def to_all(x: Any) -> list[Any]:
    """Every conversion but those between floats, which `to_float` has, since they have derivatives."""
    return [ops.convert(x, target) for target in DTYPES if not both_float(x.dtype, target)]


def to_all_by_jax(x: jax.Array) -> list[jax.Array]:
    return [x.astype(dtype) for target, dtype in DTYPES.items() if not both_float(x.dtype, target)]


def both_float(source: Any, target: str) -> bool:
    return SHORT_NAMES[np.dtype(source)] in GROUPS["F"] and target in GROUPS["F"]


def to_float(target: str) -> list[Case]:
    """From every float type, exact or rounded once."""
    return cases(
        "convert", "F[3,5]:-9:9", dtype=target, out=target, bound=EXACT, differences=target == "f64",
        jax=lambda x, dtype: x,
    )  # fmt: skip


conversions = partial(cases, of=to_all, jax=to_all_by_jax, wide=False, out="jax", bound=EXACT, derivative=False)
same_bits = partial(cases, wide=False, jax=lambda x, dtype: x.view(DTYPES[dtype]), differences=False)

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
    *same_bits("bitcast", "f32[3]", dtype="i32", out="i32"),
    *same_bits("bitcast", "u32[3]", dtype="f32", out="f32"),
    *same_bits("bitcast", "f64[3]", dtype="u64", out="u64"),
    *same_bits("bitcast", "bf16[3]", dtype="u16", out="u16"),
    *same_bits("bitcast", "i8[]", dtype="u8", out="u8"),
    *cases("stop_gradient", "N[3,5]", jax=jax.lax.stop_gradient, bound=EXACT, differences=False),
    *(case for target in GROUPS["F"] for case in to_float(target)),
    *conversions("convert", "N[3,5]:0:9"),
    *conversions("convert", "I{0 1 2 5 100 max}"),
    *conversions("convert", "bool[3,5]"),
    *(case for i in ("i64", "i32", "i16", "i8") for case in conversions("convert", f"{i}{{min -100 -2 -1 0 7 max}}")),
    *conversions("convert", "F{0 -0 0.5 -0.5 1.5 -1.5 2.5 100.75 -100.75}"),
    *conversions("convert", "F{nan inf -inf max min tiny 300 -300 70000 -70000}"),
    *conversions("convert", "D{2147483647 2147483648 -2147483648 -2147483649 4294967295 4294967296}"),
    *conversions("convert", "D{9e18 -9e18 1e19 2e19 -1e19}"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)
