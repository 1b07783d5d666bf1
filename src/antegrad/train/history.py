"""What a training run reported: one record an epoch, and the loss of each step."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, overload

import numpy as np

from antegrad.errors import CheckpointError, NameMissing, NonFiniteError, SettingError
from antegrad.train.values import from_json, shown, to_json

__all__ = ["History"]

Record = dict[str, Any]


class History:
    """The records of the epochs, in order, and the losses of the steps.

        history["val_loss"]         # one value for each epoch
        history[-1]                 # the record of the last epoch
        history.best("accuracy", "max")["epoch"]
        history.steps               # f32[steps]

    Printed, it is a table.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = (), steps: Iterable[float] = ()) -> None:
        self.records: list[Record] = [dict(record) for record in records]
        self._steps: list[float] = []
        self.add_steps(steps)

    def append(self, record: Record) -> None:
        """Add the record of an epoch. It is kept as it is, so what is added to it later counts."""
        self.records.append(record)

    def add_steps(self, losses: Iterable[float]) -> None:
        """Add the losses of further steps."""
        self._steps.extend(float(loss) for loss in losses)

    @property
    def steps(self) -> np.ndarray:
        """The loss of each step, f32[steps]."""
        return np.array(self._steps, np.float32)

    @property
    def names(self) -> list[str]:
        """The names in any of the records, in the order in which they came."""
        return list(dict.fromkeys(name for record in self.records for name in record))

    @overload
    def __getitem__(self, key: int) -> Record: ...

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...

    def __getitem__(self, key: int | str) -> Record | list[Any]:
        """The record of one epoch; or the values of one name, None for an epoch without it.

        Raises `NameMissing` for a name that no epoch has, and `IndexError` for an epoch that was not.
        """
        if not isinstance(key, str):
            return self.records[key]
        if key not in self.names:
            close = difflib.get_close_matches(key, self.names, 1)
            advice = f"; did you mean {close[0]!r}?" if close else ""
            found = ", ".join(self.names) or "no epoch"
            raise NameMissing(f"the history has no {key!r}, it has {found}{advice}")
        return [record.get(key) for record in self.records]

    def best(self, name: str, mode: Literal["min", "max"] = "min") -> Record:
        """The record with the least or the largest value of `name`, the first of equal ones.

        Epochs without the name and values that are not finite are passed over. Raises `NameMissing` where no epoch has
        it, and `NonFiniteError` where none is finite.
        """
        if mode not in ("min", "max"):
            raise SettingError(f"mode is 'min' or 'max', found {mode!r}")
        values = self[name]
        finite = [(record, float(v)) for record, v in zip(self, values, strict=True) if v is not None]
        finite = [(record, value) for record, value in finite if math.isfinite(value)]
        if not finite:
            raise NonFiniteError(f"there is no best {name!r}: none of its {len(values)} values is finite")
        return (min if mode == "min" else max)(finite, key=lambda pair: pair[1])[0]

    def to_json(self) -> str:
        """Records and losses as JSON, with those that are not finite as strings (see `train.values`)."""
        return to_json({"records": self.records, "steps": self._steps}, "history")

    @classmethod
    def from_json(cls, text: str) -> History:
        """What `to_json` wrote. Raises `CheckpointError` for any other text."""
        try:
            found = from_json(text)
            return cls(found["records"], found["steps"])
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"this text is no history: {text[:80]!r}") from error

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        return f"History({len(self.records)} epochs, {len(self._steps)} steps: {', '.join(self.names)})"

    def __str__(self) -> str:
        """A table with one line an epoch."""
        names = self.names
        rows = [names, *([_cell(record.get(name)) for name in names] for record in self.records)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(lines) or "no epochs"


def _cell(value: Any) -> str:
    return "" if value is None else shown("", value).strip()
