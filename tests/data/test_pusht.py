"""Push-T from small parquet files of LeRobot's schema that are made here, and windows that stay in their episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antegrad.data import DataError, Demonstrations, cache, pusht

LENGTHS = [5, 3, 8]
"""Frames of each episode."""


def demonstrations(lengths: list[int] = LENGTHS) -> Demonstrations:
    """Episodes whose state is (episode, frame) and whose action is that plus a half."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    state = np.stack([episode, frame], axis=1).astype(np.float32)
    return Demonstrations(state, state + np.float32(0.5), episode, frame)


def columns(demos: Demonstrations, fixed: bool = False) -> dict[str, Any]:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    vector = pa.list_(pa.float32(), 2) if fixed else pa.list_(pa.float32())
    count = len(demos)
    return {
        "observation.state": pa.array(demos.state.tolist(), vector),
        "action": pa.array(demos.action.tolist(), vector),
        "episode_index": pa.array(demos.episode, pa.int64()),
        "frame_index": pa.array(demos.frame, pa.int64()),
        "timestamp": pa.array(demos.frame / 10, pa.float32()),
        "next.reward": pa.array(np.zeros(count), pa.float32()),
        "next.done": pa.array(np.zeros(count, bool)),
        "next.success": pa.array(np.zeros(count, bool)),
        "index": pa.array(np.arange(count), pa.int64()),
        "task_index": pa.array(np.zeros(count), pa.int64()),
    }


def write(path: Path, table: dict[str, Any], **options: Any) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(table), path, **options)


def assert_equal(found: Demonstrations, expected: Demonstrations) -> None:
    for name in ("state", "action", "episode", "frame"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.state.dtype == found.action.dtype == np.float32


@pytest.mark.parametrize("fixed", [False, True])
def test_version_3_has_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    path = tmp_path / "pusht" / "data" / "chunk-000" / "file-000.parquet"
    write(path, columns(demonstrations(), fixed), row_group_size=7)
    monkeypatch.setenv(cache.LOCAL_COPY, str(tmp_path))
    assert_equal(pusht(), demonstrations())
    assert_equal(pusht(path), demonstrations())


def test_version_2_has_a_file_for_each_episode(tmp_path: Path) -> None:
    whole = demonstrations()
    for number in range(len(LENGTHS)):
        rows = whole.episode == number
        part = Demonstrations(whole.state[rows], whole.action[rows], whole.episode[rows], whole.frame[rows])
        write(tmp_path / "data" / "chunk-000" / f"episode_{number:06d}.parquet", columns(part))
    assert_equal(pusht(tmp_path), whole)


def changed(name: str, column: Any) -> dict[str, Any]:
    return {key: value for key, value in (columns(demonstrations()) | {name: column}).items() if value is not None}


ROWS = sum(LENGTHS)
BAD: dict[str, tuple[Any, str]] = {
    "column": (lambda: changed("action", None), r"expected a column action of float\[\], found observation.state, ep"),
    "type": (lambda: changed("action", [0.5] * ROWS), r"expected column action to be float\[\], found double"),
    "f64": (
        lambda: changed("action", [[0.5, 1.0]] * ROWS),
        r"expected column action to be float\[\], found list<.*double",
    ),
    "index": (lambda: changed("frame_index", [0.5] * ROWS), "expected column frame_index to be int64, found double"),
    "null": (lambda: changed("frame_index", [0, None] * (ROWS // 2)), "column frame_index has 8 nulls in 16 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    path = tmp_path / "file.parquet"
    write(path, make())
    with pytest.raises(DataError, match=message) as caught:
        pusht(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, 2.0, 3.0], r"column action has 3 numbers in row 4, expected 2"),
        ([1.0, None], r"column action has 1 nulls inside of its lists"),
        (None, r"column action has 1 nulls in 16 rows"),
        ([1.0, float("nan")], r"action\[4, 1\] is nan"),
    ],
)
def test_lists_of_two_numbers(tmp_path: Path, row: Any, message: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    actions: list[Any] = demonstrations().action.tolist()
    actions[4] = row
    write(tmp_path / "file.parquet", changed("action", pa.array(actions, pa.list_(pa.float32()))))
    with pytest.raises(DataError, match=message):
        pusht(tmp_path / "file.parquet")


def test_a_directory_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected parquet files below data/, found none"):
        pusht(tmp_path)


def test_episodes_without_gaps() -> None:
    whole = demonstrations()
    order = [*range(5), *range(8, 11), *range(5, 8), *range(11, 16)]
    with pytest.raises(DataError, match="the frames of episode 2 do not follow each other"):
        Demonstrations(whole.state, whole.action, whole.episode[order], whole.frame[order])
    frame = whole.frame.copy()
    frame[6:8] += 1
    with pytest.raises(DataError, match="row 6, of episode 1, has frame 2, expected 1"):
        Demonstrations(whole.state, whole.action, whole.episode, frame)
    with pytest.raises(DataError, match=r"state and frame .* frame i64\[15\] with 15"):
        Demonstrations(whole.state, whole.action, whole.episode, whole.frame[1:])


def test_split_by_episodes() -> None:
    whole = demonstrations([3] * 10)
    first, second = whole.split(0.8, seed=0)
    assert (len(first.episodes), len(second.episodes)) == (8, 2)
    assert not set(first.episode) & set(second.episode)
    assert len(first) + len(second) == len(whole)


def test_windows() -> None:
    data = demonstrations().windows(history=2, horizon=3)
    assert data.names == ("states", "actions")
    frames = [(0, 1), (0, 2), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
    assert data.inputs.tolist() == [[[e, t - 1], [e, t]] for e, t in frames]
    assert data.targets.tolist() == [[[e + 0.5, t + k + 0.5] for k in range(3)] for e, t in frames]
    assert data.inputs.dtype == np.float32


def test_padded_windows() -> None:
    data = demonstrations().windows(history=3, horizon=4, pad=True)
    assert len(data) == ROWS
    assert data.inputs[5].tolist() == [[1, 0], [1, 0], [1, 0]]
    assert data.targets[5].tolist() == [[1.5, 0.5], [1.5, 1.5], [1.5, 2.5], [1.5, 2.5]]
    assert data.inputs[7].tolist() == [[1, 0], [1, 1], [1, 2]]
    assert data.targets[7].tolist() == [[1.5, 2.5]] * 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_windows_never_cross_an_episode(lengths: list[int], history: int, horizon: int, pad: bool) -> None:
    demos = demonstrations(lengths)
    expected = sum(lengths) if pad else sum(max(0, length - history - horizon + 2) for length in lengths)
    if not expected:
        needed = history + horizon - 1
        with pytest.raises(DataError, match=f"of {needed} frames or more, the longest has {max(lengths)}"):
            demos.windows(history, horizon, pad)
        return
    data = demos.windows(history, horizon, pad)
    assert data.inputs.shape == (expected, history, 2)
    assert data.targets.shape == (expected, horizon, 2)
    episodes = np.concatenate([data.inputs[..., 0], data.targets[..., 0] - 0.5], axis=1)
    assert (episodes == episodes[:, :1]).all()
    steps = np.concatenate([np.diff(data.inputs[..., 1]), np.diff(data.targets[..., 1])], axis=1)
    assert (((steps == 1) | (steps == 0)) if pad else (steps == 1)).all()
    np.testing.assert_array_equal(data.inputs[:, -1] + 0.5, data.targets[:, 0])


def test_windows_of_nothing() -> None:
    with pytest.raises(DataError, match="a horizon of 1 or more, found 0 and 3"):
        demonstrations().windows(history=0, horizon=3)
