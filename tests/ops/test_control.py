"""Control flow: conditions, loops and scans, their results and derivatives."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED

OUTSIDE = np.linspace(0.5, 1.5, 70)
"""More elements than are embedded in a program."""


def chosen(p: Any, x: Any, y: Any) -> Any:
    return ag.cond(p, lambda x, y: ops.sin(x) * y, lambda x, y: x + 2 * y, x, y)


def chosen_in_jax(p: jax.Array, x: jax.Array, y: jax.Array) -> Any:
    return jax.lax.cond(p, lambda x, y: jnp.sin(x) * y, lambda x, y: x + 2 * y, x, y)


def switched(i: Any, x: Any) -> Any:
    return ag.switch(i, [lambda x: x * x, ops.exp, lambda x: x * 0 + 1], x)


def switched_in_jax(i: jax.Array, x: jax.Array) -> Any:
    return jax.lax.switch(i, [lambda x: x * x, jnp.exp, lambda x: x * 0 + 1], x)


def doubled(x: Any, limit: Any) -> Any:
    return ag.while_loop(lambda s: ops.sum(s[0]) < limit, lambda s: (s[0] * 2, s[1] + 1), (x, ops.zeros((), "i32")))


def doubled_in_jax(x: jax.Array, limit: jax.Array) -> Any:
    return jax.lax.while_loop(lambda s: jnp.sum(s[0]) < limit, lambda s: (s[0] * 2, s[1] + 1), (x, jnp.int32(0)))


def counted(x: Any) -> Any:
    return ag.fori_loop(0, 4, lambda i, s: ops.sin(s) * x + s, x)


def counted_in_jax(x: jax.Array) -> Any:
    return jax.lax.fori_loop(0, 4, lambda i, s: jnp.sin(s) * x + s, x)


def recurrent(w: Any, start: Any, xs: Any, reverse: bool = False) -> Any:
    """A small recurrent network: a constant, a carry, stacked inputs and stacked outputs."""

    def step(h: Any, x: Any) -> Any:
        h = ops.tanh(ops.matmul(h, w) + x)
        return h, (h * h, ops.sum(x))

    return ag.scan(step, start, xs, reverse=reverse)


def recurrent_in_jax(w: jax.Array, start: jax.Array, xs: jax.Array, reverse: bool = False) -> Any:
    def step(h: jax.Array, x: jax.Array) -> Any:
        h = jnp.tanh(h @ w + x)
        return h, (h * h, jnp.sum(x))

    return jax.lax.scan(step, start, xs, reverse=reverse)


def nested(x: Any, xs: Any) -> Any:
    """A scan in a scan, with a condition inside and arrays from outside."""

    def inner(c: Any, y: Any) -> Any:
        return ag.cond(ops.sum(y) > 0, lambda c: c * y, lambda c: ops.sin(c) + OUTSIDE[: c.shape[0]], c), None

    return ag.scan(lambda c, row: (ag.scan(inner, c, row)[0], c), x, xs)


def nested_in_jax(x: jax.Array, xs: jax.Array) -> Any:
    def inner(c: jax.Array, y: jax.Array) -> Any:
        return jax.lax.cond(jnp.sum(y) > 0, lambda c: c * y, lambda c: jnp.sin(c) + OUTSIDE[: c.shape[0]], c), None

    return jax.lax.scan(lambda c, row: (jax.lax.scan(inner, c, row)[0], c), x, xs)


def flow(name: str, of: Any, jax: Any, *operands: str, **options: Any) -> list[Case]:
    return cases(name, *operands, of=of, jax=jax, bound=COMPOSED, out="jax", **options)


condition = partial(flow, "cond", chosen, chosen_in_jax)
switch = partial(flow, "switch", switched, switched_in_jax)
loop = partial(flow, "while_loop", doubled, doubled_in_jax, derivative=False)
scan = partial(flow, "scan", recurrent, recurrent_in_jax)

CASES = [
    *condition("bool{1}[]", "f64[3]", "f64[3]"),
    *condition("bool{0}[]", "f64[3]", "f64[3]"),
    *condition("bool{1}[]", "f64[]", "f64[]"),
    *switch("i32{0}[]", "f64[3]"),
    *switch("i32{1}[]", "f64[3]"),
    *switch("i32{2}[]", "f64[3]"),
    *switch("i32{-4}[]", "f64[3]"),
    *switch("i32{9}[]", "f64[3]"),
    *loop("f64[3]:0.5:1", "f64{50}[]"),
    *loop("f64[3]:0.5:1", "f64{0}[]"),
    *flow("fori_loop", counted, counted_in_jax, "f64[3]"),
    *scan("f64[3,3]:-1:1", "f64[3]", "f64[5,3]"),
    *scan("f64[3,3]:-1:1", "f64[3]", "f64[5,3]", reverse=True),
    *scan("f64[3,3]:-1:1", "f64[3]", "f64[1,3]"),
    *scan("f64[3,3]:-1:1", "f64[3]", "f64[0,3]"),
    *flow("nested", nested, nested_in_jax, "f64[3]", "f64[2,2,3]"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)
