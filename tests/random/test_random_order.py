"""Permutations and selections, with the bits of `jax.random` on every device."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops, random
from antegrad.errors import DTypeError, ShapeError
from tests.random.comparison import assert_draws, raw_key, reference, together
from tests.support import assert_same_bits, devices, run


def test_permutation_of_a_range() -> None:
    """One round of sorting up to 1625 elements, two beyond."""
    sizes = [0, 1, 2, 8, 1625, 1626]
    expected = together(lambda key: [jax.random.permutation(key, size) for size in sizes], raw_key(3))
    assert_draws(expected, lambda key: [random.permutation(key, size) for size in sizes], raw_key(3))
    for size, order in zip(sizes, expected, strict=True):
        assert np.array_equal(np.sort(order), np.arange(size))


def test_permutation_of_many() -> None:
    expected = reference(jax.random.permutation, raw_key(3), 65537)
    assert_same_bits(random.permutation(raw_key(3), 65537), expected, "permutation")


@pytest.mark.parametrize("size", [0, 1, 2, 1625, 1626, 65537, 2_642_245, 2_642_246, 10**9])
def test_rounds_of_sorting(size: int) -> None:
    program = ag.capture(lambda key: random.permutation(key, size), raw_key(0))
    rounds = sum(equation.primitive is ops.sort_p for equation in program.equations)
    assert rounds == int(np.ceil(3 * np.log(max(1, size)) / np.log(2**32 - 1)))


@pytest.mark.parametrize("independent", [False, True])
def test_permutation_of_an_array(independent: bool) -> None:
    x = np.arange(4 * 7 * 5, dtype=np.float32).reshape(4, 7, 5)
    axes = (0, 1, 2, -1)
    expected = together(lambda key: [jax.random.permutation(key, x, axis, independent) for axis in axes], raw_key(3))
    draw = lambda key, x: [random.permutation(key, x, axis, independent) for axis in axes]  # noqa: E731
    assert_draws(expected, draw, raw_key(3), x)


def test_permutation_of_a_line() -> None:
    dtypes = (np.bool_, np.uint8, np.int32, np.float16, ml_dtypes.bfloat16)
    lines = [(np.arange(100) % 3).astype(dtype) for dtype in dtypes]
    expected = together(lambda key: [jax.random.permutation(key, line) for line in lines], raw_key(4))
    assert_draws(expected, lambda key, *lines: [random.permutation(key, x) for x in lines], raw_key(4), *lines)


def test_permutation_of_independent_lines_counts_all_elements_for_its_rounds() -> None:
    x = np.arange(2000, dtype=np.int32).reshape(2, 1000)
    expected = reference(jax.random.permutation, raw_key(3), x, 1, True)
    assert_draws(expected, lambda key, x: random.permutation(key, x, 1, True), raw_key(3), x)


def test_case_shuffle_is_permutation() -> None:
    orders = [random.epoch_permutation(random.key(0), epoch, 10) for epoch in range(3)]
    for epoch, order in enumerate(orders):
        assert sorted(order.tolist()) == list(range(10))
        key = jax.random.fold_in(jax.random.key(0), epoch)
        assert_same_bits(order, reference(jax.random.permutation, key, 10), "order")
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_the_order_of_an_epoch_is_the_same_in_a_program() -> None:
    program = ag.capture(lambda epoch: random.epoch_permutation(random.key(5), epoch, 3000), np.int32(0))
    for epoch in (0, 1, 77):
        for device in devices():
            (order,) = run(program, [np.int32(epoch)], device)
            assert_same_bits(order, random.epoch_permutation(random.key(5), epoch, 3000), device)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-3,), ShapeError, "there are no -3 elements"),
        ((2.0,), DTypeError, r"an integer or an array with an axis is needed, found f32\[\]"),
        ((True,), DTypeError, "an integer or an array"),
        ((5, 1), ShapeError, "axis 1 of a tensor with 1 axes"),
        ((np.zeros((2, 3)), 2), ShapeError, r"axis 2 of f64\[2,3\]"),
    ],
)
def test_permutation_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"random\.permutation: {message}"):
        random.permutation(raw_key(0), *arguments)


def test_a_traced_size_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"random\.permutation: the number of elements must be known"):
        ag.capture(random.permutation, raw_key(0), np.int32(3))


@pytest.mark.parametrize("replace", [True, False])
def test_choice(replace: bool) -> None:
    x = np.arange(63, dtype=np.float32).reshape(7, 9)
    cases = [(axis, shape) for axis in (None, 0, -1) for shape in ((), (5,), (2, 3))]

    def draw(library: Any, key: Any, x: Any) -> Any:
        return [library.choice(key, 9 if a is None else x, shape, replace, axis=a or 0) for a, shape in cases]

    assert_draws(together(partial(draw, jax.random), raw_key(2), x), partial(draw, random), raw_key(2), x)


@pytest.mark.parametrize("arguments", [(0, 1), (np.zeros((0, 3)), 2), (4, 5, False)], ids=str)
def test_choice_refuses(arguments: Any) -> None:
    with pytest.raises(ShapeError, match=r"random\.choice: \d elements of \d with replace="):
        random.choice(raw_key(0), *arguments)


def test_choice_of_nothing() -> None:
    assert random.choice(raw_key(0), 0, (0,)).shape == (0,)
    assert random.choice(raw_key(0), np.zeros((4, 3)), (0, 2), axis=1).shape == (4, 0, 2)
