"""Runs that are killed again and again, at any moment, end as if nothing had happened."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad import train
from antegrad.train.writer import CheckpointWriter, best, checkpoints

SCRIPT = Path(__file__).with_name("killing.py")
CLOCKED = ("seconds", "samples_per_second")
SIGKILL = -9


def children(root: Path, kind: str, kills: int) -> list[dict[str, Any]]:
    """How every child ended, of runs with at least so many kills together."""
    command = [sys.executable, "-W", "error", str(SCRIPT), str(root), kind, str(kills), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    told = "\n".join(map(str, found)) + done.stderr
    assert {child["code"] for child in found} == {0, SIGKILL}, told
    assert sum(child["code"] == SIGKILL for child in found) >= kills, told
    return found


def last_file(directory: Path) -> bytes:
    path = train.latest(directory)
    assert path is not None
    return path.read_bytes()


def records(directory: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what the clock says."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCKED} for line in lines]


def check_moments(run: list[dict[str, Any]]) -> None:
    """After every kill `latest` can be read, never goes back, and once it has a pointer, never lacks it."""
    steps = [child["latest"] for child in run]
    assert None not in steps, run
    assert steps == sorted(steps), run
    told = [child["warnings"] for child in run]
    pointed = next(number for number, step in enumerate(steps) if step and not told[number])
    assert not any(told[pointed:]), run
    assert all("latest: it is missing" in line for lines in told for line in lines), run
    assert run[-1]["code"] == 0, run


def check_end(directory: Path, whole: Path) -> None:
    assert last_file(directory) == last_file(whole)
    assert records(directory) == records(whole)
    numbers = [record["epoch"] for record in records(directory)]
    assert numbers == list(range(1, len(numbers) + 1))
    with open(directory / "metrics.csv", newline="", encoding="utf-8") as stream:
        assert [int(row["epoch"]) for row in csv.DictReader(stream)] == numbers
    best, expected = train.best(directory), train.best(whole)
    assert (best and best.read_bytes()) == (expected and expected.read_bytes())
    assert (directory / "weights.txt").read_bytes() == (whole / "weights.txt").read_bytes()
    assert not list(directory.glob(".antegrad-*")), "leftovers of saves that were killed"


@pytest.mark.slow  # some 35 processes that train, and as many resumes as there are kills
@pytest.mark.parametrize(("kind", "kills", "epochs"), [("images", 20, 4), ("text", 6, 5)])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path, kind: str, kills: int, epochs: int) -> None:
    """Killed while it starts, between and in steps, in the middle of saves, before and after each rename.

    Each child may have other steps a dispatch, stream or not, and save at other steps. The last checkpoint has the
    bytes of the run that was never killed, every epoch one record, and the best weights are the same.
    """
    found = children(tmp_path, kind, kills)
    assert len(records(tmp_path / "whole")) == epochs
    for name, run in groupby(found, key=lambda child: child["run"]):
        check_moments(list(run))
        check_end(tmp_path / name, tmp_path / "whole")
    for name in ("whole1", "whole2"):
        check_end(tmp_path / name, tmp_path / "whole")


@pytest.mark.parametrize("improved", [True, False])
def test_a_first_checkpoint_gets_the_pointers_that_a_kill_left_out(tmp_path: Path, improved: bool) -> None:
    """Else the best checkpoint would be unknown as that, and removed with the old ones."""
    arrays = {"param.w": np.zeros(3, np.float32)}
    with CheckpointWriter(tmp_path, background=False) as first:
        first.save(1, arrays, {})
    (tmp_path / "latest").unlink()
    with CheckpointWriter(tmp_path, keep=1) as second:
        second.resume(1, best=improved)
        assert (tmp_path / "latest").read_text() == "step-00000001.safetensors\n"
        for step in (2, 3):
            second.save(step, arrays, {})
    assert (best(tmp_path) is not None) == improved
    assert [path.name[5:13] for path in checkpoints(tmp_path)] == ["00000001"] * improved + ["00000003"]
