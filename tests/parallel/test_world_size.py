"""A checkpoint goes on in any number of processes and devices, whatever number and division it was written with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad import checkpoint, train
from antegrad.checkpoint.directory import checkpoint_name
from antegrad.ir.types import spec
from tests.parallel import script
from tests.parallel.launched import done, last_step, launched, records, results, same_bits, state

EPOCHS, STEP = 3, 11
"""The runs are cut off in the middle of their second epoch."""
WRITTEN = {
    "four": ("zero3", {"processes": 4}),
    "one": ("zero3", {"processes": 1, "devices_per_process": 4}),
    "two": ("ddp", {"processes": 2}),
}
"""By whom a checkpoint is written: the strategy, and the processes with their devices."""


def plan(name: str, strategy: str | None, **settings: Any) -> dict[str, Any]:
    return {"name": name, "strategy": strategy, "every": 5, "epochs": EPOCHS, **settings}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What comes of the training in one process, on one device, without a pause."""
    directory = tmp_path_factory.mktemp("alone")
    script.run(directory, script.Plan("alone", epochs=EPOCHS))
    return results(directory, "alone")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Where the directories of `WRITTEN` are."""
    directory = tmp_path_factory.mktemp("written")
    for name, (strategy, world) in WRITTEN.items():
        fault = {"rank": world["processes"] - 1, "moment": "dispatch", "number": STEP, "action": "SIGTERM"}
        ended = launched(directory, cache, plan(name, strategy, fault=fault), **world)
        assert ended.code == 143, ended.text
        assert last_step(directory / name) == STEP
    assert len(list((directory / "four").glob(f"step-{STEP:08d}.shard-*-of-00004.safetensors"))) == 4
    return directory


def check_goes_on(directory: Path, name: str, source: Path, alone: dict[str, np.ndarray]) -> None:
    """It began with the arrays of `source`, bit for bit, and took the steps that are left of the whole training."""
    found = results(directory, name)
    path = train.latest(source)
    assert path is not None
    saved = checkpoint.load(path).tensors
    before = state(found, "before")
    assert same_bits({key: before[key] for key in saved}, saved)
    assert before["step"] == STEP
    np.testing.assert_allclose(found["losses"], alone["losses"][STEP:], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["validated"], alone["validated"], rtol=0, atol=1e-5)
    for key, array in state(found).items():
        np.testing.assert_allclose(array, alone[f"after.{key}"], rtol=0, atol=1e-5, err_msg=key)
    assert [record["epoch"] for record in records(directory / name)] == [1, 2, 3]


@pytest.mark.slow  # three launches to write, two to read
def test_case_load_other_world_size(
    tmp_path: Path, cache: Path, written: Path, alone: dict[str, np.ndarray]
) -> None:
    """Saved on four ranks, in four processes and in one, and by DDP: loaded by two processes, by one with four devices,
    on one rank, and without ranks."""
    by_two = [("four", "zero3"), ("four", "ddp"), ("one", "zero2"), ("two", "zero3")]
    by_one = [("four", "zero1"), ("two", "zero3")]
    here = [("four", None), ("one", None), ("two", None), ("four", "zero3")]
    worlds = {"by two": (by_two, {"processes": 2}), "by one": (by_one, WRITTEN["one"][1]), "here": (here, None)}
    for world, (cases, processes) in worlds.items():
        runs = [plan(f"{world}, {source} to {strategy}", strategy) for source, strategy in cases]
        for run, (source, _) in zip(runs, cases, strict=True):
            shutil.copytree(written / source, tmp_path / run["name"])
        if processes is None:
            for run in runs:
                script.run(tmp_path, script.Plan(ranks=1 if run["strategy"] else None, **run))
        else:
            done(tmp_path, cache, *runs, **processes)
        for run, (source, _) in zip(runs, cases, strict=True):
            check_goes_on(tmp_path, run["name"], written / source, alone)


@pytest.mark.slow
def test_an_exported_checkpoint_goes_on_without_ranks(tmp_path: Path, written: Path) -> None:
    """As one file it has the arrays of the set, can be loaded for a model, and trains on with the same bits."""
    source = written / "four"
    path = train.latest(source)
    assert path is not None
    shutil.copytree(source, tmp_path / "set")
    shutil.copytree(source, tmp_path / "file", ignore=shutil.ignore_patterns("step-*", "latest"))
    file = checkpoint.export(source, tmp_path / "file" / checkpoint_name(STEP))
    (tmp_path / "file" / "latest").write_text(f"{file.name}\n")
    one, whole = checkpoint.load(file), checkpoint.load(path)
    assert same_bits(one.tensors, whole.tensors)
    types = {"0.w": spec((784, 33)), "0.b": spec((33,)), "2.w": spec((33, 10)), "2.b": spec((10,))}
    assert checkpoint.restore_parameters(one, types)["0.w"].tobytes() == whole.tensors["param.0.w"].tobytes()
    for name in ("set", "file"):
        script.run(tmp_path, script.Plan(**plan(name, None)))
    assert same_bits(results(tmp_path, "set"), results(tmp_path, "file"))
