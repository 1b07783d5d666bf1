"""Literals: the text of every constant evaluates to the bits of the constant."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import antegrad as ag
from antegrad import ops
from antegrad.ir.code import dtype_code, fill
from antegrad.ir.types import DTYPES, is_float
from antegrad.ops.literals import array_literal, filled_literal, scalar_literal
from tests.support import assert_same_bits, run

NAMES = {"np": np, "bfloat16": ml_dtypes.bfloat16}
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def evaluated(text: str) -> Any:
    return eval(text, dict(NAMES))


def all_finite(dtype: np.dtype) -> np.ndarray:
    """Every finite value of a 16-bit type."""
    values = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        return values[np.isfinite(values)]


def check(value: np.ndarray) -> None:
    """A 0-d array: the bare number, the constant, and the constant of an array and of a fill."""
    text = scalar_literal(value).text
    assert np.asarray(evaluated(text)).astype(value.dtype).tobytes() == value.tobytes(), text
    row = np.stack([value, value, value.dtype.type(1)])
    for made in (evaluated(array_literal(row).text), evaluated(filled_literal(value, (1,)).text)):
        assert made.dtype == value.dtype
        assert made[:1].tobytes() == value.tobytes(), text


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_16_bit_float(name: str) -> None:
    values = all_finite(DTYPES[name])
    assert values.size > 63000
    made = evaluated(f"np.array([{', '.join(scalar_literal(v).text for v in values)}], {dtype_code(values.dtype)})")
    np.testing.assert_array_equal(made.view(np.uint16), values.view(np.uint16))


@given(st.integers(0, 2**32 - 1))
def test_f32(bits: int) -> None:
    value = np.asarray(np.uint32(bits)).view(np.float32)
    if np.isfinite(value):
        check(value)


@given(st.integers(0, 2**64 - 1))
def test_f64(bits: int) -> None:
    value = np.asarray(np.uint64(bits)).view(np.float64)
    if np.isfinite(value):
        check(value)


@given(st.integers(-(2**20), 2**20), st.integers(1, 2**20))
def test_ratios(numerator: int, denominator: int) -> None:
    check(np.asarray(numerator / denominator, np.float32))
    check(np.asarray(numerator / denominator, np.float64))


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if is_float(dtype)])
@pytest.mark.parametrize("number", [0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 1e6, 2.0**15])
def test_special_floats(name: str, number: float) -> None:
    with np.errstate(over="ignore"):
        check(np.asarray(number).astype(DTYPES[name]))


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if is_float(dtype)])
def test_nan(name: str) -> None:
    assert np.isnan(evaluated(scalar_literal(np.asarray(np.nan).astype(DTYPES[name])).text))


@pytest.mark.parametrize("name", [name for name, dtype in DTYPES.items() if dtype.kind in "iu"])
def test_integers(name: str) -> None:
    limits = np.iinfo(DTYPES[name])
    for number in {limits.min, limits.min + 1, -1 if limits.min else 0, 0, 1, limits.max - 1, limits.max}:
        check(np.asarray(number, DTYPES[name]))


@pytest.mark.parametrize("value", [True, False])
def test_bool(value: bool) -> None:
    check(np.asarray(value))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1,), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("name", ["f32", "bf16", "i64", "bool"])
def test_arrays_keep_shape_and_type(shape: tuple[int, ...], name: str) -> None:
    values = (np.arange(np.prod(shape)).reshape(shape) - 2).astype(DTYPES[name])
    made = evaluated(array_literal(values).text)
    assert (made.shape, made.dtype, made.tobytes()) == (values.shape, values.dtype, values.tobytes())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0.0"),
        (1.0, "1"),
        (0.5, "0.5"),
        (2 / 512, "1 / 256"),
        (-2 / 300, "-1 / 150"),
        (1 / 3, "1 / 3"),
        (0.1, "0.1"),
        (1e-8, "1e-08"),
    ],
)
def test_numbers_are_written_as_a_person_would(number: float, text: str) -> None:
    assert scalar_literal(np.float32(number)).text == text


def test_a_ratio_is_put_in_parentheses_where_it_must() -> None:
    third = scalar_literal(np.float32(1 / 3))
    assert fill("{x} * {y}", ("x", "y"), (third, third), {}).text == "1 / 3 * (1 / 3)"
    assert fill("{x} ** {y}", ("x", "y"), (third, third), {}).text == "(1 / 3) ** (1 / 3)"
    assert fill("-{x}", ("x",), (third,), {}).text == "-(1 / 3)"


@given(st.sampled_from(["f64", "f32", "f16", "bf16"]), st.integers(0, 2**64 - 1))
def test_a_constant_in_a_program(name: str, bits: int) -> None:
    """Through the whole way, scalar and array, in an expression: captured, printed, executed."""
    dtype = DTYPES[name]
    value = np.asarray(bits % 2 ** (8 * dtype.itemsize), BITS[dtype.itemsize]).view(dtype)

    def function(x: Any) -> Any:
        row = ops.concatenate([x, np.stack([value, value])])
        return row, ops.where(x == x, value, x), ops.full((2,), float(value), name)

    given_array = np.zeros(1, dtype)
    found = run(ag.capture(function, given_array), [given_array], "host")
    assert_same_bits(found[0], np.array([0, value, value], dtype), "array")
    assert_same_bits(found[1], np.array([value], dtype), "where")
    assert_same_bits(found[2], np.array([value, value], dtype), "full")
