"""Distributions against `jax.random`: the same bits where that can be, else within bounds that are stated here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import random
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import DTYPES
from tests.random.comparison import F16, SHAPES, assert_draws, everywhere, raw_key, reference, together
from tests.support import assert_same_bits, describe

FLOATS = ["f32", "f64", "bf16", "f16"]
EXACT = ["f32", "bf16", "f16"]
"""The types in which the host repeats XLA's inverse error function."""

DRAWN = 30_000


def ask(name: str, *arguments: Any, dtype: str, shape: Any = (DRAWN,)) -> np.ndarray:
    draw = getattr(jax.random, name)
    return reference(draw, raw_key(3), *arguments, shape=shape, dtype=DTYPES[dtype], wide=dtype == "f64")


@pytest.mark.parametrize("dtype", EXACT)
def test_normal(dtype: str) -> None:
    """Among them 65537 draws: with that many, every value that bf16 and f16 can give comes."""
    expected = together(lambda key: [jax.random.normal(key, shape, DTYPES[dtype]) for shape in SHAPES], raw_key(3))
    assert_draws(expected, lambda key: [random.normal(key, shape, dtype) for shape in SHAPES], raw_key(3))


def test_normal_gives_every_value_of_narrow_types() -> None:
    for dtype in ("bf16", "f16"):
        values = np.unique(random.normal(raw_key(3), 65537, dtype).astype(np.float32))
        assert values.size == 2 ** ml_dtypes.finfo(DTYPES[dtype]).nmant


@pytest.mark.parametrize("seed", [0, 1, -1, 20260921, 2**31])
def test_normal_of_many_keys(seed: int) -> None:
    expected = reference(jax.random.normal, raw_key(seed), (1000,))
    assert_same_bits(random.normal(raw_key(seed), 1000), expected, "normal")


@pytest.mark.parametrize("dtype", [*(d for d in EXACT if d != "f16"), F16])
def test_truncated_normal(dtype: str) -> None:
    cases = [(-2, 2), (-2.0, 1.5), (0.1, 0.3), (-9.0, -3.5), (2, 100)]
    expected = [ask("truncated_normal", *ends, dtype=dtype) for ends in cases]
    draw = lambda key: [random.truncated_normal(key, *ends, DRAWN, dtype) for ends in cases]  # noqa: E731
    assert_draws(expected, draw, raw_key(3))
    for (lower, upper), drawn in zip(cases, expected, strict=True):
        assert ((drawn.astype(np.float64) > lower) & (drawn.astype(np.float64) < upper)).all()


def test_truncated_normal_takes_its_shape_from_arrays() -> None:
    lower, upper = np.array([-1, 0.5], np.float32), np.array([[0.75], [1], [3]], np.float32)
    expected = ask("truncated_normal", lower, upper, shape=None, dtype="f32")
    assert_draws(expected, lambda key: random.truncated_normal(key, lower, upper), raw_key(3))


# The host takes log, log1p and tan from NumPy, XLA has its own. They agree to a few ulp, except that XLA's log1p is off
# by 128 ulp in f64, and that in f16 JAX keeps the bits of f32 between the two logarithms of `gumbel`. Where the result
# is near 0 because a logarithm is near 1, that error stands against 1 and not against the result.
HOST_ULPS = {
    "normal": {"f64": 32},
    "truncated_normal": {"f64": 32},
    "exponential": {"f32": 2, "f64": 130, "bf16": 1, "f16": 1},
    "gumbel": {"f32": 2, "f64": 2, "bf16": 1, "f16": 8},
    "laplace": {"f32": 2, "f64": 130, "bf16": 1, "f16": 1},
    "cauchy": {"f32": 4, "f64": 4, "bf16": 1, "f16": 1},
}
XLA_ULPS = {"gumbel": {"f16": 8}}
"""What a program on XLA may differ from JAX, which is nothing but for one."""

OTHERS: dict[str, Callable[[Any, Any, str], Any]] = {
    "normal": random.normal,
    "truncated_normal": lambda key, shape, dtype: random.truncated_normal(key, -2, 1.5, shape, dtype),
    "exponential": random.exponential,
    "gumbel": random.gumbel,
    "laplace": random.laplace,
    "cauchy": random.cauchy,
}


def units(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance in ulps of the expected value, or of 1 where that is smaller."""
    info = ml_dtypes.finfo(expected.dtype)
    wide, truth = found.astype(np.float64), expected.astype(np.float64)
    _, exponent = np.frexp(truth)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, 0) - info.nmant)
    return float(np.max(np.where(wide == truth, 0, np.abs(wide - truth) / unit), initial=0))


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in HOST_ULPS for dtype in HOST_ULPS[name]])
def test_others_within_bounds(name: str, dtype: str) -> None:
    ends = (-2, 1.5) if name == "truncated_normal" else ()
    expected = ask(name, *ends, dtype=dtype)
    results = everywhere(lambda key: OTHERS[name](key, DRAWN, dtype), raw_key(3))
    assert_same_bits(results["host"][0], results["at once"][0], "captured against at once")
    for device, bounds in (("host", HOST_ULPS), ("cpu", XLA_ULPS)):
        assert results[device][0].dtype == expected.dtype
        found = units(results[device][0], expected)
        assert found <= bounds.get(name, {}).get(dtype, 0), f"{device}: {found} ulp"


@pytest.mark.parametrize("name", ["exponential", "gumbel", "laplace", "cauchy"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_others_shapes(name: str, shape: tuple[int, ...]) -> None:
    expected, found = ask(name, shape=shape, dtype="f32"), np.asarray(OTHERS[name](raw_key(3), shape, "f32"))
    assert found.shape == shape
    assert units(found, expected) <= HOST_ULPS[name]["f32"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_categorical(dtype: str) -> None:
    logits = np.linspace(-2, 1, 4 * 5).reshape(4, 5).astype(DTYPES[dtype])
    cases = [(axis, shape) for axis in (0, 1, -1) for shape in (None, (3000, 4) if axis else (3000, 5))]
    draw = lambda key, x: [random.categorical(key, x, *case) for case in cases]  # noqa: E731
    # In f16 JAX's own noise has more bits (see HOST_ULPS), and ties fall otherwise.
    allowed = 0.01 if dtype == "f16" else 0
    reference = together(
        lambda key: [jax.random.categorical(key, logits, *case) for case in cases], raw_key(7), wide=dtype == "f64"
    )
    for how, results in everywhere(draw, raw_key(7), logits).items():
        for expected, result in zip(reference, results, strict=True):
            assert describe(result) == describe(expected.astype(np.int32)), how
            assert np.mean(result != expected) <= allowed, how


def test_categorical_broadcasts_its_batch_and_skips_what_is_impossible() -> None:
    logits = np.array([[0, -np.inf, 1]], np.float32)
    expected = reference(jax.random.categorical, raw_key(7), logits, -1, (200,))
    assert_draws(expected, lambda key, x: random.categorical(key, x, shape=(200,)), raw_key(7), logits)
    assert set(expected.tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda key: random.normal(key, (), "i32"), DTypeError, "normal: dtype must be a float type, found i32"),
        (lambda key: random.gumbel(key, (), "u8"), DTypeError, "gumbel: dtype must be a float type"),
        (lambda key: random.exponential(key, -1), ShapeError, "exponential: a shape holds sizes >= 0"),
        (lambda key: random.truncated_normal(key, 2, -2), ValueError, "truncated_normal: lower must be below upper"),
        (lambda key: random.truncated_normal(key, 1, 1), ValueError, "truncated_normal: lower must be below upper"),
        (lambda key: random.truncated_normal(key, np.zeros(2), 1), DTypeError, r"lower: f64\[2\] does not fit in f32"),
        (lambda key: random.categorical(key, np.zeros(3, np.int32)), DTypeError, "categorical: logits must be floats"),
        (lambda key: random.categorical(key, np.float32(0)), ShapeError, "random.categorical: axis -1 of f32"),
        (
            lambda key: random.categorical(key, np.zeros((4, 3), np.float32), shape=(5,)),
            ShapeError,
            r"one draw for each of \(4,\) does not broadcast to \(5,\)",
        ),
    ],
)
def test_wrong_use(draw: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw(raw_key(0))


def test_traced_ends_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"truncated_normal: the ends must be known when captured(.|\n)*distributions"):
        ag.capture(lambda key, low: random.truncated_normal(key, low, 1), raw_key(0), np.float32(0))
