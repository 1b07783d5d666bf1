"""Integer arithmetic: every width, wrapping around, and division as Python and C define it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.ops.certification import GROUPS, Case, cases, check_forward

EDGES = "{min 0 1 2 3 5 7 100 max}"
SIGNED = "{min -100 -7 -3 -2 -1 0 1 2 3 7 100 max}"


def edges(name: str, count: int, **options: Any) -> list[Case]:
    """Every pair of awkward values, in every width."""
    return [
        case
        for dtype in GROUPS["I"]
        for text in [SIGNED if dtype[0] == "i" else EDGES]
        for case in cases(name, *[f"{dtype}{text}[{len(text.split())},1]", f"{dtype}{text}"][:count], **options)
    ]


def divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """XLA's truncated quotient, which is defined for a divisor of 0 and for min / -1."""
    return jax.lax.div(*jnp.broadcast_arrays(x, y))


def rest(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.lax.rem(*jnp.broadcast_arrays(x, y))


def floored(x: jax.Array, y: jax.Array) -> jax.Array:
    """Python's quotient; that of XLA for a divisor of 0."""
    adjust = (rest(x, y) != 0) & ((rest(x, y) < 0) != (y < 0))
    return divide(x, y) - jnp.where(adjust & (y != 0), 1, 0).astype(x.dtype)


def modulo(x: jax.Array, y: jax.Array) -> jax.Array:
    """Python's remainder; the dividend for a divisor of 0."""
    adjust = (rest(x, y) != 0) & ((rest(x, y) < 0) != (y < 0))
    return rest(x, y) + jnp.where(adjust & (y != 0), y, 0)


CASES = [
    *edges("add", 2),
    *edges("subtract", 2),
    *edges("multiply", 2),
    *edges("truncated_divide", 2, jax=divide),
    *edges("truncated_remainder", 2, jax=rest),
    *edges("floor_divide", 2, jax=floored),
    *edges("remainder", 2, jax=modulo),
    *edges("maximum", 2),
    *edges("minimum", 2),
    *edges("negative", 1),
    *edges("abs", 1),
    *edges("sign", 1),
    *edges("square", 1),
    *edges("relu", 1, jax=jax.nn.relu),
    *edges("less", 2, out="bool"),
    *edges("power", 1, y=0, jax=lambda x, y: x**y),
    *edges("power", 1, y=1, jax=lambda x, y: x**y),
    *edges("power", 1, y=2, jax=lambda x, y: x**y),
    *edges("power", 1, y=5, jax=lambda x, y: x**y),
    *cases("maximum", "bool[7]", "bool[7]"),
    *cases("minimum", "bool[7]", "bool[7]"),
    *cases("add", "i32[0]", "i32[3,1]"),
    *cases("add", "u8[]", "u8[2,2]"),
    *cases("left_shift", "I{1 3 7 100 max}[5,1]", "I{0 1 7 8 15 16 31 32 63 64 100}"),
    *cases("right_shift", "I{1 3 7 100 max}[5,1]", "I{0 1 7 8 15 16 31 32 63 64 100}"),
    *(
        case
        for dtype in GROUPS["I"]
        if dtype[0] == "i"
        for name in ("left_shift", "right_shift")
        for case in cases(name, f"{dtype}{SIGNED}[13,1]", f"{dtype}{{0 1 7 8 15 16 31 32 63 64 100 -1 min}}")
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)
