"""Reductions by segment: against JAX, with empty segments, ties, and ids out of range, which are dropped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import DTYPES
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, EXACT, SUM, array, assert_same_bits, devices, run


def segments(name: str) -> Callable[..., list[Case]]:
    return partial(cases, name, jax=getattr(jax.ops, name), num_segments=4)


def segment_mean_in_jax(x: jax.Array, ids: jax.Array, num_segments: int) -> jax.Array:
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, x.dtype), ids, num_segments)
    return jax.ops.segment_sum(x, ids, num_segments) / jnp.maximum(counts, 1).reshape(-1, *(1,) * (x.ndim - 1))


def counted(x: Any, *weights: Any, length: int) -> Any:
    return ops.bincount(x, length, *weights)


def counted_in_jax(x: jax.Array, *weights: jax.Array, length: int) -> jax.Array:
    ones = jnp.ones(x.shape, "int32")
    return jax.ops.segment_sum(weights[0] if weights else ones, x, length)


CASES = [
    *segments("segment_sum")("N[6]", "i32{3 0 -1 0 9 3}", bound=SUM),
    *segments("segment_sum")("f64[6,2]", "i8{3 0 -1 0 9 3}", bound=SUM),
    *segments("segment_sum")("f64[0,2]", "i32{}"),
    *segments("segment_max")("N[7]", "i32{3 0 -1 0 1 2 3}", bound=EXACT),
    *segments("segment_max")("f64[2]", "i32{0 2}", differences=False),
    *segments("segment_max")("bool[4]", "i32{0 2 2 3}"),
    *segments("segment_min")("N[7]", "i32{3 0 -1 0 1 2 3}", bound=EXACT),
    *segments("segment_min")("i8[2,2]", "i32{0 2}"),
    *segments("segment_sum")("f64[5]", "u8{0 3 255 3 4}", bound=SUM),
    *segments("segment_sum")("bf16[300]:0.5:1", "i32[300]:0:2", bound=SUM),
    *cases("segment_sum", "f64[3]", "i32{0 1 -1}", jax=jax.ops.segment_sum, num_segments=0, derivative=False),
    *cases("segment_mean", "F[6]", "i32{3 0 -1 0 9 3}", jax=segment_mean_in_jax, num_segments=4, bound=COMPOSED),
    *cases("segment_mean", "f64[3,2]", "i32{0 0 4}", jax=segment_mean_in_jax, num_segments=4, bound=COMPOSED),
    *cases("bincount", "I{3 0 1 0 9 3}", of=counted, jax=counted_in_jax, length=4, out="i32"),
    *cases("bincount", "i32{3 0 -1 0 9 3}", "f64[6]", of=counted, jax=counted_in_jax, length=4, out="f64"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


SIZE = 5
VALUES = np.array([2.0, 3, 5, 7, 11, 13])
IDS = {
    "i8": [0, -1, 4, 5, 127, -128],
    "u8": [0, 1, 4, 5, 255, 1],
    "i64": [0, -1, 2**32, 4, 2**63 - 1, -(2**63)],
    "u64": [0, 1, 2**32, 5, 2**64 - 1, 2**63],
    "i32": [-5, 4, 3, 3, 2**31 - 1, -(2**31)],
}
"""Ids by type, in and out of the range of five segments."""

DROPPED: dict[str, Callable[[Any, Any], Any]] = {
    "segment_sum": lambda v, i: ops.segment_sum(v, i, SIZE),
    "segment_mean": lambda v, i: ops.segment_mean(v, i, SIZE),
    "segment_max": lambda v, i: ops.maximum(ops.segment_max(v, i, SIZE), 0),
    "segment_min": lambda v, i: ops.minimum(ops.segment_min(v, i, SIZE), 99),
    "bincount": lambda v, i: ops.bincount(i, SIZE, v),
    "one_hot": lambda v, i: v @ ops.one_hot(i, SIZE, "f64"),
}
"""Everything that drops what is negative or past the end."""


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", IDS)
@pytest.mark.parametrize("name", DROPPED)
def test_segments_drop_what_is_out_of_range(name: str, dtype: str, device: str) -> None:
    """Value and gradient are those without the rows that are dropped, whose gradient is 0."""
    indices = np.array(IDS[dtype], DTYPES[dtype])
    kept = np.array([0 <= int(index) < SIZE for index in indices])

    def loss(values: Any, indices: Any) -> Any:
        result = DROPPED[name](values, indices)
        return ops.sum(result * array("f64[5]:0.5:2")), result

    program = ag.reverse(ag.capture(loss, VALUES, indices), ["values"])
    _, result, gradient = run(program, [VALUES, indices], device)
    fewer = VALUES[kept], indices[kept]
    _, expected, expected_gradient = run(ag.reverse(ag.capture(loss, *fewer), ["values"]), list(fewer), device)
    assert_same_bits(result, expected, name)
    assert_same_bits(gradient[kept], expected_gradient, name)
    assert not gradient[~kept].any()


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "segment-ids": (lambda x: ops.segment_sum(x, np.zeros(4, int), 2), ShapeError, r"f32\[5,4\], i64\[4\]"),
    "segment-float": (lambda x: ops.segment_max(x, x[:, 0], 2), DTypeError, "segment_max: .* must be an integer"),
    "segment-count": (lambda x: ops.segment_mean(x, np.zeros(5, int), -1), ShapeError, "segment_mean: integers >= 0"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    """What does not fit a tensor of shape (5, 4)."""
    with pytest.raises(error, match=rf"(?s){message}.*test_segment\.py"):
        ag.capture(function, ag.spec((5, 4)))
