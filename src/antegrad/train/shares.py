"""The rows of several ranks as one global array, cut from the data where they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np


class Shares:
    """Rows `start` to `start + rows` of each rank's share of `array`, those of one rank after those of the other.

    A share is `share` rows that follow each other; `reach` rows after it count as its own too. What is missing at the
    end is filled up by the first row. Nothing is copied until the array is sliced along its first axis, at multiples of
    `rows`, so a process makes no more than the rows of its own ranks.
    """

    def __init__(self, array: np.ndarray, share: int, ranks: int, *, rows: int, start: int = 0, reach: int = 0) -> None:
        self.array, self.share, self.start, self.rows, self.reach = array, share, start, rows, reach
        self.shape, self.dtype = (ranks * rows, *array.shape[1:]), array.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        first, last, _ = (index[0] if isinstance(index, tuple) else index).indices(self.shape[0])
        return np.concatenate([self._of(rank) for rank in range(first // self.rows, last // self.rows)])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self[slice(None)]

    def _of(self, rank: int) -> np.ndarray:
        first, end = rank * self.share + self.start, (rank + 1) * self.share + self.reach
        return filled(self.array[first : min(first + self.rows, end)], self.rows, self.array[:1])


def filled(rows: np.ndarray, size: int, filling: np.ndarray) -> np.ndarray:
    """`rows` and as many times `filling`, one row, as make `size` rows together."""
    missing = size - len(rows)
    return np.concatenate([rows, np.repeat(filling, missing, 0)]) if missing else rows
