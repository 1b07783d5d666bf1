"""Jobs of several processes that are killed in a commit: `latest` is the old set or the new one, and both load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.checkpoint import load
from antegrad.checkpoint.shards import SHARD
from antegrad.train.writer import CheckpointWriter, best, latest
from tests.train.together import Job, Member, pieces, same, split

RANKS, PROCESSES = 4, 3
CUT = {"opt.m", "opt.v"}
CALLS = ("open", "write", "fsync", "replace", "unlink")
"""What changes the disk."""


class Killed(BaseException):
    """The job is killed; nothing that comes after it changes the disk."""


class Kill:
    """Before the call of a number, counted over all processes, the whole job is killed; its open files are closed."""

    def __init__(self, number: int, patch: pytest.MonkeyPatch) -> None:
        self.left, self.handles, self.close = number, set[int](), os.close
        for name in CALLS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))
        patch.setattr(os, "close", self._close)

    def _wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                raise Killed
            result = real(*arguments, **options)
            if real.__name__ == "open":
                self.handles.add(result)
            return result

        return wrapped

    def _close(self, handle: int) -> None:
        self.handles.discard(handle)
        self.close(handle)

    def end(self) -> None:
        for handle in self.handles:
            self.close(handle)


def full(step: int, again: int) -> dict[str, np.ndarray]:
    return {
        "opt.m": np.arange(7, dtype=np.float32) + step + 1000 * again,
        "opt.v": np.full((2, 3), step, np.float64) + again,
        "param.w": np.full(6, step, np.int32) + again,
    }


def save(target: CheckpointWriter, group: Member, step: int, again: int, **options: Any) -> None:
    tensors, sharded = pieces(full(step, again), CUT, RANKS, *split(RANKS, group.count)[group.index])
    target.save(step, tensors, {"step": str(step), "again": str(again)}, sharded=sharded, **options)


def saved(path: Path | None) -> tuple[int, int]:
    """Which save a checkpoint is, step and number; its arrays must be those of that save, all of them."""
    assert path is not None
    found = load(path)
    step, again = int(found.metadata["step"]), int(found.metadata["again"])
    assert same(found.tensors, full(step, again))
    return step, again


def job(directory: Path, step: int, again: int, processes: int = PROCESSES, **options: Any) -> list[Any]:
    def work(group: Member) -> None:
        with CheckpointWriter(directory, keep=1, background=False, group=group) as target:
            save(target, group, step, again, **options)

    return Job(processes, turns=True).run(work)


BEFORE = {
    "the next step": [(1, 0, True)],
    "the same step": [(2, 0, False)],
    "the same step, which is the best": [(1, 0, False), (2, 0, True)],
    "a step before": [(1, 0, True), (3, 0, False)],
}
"""What has been saved, as step, number and whether it is the best, when number 1 of step 2 comes."""


@pytest.mark.parametrize("name", BEFORE)
def test_killed_before_every_call(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = tmp_path / "sound"
    for step, again, is_best in BEFORE[name]:
        assert job(sound, step, again, best=is_best) == [None] * PROCESSES
    old, seen = saved(latest(sound)), set()
    for number in range(1, 1000):
        directory = tmp_path / str(number)
        shutil.copytree(sound, directory)
        kill = Kill(number, monkeypatch)
        results = job(directory, 2, 1, best=True)
        monkeypatch.undo()
        kill.end()
        seen.add(saved(latest(directory)))
        assert saved(best(directory)) in {(s, a) for s, a, _ in BEFORE[name]} | {(2, 1)} if best(directory) else True
        check_the_next_job(directory)
        shutil.rmtree(directory)
        if kill.left > 0:
            assert results == [None] * PROCESSES
            break
        assert any(isinstance(result, Killed) for result in results)
    assert number > 50
    assert seen == {old, (2, 1)}


def check_the_next_job(directory: Path) -> None:
    """It saves, and nothing of the killed one is left: its step may be the same, with other processes, or the next."""
    again = directory.with_name("again")
    shutil.copytree(directory, again)
    assert job(again, 2, 2, processes=2, best=True) == [None] * 2
    assert saved(latest(again)) == saved(best(again)) == (2, 2)
    shutil.rmtree(again)
    assert job(directory, 4, 2, best=True) == [None] * PROCESSES
    assert saved(latest(directory)) == (4, 2)
    steps = {SHARD.fullmatch(name)[1] for name in os.listdir(directory) if SHARD.fullmatch(name)}  # type: ignore[index]
    assert steps == {"00000004"}
    assert not list(directory.glob(".antegrad-*"))


FORKED = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from antegrad.checkpoint import Sharded, load, store
from antegrad.ir.types import spec
from antegrad.train.writer import CheckpointWriter, latest

directory, meeting = Path(sys.argv[1]), Path(sys.argv[2])
store.PIECE = 64
SIZE, RANKS = 70, 2
EACH = SIZE // RANKS

class Files:
    # A group of processes that leave their values in files.
    count = RANKS

    def __init__(self, index, job):
        self.index, self.job = index, job

    def gather(self, topic, value):
        names = [meeting / f"{self.job} {topic} {index}" for index in range(self.count)]
        new = meeting / f"{self.index}.new"
        new.write_text(json.dumps(value))
        real_replace(new, names[self.index])
        until = time.monotonic() + 60
        while not all(name.exists() for name in names):
            if time.monotonic() > until:
                raise TimeoutError(topic)
            time.sleep(0.0005)
        return [json.loads(name.read_text()) for name in names]

real_replace = os.replace

def die(calls):
    def wrap(real):
        def wrapped(*arguments, **options):
            calls[0] -= 1
            if calls[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return wrapped
    for name in ("open", "write", "fsync", "replace", "unlink"):
        setattr(os, name, wrap(getattr(os, name)))

def saves(index, job, start, calls):
    if calls:
        die([calls])
    of = {"opt.m": Sharded(spec(SIZE, "f32"), RANKS, index, 1)}
    with CheckpointWriter(directory, keep=1, group=Files(index, job)) as writer:
        for step in (start, start, start + 1):
            tensors = {"opt.m": np.full(EACH, step, np.float32), "param.w": np.full(3, step)}
            writer.save(step, tensors, {"step": str(step)}, best=step % 2 == 0, sharded=of)
    os._exit(0)

def found():
    path = latest(directory)
    if path is None:
        return 0
    checkpoint = load(path)
    step = int(checkpoint.metadata["step"])
    assert path.name == f"step-{step:08d}.index.json"
    assert np.array_equal(checkpoint.tensors["opt.m"], np.full(SIZE, step, np.float32)), step
    assert np.array_equal(checkpoint.tensors["param.w"], np.full(3, step)), step
    return step

def run(job, victim, number):
    # One process kills itself; then the other one is killed, as a launcher does.
    children = []
    for index in range(RANKS):
        child = os.fork()
        if child == 0:
            saves(index, job, found() + 1, number if index == victim else 0)
        children.append(child)
    _, status = os.waitpid(children[victim], 0)
    if os.WIFSIGNALED(status):
        os.kill(children[1 - victim], signal.SIGKILL)
    _, other = os.waitpid(children[1 - victim], 0)
    return os.WIFSIGNALED(status), status, other

seen, kills, job = [found()], [0, 0], 0
for victim in range(RANKS):
    for number in range(1, 400, int(sys.argv[3])):
        job += 1
        killed, status, other = run(job, victim, number)
        seen.append(found())
        kills[victim] += killed
        if not killed:
            assert (status, other) == (0, 0), (status, other)
            break
print(json.dumps([kills, seen]))
"""


def test_real_processes_that_are_killed(tmp_path: Path) -> None:
    """Each of two processes, at every third of the calls that change the disk in three saves, two of one step."""
    (tmp_path / "meeting").mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORKED, str(tmp_path / "run"), str(tmp_path / "meeting"), "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    kills, seen = json.loads(done.stdout)
    assert kills[0] > 20
    assert kills[1] > 5
    assert seen == sorted(seen)
    assert len(os.listdir(tmp_path / "run")) <= 2 + 2 * 3
