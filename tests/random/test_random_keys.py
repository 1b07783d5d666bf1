"""Keys: made from seeds, split, and folded, with the bits of `jax.random`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.extend.random
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops, random
from antegrad.errors import DTypeError, ShapeError
from antegrad.random.keys import counters
from tests.random.comparison import assert_draws, everywhere, raw_key, reference, together
from tests.support import assert_same_bits

SEEDS = [0, 1, 42, -1, -5, 20260921, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**63 - 1, -(2**63)]
NUMPY_SEEDS = [
    np.int8(-1), np.uint8(255), np.int16(-3), np.uint16(3), np.int32(-(2**31)), np.uint32(2**32 - 1), np.int64(-1),
    np.int64(2**32 + 5), np.uint64(2**63 + 7),
]  # fmt: skip


def test_case_threefry_values() -> None:
    assert random.bits(random.key(0), 4).tolist() == [4070199207, 4202968722, 1427181096, 2012915765]
    assert random.split(random.key(0)).tolist() == [[1797259609, 2579123966], [928981903, 3453687069]]
    assert random.permutation(random.key(0), 8).tolist() == [0, 1, 5, 6, 4, 3, 2, 7]
    uniform = np.array([0.488709569, 0.679797173, 0.616271496], np.float32)
    assert_same_bits(random.uniform(random.key(42), 3), uniform, "uniform")
    normal = np.array([-0.028304616, 0.467131853, 0.295702964], np.float32)
    assert_same_bits(random.normal(random.key(42), 3), normal, "normal")
    assert random.fold_in(random.key(7), 3).tolist() == [276534068, 1641862660]


@pytest.mark.parametrize("seed", SEEDS)
def test_key_of_a_python_integer(seed: int) -> None:
    assert_same_bits(random.key(seed), reference(jax.random.PRNGKey, seed), "key")


def test_key_of_an_array_or_a_traced_integer() -> None:
    expected = [reference(jax.random.PRNGKey, seed) for seed in NUMPY_SEEDS]
    assert_draws(expected, lambda *seeds: [random.key(seed) for seed in seeds], *NUMPY_SEEDS)


def test_key_is_that_of_the_typed_keys_of_jax() -> None:
    assert_same_bits(random.key(7), np.asarray(jax.random.key_data(jax.random.key(7))), "key")


def test_a_key_of_jax_is_taken_as_it_is() -> None:
    key = jax.random.PRNGKey(3)
    assert_same_bits(random.bits(key, 5), reference(jax.random.bits, key, (5,)), "bits")


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (1.0, DTypeError, "the seed must be an integer, found f32"),
        (np.float32(1), DTypeError, "the seed must be an integer"),
        (True, DTypeError, "the seed must be an integer, found bool"),
        (np.array([1, 2]), ShapeError, r"the seed must be one integer, found i64\[2\]"),
        (2**63, DTypeError, "does not fit in i64"),
        (-(2**63) - 1, DTypeError, "does not fit in i64"),
    ],
)
def test_key_refuses(seed: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"random\.key: (seed: .*)?{message}(.|\n)*test_random_keys\.py"):
        random.key(seed)


def test_split() -> None:
    numbers: list[Any] = [0, 1, 2, 3, 1000, (), (0,), (2, 3), [2]]
    for seed in (0, -7):
        expected = together(lambda key: [jax.random.split(key, num) for num in numbers], raw_key(seed))
        assert_draws(expected, lambda key: [random.split(key, num) for num in numbers], raw_key(seed))


def test_split_unpacks() -> None:
    first, second = random.split(raw_key(5))
    assert_same_bits(first, reference(jax.random.split, raw_key(5))[0], "first")
    assert_draws(second, lambda key: [*random.split(key)][1], raw_key(5))


def test_the_first_keys_do_not_depend_on_their_number() -> None:
    assert_same_bits(random.split(raw_key(1), 3), random.split(raw_key(1), 1000)[:3], "split")


@pytest.mark.parametrize("data", [0, 3, 2**31, 2**32 - 1])
def test_fold_in_of_a_python_integer(data: int) -> None:
    assert_same_bits(random.fold_in(raw_key(7), data), reference(jax.random.fold_in, raw_key(7), data), "fold_in")


def test_fold_in_of_an_array_or_a_traced_integer() -> None:
    data = [np.uint32(2**32 - 1), np.int64(-1), np.int64(2**40 + 3), np.uint64(2**40 + 3), np.int32(-1), np.int8(-1)]
    expected = [reference(jax.random.fold_in, raw_key(7), number) for number in data]
    assert_draws(expected, lambda key, *data: [random.fold_in(key, number) for number in data], raw_key(7), *data)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (-1, DTypeError, "data: -1 does not fit in u32"),
        (2**32, DTypeError, "data: 4294967296 does not fit in u32"),
        (1.5, DTypeError, "data must be an integer, found f32"),
        (np.zeros(3, np.int32), ShapeError, r"data must be one integer, found i32\[3\]"),
    ],
)
def test_fold_in_refuses(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"random\.fold_in: {message}"):
        random.fold_in(raw_key(0), data)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (np.zeros((3, 2), np.uint32), ShapeError, r"found u32\[3,2\]: take one of these keys"),
        (np.zeros(3, np.uint32), ShapeError, r"found u32\[3\]: make one with random.key"),
        (np.zeros(2, np.int32), DTypeError, r"found i32\[2\]: make one with random.key"),
        (0, DTypeError, r"found i32\[\]: make one with random.key"),
    ],
)
def test_what_is_no_key_is_refused(key: Any, error: type[Exception], message: str) -> None:
    draws = [
        random.split, random.bits, random.uniform, random.normal, random.bernoulli, random.exponential, random.gumbel,
        lambda key: random.fold_in(key, 1), lambda key: random.randint(key, (), 0, 2), lambda key: random.cauchy(key),
        lambda key: random.permutation(key, 3), lambda key: random.choice(key, 3), lambda key: random.laplace(key),
        lambda key: random.truncated_normal(key, -1, 1), lambda key: random.categorical(key, np.zeros(2, np.float32)),
    ]  # fmt: skip
    for draw in draws:
        with pytest.raises(error, match=rf"random\.\w+: a key is u32\[2\], {message}(.|\n)*test_random_keys\.py"):
            draw(key)


@pytest.mark.parametrize("shape", [-1, (2, -1), 1.5, (2, 1.5), True, None], ids=repr)
def test_what_is_no_shape_is_refused(shape: Any) -> None:
    for draw in (random.split, random.bits, random.uniform, random.normal):
        with pytest.raises(ShapeError, match=r"random\.\w+: "):
            draw(raw_key(0), shape)


def test_a_traced_key_of_another_type_is_refused() -> None:
    with pytest.raises(ShapeError, match=Path(__file__).name):
        ag.capture(random.bits, np.zeros((2, 2), np.uint32))


@pytest.mark.parametrize("size", [2**32, 2**32 + 3])
def test_counters_of_more_than_32_bits(size: int) -> None:
    """Through XLA, which computes the last four alone."""
    words = ag.capture(lambda: [word[-4:] for word in counters(size)]).run(device="cpu")
    last = np.arange(size - 4, size, dtype=np.uint64)
    assert_same_bits(words[0], (last >> np.uint64(32)).astype(np.uint32), "high words")
    assert_same_bits(words[1], last.astype(np.uint32), "low words")


def test_words_of_counters_beyond_32_bits() -> None:
    high, low = np.array([0, 1, 2**32 - 1], np.uint32), np.array([2**32 - 1, 0, 5], np.uint32)
    expected = reference(jax.extend.random.threefry_2x32, raw_key(9), np.concatenate([high, low]))
    assert_draws(expected, lambda key: ops.concatenate(ops.threefry2x32(key, high, low)), raw_key(9))


def test_keys_carried_through_a_loop() -> None:
    """As an epoch does: split at every step, and draw."""

    def steps(key: Any) -> Any:
        def step(key: Any, number: Any) -> Any:
            key, own = random.split(key)
            return key, random.normal(random.fold_in(own, number), (5,))

        return ag.scan(step, key, np.arange(4, dtype=np.int32))

    key, expected = jax.random.PRNGKey(8), []
    for number in range(4):
        key, own = jax.random.split(key)
        expected.append(jax.random.normal(jax.random.fold_in(own, number), (5,)))
    assert_draws([np.asarray(key), np.stack(expected)], steps, raw_key(8))


def test_a_concrete_key_inside_a_captured_function() -> None:
    expected = reference(jax.random.normal, jax.random.fold_in(jax.random.PRNGKey(3), 5), (4,))
    results = everywhere(lambda step: random.normal(random.fold_in(random.key(3), step), 4), np.int32(5))
    for how, (result,) in results.items():
        assert_same_bits(result, expected, how)
