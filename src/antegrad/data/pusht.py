"""Push-T: a hand that pushes a T-shaped block to its place, demonstrated by a person. Source: Chi et al., "Diffusion
policy" (2023), in LeRobot's packing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antegrad.data.cache import local_copy
from antegrad.data.dataset import Dataset, part_size, random_parts
from antegrad.data.download import Source, fetch
from antegrad.data.error import DataError
from antegrad.data.parquet import read_columns, vectors

__all__ = ["Demonstrations", "pusht"]

REVISION = "7628202a2180972f291ba1bc6723834921e72c19"
FILE = "data/chunk-000/file-000.parquet"
SOURCE = Source(
    f"pusht/{FILE}",
    (f"https://huggingface.co/datasets/lerobot/pusht/resolve/{REVISION}/{FILE}",),
    674393,
    "9abc0431f12d10c33b5b37b1bf1e6e557c8ae1c8c29fb86658969e48fcbbbf01",
)
COLUMNS = {"observation.state": "float[]", "action": "float[]", "episode_index": "int64", "frame_index": "int64"}
WIDTH = 2


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Episodes of control, one frame a row: `state` and `action` (n, ...), `episode` and `frame` integers[n].

    The frames of an episode follow each other, and `frame` counts them from 0. Raises `DataError` where that does not
    hold, with the row, and for what a `Dataset` refuses: different lengths, NaN.
    """

    state: np.ndarray
    action: np.ndarray
    episode: np.ndarray
    frame: np.ndarray

    def __post_init__(self) -> None:
        Dataset(state=self.state, action=self.action, episode=self.episode, frame=self.frame)
        numbers, runs = np.unique(self.episodes, return_counts=True)
        if runs.max() > 1:
            raise DataError(f"the frames of episode {numbers[runs.argmax()]} do not follow each other")
        count = np.arange(len(self)) - np.repeat(self._starts(), self._lengths())
        wrong = np.flatnonzero(self.frame != count)
        if wrong.size:
            row = wrong[0]
            raise DataError(
                f"row {row}, of episode {self.episode[row]}, has frame {self.frame[row]}, expected {count[row]}"
            )

    def __len__(self) -> int:
        """The number of frames."""
        return len(self.episode)

    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.flatnonzero(np.diff(self.episode)) + 1])

    def _lengths(self) -> np.ndarray:
        return np.diff([*self._starts(), len(self)])

    @property
    def episodes(self) -> np.ndarray:
        """The number of each episode, in their order."""
        return self.episode[self._starts()]

    def split(self, size: float, seed: int) -> tuple[Demonstrations, Demonstrations]:
        """Two parts of whole episodes, the first of `size` episodes: a count, or a fraction below 1.

        Frames of one episode are alike, so those of a part for validation must not come from episodes that were
        trained on. Which episodes, is drawn with `seed`. Raises `DataError` where a part would be empty.
        """
        numbers = self.episodes
        first, second = random_parts(len(numbers), part_size(size, len(numbers)), seed)
        return self._part(numbers[first]), self._part(numbers[second])

    def _part(self, episodes: np.ndarray) -> Demonstrations:
        kept = np.isin(self.episode, episodes)
        return Demonstrations(self.state[kept], self.action[kept], self.episode[kept], self.frame[kept])

    def windows(self, history: int = 2, horizon: int = 16, pad: bool = False) -> Dataset:
        """For each frame t the states up to it and the actions from it on, all of one episode.

        Args:
          history: how many states: those of the frames ``t - history + 1 .. t``.
          horizon: how many actions: those of the frames ``t .. t + horizon - 1``.
          pad: False leaves out the frames near the ends of an episode that have fewer states or actions; True repeats
            the first state and the last action of the episode for them, as Diffusion Policy does.

        Returns:
          A data set with the fields `states` (m, history, ...) and `actions` (m, horizon, ...).

        Raises:
          DataError: a number below 1, or no episode that is long enough.
        """
        if history < 1 or horizon < 1:
            raise DataError(f"windows: expected a history and a horizon of 1 or more, found {history} and {horizon}")
        starts, lengths = self._starts(), self._lengths()
        first, last = np.repeat(starts, lengths)[:, None], np.repeat(starts + lengths - 1, lengths)[:, None]
        now = np.arange(len(self))[:, None]
        past, future = now + np.arange(1 - history, 1), now + np.arange(horizon)
        if pad:
            past, future = np.maximum(past, first), np.minimum(future, last)
        else:
            whole = ((past[:, :1] >= first) & (future[:, -1:] <= last))[:, 0]
            past, future = past[whole], future[whole]
        if not len(past):
            needed, longest = history + horizon - 1, lengths.max()
            raise DataError(f"windows: expected an episode of {needed} frames or more, the longest has {longest}")
        return Dataset(states=self.state[past], actions=self.action[future])


def pusht(
    path: str | os.PathLike[str] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Demonstrations:
    """Push-T's 206 demonstrations, 25,650 frames at 10 Hz: `state` and `action` f32[n,2] in pixels of 512 by 512.

    The state is the position of the hand, the action the position to move it to. The images are not read. The last
    frame of an episode is where `episode` changes; the column ``next.done`` does not tell it.

    Args:
      path: a LeRobot data set of this kind (a directory, version 2 or 3 of the format, or one of its parquet files).
        None means ``ANTEGRAD_DATA/pusht`` where it is there, else the cache, else the web.
      cache: the directory for downloads; None means the user's cache directory.
      progress: whether to draw a progress bar; None draws one where stderr is a terminal.

    Raises:
      DataError: the files cannot be had, have other columns, or episodes with gaps.
      PackageMissing: pyarrow is not installed.
    """
    root = Path(path) if path is not None else local_copy("pusht") or fetch(SOURCE, cache, progress)
    files = sorted(root.glob("data/**/*.parquet")) if root.is_dir() else [root]
    if not files:
        raise DataError(f"{root}: expected parquet files below data/, found none")
    return Demonstrations(*(np.concatenate(parts) for parts in zip(*map(_read, files), strict=True)))


def _read(path: Path) -> tuple[np.ndarray, ...]:
    columns = read_columns(path, COLUMNS)
    state, action = (vectors(path, name, columns[name], WIDTH) for name in ("observation.state", "action"))
    return state, action, columns["episode_index"].to_numpy(), columns["frame_index"].to_numpy()
