"""Medians, quantiles, the largest elements, and searching: against JAX and NumPy, with ties, NaN and infinities."""

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
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, EXACT, array, assert_same_bits, devices, run

METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]


def quantile_in_jax(x: jax.Array, q: Any, **options: Any) -> jax.Array:
    return jnp.quantile(x, jnp.asarray(q, x.dtype), **options)


def percentile_in_jax(x: jax.Array, q: Any, **options: Any) -> jax.Array:
    return jnp.percentile(x, jnp.asarray(q, x.dtype), **options)


def largest(x: jax.Array, k: int, axis: int = -1) -> Any:
    values, places = jax.lax.top_k(jnp.moveaxis(x, axis, -1), k)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(places, -1, axis)


quantile = partial(cases, "quantile", jax=quantile_in_jax, bound=COMPOSED)
top_k = partial(cases, "top_k", jax=largest, bound=EXACT, out="jax", wide=False)
search = partial(cases, "searchsorted", out="i32")

CASES = [
    *cases("median", "F[5]", bound=COMPOSED),
    *cases("median", "F[4,6]", axis=1, bound=COMPOSED),
    *cases("median", "D[3,4]", axis=0, keepdims=True, bound=COMPOSED),
    *cases("median", "f64[2,3,4]", axis=(0, -1), bound=COMPOSED),
    *cases("median", "f64[]", bound=EXACT),
    *cases("median", "f32[1]", bound=EXACT),
    *cases("median", "f32[0,3]", axis=1, bound=EXACT),
    *cases("median", "f32{1 inf inf inf}", bound=EXACT, derivative=False),
    *quantile("F[7]", q=0.3),
    *quantile("D[4,5]", q=(0.1, 0.5, 0.95), axis=0),
    *quantile("f64[2,3,4]", q=(0.25, 0.5, 0.0, 1.0), axis=(0, 2), keepdims=True),
    *[case for method in METHODS for case in quantile("f64[3,6]", q=(0.13, 0.77, 1.0), axis=1, method=method)],
    *quantile("D[6]", "D{0.23 0.7}"),
    *quantile("f64[3,4]", "f64{0.31}[]", axis=0),
    *quantile("f64[6]", "f64{0.31 0.93}", method="midpoint"),
    *cases("percentile", "F[7]", jax=percentile_in_jax, bound=COMPOSED, q=30),
    *cases("percentile", "f64[4,5]", jax=percentile_in_jax, bound=COMPOSED, q=(10.0, 62.5), axis=-1),
    *top_k("A[4,5]:0:3", k=3),
    *top_k("D[4,5]", k=2, axis=0),
    *top_k("f32[2,3,4]", k=3, axis=1),
    *top_k("f32[5]", k=0),
    *top_k("f32[5]", k=5),
    *top_k("f32[0,4]", k=2),
    *top_k("f32{1 nan 3 nan inf 3}", k=5, derivative=False),
    *search("A{0 1 1 1 0 1}", "A{0 1}", of=lambda a, v, **options: ops.searchsorted(ops.sort(a), v, **options),
            jax=lambda a, v, **options: jnp.searchsorted(jnp.sort(a), v, **options), side="right"),
    *search("f32{-inf -1 0 0 2.5 inf}", "f32{-inf -2 0 0.5 3 inf nan}"),
    *search("f32{-inf -1 0 0 2.5 inf}", "f32{-inf -2 0 0.5 3 inf nan}", side="right"),
    *search("f32{1 2 3 nan nan}", "f32{nan 3 inf}"),
    *search("f32{1 2 3 nan nan}", "f32{nan 3 inf}", side="right"),
    *search("f32{0 1 2}", "f32[2,4]"),
    *search("i32{}", "i32{1 2}"),
    *search("i32{1 2}", "i32{}"),
    *search("i32{5}", "i32{}[]:5:5"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@pytest.mark.parametrize("method", METHODS)
def test_quantiles_as_in_numpy(method: str) -> None:
    """On and between the places of the elements; halves go to the even place."""
    x, q = array("f64[9]"), np.arange(17) / 16
    found = ops.quantile(x, q, method=method)
    np.testing.assert_allclose(found, np.quantile(x, q, method=method), rtol=1e-14)  # pyright: ignore[reportCallIssue]


def gradient(function: Callable[[Any], Any], x: Any, device: str) -> list[float]:
    x = np.asarray(x, np.float64)
    return run(ag.reverse(ag.capture(function, x)), [x], device)[1].tolist()


@pytest.mark.parametrize("device", devices())
def test_gradients_of_medians(device: str) -> None:
    assert gradient(ops.median, [3, 1, 2], device) == [0, 0, 1]
    assert gradient(ops.median, [3, 1, 2, 9], device) == [0.5, 0, 0.5, 0]
    assert gradient(ops.median, [1, 1, 1], device) == [0, 1, 0]


@pytest.mark.parametrize("device", devices())
def test_nan_and_infinities(device: str) -> None:
    x = np.array([[1, np.nan, 3, 2], [-np.inf, 0, 1, np.inf], [np.inf] * 4])
    medians, quartiles, ends = run(
        ag.capture(lambda x: (ops.median(x, 1), ops.quantile(x, 0.25, 1), ops.quantile(x, (0, 1), 1)), x), [x], device
    )
    np.testing.assert_array_equal(medians, [np.nan, 0.5, np.inf])
    np.testing.assert_array_equal(quartiles, [np.nan, -np.inf, np.inf])
    np.testing.assert_array_equal(ends, [[np.nan, -np.inf, np.inf], [np.nan, np.inf, np.inf]])


@pytest.mark.parametrize("device", devices())
def test_a_traced_fraction_is_clamped(device: str) -> None:
    x, q = array("f32[5]"), np.array([-1, 0, 1, 7], np.float32)
    found = run(ag.capture(lambda x, q: ops.quantile(x, q), x, q), [x, q], device)[0]
    assert_same_bits(found, np.array([x.min(), x.min(), x.max(), x.max()]), device)


def test_numpy_functions_mean_the_operations_of_their_names() -> None:
    """On traced tensors, with NumPy's parameters."""
    x = array("f64[3,4]")
    calls: list[Callable[[Any], Any]] = [
        lambda x: np.median(x, axis=1, keepdims=True),
        lambda x: np.quantile(x, [0.1, 0.6], axis=0, method="higher"),
        lambda x: np.percentile(x, 30),
        lambda x: np.cumsum(x),
        lambda x: np.cumprod(x, axis=1),
        lambda x: np.maximum.accumulate(x),
        lambda x: np.minimum.accumulate(x, axis=1),
        lambda x: np.linalg.norm(x, 1, axis=1),
        lambda x: np.pad(x, 1, "reflect"),
        lambda x: np.pad(x, ((1, 0), (0, 0)), constant_values=2),
        lambda x: np.average(x, axis=0, weights=np.array([1.0, 2, 3])),
        lambda x: np.repeat(x, 2, axis=0),
    ]
    found = run(ag.capture(lambda x: [call(x) for call in calls], x), [x], "host")
    for call, result in zip(calls, found, strict=True):
        np.testing.assert_allclose(result, call(x), rtol=1e-14)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "empty": (lambda x: ops.median(x[:0], 0), ShapeError, r"median: f32\[0,3\] has no element over axis 0"),
    "integers": (lambda x: ops.quantile(x.astype("i32"), 0.5), DTypeError, r"quantile is for float .* i32\[2,3\]"),
    "fraction": (lambda x: ops.quantile(x, 1.5), ShapeError, "from 0 to 1"),
    "fraction-nan": (lambda x: ops.quantile(x, [float("nan")]), ShapeError, "from 0 to 1"),
    "percent": (lambda x: ops.percentile(x, 101), ShapeError, "percentile: numbers from 0 to 100 are .* found 101"),
    "fraction-of-integers": (lambda x: ops.quantile(x, x.astype("i32")), DTypeError, "float"),
    "fraction-text": (lambda x: ops.quantile(x, "a"), ShapeError, "from 0 to 1 are needed, found 'a'"),
    "fraction-ragged": (lambda x: ops.quantile(x, [0.5, [1]]), ShapeError, "from 0 to 1"),
    "method": (lambda x: ops.quantile(x, 0.5, method="cubic"), ShapeError, "linear, lower, .* found 'cubic'"),
    "k-too-large": (lambda x: ops.top_k(x, 4), ShapeError, r"top_k: f32\[2,3\] has no 4 elements along axis 1"),
    "k-negative": (lambda x: ops.top_k(x, -1), ShapeError, "top_k: .* -1"),
    "k-fraction": (lambda x: ops.top_k(x, 1.5), ShapeError, "top_k: .* 1.5"),
    "search-matrix": (lambda x: ops.searchsorted(x, x), ShapeError, r"searchsorted: .* f32\[2,3\]"),
    "search-side": (lambda x: ops.searchsorted(x[0], x, side="middle"), ShapeError, "'middle'"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"(?s){message}.*test_order\.py"):
        ag.capture(function, ag.spec((2, 3)))
