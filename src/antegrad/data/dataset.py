"""Data sets in memory: arrays of one length, checked once, when they are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from antegrad import random
from antegrad.data.error import DataError
from antegrad.errors import DTypeError
from antegrad.ir.types import is_float, is_integer, type_of
from antegrad.losses import check_labels
from antegrad.ops.dispatch import as_array

__all__ = ["Dataset", "as_dataset", "part_size", "random_parts"]

CHECKED_BYTES = 1 << 22
"""Bytes that the search for NaN looks at in one step, so that it needs no mask as large as the data."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Dataset:
    """Examples in memory: one or more arrays, of which row i belongs to example i. Immutable.

        Dataset(images, labels, classes=10)           # fields "inputs" and "targets"
        Dataset(left, right, labels)                  # "inputs0", "inputs1" and "targets"
        Dataset(states=states, actions=actions)       # names of your own; the last field has the targets

    Arrays keep their element type (u8 images stay u8) and are not copied, except that big-endian ones are converted;
    the ones held here are read-only views. Rows are along the first axis.

    Args:
      classes: the number of classes, or their names, where the targets are labels: integers of any shape.
      finite: False admits NaN and infinities in float fields.

    Raises:
      DataError: no field, a field without rows, fields of different lengths, a NaN or an infinity.
      DTypeError: an element type that antegrad does not have (objects, strings, complex numbers).
      LabelError: a label outside of ``0 .. classes - 1``, with its index and value.
    """

    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    classes: int | None
    class_names: tuple[str, ...] | None

    def __init__(
        self, *arrays: Any, classes: int | Sequence[str] | None = None, finite: bool = True, **fields: Any
    ) -> None:
        names = _names(len(arrays), fields)
        held = tuple(_field(name, array) for name, array in zip(names, (*arrays, *fields.values()), strict=True))
        _check_lengths(names, held)
        if finite:
            for name, array in zip(names, held, strict=True):
                _check_finite(name, array)
        class_names = tuple(classes) if isinstance(classes, Sequence) else None
        count = len(classes) if isinstance(classes, Sequence) else classes
        self._set(names, held, count, class_names)
        if count is not None:
            check_labels(self.targets, count)

    def _set(
        self,
        names: tuple[str, ...],
        arrays: tuple[np.ndarray, ...],
        classes: int | None,
        class_names: tuple[str, ...] | None,
    ) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "arrays", tuple(map(_read_only, arrays)))
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "class_names", class_names)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.arrays[0])

    def __getitem__(self, name: str) -> np.ndarray:
        """The field called `name`."""
        if name not in self.names:
            raise DataError(f"the data set has no field {name!r}: it has {', '.join(self.names)}")
        return self.arrays[self.names.index(name)]

    def __repr__(self) -> str:
        rows = (type_of(array) for array in self.arrays)
        fields = ", ".join(f"{n} {t.with_shape(t.shape[1:])}" for n, t in zip(self.names, rows, strict=True))
        return f"Dataset({len(self)} x {fields}{'' if self.classes is None else f'; {self.classes} classes'})"

    @property
    def inputs(self) -> Any:
        """All fields but the last: the array, or a tuple of arrays where there are several; the field of a lone one."""
        inputs = self.arrays[:-1] or self.arrays
        return inputs[0] if len(inputs) == 1 else inputs

    @property
    def targets(self) -> np.ndarray:
        """The last field. Raises `DataError` where it is the only one."""
        if len(self.arrays) == 1:
            raise DataError(f"the data set has no targets: its only field is {self.names[0]}")
        return self.arrays[-1]

    @property
    def nbytes(self) -> int:
        """Size of all fields in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def take(self, count: int) -> Dataset:
        """The first `count` examples, not copied. Raises `DataError` where there are fewer."""
        if not 0 < count <= len(self):
            raise DataError(f"take: expected a number of examples from 1 to {len(self)}, found {count}")
        return self.subset(slice(count))

    def subset(self, rows: Any) -> Dataset:
        """The examples at `rows`: a slice (not copied), indices (integers[m]) or a mask (bool[len]); copied.

        Indices count from the end where negative, and may repeat. Raises `DataError` for an index or a mask that does
        not fit, and where no example is left.
        """
        index = rows if isinstance(rows, slice) else _indices(rows, len(self))
        arrays = tuple(array[index] for array in self.arrays)
        if not len(arrays[0]):
            raise DataError(f"subset: no example is left of {len(self)}")
        part = object.__new__(Dataset)
        part._set(self.names, arrays, self.classes, self.class_names)
        return part

    def split(self, size: float, seed: int | None) -> tuple[Dataset, Dataset]:
        """Two parts without a common example; the first has `size` examples: a count, or a fraction below 1.

        Which examples, is drawn with `seed`, the same on every machine; None puts the first ones into the first part,
        without copying. Both parts keep the order that the examples have here. Raises `DataError` where a part would
        be empty.
        """
        count = part_size(size, len(self))
        if seed is None:
            return self.subset(slice(count)), self.subset(slice(count, None))
        first, second = random_parts(len(self), count, seed)
        return self.subset(first), self.subset(second)


def as_dataset(data: Any) -> Dataset:
    """`data` as a `Dataset`: itself, a tuple of arrays (inputs first, targets last), a dict of arrays, or one array."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping):
        return Dataset(**data)
    if isinstance(data, tuple):
        return Dataset(**data._asdict()) if hasattr(data, "_asdict") else Dataset(*data)  # type: ignore[attr-defined]
    if hasattr(data, "shape") and hasattr(data, "dtype"):
        return Dataset(data)
    raise DataError(f"expected a Dataset, a tuple or dict of arrays, or an array, found {type(data).__name__}")


def part_size(size: float, total: int) -> int:
    """The number of things that `size`, a count or a fraction, means of `total`; neither none nor all of them."""
    if isinstance(size, bool) or not isinstance(size, Real):
        raise DataError(f"split: expected a count or a fraction, found {size!r}")
    count = int(size) if isinstance(size, Integral) else round(float(size) * total) if 0 < size < 1 else 0
    if not 0 < count < total:
        raise DataError(
            f"split: both parts of {total} must have something, expected a count from 1 to {total - 1} or a fraction "
            f"between 0 and 1, found {size!r}"
        )
    return count


def random_parts(total: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` of the indices below `total`, drawn with `seed`, and the others; both (i32) ascending."""
    order = np.asarray(random.permutation(random.key(seed), total))
    return np.sort(order[:count]), np.sort(order[count:])


def _names(positional: int, fields: Mapping[str, Any]) -> tuple[str, ...]:
    if positional and fields:
        raise DataError(f"give all fields by position or all by name; {', '.join(fields)} came after {positional}")
    if fields:
        return tuple(fields)
    if positional > 2:
        return (*(f"inputs{i}" for i in range(positional - 1)), "targets")
    if not positional:
        raise DataError("a data set needs at least one array")
    return ("inputs", "targets")[:positional]


def _field(name: str, array: Any) -> np.ndarray:
    try:
        array = as_array(array)
    except (DTypeError, ValueError) as error:  # NumPy's ValueError is for ragged lists
        raise DTypeError(f"{name}: {error}. Convert it to numbers of one type") from error
    if not array.ndim:
        raise DataError(f"{name} is the number {array}, expected an array with one row for each example")
    return array


def _check_lengths(names: tuple[str, ...], arrays: tuple[np.ndarray, ...]) -> None:
    for name, array in zip(names, arrays, strict=True):
        if not len(array):
            raise DataError(f"{name} is empty: {type_of(array)} has no rows")
        if len(array) != len(arrays[0]):
            raise DataError(
                f"{names[0]} and {name} must have one row for each example, and so the same length: found "
                f"{names[0]} {type_of(arrays[0])} with {len(arrays[0])} and {name} {type_of(array)} with {len(array)}"
            )


def _check_finite(name: str, array: np.ndarray) -> None:
    if not is_float(array.dtype):
        return
    rows = max(1, CHECKED_BYTES // max(1, array[0].nbytes))
    for start in range(0, len(array), rows):
        wrong = ~np.isfinite(array[start : start + rows])
        if wrong.any():
            first, *rest = (int(i) for i in np.argwhere(wrong)[0])
            index = (start + first, *rest)
            raise DataError(
                f"{name}[{', '.join(map(str, index))}] is {array[index]}; {np.count_nonzero(~np.isfinite(array))} of "
                f"the {array.size} values of {name} {type_of(array)} are NaN or infinite. finite=False admits them"
            )


def _indices(rows: Any, length: int) -> np.ndarray:
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (length,):
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and not is_integer(rows.dtype)):
        raise DataError(f"subset: expected a slice, integers[m] or bool[{length}], found {rows.dtype}{[*rows.shape]}")
    wrong = np.flatnonzero((rows < -length) | (rows >= length))
    if wrong.size:
        raise DataError(f"subset: rows[{wrong[0]}] is {rows[wrong[0]]}, and there are {length} examples")
    return rows.astype(np.intp)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
