"""Training on two and four CPU devices. The checks run in processes of their own, see `tests/parallel/devices.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parallel.follow import RUNS

ROOT = Path(__file__).parents[2]
SHORT = ("counts", "lockstep", "levels", "repeated", "evaluated")


def run(*checks: str) -> dict[str, Any]:
    """What the checks found, from one process for all of them."""
    command = [sys.executable, "-m", "tests.parallel.devices", *checks]
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "ANTEGRAD_DEVICE")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return run(*SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_hundred_steps_follow_those_on_one_device(name: str) -> None:
    """On real data where there are, for 2 and 4 devices and all strategies, and for one with the same bits.

    Gradients are sums over the ranks of sums over the samples of a rank, so the order of the sums is another one.
    """
    result = run(f"follow {name}")[f"follow {name}"]
    assert result["fell"] > 0.4, "it has learned"
    assert len(result["off"]) == (12 if name == "MLP" else 8)
    assert max(result["off"].values()) <= RUNS[name].within, result["off"]
    assert not any(off for where, off in result["off"].items() if where.startswith("1 "))


def test_the_executable_holds_the_collectives_of_the_program(found: dict[str, Any]) -> None:
    """Also where buckets are small; XLA would join all-reduces if it were not asked not to."""
    for name, (program, executable, _) in found["counts"].items():
        assert executable == program, name


def test_the_collectives_are_those_of_the_strategy(found: dict[str, Any]) -> None:
    """Six gradients; the parameters of the first layer are not read again in the backward pass."""
    steps = {name: step for name, (_, _, step) in found["counts"].items()}
    assert steps["ddp 1"] == {"all-reduce": 2 + 6}
    assert steps["ddp 1048576"] == {"all-reduce": 2}
    assert steps["zero1 1048576"] == {"all-reduce": 2, "all-gather": 1}
    assert steps["zero2 1"] == {"all-reduce": 3, "reduce-scatter": 6, "all-gather": 6}
    assert steps["zero2 1048576"] == {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
    assert steps["zero3 1"] == {"all-reduce": 3, "reduce-scatter": 6, "all-gather": 6 + 2}
    assert steps["zero3 1048576"] == {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 2}


def test_the_host_gives_what_the_devices_give(found: dict[str, Any]) -> None:
    """One step: losses, gradients, norm, moments and parameters."""
    assert len(found["lockstep"]) == 8
    assert max(found["lockstep"].values()) <= 1e-6, found["lockstep"]


def test_all_levels_sum_gradients_to_the_same_bits(found: dict[str, Any]) -> None:
    """Each rank adds the same numbers in the same order, whole or in parts.

    The update is then the same on the host (see `test_training`). XLA:CPU contracts its products and sums in other
    places for shards than for whole arrays, so there the states stay together but for last bits.
    """
    assert found["levels"]["gradients"] == dict.fromkeys(("ddp", "zero1", "zero2", "zero3"), True)
    assert max(found["levels"]["states"].values()) <= 1e-6


def test_a_run_repeats_itself(found: dict[str, Any]) -> None:
    """Bit for bit: again, in dispatches of other sizes, and from data that are streamed."""
    for name, offs in found["repeated"].items():
        assert offs == [0.0] * 4, name


def test_evaluation_and_prediction(found: dict[str, Any]) -> None:
    result = found["evaluated"]
    assert result["resident"] == result["streamed"]
    assert result["resident"] == pytest.approx(result["expected"], rel=1e-6)
    assert result["predictions"] <= 1e-5
