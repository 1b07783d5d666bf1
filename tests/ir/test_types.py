"""Types: what a name means, how a type prints, what may be promoted to what, and how misuse is refused."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import antegrad as ag
from antegrad.ir.types import (
    DTYPES,
    SHORT_NAMES,
    TensorType,
    accumulation_dtype,
    as_dtype,
    is_float,
    is_integer,
    promote,
    spec,
    type_of,
)

NAMES = list(DTYPES)


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_name_an_element_type(name: str) -> None:
    dtype = DTYPES[name]
    ways = [name, dtype, dtype.type, dtype.name, np.zeros(1, dtype).dtype]
    assert [as_dtype(way) for way in ways] == [dtype] * 5
    assert all(as_dtype(way) is dtype for way in ways)
    assert SHORT_NAMES[dtype] == name


def test_python_types() -> None:
    assert as_dtype(bool) == DTYPES["bool"]


@pytest.mark.parametrize(
    "wrong", [float, int, complex, None, "c64", "complex64", "f99", object, "U3", np.complex64, ">f4", 32]
)
def test_what_is_no_element_type_is_refused_with_the_list(wrong: Any) -> None:
    with pytest.raises(ag.DTypeError, match="f64, f32, bf16, f16, i64") as error:
        as_dtype(wrong)
    assert repr(wrong) in str(error.value)


@pytest.mark.parametrize(
    ("type", "text", "size", "nbytes"),
    [
        (spec((512, 2)), "f32[512,2]", 1024, 4096),
        (spec(()), "f32[]", 1, 4),
        (spec(3, "i8"), "i8[3]", 3, 3),
        (spec(np.int64(3), "bool"), "bool[3]", 3, 3),
        (spec((0, 5), "bf16"), "bf16[0,5]", 0, 0),
        (spec([2, np.int32(3)], "u64"), "u64[2,3]", 6, 48),
    ],
)
def test_printed_size_and_bytes(type: TensorType, text: str, size: int, nbytes: int) -> None:
    assert (str(type), repr(type), type.size, type.nbytes) == (text, text, size, nbytes)


def test_a_type_is_a_value() -> None:
    assert spec((2, 3)) == spec([2, 3], np.float32)
    assert len({spec((2, 3)), spec((2, 3), "f32"), spec((3, 2))}) == 2
    assert spec((2, 3)).with_shape([4]) == spec(4)
    assert spec((2, 3)).with_dtype(DTYPES["i8"]) == spec((2, 3), "i8")
    with pytest.raises(FrozenInstanceError):
        spec(3).shape = (4,)  # type: ignore[misc]


@pytest.mark.parametrize("shape", [-1, (2, -1), (2.0,), (True,), ("2",), (None,)])
def test_what_is_no_shape_is_refused(shape: Any) -> None:
    with pytest.raises(ag.ShapeError, match="a shape holds sizes >= 0"):
        spec(shape)


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (True, "bool[]"),
        (3, "i32[]"),
        (3.0, "f32[]"),
        (np.float64(3), "f64[]"),
        (np.float32(3), "f32[]"),
        (np.bool_(True), "bool[]"),
        (np.zeros((2, 0), np.uint8), "u8[2,0]"),
        (np.zeros(2, ml_dtypes.bfloat16), "bf16[2]"),
    ],
)
def test_type_of(value: Any, type: str) -> None:
    assert str(type_of(value)) == type


@pytest.mark.parametrize("value", ["text", None, [1.0], {"a": 1}, 1j])
def test_type_of_what_has_none(value: Any) -> None:
    with pytest.raises(ag.DTypeError, match="expected an array or a number"):
        type_of(value)


def values(dtype: np.dtype) -> list[float]:
    """The ends of the range and the finest values of a type, as exact Python numbers."""
    if dtype.kind == "b":
        return [0, 1]
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        return [limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max]
    info = ml_dtypes.finfo(dtype)
    return [float(info.max), float(info.smallest_subnormal), 1 + float(info.eps), -float(info.max)]


def holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether every value of `narrow` comes back from `wide`, by trying the ones that are hard to hold."""
    if is_float(narrow) and not is_float(wide):
        return False
    with np.errstate(all="ignore"):
        kept = [np.asarray(value, narrow).astype(wide) for value in values(narrow)]
    exact = [int(k) if is_integer(wide) or (is_integer(narrow) and np.isfinite(k)) else float(k) for k in kept]
    return exact == values(narrow)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(NAMES, NAMES)))
def test_promotion_keeps_every_value(a: str, b: str) -> None:
    """The wider of two types when it holds the other, else an error that names both; by trial, not by table."""
    candidates = [t for t, other in ((a, b), (b, a)) if holds(DTYPES[t], DTYPES[other])]
    if candidates:
        assert promote([DTYPES[a], DTYPES[b]]) == DTYPES[candidates[0]]
    else:
        with pytest.raises(ag.DTypeError, match=r"keeps every bit.*\.astype") as error:
            promote([DTYPES[a], DTYPES[b]])
        assert a in str(error.value)
        assert b in str(error.value)


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
def test_promotion_of_many_does_not_depend_on_order(names: list[str]) -> None:
    def outcome(order: list[str]) -> Any:
        try:
            return promote([DTYPES[name] for name in order])
        except ag.DTypeError:
            return None

    found = outcome(names)
    assert found == outcome(names[::-1])
    assert found is None or all(holds(found, DTYPES[name]) for name in names)


def test_accumulation() -> None:
    wide = {name: SHORT_NAMES[accumulation_dtype(dtype)] for name, dtype in DTYPES.items()}
    assert wide == {name: "f32" if name in ("f16", "bf16") else name for name in NAMES}
