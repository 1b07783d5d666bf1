"""Trainings in several processes: as one process would train, and through everything that can happen to one of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.train.writer import checkpoints
from tests.parallel import script
from tests.parallel.launched import (
    TIMEOUT,
    Ended,
    check_same_run,
    done,
    last_step,
    launched,
    records,
    results,
    same_bits,
    state,
)

STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
EVERY, EPOCHS = 3, 3
LOST = 75
"""The exit code of who followed another one."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What comes of a training in one process, on one device."""
    directory = tmp_path_factory.mktemp("alone")
    script.run(directory, script.Plan("alone"))
    return results(directory, "alone")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Path]:
    """The directories of runs to which nothing happens, by strategy."""
    directory = tmp_path_factory.mktemp("whole")
    done(directory, cache, *(saving(name, name) for name in ("ddp", "zero2", "zero3")))
    return {name: directory / name for name in ("ddp", "zero2", "zero3")}


def saving(name: str, strategy: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "strategy": strategy, "every": EVERY, "epochs": EPOCHS, **settings}


def broken(
    directory: Path, cache: Path, strategy: str, rank: int, moment: str, number: int, action: str, **settings: Any
) -> Ended:
    """A run ``directory/run`` in which something happens on one rank."""
    fault = {"rank": rank, "moment": moment, "number": number, "action": action}
    return launched(directory, cache, saving("run", strategy, fault=fault, **settings))


def check_goes_on(directory: Path, cache: Path, whole: dict[str, Path], strategy: str, step: int) -> None:
    """The run in ``directory/run`` has its last checkpoint at `step`; resumed, it ends as if nothing had happened."""
    assert last_step(directory / "run") == step
    done(directory, cache, saving("run", strategy))
    check_same_run(directory / "run", whole[strategy])


# the same training


def check_close(found: dict[str, np.ndarray], alone: dict[str, np.ndarray]) -> None:
    assert len(found["losses"]) == 2 * script.STEPS
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["validated"], alone["validated"], rtol=0, atol=1e-6)
    one, other = state(found), state(alone)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.slow  # four launches of five trainings each
@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (4, 1), (2, 2)])
def test_processes_train_as_one(
    tmp_path: Path, cache: Path, alone: dict[str, np.ndarray], processes: int, devices: int
) -> None:
    """Losses of all steps, state and validation; streamed data and a second launch give the same bits."""
    runs = [{"name": name, "strategy": name} for name in STRATEGIES]
    streamed = {"name": "streamed", "strategy": "zero3", "stream": True}
    done(tmp_path, cache, *runs, streamed, processes=processes, devices_per_process=devices)
    for name in STRATEGIES:
        check_close(results(tmp_path, name), alone)
    assert same_bits(results(tmp_path, "streamed"), results(tmp_path, "zero3"))
    if devices == 1 and processes == 2:
        again = tmp_path / "again"
        again.mkdir()
        done(again, cache, *runs, processes=processes)
        for name in STRATEGIES:
            assert same_bits(results(again, name), results(tmp_path, name))


# processes that are lost


KINDS = {
    "zero2": ("start", "dispatch", "write", "fsync", "replace", "unlink", "time", "replace", "time", "time"),
    "ddp": ("time", "replace", "time"),
}


def moments(rng: np.random.Generator, strategy: str) -> list[dict[str, Any]]:
    """Faults that kill a rank, at any time of a training and of a save."""
    most = {"start": 1, "dispatch": 4, "write": 12, "fsync": 8, "replace": 5, "unlink": 4}
    faults = []
    for kind in KINDS[strategy]:
        # Only the first process removes files; with DDP it alone writes.
        first = kind == "unlink" or (strategy == "ddp" and kind in script.SYSTEM)
        fault: dict[str, Any] = {"rank": 0 if first else int(rng.integers(2)), "action": "SIGKILL"}
        if kind == "time":
            fault |= {"moment": "dispatch", "number": 1, "delay": float(rng.uniform(0.001, 0.1))}
        else:
            fault |= {"moment": kind, "number": int(rng.integers(1, most[kind] + 1))}
        faults.append(fault)
    return faults


def check_killed(ended: Ended, rank: int, trains: bool) -> None:
    """The launcher names the one that was killed, and so does the other process, which its SIGTERM ends only later
    when it `trains`."""
    assert ended.code == 128 + signal.SIGKILL, ended.text
    assert f"antegrad: rank {rank} failed first, by SIGKILL" in ended.text
    if trains:
        said = f"antegrad: rank {rank} died (its connection closed); this process (rank {1 - rank}) ends."
        assert said in ended.text, ended.text


@pytest.mark.slow  # as many launches as there are kills
@pytest.mark.parametrize("strategy", KINDS)
def test_a_run_whose_ranks_are_killed_again_and_again(tmp_path: Path, cache: Path, strategy: str) -> None:
    """Every kill is told with its rank, leaves a checkpoint that is whole, and in the end has changed nothing."""
    plan = {"name": "whole", "strategy": strategy, "every": 2, "epochs": 10}
    done(tmp_path, cache, plan)
    steps = [0]
    for fault in moments(np.random.default_rng(0), strategy):
        ended = launched(tmp_path, cache, {**plan, "name": "killed", "fault": fault})
        check_killed(ended, fault["rank"], trains=fault["moment"] == "dispatch")
        steps.append(last_step(tmp_path / "killed"))
    assert steps == sorted(steps)
    assert steps[-1] > 0
    done(tmp_path, cache, {**plan, "name": "killed"})
    check_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow  # three attempts
def test_the_launcher_starts_a_killed_run_again(tmp_path: Path, cache: Path, whole: dict[str, Path]) -> None:
    """Each attempt goes on from the checkpoint of the one before: rank 1 dies after its tenth dispatch, twice."""
    fault = {"rank": 1, "moment": "dispatch", "number": 10, "action": "SIGKILL"}
    ended = done(tmp_path, cache, saving("run", "zero2", fault=fault), restarts=2)
    assert ended.text.count("rank 1 failed first, by SIGKILL") == 2
    assert "starting all again, 2 of 2 times" in ended.text
    check_same_run(tmp_path / "run", whole["zero2"])


@pytest.mark.slow  # waits for the timeout
@pytest.mark.parametrize(("rank", "action"), [(0, "SIGSTOP"), (1, "SIGSTOP"), (0, "hang")])
def test_a_rank_that_no_longer_answers(
    tmp_path: Path, cache: Path, whole: dict[str, Path], rank: int, action: str
) -> None:
    """One that is stopped is silent; one that hangs in its code lives on, and does not come to the next step."""
    ended = broken(tmp_path, cache, "zero3", rank, "dispatch", 5, action)
    assert ended.code == LOST, ended.text
    why = "gave no sign of life for" if action == "SIGSTOP" else "did not come to 'asked' within"
    assert f"antegrad: rank {rank} {why} {TIMEOUT:g} s" in ended.text, ended.text
    stopped, hung = f"rank {rank} did not go on (stopped, or hanging)", "all gave up a rank that hangs"
    assert f"antegrad: {stopped if action == 'SIGSTOP' else hung}" in ended.text, ended.text
    check_goes_on(tmp_path, cache, whole, "zero3", EVERY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "rank", "action", "reason"),
    [
        ("zero2", 0, "full", "No space left on device"),
        ("zero2", 1, "limit", "File too large"),
        ("ddp", 0, "full", "No space left on device"),
    ],
)
def test_a_full_disk_on_one_rank(
    tmp_path: Path, cache: Path, whole: dict[str, Path], strategy: str, rank: int, action: str, reason: str
) -> None:
    """All processes end with the reason and the one whose disk it was; the checkpoint before stays."""
    ended = broken(tmp_path, cache, strategy, rank, "dispatch", 4, action)
    assert ended.code == 1, ended.text
    for own in range(2):
        told = "\n".join(ended.lines(own))
        assert f"process {rank} of 2: cannot save " in told
        assert reason in told
    assert [path.name[5:13] for path in checkpoints(tmp_path / "run")] == ["00000003"]
    check_goes_on(tmp_path, cache, whole, strategy, EVERY)


# ends that somebody asks for


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "step", "action", "code"),
    [
        (0, 10, "launcher SIGINT", 130),
        (1, 10, "launcher SIGTERM", 143),
        (1, 10, "SIGTERM", 143),
        (0, script.STEPS, "SIGTERM", 143),
    ],
)
def test_all_save_and_end_at_the_same_step(
    tmp_path: Path, cache: Path, whole: dict[str, Path], rank: int, step: int, action: str, code: int
) -> None:
    """After Ctrl-C, SIGTERM to the launcher, and SIGTERM to one of the processes; also before a validation."""
    ended = broken(tmp_path, cache, "zero2", rank, "dispatch", step, action)
    assert ended.code == code, ended.text
    assert "Traceback" not in ended.text
    assert "finishing the step and saving" in "\n".join(ended.lines(rank))
    check_goes_on(tmp_path, cache, whole, "zero2", step)


def test_one_rank_stops_all(tmp_path: Path, cache: Path) -> None:
    """`Trainer.stop` and early stopping; the records and what is shown come from the first process alone."""
    fault = {"rank": 1, "moment": "epoch", "number": 2, "action": "stop"}
    ended = done(
        tmp_path,
        cache,
        saving("stopped", "zero2", fault=fault, verbose=True),
        saving("early", "zero3", patience=1, verbose=True, epochs=5),
    )
    shown = [line for line in ended.lines(0) if line.startswith("epoch")]
    assert [line.split("  ")[0] for line in shown] == ["epoch 1/3", "epoch 2/3", "epoch 1/5", "epoch 2/5"]
    assert not [line for line in ended.lines(1) if "Gloo" not in line]
    for name, reason in (("stopped", "it is enough"), ("early", "val_loss has not improved for 1 epochs")):
        assert [record["epoch"] for record in records(tmp_path / name)] == [1, 2]
        assert last_step(tmp_path / name) == 2 * script.STEPS
        assert reason in json.loads((tmp_path / name / "summary.json").read_text())["stopped"]


# errors


@pytest.mark.parametrize(("rank", "moment"), [(1, "dispatch"), (0, "epoch")])
def test_an_exception_in_one_rank_ends_all(tmp_path: Path, cache: Path, rank: int, moment: str) -> None:
    ended = broken(tmp_path, cache, "zero2", rank, moment, 1, "raise")
    assert ended.code == 1
    said = f"antegrad: rank {rank} failed: ValueError: the callback is broken; this process (rank {1 - rank}) ends."
    assert said in ended.text, ended.text
    assert f"antegrad: rank {rank} failed first, with exit code 1" in ended.text


def test_a_loss_that_is_nan_ends_all(tmp_path: Path, cache: Path) -> None:
    ended = launched(tmp_path, cache, {"name": "nan", "strategy": "zero3", "poison": 200})
    assert ended.code == 1
    for own in range(2):
        assert "NonFiniteError: the loss of step " in "\n".join(ended.lines(own))
    assert "on rank" in ended.text


def test_processes_that_differ_are_refused(tmp_path: Path, cache: Path) -> None:
    """All of them say the same: what differs, and who has what."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 16}, "batch_size is 32 on rank 0 and 16 on rank 1"),
        ({"epochs": 5}, "epochs is 2 on rank 0 and 5 on rank 1"),
        ({"stream": True}, "stream is False on rank 0 and True on rank 1"),
        ({"every": 3}, "run is no directory on rank 0 and a directory on rank 1; resume is False on rank 0"),
        ({"patience": 2}, "callbacks is ['Fault'] on rank 0 and ['Fault', 'EarlyStopping'] on rank 1"),
        ({"model": 1}, "the initial weights (as a digest) is "),
        ({"poison": 0}, "the data (as a digest) is "),
        ({"strategy": "zero1"}, "the training step (as a digest) is "),
        ({"validation": 2}, "the validation data (as a digest) is "),
        ({"restored": 3}, "the restored state (as a digest) is None on rank 0 and "),
        ({"evaluated": 60}, "the size of the data is 61 on rank 0 and 60 on rank 1; the data (as a digest) is "),
    ]
    runs = [
        {"name": f"run{number}", "strategy": "ddp", "own": {"1": own}, **dict.fromkeys(own.keys() & {"evaluated"}, 61)}
        for number, (own, _) in enumerate(cases)
    ]
    ended = done(tmp_path, cache, *runs)
    for own in range(2):
        told = [line for line in ended.lines(own) if "refused" in line]
        for number, (_, message) in enumerate(cases):
            owner = "evaluate" if "evaluated" in cases[number][0] else "fit"
            beginning = f"run{number} refused: {owner}: all processes of a run must do the same, and here {message}"
            assert told[number].startswith(beginning), ended.text
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize("own", [{"absent": True}, {"fault": {"rank": 1, "moment": "dispatch", "action": "exit"}}])
def test_a_process_that_ends_before_the_others_is_named(tmp_path: Path, cache: Path, own: dict[str, Any]) -> None:
    """It calls no `fit`, or leaves it without an error: the others need not wait for the timeout."""
    run = saving("run", "zero2", own={"1": own})
    ended = launched(tmp_path, cache, run, timeout=60.0)
    assert ended.code == LOST, ended.text
    topic = "settings" if "absent" in own else "asked"
    said = f"antegrad: rank 1 has ended its part, and rank 0 waits for it at {topic!r}; this process (rank 0) ends."
    assert said in ended.text, ended.text
