"""Cumulative operations: every axis, both directions, ties, zeros and infinities, and axes long enough for blocks."""

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
from tests.support import COMPOSED, EXACT, SUM, array, assert_close, assert_same_bits, devices, run


def in_jax(operation: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """An operation of `jax.lax`, with i32 for bool, the flattening and the axes of ours."""

    def function(x: jax.Array, axis: int | None = None, reverse: bool = False) -> jax.Array:
        x = x.astype("int32") if x.dtype == bool else x
        x, place = (x.ravel(), 0) if axis is None else (x, axis % x.ndim)
        return operation(x, axis=place, reverse=reverse)

    return function


def prod_by_hand(x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """Without division and without JAX's own rule, which is NaN where a product overflows."""
    rows = jnp.moveaxis(jnp.flip(x, axis) if reverse else x, axis, 0)
    found = [rows[0]] if rows.shape[0] else []
    for row in rows[1:]:
        found.append(found[-1] * row)
    result = jnp.moveaxis(jnp.stack(found) if found else rows, 0, axis)
    return jnp.flip(result, axis) if reverse else result


def over_axes(name: str, types: str, bounds: str = "", **options: Any) -> list[Case]:
    """Each of `types`; then in f64 axes, directions, and sizes from nothing to more than one row of steps."""
    by_type = cases(name, f"{types}[4,5]{bounds}", axis=1, **options)
    shapes = [("2,3", {}), ("3,4", {"axis": 0, "reverse": True}), ("2,7,3", {"axis": -2}), ("", {})]
    shapes.append(("0,3", {"axis": 0}))
    return by_type + [c for s, axes in shapes for c in cases(name, f"f64[{s}]{bounds}", **axes, **options)]


def recurrence(a: Any, x: Any, axis: int = 0, reverse: bool = False) -> Any:
    return ops.linear_recurrence_p(a, x, axis, reverse)


def recurrence_in_jax(a: jax.Array, x: jax.Array, axis: int = 0, reverse: bool = False) -> jax.Array:
    def step(h: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h = row[0] * h + row[1]
        return h, h

    rows = tuple(jnp.moveaxis(v, axis, 0) for v in (a, x))
    return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(rows[1][0]), rows, reverse=reverse)[1], 0, axis)


cumsum, cumprod, cummax, cummin = (getattr(jax.lax, name) for name in ("cumsum", "cumprod", "cummax", "cummin"))
linear = partial(cases, "linear_recurrence_p", of=recurrence, jax=recurrence_in_jax, bound=COMPOSED)

CASES = [
    *over_axes("cumsum", "N", jax=in_jax(cumsum), bound=SUM),
    *cases("cumsum", "f64[3,0]", axis=0, jax=in_jax(cumsum)),
    *cases("cumsum", "f64[1]", axis=0, reverse=True, jax=in_jax(cumsum)),
    *cases("cumprod", "f64[33]:0.5:2", axis=0, jax=in_jax(cumprod), bound=COMPOSED, differences=False),
    *cases("cumsum", "bool[4,5]", axis=0, jax=in_jax(cumsum), out="i32"),
    *cases("cumsum", "f32[1000]:0:1", axis=0, jax=in_jax(cumsum), bound=COMPOSED),
    *cases("cumsum", "i32[3,700]", axis=1, reverse=True, jax=in_jax(cumsum)),
    *over_axes("cumprod", "N", ":-2:2", jax=in_jax(prod_by_hand), bound=COMPOSED),
    *cases("cumprod", "bool[4,5]", axis=0, jax=in_jax(cumprod), out="i32"),
    *cases("cumprod", "f64{2 0 3 -1 0 4}", axis=0, jax=in_jax(prod_by_hand), bound=COMPOSED),
    *cases("cumprod", "f64{2 0 3 -1 0 4}[3,2]", axis=0, reverse=True, jax=in_jax(prod_by_hand), bound=COMPOSED),
    *cases("cumprod", "f32{1 inf 2 0 -0 2}", axis=0, jax=in_jax(cumprod), bound=EXACT, derivative=False),
    *over_axes("cummax", "N", jax=in_jax(cummax), bound=EXACT),
    *cases("cummax", "bool[4,5]", axis=0, jax=jnp.logical_or.accumulate),
    *cases("cummax", "I{min 3 max 0}", axis=0, jax=cummax),
    *cases("cummax", "f32{1 -inf nan 3 inf}", axis=0, jax=cummax, bound=EXACT, derivative=False),
    *over_axes("cummin", "N", jax=in_jax(cummin), bound=EXACT),
    *cases("cummin", "bool[4,5]", axis=0, jax=jnp.logical_and.accumulate),
    *cases("cummin", "I{3 max 0 min}", axis=0, jax=cummin),
    *cases("cummin", "f32{1 -inf nan 3 inf}", axis=0, jax=cummin, bound=EXACT, derivative=False),
    *over_axes("cumlogsumexp", "F", ":1:4", jax=in_jax(jax.lax.cumlogsumexp), bound=COMPOSED),
    *cases("cumlogsumexp", "f64{800 -800 0 1000 900 -1000}", axis=0, jax=jax.lax.cumlogsumexp, bound=COMPOSED),
    *cases("diff", "N[3,4]"),
    *cases("diff", "bool[3,4]", axis=0),
    *cases("diff", "f64[3,4]", n=2, axis=0, bound=COMPOSED),
    *cases("diff", "f32[3]", n=5),
    *cases("diff", "f32[3]", n=0),
    *linear("D[5]", "D[5]"),
    *linear("D[2,7]", "D[2,7]", axis=1, reverse=True),
    *linear("f64[9,2]:0:1", "f64[9,2]:0:1", axis=0),
    *linear("f64[41]:0:1", "f64[41]:0:1", differences=False),
    *linear("f64[1]", "f64[1]"),
    *linear("f64[0,3]", "f64[0,3]", axis=1),
    *linear("f64{2 0 3 0.5}", "f64{1 0 2 0}"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


def gradient(function: Callable[[Any], Any], x: Any, dy: Any, device: str) -> np.ndarray:
    """The cotangent of `x` for the cotangent `dy` of ``function(x)``."""
    x, dy = np.asarray(x, np.float64), np.asarray(dy, np.float64)
    return run(ag.reverse(ag.capture(lambda x, dy: ops.sum(function(x) * dy), x, dy), ["x"]), [x, dy], device)[1]


@pytest.mark.parametrize("device", devices())
def test_case_grad_cumprod_zero(device: str) -> None:
    assert gradient(ops.cumprod, [2, 0, 3], [1, 10, 100], device).tolist() == [1, 620, 0]
    assert gradient(ops.cumprod, [0, 0, 3], [1, 10, 100], device).tolist() == [1, 0, 0]


@pytest.mark.parametrize("device", devices())
def test_case_grad_cumsum(device: str) -> None:
    assert gradient(ops.cumsum, [5, -1, 2], [1, 10, 100], device).tolist() == [111, 110, 100]
    assert gradient(lambda x: ops.cumsum(x, reverse=True), [5, -1, 2], [1, 10, 100], device).tolist() == [1, 11, 111]


@pytest.mark.parametrize("device", devices())
def test_a_cotangent_of_zero_stays_zero_where_products_overflow(device: str) -> None:
    assert gradient(ops.cumprod, [3, 1e200, 1e200, 1e200], [1, 0, 0, 0], device).tolist() == [1, 0, 0, 0]


TIES = {
    "the first of equal ones": ([1, 1, 0, 1], [1, 10, 100, 1000], [1111, 0, 0, 0]),
    "a new maximum": ([1, 3, 3, 4], [1, 10, 100, 1000], [1, 110, 0, 1000]),
    "infinite": ([-np.inf, -np.inf, np.inf, np.inf], [1, 10, 100, 1000], [11, 0, 1100, 0]),
    "the first NaN": ([1, np.nan, 2, np.nan], [1, 10, 100, 1000], [1, 1110, 0, 0]),
    "infinite cotangents": ([1, 2, 3, 3], [1, 10, np.inf, 1], [1, 10, np.inf, 0]),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("x", "dy", "expected"), TIES.values(), ids=TIES)
def test_the_cotangent_goes_to_the_first_that_holds_the_extremum(x: Any, dy: Any, expected: Any, device: str) -> None:
    assert gradient(ops.cummax, x, dy, device).tolist() == expected
    assert gradient(ops.cummin, [-n for n in x], dy, device).tolist() == expected
    turned = gradient(lambda x: ops.cummax(x, reverse=True), x[::-1], dy[::-1], device)
    assert turned.tolist() == expected[::-1]


@pytest.mark.parametrize("device", devices())
def test_cumlogsumexp_of_infinities(device: str) -> None:
    x = np.array([-np.inf, -np.inf, -1000, 0, np.inf, 1])
    assert run(ag.capture(ops.cumlogsumexp, x), [x], device)[0].tolist() == [-np.inf, -np.inf, -1000, 0, np.inf, np.inf]
    assert gradient(ops.cumlogsumexp, [-np.inf] * 3, [1, 10, 100], device).tolist() == [0, 0, 0]
    assert gradient(ops.cumlogsumexp, [-np.inf, 2, -np.inf], [1, 10, 100], device).tolist() == [0, 110, 0]


@pytest.mark.parametrize("device", devices())
def test_sixteen_bits_are_summed_in_thirty_two(device: str) -> None:
    x = np.ones(1024, DTYPES["bf16"])
    found = run(ag.capture(lambda x: ops.cumsum(x), x), [x], device)[0]
    assert found.dtype == DTYPES["bf16"]
    assert (float(found[255]), float(found[1023])) == (256, 1024)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cumlogsumexp"])
def test_long_axes(name: str, device: str) -> None:
    """Where XLA works in blocks, against NumPy in f64."""
    x = 1 + array("f64[3001]:-1:1") / 100
    function = {"cummax": np.maximum.accumulate, "cumlogsumexp": np.logaddexp.accumulate}.get(name) or getattr(np, name)
    found = run(ag.capture(getattr(ops, name), x), [x], device)[0]
    assert_close(found, function(x), 1e-12, name)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "axis": (lambda x: ops.cumsum(x, 2), ShapeError, "cumsum: axis 2 of f32.2,3."),
    "float-axis": (lambda x: ops.cummax(x, 0.0), ShapeError, "cummax: axis 0.0"),
    "integers": (lambda x: ops.cumlogsumexp(x.astype("i32")), DTypeError, r"cumlogsumexp is for float .* i32\[2,3\]"),
    "negative-diff": (lambda x: ops.diff(x, -1), ShapeError, "diff: .* >= 0, found -1"),
    "two-types": (lambda x: ops.linear_recurrence_p(x, x[:1], 0), ShapeError, r"f32\[2,3\] and f32\[1,3\]"),
    "recurrence-of-integers": (lambda x: recurrence(*[x.astype("i32")] * 2), DTypeError, "f32 and f64"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"(?s){message}.*test_cumulative\.py"):
        ag.capture(function, ag.spec((2, 3)))


def test_printed_modules_come_back() -> None:
    x = array("f32[3,4]")

    def function(x: Any) -> Any:
        named = ops.cumsum(x, 0), ops.cumprod(x, 1, reverse=True), ops.cummax(x, 1), ops.cummin(x, 0, reverse=True)
        return (*named, ops.cumlogsumexp(x, 1), ops.cumsum(x.astype("bf16"), 0))

    program = ag.capture(function, x)
    again = ag.from_python(program.python())
    for found, expected in zip(run(again, [x], "host"), run(program, [x], "host"), strict=True):
        assert_same_bits(found, expected, "from the printed text")
