"""Data sets in memory: what they hold, what they refuse, and how they are divided."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from antegrad.data import DataError, Dataset, as_dataset
from antegrad.errors import AntegradError, DTypeError
from antegrad.losses import LabelError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2], np.uint8)


def test_fields() -> None:
    data = Dataset(X, Y, classes=["a", "b", "c"])
    assert len(data) == 6
    assert data.inputs.dtype == np.float32
    assert data.targets.dtype == np.uint8
    assert (data.names, data.classes, data.class_names) == (("inputs", "targets"), 3, ("a", "b", "c"))
    assert data["targets"] is data.targets
    assert data.nbytes == X.nbytes + Y.nbytes
    assert repr(data) == "Dataset(6 x inputs f32[4], targets u8[]; 3 classes)"


def test_arrays_are_neither_copied_nor_writable() -> None:
    data = Dataset(X, Y)
    assert np.shares_memory(data.inputs, X)
    with pytest.raises(ValueError, match="read-only"):
        data.inputs[0] = 1
    with pytest.raises(FrozenInstanceError):
        data.classes = 3  # type: ignore[misc]  # this is what is tested
    assert X.flags.writeable


def test_several_and_named_fields() -> None:
    three = Dataset(X, X + 1, Y)
    assert three.names == ("inputs0", "inputs1", "targets")
    assert [array.shape for array in three.inputs] == [(6, 4), (6, 4)]
    named = Dataset(states=X, actions=Y)
    assert named.names == ("states", "actions")
    np.testing.assert_array_equal(named.targets, Y)
    alone = Dataset(X)
    np.testing.assert_array_equal(alone.inputs, X)
    with pytest.raises(DataError, match="no targets: its only field is inputs"):
        _ = alone.targets


def test_copies_of_a_data_set() -> None:
    for copied in (pickle.loads(pickle.dumps(Dataset(X, Y, classes=3))), copy.deepcopy(Dataset(X, Y, classes=3))):
        np.testing.assert_array_equal(copied.inputs, X)
        assert copied.classes == 3


class Pair(NamedTuple):
    image: Any
    label: Any


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ((X, Y), ("inputs", "targets")),
        ({"states": X, "actions": Y}, ("states", "actions")),
        (Pair(X, Y), ("image", "label")),
        (X, ("inputs",)),
    ],
)
def test_any_arrays_are_a_data_set(given: Any, names: tuple[str, ...]) -> None:
    data = as_dataset(given)
    assert data.names == names
    assert as_dataset(data) is data


@pytest.mark.parametrize("given", [None, 3, "text", [X, Y], iter([X])])
def test_other_things_are_no_data_set(given: Any) -> None:
    with pytest.raises(DataError, match=f"found {type(given).__name__}"):
        as_dataset(given)


def test_big_endian_is_converted() -> None:
    data = Dataset(X.astype(">f4"), Y.astype(">i4"), classes=3)
    assert data.inputs.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(data.inputs, X)
    np.testing.assert_array_equal(data.targets, Y)


def wrong(row: tuple[int, ...], value: float, dtype: Any = np.float32) -> np.ndarray:
    array = np.zeros((6, 4), dtype)
    array[row] = value
    return array


BAD: dict[str, tuple[Any, type[AntegradError], str]] = {
    "nothing": (lambda: Dataset(), DataError, "at least one array"),
    "both": (lambda: Dataset(X, label=Y), DataError, "by position or all by name; label came after 1"),
    "lengths": (
        lambda: Dataset(X, Y[:5]),
        DataError,
        r"inputs and targets .* inputs f32\[6,4\] with 6 and targets u8\[5\] with 5",
    ),
    "named-lengths": (lambda: Dataset(a=X, b=X, c=Y[:2]), DataError, r"a and c .* c u8\[2\] with 2"),
    "empty": (lambda: Dataset(X[:0], Y[:0]), DataError, r"inputs is empty: f32\[0,4\] has no rows"),
    "scalar": (lambda: Dataset(3.0), DataError, "inputs is the number 3.0"),
    "nan": (lambda: Dataset(wrong((4, 2), np.nan), Y), DataError, r"inputs\[4, 2\] is nan; 1 of the 24 values"),
    "inf": (lambda: Dataset(wrong((5, 3), -np.inf, np.float64)), DataError, r"inputs\[5, 3\] is -inf"),
    "bf16": (lambda: Dataset(wrong((1, 0), np.nan, ml_dtypes.bfloat16)), DataError, r"inputs\[1, 0\] is nan"),
    "target": (lambda: Dataset(X, wrong((0, 1), np.nan)), DataError, r"targets\[0, 1\] is nan"),
    "label": (lambda: Dataset(X, Y, classes=2), LabelError, r"labels\[2\] is 2, expected a class from 0 to 1; 2 of 6"),
    "negative": (lambda: Dataset(X, Y.astype(int) - 1, classes=3), LabelError, r"labels\[0\] is -1"),
    "float-label": (lambda: Dataset(X, X, classes=3), DTypeError, "labels are integers"),
    "no-label": (lambda: Dataset(X, classes=3), DataError, "no targets"),
    "object": (lambda: Dataset(X, np.array([None] * 6)), DTypeError, r"targets: no element type dtype\('O'\)"),
    "text": (lambda: Dataset(np.array(["a", "b"])), DTypeError, "inputs: no element type"),
    "ragged": (lambda: Dataset([[1.0], [1.0, 2.0]]), DTypeError, "inputs: rows of different lengths"),
    "masked": (lambda: Dataset(np.ma.masked_equal(Y, 1)), DTypeError, "inputs: a masked array"),
    "no-field": (lambda: Dataset(X, Y)["labels"], DataError, "no field 'labels': it has inputs, targets"),
    "take": (lambda: Dataset(X, Y).take(7), DataError, "from 1 to 6, found 7"),
    "take-none": (lambda: Dataset(X, Y).take(0), DataError, "from 1 to 6, found 0"),
    "index": (lambda: Dataset(X, Y).subset([0, 6]), DataError, r"rows\[1\] is 6, and there are 6 examples"),
    "low-index": (lambda: Dataset(X, Y).subset([-7]), DataError, r"rows\[0\] is -7"),
    "mask": (lambda: Dataset(X, Y).subset([True, False]), DataError, r"bool\[6\], found bool\[2\]"),
    "floats": (lambda: Dataset(X, Y).subset([0.5]), DataError, "found float64"),
    "none-left": (lambda: Dataset(X, Y).subset(Y > 5), DataError, "no example is left of 6"),
    "empty-list": (lambda: Dataset(X, Y).subset([]), DataError, "no example is left"),
    "split-all": (lambda: Dataset(X, Y).split(6, 0), DataError, "a count from 1 to 5 or a fraction .* found 6"),
    "split-none": (lambda: Dataset(X, Y).split(0, 0), DataError, "found 0"),
    "split-one": (lambda: Dataset(X, Y).split(1.0, 0), DataError, "found 1.0"),
    "split-little": (lambda: Dataset(X, Y).split(0.01, 0), DataError, "found 0.01"),
    "split-nan": (lambda: Dataset(X, Y).split(float("nan"), 0), DataError, "found nan"),
    "split-bool": (lambda: Dataset(X, Y).split(True, 0), DataError, "found True"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str) -> None:
    make, error, message = BAD[case]
    with pytest.raises(error, match=message):
        make()


def test_nan_is_found_anywhere_and_admitted_on_request(rng: np.random.Generator) -> None:
    x = rng.random((3000, 1000), np.float32)
    Dataset(x)
    x[2999, 999] = np.nan
    with pytest.raises(DataError, match=r"inputs\[2999, 999\] is nan; 1 of the 3000000"):
        Dataset(x)
    assert np.isnan(Dataset(x, finite=False).inputs[2999, 999])


def test_rows_without_elements() -> None:
    assert len(Dataset(np.zeros((4, 0), np.float32))) == 4


def test_take_and_slices_are_views() -> None:
    data = Dataset(X, Y, classes=3)
    for part in (data.take(2), data.subset(slice(0, 2))):
        np.testing.assert_array_equal(part.inputs, X[:2])
        assert np.shares_memory(part.inputs, X)
        assert (part.classes, part.names) == (3, data.names)


def test_subset_by_index_and_mask() -> None:
    data = Dataset(X, Y)
    np.testing.assert_array_equal(data.subset([5, 0, 0, -1]).inputs, X[[5, 0, 0, 5]])
    part = data.subset(data.targets == 2)
    np.testing.assert_array_equal(part.inputs, X[[2, 5]])
    assert not part.inputs.flags.writeable


@pytest.mark.parametrize("size", [0.7, 700, np.float64(0.7), np.int64(700)])
def test_split_divides_without_remainder(size: float) -> None:
    data = Dataset(np.arange(1000), np.arange(1000) * 2)
    first, second = data.split(size, seed=1)
    assert (len(first), len(second)) == (700, 300)
    np.testing.assert_array_equal(np.sort(np.concatenate([first.inputs, second.inputs])), np.arange(1000))
    for part in (first, second):
        np.testing.assert_array_equal(part.targets, part.inputs * 2)
        assert (np.diff(part.inputs) > 0).all()


def test_split_depends_on_the_seed_alone() -> None:
    data = Dataset(np.arange(1000))
    same = [data.split(0.5, seed=3)[0].inputs for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert (same[0] != data.split(0.5, seed=4)[0].inputs).any()
    assert 0.4 < (same[0] < 500).mean() < 0.6
    np.testing.assert_array_equal(data.split(400, seed=None)[1].inputs, np.arange(400, 1000))


def test_split_draws_as_jax_does() -> None:
    """The rows are the first of ``jax.random.permutation(jax.random.key(0), 10)``, so that they stay the same."""
    assert Dataset(np.arange(10)).split(4, seed=0)[0].inputs.tolist() == [0, 1, 5, 8]
