"""Checkpoints that several processes write together: order of the writes, errors that reach all, and what goes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.checkpoint import load, store
from antegrad.checkpoint.shards import shard_name
from antegrad.errors import CheckpointError
from antegrad.train import writer
from antegrad.train.writer import CheckpointWriter, best, checkpoint_at, checkpoints, latest
from tests.train.together import Job, Member, pieces, run, same, save_set, split

RANKS, PROCESSES = 5, 3
CUT = {"opt.m", "opt.v"}


def full(step: int) -> dict[str, np.ndarray]:
    return {
        "opt.m": np.arange(7, dtype=np.float32) + step,
        "opt.v": np.full((4, 3), step, np.float64),
        "param.w": np.full(6, step, np.int32),
    }


def save(target: CheckpointWriter, group: Member, step: int, ranks: int = RANKS, **options: Any) -> Path:
    tensors, sharded = pieces(full(step), CUT, ranks, *split(ranks, group.count)[group.index])
    return target.save(step, tensors, {"step": str(step)}, sharded=sharded, **options)


def step_of(path: Path | None) -> int:
    assert path is not None
    found = load(path)
    step = int(found.metadata["step"])
    assert path.name.startswith(f"step-{step:08d}.")
    assert same(found.tensors, full(step))
    return step


def files(step: int, processes: int = PROCESSES, revision: int = 0) -> list[str]:
    """The files of a set."""
    numbers = range(1, processes + 1)
    return [f"step-{step:08d}.index.json", *(shard_name(step, number, processes, revision) for number in numbers)]


def listed(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name not in ("latest", "best"))


def each(directory: Path, work: Callable[[CheckpointWriter, Member], Any], turns: bool = False, **options: Any) -> list:
    """What `work` gives or raises on each of the processes, each of which has a writer."""

    def on_one(group: Member) -> Any:
        with CheckpointWriter(directory, group=group, **options) as target:
            return work(target, group)

    return Job(PROCESSES, turns).run(on_one)


def no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=[True, False], ids=["background", "foreground"])
def background(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_saves_pointers_and_retention(background: bool, tmp_path: Path) -> None:
    def work(target: CheckpointWriter, group: Member) -> None:
        for step in (0, 10, 20, 30, 40):
            path = save(target, group, step, best=step == 10)
            target.wait()
            assert path == tmp_path / f"step-{step:08d}.index.json"
            assert latest(tmp_path) == path
            assert step_of(path) == step
            group.gather(f"looked at {step}", None)

    assert each(tmp_path, work, keep=2, background=background) == [None] * PROCESSES
    assert listed(tmp_path) == sorted(name for step in (10, 30, 40) for name in files(step))
    assert step_of(best(tmp_path)) == 10
    assert (tmp_path / "latest").read_text() == "step-00000040.index.json\n"
    assert [path.name for path in checkpoints(tmp_path)] == [files(step)[0] for step in (10, 30, 40)]


@pytest.mark.parametrize("cut", [CUT, set()])
def test_the_values_at_the_call_are_saved_though_the_arrays_change(cut: set[str], tmp_path: Path) -> None:
    def work(target: CheckpointWriter, group: Member) -> None:
        may_write = threading.Event()
        assert target._thread is not None
        target._thread.submit(may_write.wait)
        tensors, sharded = pieces(full(1), cut, RANKS, *split(RANKS, PROCESSES)[group.index])
        tensors = {name: array.copy() for name, array in tensors.items()}
        metadata = {"step": "1"}
        target.save(1, tensors, metadata, sharded=sharded)
        metadata["step"] = "2"
        for array in tensors.values():
            array[...] = -1
        may_write.set()

    assert each(tmp_path, work) == [None] * PROCESSES
    assert step_of(latest(tmp_path)) == 1


def test_without_sharded_arrays_the_first_writes_one_file(background: bool, tmp_path: Path) -> None:
    """With the bytes of a process that is alone; what the others bring is not looked at."""

    def work(target: CheckpointWriter, group: Member) -> Path:
        tensors = full(5) if group.index == 0 else {"nothing": object()}
        return target.save(5, tensors, {"step": "5"}, sharded={} if group.index == 1 else None)  # type: ignore[arg-type]

    found = each(tmp_path / "run", work, background=background)
    assert found == [tmp_path / "run" / "step-00000005.safetensors"] * PROCESSES
    assert listed(tmp_path / "run") == ["step-00000005.safetensors"]
    assert step_of(latest(tmp_path / "run")) == 5
    with CheckpointWriter(tmp_path / "one") as target:
        one = target.save(5, full(5), {"step": "5"})
    assert one.read_bytes() == found[0].read_bytes()


def test_a_group_of_one_is_nobody_else(tmp_path: Path) -> None:
    """Nothing is gathered."""

    class Alone:
        index, count = 0, 1

        def gather(self, topic: str, value: Any) -> list[Any]:
            raise AssertionError(topic)

    with CheckpointWriter(tmp_path, group=Alone()) as target:
        target.save(1, full(1), {"step": "1"})
        target.resume(1, best=True)
    assert step_of(best(tmp_path)) == 1


def test_the_order_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of all, index, pointers, each flushed with its directory; then the old index, its files, and the strays."""
    for step in (1, 2):
        save_set(tmp_path, full(step), {"step": str(step)}, RANKS, 2, CUT, step)
    (tmp_path / shard_name(0, 1, 9)).touch()
    events: list[str] = []
    real_replace, real_fsync, real_unlink = os.replace, os.fsync, Path.unlink

    def replace(source: Any, path: Path) -> None:
        events.append(f"rename {path.name}")
        real_replace(source, path)

    def fsync(handle: int) -> None:
        events.append("flush")
        real_fsync(handle)

    def unlink(path: Path, **options: Any) -> None:
        events.append(f"remove {path.name}")
        real_unlink(path, **options)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "unlink", unlink)
    each(tmp_path, lambda target, group: save(target, group, 3, best=True), turns=True, keep=2, background=False)
    names = [*files(3)[1:], files(3)[0], "best", "latest"]
    written = [event for name in names for event in ("flush", f"rename {name}", "flush")]
    removed = [files(1, 2)[0], *files(1, 2)[1:], shard_name(0, 1, 9)]
    assert events == [*written, *(f"remove {name}" for name in removed)]


# what goes, and what stays


def test_an_index_that_cannot_be_removed_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Path.unlink

    def refuse(path: Path, **options: Any) -> None:
        if path.name.endswith("index.json"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(path, **options)

    save_set(tmp_path, full(1), {"step": "1"}, RANKS, 2, CUT, 1)
    monkeypatch.setattr(Path, "unlink", refuse)
    each(tmp_path, lambda target, group: save(target, group, 2), keep=1)
    assert "step-00000001.index.json cannot be removed: Operation not permitted" in caplog.text
    assert step_of(tmp_path / files(1)[0]) == 1


def test_strays_go_with_a_later_commit(tmp_path: Path) -> None:
    """Those of earlier steps, whoever commits; those of this step and of later ones may be of a save that runs."""
    save_set(tmp_path, full(100), {"step": "100"}, RANKS, PROCESSES, CUT, 100)
    of_a_set = [shard_name(100, 1, 9), shard_name(100, 1, PROCESSES, revision=1)]
    earlier, present, later = (shard_name(step, 2, 7) for step in (99, 200, 201))
    foreign = ["step-00000099.shard-1-of-2.safetensors", "step-00000099.shard-00001-of-00002.safetensors.bak", "x.json"]
    for name in (*of_a_set, earlier, present, later, *foreign):
        (tmp_path / name).write_text("x")
    each(tmp_path, lambda target, group: save(target, group, 200))
    left = [*files(100), *files(200), present, later, *foreign]
    assert listed(tmp_path) == sorted(left)
    assert step_of(tmp_path / files(100)[0]) == 100
    with CheckpointWriter(tmp_path, keep=9) as target:
        target.save(201, full(201), {"step": "201"})
    left.remove(present)
    assert listed(tmp_path) == sorted([*left, "step-00000201.safetensors"])


def test_files_that_an_unreadable_index_may_name_stay(tmp_path: Path) -> None:
    """Until the index goes with the old ones."""
    index = save_set(tmp_path, full(1), {"step": "1"}, RANKS, PROCESSES, CUT, 1)
    index.write_text("torn")
    each(tmp_path, lambda target, group: save(target, group, 2), keep=2)
    assert listed(tmp_path) == sorted(files(1) + files(2))
    each(tmp_path, lambda target, group: save(target, group, 3), keep=2)
    assert listed(tmp_path) == sorted(files(2) + files(3))


def test_an_old_step_is_never_removed_while_it_is_latest(tmp_path: Path) -> None:
    """After a restart from an old checkpoint, files of later steps are there."""

    def work(target: CheckpointWriter, group: Member) -> None:
        save(target, group, 500)
        save(target, group, 100)

    each(tmp_path, work, keep=1)
    assert step_of(latest(tmp_path)) == 100
    assert listed(tmp_path) == sorted(files(100) + files(500))


def test_a_step_is_saved_again(tmp_path: Path) -> None:
    """The files that the present index names are never written over; they go when the next index is there."""
    names = []
    for again in range(3):
        metadata = {"step": "7", "again": str(again)}
        save_set(tmp_path, full(7), metadata, RANKS, PROCESSES, CUT, 7)
        assert load(tmp_path / files(7)[0]).metadata == metadata
        names.append(listed(tmp_path))
    assert names == [sorted(files(7)), sorted(files(7, revision=1)), sorted(files(7))]
    assert step_of(latest(tmp_path)) == 7


@pytest.mark.parametrize("is_best", [True, False])
def test_a_step_is_saved_again_as_the_other_kind(is_best: bool, tmp_path: Path) -> None:
    """It is replaced, unless it is the best one and the new one is not."""
    one = tmp_path / "step-00000007.safetensors"

    def alone() -> None:
        with CheckpointWriter(tmp_path) as target:
            target.save(7, full(7), {"step": "7"}, best=is_best)

    def together() -> None:
        each(tmp_path, lambda target, group: save(target, group, 7, best=is_best))

    alone()
    together()
    assert listed(tmp_path) == sorted(files(7))
    assert latest(tmp_path) == checkpoint_at(tmp_path, 7) == tmp_path / files(7)[0]
    alone()
    assert listed(tmp_path) == [one.name]
    assert latest(tmp_path) == checkpoint_at(tmp_path, 7) == one
    (tmp_path / "best").write_text(one.name)
    each(tmp_path, lambda target, group: save(target, group, 7))
    assert listed(tmp_path) == sorted([one.name, *files(7)])
    assert (best(tmp_path), latest(tmp_path)) == (one, tmp_path / files(7)[0])
    assert checkpoint_at(tmp_path, 7) == latest(tmp_path)


@pytest.mark.parametrize("improved", [True, False])
def test_resume_gives_the_pointers_that_a_kill_left_out(improved: bool, tmp_path: Path) -> None:
    index = save_set(tmp_path, full(1), {"step": "1"}, RANKS, PROCESSES, CUT, 1)
    (tmp_path / "latest").unlink()

    def work(target: CheckpointWriter, group: Member) -> None:
        target.resume(1, best=improved)
        save(target, group, 2)

    assert each(tmp_path, work, keep=1) == [None] * PROCESSES
    assert best(tmp_path) == (index if improved else None)
    assert listed(tmp_path) == sorted((files(1) if improved else []) + files(2))
    with CheckpointWriter(tmp_path) as target:
        target.resume(2, best=False)
    assert step_of(latest(tmp_path)) == 2


# errors


@pytest.mark.parametrize("failing", range(PROCESSES))
@pytest.mark.parametrize("raised_by", ["save", "wait", "close"])
def test_a_full_disk_on_one_process_reaches_all(
    failing: int, raised_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed, nothing is left behind, and the next save is as good as the first."""
    real, shard = store.write_file, files(2)[1 + failing]
    full_disk = [True]

    def write(path: Path, data: Any) -> Path:
        if path.name == shard and full_disk[0]:
            raise CheckpointError(f"cannot save {path}: No space left on device; nothing was written.")
        return real(path, data)

    def work(target: CheckpointWriter, group: Member) -> None:
        save(target, group, 1)
        save(target, group, 2)
        call = {"save": lambda: save(target, group, 3), "wait": target.wait, "close": target.close}[raised_by]
        with pytest.raises(CheckpointError) as info:
            call()
        message = str(info.value)
        assert message.startswith(f"saving {files(2)[0]} in the background failed: process {failing} of 3: cannot save")
        assert f"{shard}: No space left on device" in message
        assert (isinstance(info.value.__cause__.__cause__, CheckpointError)) == (group.index == failing)  # type: ignore[union-attr]
        group.gather("looks", None)
        assert (step_of(latest(tmp_path)), listed(tmp_path)) == (1, sorted(files(1)))
        group.gather("has looked", None)
        full_disk[0] = False
        if raised_by != "close":
            save(target, group, 2)
            target.wait()
            assert step_of(latest(tmp_path)) == 2

    monkeypatch.setattr(writer, "write_file", write)
    assert each(tmp_path, work) == [None] * PROCESSES


@pytest.mark.parametrize(("function", "least"), [("write", 12), ("fsync", 12), ("replace", 6)])
def test_a_failing_call_on_one_process(
    function: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that changes the disk in a save fails once, in whichever process: all raise, and `latest` is sound."""
    real, calls = getattr(os, function), [0]
    save_set(tmp_path / "sound", full(1), {"step": "1"}, RANKS, PROCESSES, CUT, 1)

    def fail(*arguments: Any) -> Any:
        calls[0] -= 1
        return no_space() if calls[0] == 0 else real(*arguments)

    def work(target: CheckpointWriter, group: Member) -> Path:
        monkeypatch.setattr(os, function, fail)
        return save(target, group, 2, best=True)

    for number in range(1, 100):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", directory)
        calls[0] = number
        found = each(directory, work, turns=True, keep=1, background=False)
        monkeypatch.undo()
        if calls[0] > 0:
            break
        assert {str(error) for error in found} == {str(found[0])}
        assert "No space left" in str(found[0])
        assert {type(error) for error in found} == {CheckpointError}
        if (directory / files(2)[0]).exists():
            assert step_of(latest(directory)) in (1, 2)
            assert listed(directory) == sorted(files(1) + files(2))
        else:
            assert step_of(latest(directory)) == 1
            assert listed(directory) == sorted(files(1))
    assert number > least
    assert found == [directory / files(2)[0]] * PROCESSES
    assert listed(directory) == sorted(files(2))


def test_what_one_process_cannot_save_is_raised_at_its_call(background: bool, tmp_path: Path) -> None:
    def work(target: CheckpointWriter, group: Member) -> str:
        wrong: list[dict[str, Any]] = [
            {"step": -1},
            {"tensors": {"opt.m": np.ones(1, complex)}},
            {"metadata": {"a": 1}},
        ]
        for at, changes in enumerate(wrong):
            tensors, sharded = pieces(full(1), CUT, RANKS, *split(RANKS, PROCESSES)[group.index])
            bad = group.index == at
            arguments = {"step": 1, "tensors": tensors, "metadata": {}, "sharded": sharded} | (changes if bad else {})
            with pytest.raises(CheckpointError, match=rf"process {at} of 3: cannot save"):  # noqa: PT012
                target.save(**arguments)
                if not bad:
                    target.wait()
        return "done"

    assert each(tmp_path, work, background=background) == ["done"] * PROCESSES
    assert os.listdir(tmp_path) == []


def test_processes_that_disagree(tmp_path: Path) -> None:
    """All raise the same, and nothing is written."""

    def message(work: Callable[[CheckpointWriter, Member], Any]) -> str:
        found = each(tmp_path, work, background=False)
        assert {type(error) for error in found} == {CheckpointError}, found
        assert len({str(error) for error in found}) == 1
        assert os.listdir(tmp_path) == []
        return str(found[0])

    def cut(target: CheckpointWriter, group: Member, names: set[str], ranges: list[tuple[int, int]]) -> Path:
        tensors, sharded = pieces(full(1), names, RANKS, *ranges[group.index])
        return target.save(1, tensors, {}, sharded=sharded)

    good = split(RANKS, PROCESSES)
    steps = message(lambda target, group: save(target, group, 1 if group.index < 2 else 2))
    assert steps == "process 2 saves step 2, and process 0 step 1: all processes must save the same steps"
    other = "process 1 has other sharded arrays than process 0"
    assert other in message(lambda target, group: cut(target, group, CUT if group.index != 1 else {"opt.m"}, good))
    assert other in message(lambda target, group: cut(target, group, CUT if group.index != 1 else set(), good))
    assert other in message(lambda target, group: save(target, group, 1, ranks=RANKS + (group.index == 1)))
    whole = "the pieces of all processes do not make whole arrays: "
    assert whole + "rank 2 is held twice" in message(lambda t, g: cut(t, g, CUT, [(0, 3), (2, 1), (4, 1)]))
    assert whole + "nobody holds rank 4 of 5" in message(lambda t, g: cut(t, g, CUT, [(0, 2), (2, 1), (3, 1)]))
    assert whole + "nobody holds rank 2" in message(lambda t, g: cut(t, g, CUT, [(0, 2), (4, 1), (3, 1)]))


def test_processes_in_any_order_of_ranks(tmp_path: Path) -> None:
    def work(target: CheckpointWriter, group: Member) -> Path:
        tensors, sharded = pieces(full(1), CUT, RANKS, *[(3, 2), (0, 1), (1, 2)][group.index])
        return target.save(1, tensors, {"step": "1"}, sharded=sharded)

    assert step_of(each(tmp_path, work)[0]) == 1


@pytest.mark.parametrize("when", ["before", "while writing"])
def test_a_process_that_is_lost(when: str, background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(BaseException):
        """As a kill: nothing is told to anybody."""

    def write(path: Path, data: Any) -> Path:
        if path.name == files(2)[2] and when == "while writing":
            raise Lost
        return store.write_file(path, data)

    def work(target: CheckpointWriter, group: Member) -> None:
        save(target, group, 1)
        target.wait()
        if group.index == 1 and when == "before":
            raise Lost
        save(target, group, 2)
        target.wait()

    monkeypatch.setattr(writer, "write_file", write)
    found = each(tmp_path, work, background=background and when == "before")
    assert [type(error) for error in found] == [CheckpointError, Lost, CheckpointError]
    for index in (0, 2):
        assert f"process {index} of 3 lost the others at 'begin'" in str(found[index]) or when == "while writing"
        assert "process 1 is gone" in str(found[index])
    assert step_of(latest(tmp_path)) == 1
    each(tmp_path, lambda target, group: save(target, group, 3), keep=1)
    assert listed(tmp_path) == sorted(files(3))


def test_a_directory_that_one_process_cannot_write_to(tmp_path: Path) -> None:
    (tmp_path / "closed").write_text("a file")

    def work(group: Member) -> None:
        CheckpointWriter(tmp_path / ("closed" if group.index == 1 else "run"), group=group)

    found = Job(PROCESSES).run(work)
    assert {str(error) for error in found} == {str(found[0])}
    assert "process 1 of 3: cannot save checkpoints in" in str(found[0])


def test_directories_that_are_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines with disks of their own: no index is written of files that one machine alone does not have."""
    monkeypatch.setattr(writer, "VISIBLE_WITHIN", 0.05)
    monkeypatch.setattr(writer, "POLL", 0.01)

    def work(group: Member) -> Path:
        with CheckpointWriter(tmp_path / str(group.index), group=group) as target:
            return save(target, group, 1)

    found = Job(PROCESSES).run(work)
    assert {type(error) for error in found} == {CheckpointError}
    assert f"process 0 of 3: {tmp_path}/0/{files(1)[2]} is not there, and" in str(found[2])
    assert "all processes must save into one directory, on a file system that they share" in str(found[1])
    assert listed(tmp_path / "0") == []
    with pytest.raises(CheckpointError):
        run(PROCESSES, work)


def test_a_file_that_is_seen_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may show the file of another machine only after a while."""
    hidden, real = [3], Path.exists

    def exists(path: Path) -> bool:
        if path.name == files(1)[2] and hidden[0]:
            hidden[0] -= 1
            return False
        return real(path)

    monkeypatch.setattr(writer, "POLL", 0.01)
    monkeypatch.setattr(Path, "exists", exists)
    assert step_of(each(tmp_path, lambda target, group: save(target, group, 1))[0]) == 1
    assert not hidden[0]


def test_an_error_does_not_hide_what_ended_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(target: CheckpointWriter, group: Member) -> None:
        save(target, group, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "write_file", no_space)
    with caplog.at_level(logging.ERROR):
        found = each(tmp_path, work)
    assert {type(error) for error in found} == {KeyboardInterrupt}
    assert all("No space left" in error.__notes__[0] for error in found)
