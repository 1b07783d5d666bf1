"""Initializers: the bits of `jax.nn.initializers`, the moments that they promise, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import random
from antegrad.errors import ShapeError
from antegrad.nn import initializers
from tests.support import assert_same_bits, devices, run

SHAPES = [(2, 16), (16, 1), (3, 3, 8, 16)]


def scaled_normal(std: Callable[[tuple[int, ...]], float]) -> Callable[..., Any]:
    """``jax.random.normal`` times a standard deviation, in two steps: jax from 0.12 on compiles its own initializer as
    one program, in which XLA merges two factors and rounds once less."""

    def init(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.random.normal(key, shape, dtype) * jax.numpy.array(std(shape), dtype)

    return init


PAIRS = {
    "kaiming_normal": (initializers.kaiming_normal, jax.nn.initializers.he_normal()),
    "kaiming_uniform": (initializers.kaiming_uniform, jax.nn.initializers.he_uniform()),
    "xavier_normal": (initializers.xavier_normal, jax.nn.initializers.glorot_normal()),
    "xavier_uniform": (initializers.xavier_uniform, jax.nn.initializers.glorot_uniform()),
    "lecun_normal": (initializers.lecun_normal, jax.nn.initializers.lecun_normal()),
    "lecun_uniform": (initializers.lecun_uniform, jax.nn.initializers.lecun_uniform()),
    "normal": (initializers.normal(0.02), scaled_normal(lambda shape: 0.02)),
    "uniform": (initializers.uniform(0.3), jax.nn.initializers.uniform(0.3)),
    "truncated_normal": (
        initializers.truncated_normal(0.02, -1.0, 3.0),
        jax.nn.initializers.truncated_normal(0.02, lower=-1.0, upper=3.0),
    ),
    "fan_out": (
        initializers.variance_scaling(0.7, "fan_out", "normal"),
        scaled_normal(lambda shape: (0.7 / initializers.fans(shape)[1]) ** 0.5),
    ),
    "zeros": (initializers.zeros, jax.nn.initializers.zeros),
    "ones": (initializers.ones, jax.nn.initializers.ones),
    "constant": (initializers.constant(0.1), jax.nn.initializers.constant(0.1)),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_bits_are_those_of_jax(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    own, theirs = PAIRS[name]
    full = {"f32": np.float32, "bf16": jax.numpy.bfloat16}[dtype]
    expected = np.asarray(theirs(jax.random.PRNGKey(20260921), shape, full))
    assert_same_bits(own(random.key(20260921), shape, dtype), expected, name)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["kaiming_normal", "xavier_uniform", "normal", "constant"])
def test_initializers_can_be_captured(name: str, device: str) -> None:
    own, key = PAIRS[name][0], random.key(7)
    program = ag.capture(lambda key: own(key, (4, 5)), key)
    (found,) = run(program, [key], device)
    np.testing.assert_allclose(found, own(key, (4, 5)), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("kaiming_normal", (2 / (9 * 40)) ** 0.5),
        ("kaiming_uniform", (2 / (9 * 40)) ** 0.5),
        ("xavier_normal", (2 / (9 * 90)) ** 0.5),
        ("xavier_uniform", (2 / (9 * 90)) ** 0.5),
        ("lecun_normal", (1 / (9 * 40)) ** 0.5),
        ("lecun_uniform", (1 / (9 * 40)) ** 0.5),
        ("normal", 0.02),
    ],
)
def test_moments_of_a_convolution_kernel(name: str, std: float) -> None:
    """18,000 draws: mean and deviation within four standard errors."""
    sample = PAIRS[name][0](random.key(1), (3, 3, 40, 50)).astype(np.float64)
    assert abs(sample.mean()) < 4 * std / sample.size**0.5
    assert sample.std() == pytest.approx(std, rel=4 / (2 * sample.size) ** 0.5)


def test_bounds() -> None:
    key = random.key(2)
    limit = (3 / 64) ** 0.5
    assert np.abs(initializers.lecun_uniform(key, (64, 64))).max() == pytest.approx(limit, rel=1e-2)
    cut = 2 / 0.8796 / 8
    assert cut * 0.98 < np.abs(initializers.lecun_normal(key, (64, 256))).max() < cut * 1.001
    sample = initializers.truncated_normal(2.0, -1.0, 0.5)(key, (4000,))
    assert -2 < sample.min() < -1.98
    assert 0.98 < sample.max() < 1
    assert (initializers.uniform(0.3)(key, (4000,)) >= 0).all()


def test_fans() -> None:
    assert initializers.fans((3, 5)) == (3, 5)
    assert initializers.fans((3, 3, 8, 16)) == (72, 144)
    assert initializers.fans([2, 3, 4, 5, 6]) == (120, 144)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_vector_has_no_fans(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"two axes or more, found shape \(.*use zeros"):
        initializers.kaiming_normal(random.key(0), shape)


def test_an_empty_kernel_is_empty() -> None:
    assert initializers.lecun_normal(random.key(0), (0, 3)).shape == (0, 3)


def test_unknown_names_are_refused() -> None:
    mode: Any = "fan_max"
    with pytest.raises(ValueError, match="mode must be 'fan_in', 'fan_out' or 'fan_avg', found 'fan_max'"):
        initializers.variance_scaling(1.0, mode, "normal")
    with pytest.raises(ValueError, match=r"distribution must be .*, found 'cauchy'"):
        initializers.variance_scaling(1.0, "fan_in", "cauchy")  # pyright: ignore[reportArgumentType]
