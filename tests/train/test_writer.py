"""Checkpoints of a run: real kills at every moment, full disks, failures that come up, and pointers that lie."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.checkpoint import load, pack
from antegrad.errors import CheckpointError
from antegrad.train import writer
from antegrad.train.writer import CheckpointWriter, best, checkpoints, latest

KILLED = """
import json, os, random, signal, sys, time
import numpy as np
from antegrad.checkpoint import load, store
from antegrad.train.writer import CheckpointWriter, latest

directory, mode = sys.argv[1:]
store.PIECE = 1 << 12

def arrays(step):
    return {"param.w": np.full((64, 64), step, np.float32), "param.b": np.arange(step, step + 3)}

def die(calls):
    # Counts every call that changes the disk, and kills the process before one of them.
    def wrap(real):
        def wrapped(*arguments, **options):
            calls[0] -= 1
            if calls[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return wrapped
    for name in ("open", "write", "fsync", "replace", "unlink"):
        setattr(os, name, wrap(getattr(os, name)))

def saves(start, calls):
    if calls:
        die([calls])
    with CheckpointWriter(directory, keep=2) as writer:
        for step in range(start, start + (10000 if not calls else 2)):
            writer.save(step, arrays(step), {"step": str(step)}, best=step % 2 == 0)
    os._exit(0)

def found():
    path = latest(directory)
    if path is None:
        return 0
    checkpoint = load(path)
    step = int(checkpoint.metadata["step"])
    assert path.name == f"step-{step:08d}.safetensors"
    for name, array in arrays(step).items():
        assert np.array_equal(checkpoint.tensors[name], array), (step, name)
    return step

seen, random_source = [found()], random.Random(0)
for number in range(1, 400):
    process = os.fork()
    if process == 0:
        saves(seen[-1] + 1, 0 if mode == "random" else number)
    if mode == "random":
        time.sleep(random_source.uniform(0.001, 0.08))
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    seen.append(found())
    if not os.WIFSIGNALED(status) or (mode == "random" and number == 20):
        break
print(json.dumps([number, os.WIFSIGNALED(status), seen]))
"""


def arrays(step: int) -> dict[str, np.ndarray]:
    return {"param.w": np.full((8, 8), step, np.float32), "opt.count": np.array(step, np.int32)}


def save(target: CheckpointWriter, step: int, **options: Any) -> Path:
    return target.save(step, arrays(step), {"step": str(step)}, **options)


def names(directory: Path) -> list[str]:
    return [path.name for path in checkpoints(directory)]


def step_of(path: Path | None) -> int:
    assert path is not None
    found = load(path)
    step = int(found.metadata["step"])
    assert np.array_equal(found.tensors["param.w"], arrays(step)["param.w"])
    return step


def no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=[True, False], ids=["background", "foreground"])
def background(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_saves_pointers_and_retention(background: bool, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with CheckpointWriter(directory, keep=2, background=background) as target:
        assert latest(directory) is best(directory) is None
        for step in (0, 10, 20, 30, 40):
            path = save(target, step, best=step == 10)
            target.wait()
            assert latest(directory) == path == directory / f"step-{step:08d}.safetensors"
            assert step_of(path) == step
    assert names(directory) == [f"step-{step:08d}.safetensors" for step in (10, 30, 40)]
    assert step_of(best(directory)) == 10
    assert (directory / "latest").read_text() == "step-00000040.safetensors\n"
    assert sorted(os.listdir(directory)) == ["best", "latest", *names(directory)]


def test_an_old_step_is_never_removed_while_it_is_latest(tmp_path: Path) -> None:
    """After a restart from an old checkpoint, files of later steps are there."""
    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, 500)
        path = save(target, 100)
        target.wait()
        assert latest(tmp_path) == path
        assert names(tmp_path) == ["step-00000100.safetensors", "step-00000500.safetensors"]


def test_without_keep_best(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, keep=1, keep_best=False) as target:
        save(target, 1, best=True)
        save(target, 2)
    assert best(tmp_path) is None
    assert names(tmp_path) == ["step-00000002.safetensors"]


def test_only_checkpoints_are_removed(tmp_path: Path) -> None:
    foreign = ["step-1.safetensors", "step-00000001.safetensors.bak", "mine.safetensors"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".antegrad-0123456789abcdef.partial").write_text("of a killed writer")
    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, 1)
        save(target, 2)
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, "latest", "step-00000002.safetensors"])


def test_an_old_checkpoint_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, 1)
        target.wait()
        monkeypatch.setattr(Path, "unlink", refuse)
        save(target, 2)
    assert "step-00000001.safetensors cannot be removed: Operation not permitted" in caplog.text
    assert step_of(latest(tmp_path)) == 2


def test_case_save_async_donated(tmp_path: Path) -> None:
    """What is saved are the values at the call, though the thread writes only after they have been overwritten."""
    may_write = threading.Event()
    tensors = arrays(1)
    backwards = np.arange(6.0).reshape(2, 3).T
    view = tensors["param.w"].view()
    view.flags.writeable = False  # as NumPy sees the buffer of a device
    with CheckpointWriter(tmp_path) as target:
        assert target._thread is not None
        target._thread.submit(may_write.wait)
        target.save(1, {"param.w": view, "opt.count": tensors["opt.count"], "t": backwards}, {"step": "1"})
        tensors["param.w"][:] = -1
        tensors["opt.count"][...] = -1
        backwards[:] = -1
        assert not names(tmp_path)
        may_write.set()
    assert step_of(latest(tmp_path)) == 1
    found = load(tmp_path / "step-00000001.safetensors").tensors
    assert found["opt.count"] == 1
    assert np.array_equal(found["t"], np.arange(6.0).reshape(2, 3).T)


@pytest.mark.parametrize("raised_by", ["save", "wait", "close"])
def test_case_save_async_failure(raised_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the thread comes up at the next call, once, and costs neither the old file nor the next save."""
    target = CheckpointWriter(tmp_path, keep=1)
    old = save(target, 1)
    target.wait()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", no_space)
        save(target, 2)  # the call itself cannot know
        call = {"save": lambda: save(target, 3), "wait": target.wait, "close": target.close}[raised_by]
        with pytest.raises(CheckpointError, match=r"step-00000002.safetensors in the backgr.*No space left") as info:
            call()
    assert isinstance(info.value.__cause__, CheckpointError)
    assert isinstance(info.value.__cause__.__cause__, OSError)
    assert latest(tmp_path) == old
    assert step_of(old) == 1
    assert sorted(os.listdir(tmp_path)) == ["latest", old.name]
    if raised_by != "close":
        save(target, 3)
        target.close()
        assert step_of(latest(tmp_path)) == 3
        assert names(tmp_path) == ["step-00000003.safetensors"]


@pytest.mark.parametrize("failing", range(1, 7))
def test_case_save_async_failure_moves_nothing_early(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever flush fails, of a file or of the directory: `latest` names what was flushed, and the old file stays."""
    real, flushes = os.fsync, [0]
    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, 1, best=True)

    def fail(handle: int) -> None:
        flushes[0] += 1
        if flushes[0] == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    target = CheckpointWriter(tmp_path, keep=1)
    monkeypatch.setattr(os, "fsync", fail)
    save(target, 2, best=True)
    with pytest.raises(CheckpointError, match="Input/output error"):
        target.close()
    # Flushes: checkpoint, directory, best, directory, latest, directory.
    assert step_of(latest(tmp_path)) == (2 if failing == 6 else 1)
    assert step_of(best(tmp_path)) == (2 if failing >= 4 else 1)
    assert "step-00000001.safetensors" in names(tmp_path)


def test_case_save_async_failure_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush, rename, flush of the directory; then the pointer, in the same way; then the old file goes."""
    events: list[str] = []
    real_replace, real_fsync, real_unlink = os.replace, os.fsync, Path.unlink
    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, 1)

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
    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, 2)
    assert events == [
        *("flush", "rename step-00000002.safetensors", "flush"),
        *("flush", "rename latest", "flush"),
        "remove step-00000001.safetensors",
    ]


def test_a_failure_does_not_hide_what_ended_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted() -> None:
        with CheckpointWriter(tmp_path) as target:
            save(target, 1)
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(KeyboardInterrupt) as info:
        interrupted()
    assert "No space left" in info.value.__notes__[0]
    assert "No space left" in caplog.text


def test_one_save_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [0], [0]
    real = writer.write_file

    def counted(*arguments: Any) -> Path:
        running[0] += 1
        most[0] = max(most[0], running[0])
        path = real(*arguments)
        running[0] -= 1
        return path

    monkeypatch.setattr(writer, "write_file", counted)
    with CheckpointWriter(tmp_path, keep=1) as target:
        for step in range(8):
            save(target, step)
            if step:
                assert (tmp_path / "latest").read_text() >= f"step-{step - 1:08d}"
    assert most == [1]


def test_wrong_arrays_are_refused_at_the_call(background: bool, tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, background=background) as target:
        with pytest.raises(CheckpointError, match="complex128"):
            target.save(1, {"a": np.ones(1, complex)}, {})
        with pytest.raises(CheckpointError, match="expected text"):
            target.save(1, arrays(1), {"step": 1})  # type: ignore[dict-item]
        with pytest.raises(CheckpointError, match="cannot save step -1"):
            target.save(-1, arrays(1), {})
        with pytest.raises(TypeError):
            target.save(1.0, arrays(1), {})  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="keep=0"):
        CheckpointWriter(tmp_path, keep=0)


def test_tied_arrays_stay_tied(tmp_path: Path) -> None:
    shared = np.arange(4, dtype=np.float32)
    tensors, metadata = pack({"embed.w": shared, "head.w": shared}, step=1)
    with CheckpointWriter(tmp_path) as target:
        first = target.save(1, tensors, metadata)
        target.wait()
        loaded = load(first)
        second = target.save(2, loaded.tensors, loaded.metadata)
    found = load(second).tensors
    assert found["param.embed.w"] is found["param.head.w"]


def test_a_read_only_directory_is_refused_before_any_work(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    try:
        with pytest.raises(CheckpointError, match="nobody may write to it"):
            CheckpointWriter(closed)
    finally:
        closed.chmod(0o755)


@pytest.mark.parametrize("damage", ["missing", "torn", "no pointer", "empty pointer", "foreign pointer", "binary"])
def test_a_pointer_that_lies(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointWriter(tmp_path) as target:
        for step in (1, 2, 3):
            save(target, step, best=step == 3)
    newest = tmp_path / "step-00000003.safetensors"
    if damage == "missing":
        newest.unlink()
    elif damage == "torn":
        newest.write_bytes(newest.read_bytes()[:-1])
    elif damage == "no pointer":
        (tmp_path / "latest").unlink()
    else:
        text = {"empty pointer": b"", "foreign pointer": b"../other.safetensors", "binary": b"\xff\xfe"}[damage]
        (tmp_path / "latest").write_bytes(text)
    expected = 2 if damage in ("missing", "torn") else 3
    assert step_of(latest(tmp_path)) == expected
    assert f"{tmp_path}/latest: " in caplog.text
    assert f"the newest complete checkpoint step-0000000{expected}.safetensors is taken" in caplog.text
    assert step_of(best(tmp_path)) == expected
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * len(caplog.records)


def test_a_checkpoint_before_its_pointer_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The moment between the two renames: the older one is what the pointer says, without a warning."""
    with CheckpointWriter(tmp_path) as target:
        old = save(target, 1)
        new = save(target, 2)
    (tmp_path / "latest").write_text(f"{old.name}\n")
    assert latest(tmp_path) == old
    assert new.exists()
    assert not caplog.records


def test_nothing_complete_is_an_error(tmp_path: Path) -> None:
    """Not None: a run would start anew over what is left of the old one."""
    with CheckpointWriter(tmp_path) as target:
        path = save(target, 1)
    path.write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=rf"{tmp_path} has no complete checkpoint: .*the file has 4 bytes"):
        latest(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        latest(tmp_path)
    assert latest(tmp_path / "nowhere") is None


def killed(directory: Path, mode: str) -> tuple[int, bool, list[int]]:
    """Forks writers one after the other, kills each, and checks what `latest` finds after each kill."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, str(directory), mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


def test_killed_at_random_moments(tmp_path: Path) -> None:
    number, was_killed, seen = killed(tmp_path, "random")
    assert (number, was_killed) == (20, True)
    assert seen == sorted(seen)
    assert seen[-1] >= 5, "too slow to tell anything"
    with CheckpointWriter(tmp_path, keep=1) as target:
        save(target, seen[-1] + 1)
    assert not list(tmp_path.glob(".antegrad-*.partial"))
    assert len(names(tmp_path)) <= 2


def test_killed_before_every_call(tmp_path: Path) -> None:
    """Each of the calls that change the disk during two saves, half of which move both pointers."""
    number, was_killed, seen = killed(tmp_path, "every call")
    assert not was_killed
    assert number > 40
    assert seen == sorted(seen)
    assert len(names(tmp_path)) <= 3  # the last writer ended by itself, and removed what the killed ones had left
    assert not list(tmp_path.glob(".antegrad-*.partial"))
