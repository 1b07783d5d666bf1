"""Bits, uniform floats and integers, and yes or no, with the bits of `jax.random` on every device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import random
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import DTYPES
from tests.random.comparison import F16, SHAPES, assert_draws, everywhere, raw_key, reference, together
from tests.support import assert_same_bits, devices, run

F32 = np.float32
FLOATS = ["f32", "f64", "bf16", "f16"]
UNSIGNED = ["u8", "u16", "u32", "u64"]
INTEGERS = [*UNSIGNED, "i8", "i16", "i32", "i64"]
KEYS = [0, 1, -1, 20260921, 2**31]


def ask_all(draw: Any, seed: int, dtype: str, *arguments: Any) -> list[np.ndarray]:
    """What JAX gives for a function of several draws, with 64-bit types where `dtype` has them."""
    return together(draw, raw_key(seed), *arguments, wide=DTYPES[dtype].itemsize == 8)


def ask(draw: Any, seed: int, *arguments: Any, dtype: str, **keywords: Any) -> np.ndarray:
    """What JAX draws, with 64-bit types where `dtype` has them."""
    return reference(draw, raw_key(seed), *arguments, wide=DTYPES[dtype].itemsize == 8, dtype=DTYPES[dtype], **keywords)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_bits(dtype: str) -> None:
    expected = ask_all(lambda key: [jax.random.bits(key, shape, DTYPES[dtype]) for shape in SHAPES], 3, dtype)
    assert_draws(expected, lambda key: [random.bits(key, shape, dtype) for shape in SHAPES], raw_key(3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: str) -> None:
    expected = ask_all(lambda key: [jax.random.uniform(key, shape, DTYPES[dtype]) for shape in SHAPES], 3, dtype)
    assert_draws(expected, lambda key: [random.uniform(key, shape, dtype) for shape in SHAPES], raw_key(3))


@pytest.mark.parametrize("seed", KEYS)
def test_keys(seed: int) -> None:
    key = raw_key(seed)
    assert_same_bits(random.bits(key, 100), ask(jax.random.bits, seed, (100,), dtype="u32"), "bits")
    assert_same_bits(random.uniform(key, 100), ask(jax.random.uniform, seed, (100,), dtype="f32"), "uniform")
    for new, expected in zip(random.split(key, 3), reference(jax.random.split, key, 3), strict=True):
        assert_same_bits(random.bits(new, 7), reference(jax.random.bits, expected, (7,)), "bits of a new key")


RANGES = [(0, 1), (-1, 1), (0.1, 0.7), (-0.3, 0.3), (1, 100), (-7.3, 5.1), (5, 5), (2, 1), (0, -0.3), (1e-3, 1e4)]


@pytest.mark.parametrize("dtype", [*FLOATS[:-1], F16])
def test_uniform_between(dtype: str) -> None:
    expected = [ask(jax.random.uniform, 5, (3000,), dtype=dtype, minval=low, maxval=high) for low, high in RANGES]
    assert_draws(expected, lambda key: [random.uniform(key, 3000, dtype, *ends) for ends in RANGES], raw_key(5))


@pytest.mark.parametrize("dtype", [*FLOATS[:-1], F16])
def test_uniform_between_tensors(dtype: str) -> None:
    low = np.linspace(-3, 0.7, 13).astype(DTYPES[dtype])
    high = np.linspace(1.3, 0.6, 4).astype(DTYPES[dtype])[:, None]
    expected = ask(jax.random.uniform, 6, (500, 4, 13), dtype=dtype, minval=low, maxval=high)
    assert_draws(
        [expected, expected],
        lambda k, a, b: [random.uniform(k, (500, 4, 13), dtype, *ends) for ends in ((a, b), (low, high))],
        raw_key(6), low, high,
    )  # fmt: skip


def test_uniform_takes_bounds_of_types_that_fit() -> None:
    expected = ask(jax.random.uniform, 6, (9,), dtype="f32", minval=F32(-3), maxval=F32(0.25))
    found = random.uniform(raw_key(6), 9, "f32", np.int16(-3), np.float16(0.25))
    assert_same_bits(found, expected, "i16 and f16 bounds")


def test_a_sum_after_a_draw_rounds_as_on_the_host() -> None:
    """XLA merges constants that are added one after the other, unless something stands between them."""
    results = everywhere(
        lambda key: (random.uniform(key, 3000) + F32(0.1)) + (random.uniform(key, 3000, low=0.3, high=0.9) - F32(0.7)),
        raw_key(1),
    )
    for how, (result,) in results.items():
        assert_same_bits(result, results["at once"][0], how)


def test_uniform_is_differentiable_in_its_bounds() -> None:
    def loss(key: Any, low: Any, high: Any) -> Any:
        return (random.uniform(key, 50, low=low, high=high) * np.arange(50, dtype=F32)).sum()

    inputs = raw_key(2), F32(-0.3), F32(0.9)
    gradient = ag.reverse(ag.capture(loss, *inputs), wrt=["low", "high"])
    fractions = random.uniform(raw_key(2), 50).astype(np.float64)
    for device in devices():
        _, low, high = run(gradient, inputs, device)
        np.testing.assert_allclose(low, ((1 - fractions) * np.arange(50)).sum(), rtol=1e-6)
        np.testing.assert_allclose(high, (fractions * np.arange(50)).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((), "i32"), DTypeError, "dtype must be a float type, found i32"),
        (((), float), DTypeError, "no element type"),
        (((), "f32", np.zeros(3), 1), DTypeError, r"low: f64\[3\] does not fit in f32"),
        (((), "f32", 0, np.int32(1)), DTypeError, "high: .*f32 and i32 have no common type"),
        (((), "f16", 0, 1e6), DTypeError, "high: 1000000.0 is too large for f16"),
        (((2,), "f32", np.zeros(3, F32), 1), ShapeError, r"low: f32\[3\] does not broadcast to the shape \(2,\)"),
        (((), "f32", np.zeros(1, F32), 1), ShapeError, r"low: f32\[1\] does not broadcast to the shape \(\)"),
        (((), "f32", 0, np.inf), ValueError, "from 0.0 to inf is no finite range in f32"),
        (((), "f32", -3e38, 3e38), ValueError, "no finite range in f32"),
    ],
)
def test_uniform_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        random.uniform(raw_key(0), *arguments)


@pytest.mark.parametrize("dtype", ["i32", "bool", "f32"])
def test_bits_refuses(dtype: str) -> None:
    with pytest.raises(DTypeError, match=f"random.bits: dtype must be u8, u16, u32 or u64, found {dtype}"):
        random.bits(raw_key(0), 3, dtype)


def test_bernoulli() -> None:
    cases = [(p, shape) for shape in ((), (0,), (5001,), (3, 7)) for p in (0.5, 0.1, 0.0, 1.0, 0.999)]
    expected = together(lambda key: [jax.random.bernoulli(key, p, shape) for p, shape in cases], raw_key(4))
    assert_draws(expected, lambda key: [random.bernoulli(key, p, shape) for p, shape in cases], raw_key(4))


@pytest.mark.parametrize("dtype", FLOATS)
def test_bernoulli_with_a_tensor(dtype: str) -> None:
    p = np.linspace(0, 1, 100).astype(DTYPES[dtype])
    shapes = (None, (30, 100))
    expected = ask_all(lambda key: [jax.random.bernoulli(key, p, shape) for shape in shapes], 4, dtype)
    assert_draws(expected, lambda key, p: [random.bernoulli(key, p, shape) for shape in shapes], raw_key(4), p)


def test_bernoulli_by_default_is_one_toss() -> None:
    assert_draws(reference(jax.random.bernoulli, raw_key(8)), random.bernoulli, raw_key(8))
    assert_same_bits(random.bernoulli(raw_key(8), 1, 3), np.array([True] * 3), "p = 1")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.5,), ValueError, r"p must be in \[0, 1\], found 1.5"),
        ((-0.1,), ValueError, r"p must be in \[0, 1\]"),
        ((float("nan"),), ValueError, r"p must be in \[0, 1\]"),
        ((np.array([0.5, 2], F32),), ValueError, r"p must be in \[0, 1\]"),
        ((np.array([0, 1]),), DTypeError, r"p must be a float, found i64\[2\]"),
        ((np.zeros(3, F32), (2,)), ShapeError, r"p: f32\[3\] does not broadcast to the shape \(2,\)"),
    ],
)
def test_bernoulli_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"random\.bernoulli: {message}"):
        random.bernoulli(raw_key(0), *arguments)


def limits(dtype: str) -> tuple[int, int]:
    info = np.iinfo(DTYPES[dtype])
    return int(info.min), int(info.max)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_randint(dtype: str) -> None:
    """Short ranges, and all that JAX lets one ask for: no bound that its own types do not hold."""
    lowest, highest = limits(dtype)
    low = max(-17, lowest)
    ranges = [*((low, low + span) for span in (1, 2, 10, 100, 127)), (low, low), (low + 5, low)]
    ranges.append((lowest, highest + (DTYPES[dtype].itemsize < 4)))
    cast = {"u32": np.uint32, "u64": np.uint64}.get(dtype, int)
    expected = [ask(jax.random.randint, 3, (1001,), cast(a), cast(b), dtype=dtype) for a, b in ranges]
    assert_draws(expected, lambda key: [random.randint(key, 1001, *ends, dtype) for ends in ranges], raw_key(3))


def test_randint_with_the_last_value() -> None:
    """As many values as there are words: the low word itself, moved."""
    dtypes = ["i32", "u32", "i64", "u64"]
    expected = []
    for dtype in dtypes:
        words = random.bits(random.split(raw_key(3))[1], 1001, "u" + dtype[1:])
        expected.append((words + np.array(limits(dtype)[0], DTYPES[dtype]).astype(words.dtype)).astype(DTYPES[dtype]))
    ranges = [(low, high + 1, dtype) for dtype in dtypes for low, high in [limits(dtype)]]
    assert_draws(expected, lambda key: [random.randint(key, 1001, *ends) for ends in ranges], raw_key(3))


def test_randint_ranges() -> None:
    ranges = [(0, 10), (5, 5), (5, 2), (-(2**31), 2**31 - 1), (0, 65536), (0, 65537)]
    expected = [ask(jax.random.randint, 11, (65537,), *bounds, dtype="i32") for bounds in ranges]
    assert_draws(expected, lambda key: [random.randint(key, 65537, *bounds) for bounds in ranges], raw_key(11))


def test_randint_shapes() -> None:
    expected = together(lambda key: [jax.random.randint(key, shape, 0, 10) for shape in SHAPES], raw_key(11))
    assert_draws(expected, lambda key: [random.randint(key, shape, 0, 10) for shape in SHAPES], raw_key(11))


@pytest.mark.parametrize("dtype", ["u8", "i32", "u64"])
def test_randint_between_tensors(dtype: str) -> None:
    wide = DTYPES["i32"] if DTYPES[dtype].itemsize < 4 else DTYPES[dtype]
    low = np.array([0, 3, 50, 120, 4], wide)
    high = np.array([[1], [7], [127]], wide)
    shape = (40, 3, 5)
    bounds = [(low, high), (low, high), (low, 100)]
    expected = ask_all(lambda key: [jax.random.randint(key, shape, *b, DTYPES[dtype]) for b in bounds], 6, dtype)

    def draw(key: Any, a: Any, b: Any) -> Any:
        return [random.randint(key, shape, *ends, dtype) for ends in ((a, b), (low, high), (a, 100))]

    assert_draws(expected, draw, raw_key(6), low, high)


def test_randint_clips_tensors_to_a_narrow_type() -> None:
    low, high = np.array([-70000, -300, 3], np.int32), np.array([70000, 300, 100000], np.int32)
    narrow, shape = ["i8", "u8", "i16", "u16"], (500, 3)
    expected = together(
        lambda key: [jax.random.randint(key, shape, low, high, d) for d in map(DTYPES.get, narrow)], raw_key(6)
    )
    draw = lambda key, a, b: [random.randint(key, shape, a, b, dtype) for dtype in narrow]  # noqa: E731
    assert_draws(expected, draw, raw_key(6), low, high)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, 0, 10, "f32"), DTypeError, "dtype must be an integer type, found f32"),
        ((3, 0, 257, "u8"), DTypeError, "from 0 up to 257: u8 holds 0 to 255"),
        ((3, -1, 7, "u32"), DTypeError, "from -1 up to 7: u32 holds 0 to 4294967295"),
        ((3, 0, 2**31 + 1), DTypeError, "from 0 up to 2147483649: i32 holds -2147483648 to 2147483647"),
        ((3, 0.5, 7), DTypeError, "low: 0.5 would lose its value in i32"),
        ((3, 0, np.int64(5)), DTypeError, r"high: i64\[\] does not fit in i32"),
        ((3, np.zeros(2, np.int32), 5), ShapeError, r"low: i32\[2\] does not broadcast to the shape \(3,\)"),
    ],
)
def test_randint_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"random\.randint: {message}"):
        random.randint(raw_key(0), *arguments)
