"""Checkpoint files: whole or not at all, with real kills, and refusals before any work."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.checkpoint import ensure_writable, load, load_metadata, save, store, write_file
from antegrad.errors import CheckpointError

OLD = {"param.w": np.arange(64, dtype=np.float32), "param.b": np.zeros(3)}
NEW = {"param.w": np.arange(64, dtype=np.float32) * 2, "param.b": np.ones(3)}

CHILD = """
import os, signal, sys
import numpy as np
from antegrad.checkpoint import save, store

path, function, number, moment = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
store.PIECE = 256
calls = {name: 0 for name in ("write", "fsync", "replace")}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def wrap(name, real):
    def wrapped(*arguments):
        calls[name] += 1
        now = name == function and calls[name] == number
        if now and moment == "before":
            die()
        if now and moment == "half":
            real(arguments[0], arguments[1][:len(arguments[1]) // 2])
            die()
        if now and moment == "wait":
            print("waiting", flush=True)
            sys.stdin.readline()
        result = real(*arguments)
        if now and moment == "after":
            die()
        return result
    return wrapped

for name in calls:
    setattr(os, name, wrap(name, getattr(os, name)))
save(path, {"param.w": np.arange(64, dtype=np.float32) * 2, "param.b": np.ones(3)}, {"antegrad.step": "2"})
counted = dict(calls)
print(*counted.values(), flush=True)
"""

CALLS = {"write": 3, "fsync": 2, "replace": 1}
"""Calls of one save of `NEW`: header and two tensors; the file and its directory; the rename."""
KILLS = [
    (name, number + 1, moment)
    for name, count in CALLS.items()
    for number in range(count)
    for moment in (("before", "half", "after") if name == "write" else ("before", "after"))
]


def child(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """A process that saves `NEW` and stops itself at the given call."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, **options)


def same(tensors: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return tensors.keys() == expected.keys() and all(np.array_equal(tensors[k], expected[k]) for k in expected)


def partials(directory: Path) -> list[Path]:
    return sorted(directory.glob(".antegrad-*.partial"))


@pytest.mark.parametrize(("function", "number", "moment"), KILLS)
def test_case_save_atomic(function: str, number: int, moment: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save(path, OLD, {"antegrad.step": "1"})
    process = child(path, function, number, moment)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    renamed = (function, moment) == ("replace", "after") or (function == "fsync" and number == 2)
    found = load(path)
    assert same(found.tensors, NEW if renamed else OLD)
    assert found.metadata == {"antegrad.step": "2" if renamed else "1"}
    assert len(partials(tmp_path)) == (0 if renamed else 1)
    save(path, NEW, {"antegrad.step": "2"})
    assert os.listdir(tmp_path) == ["run.safetensors"]
    assert same(load(path).tensors, NEW)


def test_case_save_atomic_covers_every_call(tmp_path: Path) -> None:
    process = child(tmp_path / "run.safetensors", "none", 0, "never")
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output.split()) == (0, [str(count) for count in CALLS.values()])


def test_case_save_atomic_leaves_a_running_save_alone(tmp_path: Path) -> None:
    process = child(tmp_path / "slow.safetensors", "fsync", 1, "wait", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    (running,) = partials(tmp_path)
    save(tmp_path / "quick.safetensors", OLD)
    assert partials(tmp_path) == [running]
    process.communicate("\n", timeout=120)
    assert process.returncode == 0
    assert same(load(tmp_path / "slow.safetensors").tensors, NEW)
    assert sorted(os.listdir(tmp_path)) == ["quick.safetensors", "slow.safetensors"]


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".antegrad-0123456789abcdef.partial"
    foreign = [
        tmp_path / name
        for name in (".antegrad-.partial", ".antegrad-0123456789ABCDEF.partial", "x.tmp", leftover.name + "x", ".nfs1")
    ]
    directory = tmp_path / ".antegrad-00000000000000ff.partial"
    link = tmp_path / ".antegrad-00000000000000fe.partial"
    for path in (leftover, *foreign):
        path.write_bytes(b"x")
    directory.mkdir()
    link.symlink_to(foreign[0])
    save(tmp_path / "a.safetensors", OLD)
    left = {*foreign, directory, link, tmp_path / "a.safetensors"}
    assert set(tmp_path.iterdir()) == left


def test_a_partial_taken_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another save may remove the file between its creation and its lock."""
    locked: list[int] = []

    def remove_first(handle: int, operation: int) -> bool:
        locked.append(handle)
        if len(locked) == 1:
            partials(tmp_path)[0].unlink()
        return True

    monkeypatch.setattr(store, "_lock", remove_first)
    save(tmp_path / "a.safetensors", OLD)
    assert len(locked) == 2
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("function", "code"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("replace", errno.EPERM)]
)
def test_a_failing_save_keeps_the_old_file(
    function: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, function, fail)
        with pytest.raises(CheckpointError, match=rf"{path}: {os.strerror(code)}; nothing was written"):
            save(path, NEW)
    assert os.listdir(tmp_path) == []
    save(path, OLD)
    with monkeypatch.context() as patched:
        patched.setattr(os, function, fail)
        with pytest.raises(CheckpointError, match=rf"{os.strerror(code)}; the file that was there is unchanged"):
            save(path, NEW)
    assert os.listdir(tmp_path) == ["run.safetensors"]
    assert same(load(path).tensors, OLD)


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path / "a.safetensors", OLD)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL is a file system that has no such flush; anything else is told, with the file in place."""
    real = os.fsync
    codes = iter([errno.EINVAL, errno.EIO])

    def fail(handle: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            return real(handle)
        code = next(codes)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    save(tmp_path / "a.safetensors", OLD)
    with pytest.raises(CheckpointError, match="is there, but a power cut may lose it"):
        save(tmp_path / "a.safetensors", NEW)
    assert same(load(tmp_path / "a.safetensors").tensors, NEW)


def test_the_order_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is flushed before it is renamed, and the directory after."""
    events: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        events.append("flush directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "flush file")
        real_fsync(handle)

    def replace(source: Path, target: Path) -> None:
        assert Path(source).parent == Path(target).parent == tmp_path
        events.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    save(tmp_path / "a.safetensors", OLD)
    assert events == ["flush file", "rename", "flush directory"]


def test_new_directories_are_flushed_into_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    save(tmp_path / "a" / "b" / "run.safetensors", OLD)
    for directory in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        assert directory.stat().st_ino in flushed


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
        save(tmp_path / "a.safetensors", OLD)
    assert same(load(tmp_path / "a.safetensors").tensors, OLD)


def test_a_refused_tensor_touches_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="complex128"):
        save(tmp_path / "new" / "a.safetensors", {"a": np.ones(1, complex)})
    assert os.listdir(tmp_path) == []


def test_case_save_readonly(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    try:
        for attempt in (
            lambda: ensure_writable(closed),
            lambda: ensure_writable(closed / "run" / "1"),
            lambda: save(closed / "a.safetensors", OLD),
        ):
            with pytest.raises(CheckpointError, match=rf"in {closed}.*: {closed} has mode 555, nobody may write to it"):
                attempt()
        assert os.listdir(closed) == []
        closed.chmod(0o755)
        ensure_writable(closed)
    finally:
        closed.chmod(0o755)


def test_case_save_readonly_trial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that is mounted read-only shows it in no mode bit."""

    def refuse(*_: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match=rf"in {tmp_path}: a trial file failed: Read-only file system"):
        ensure_writable(tmp_path)


@pytest.mark.parametrize("below", ["", "run", "run/1"])
def test_a_file_in_the_way_is_refused(below: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/out is a file"):
        ensure_writable(tmp_path / "out" / below)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_missing_directory_is_created(tmp_path: Path) -> None:
    assert ensure_writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert os.listdir(tmp_path / "a" / "b") == []
    save(tmp_path / "c" / "d" / "run.safetensors", OLD)
    assert same(load(tmp_path / "c" / "d" / "run.safetensors").tensors, OLD)


def test_save_to_a_directory_or_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    with pytest.raises(CheckpointError, match=r"real: it is a directory"):
        save(tmp_path / "real", OLD)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=r"pipe: it is a device, a pipe or a socket"):
        save(tmp_path / "pipe", OLD)
    link = tmp_path / "link.safetensors"
    link.symlink_to(tmp_path / "real" / "a.safetensors")
    assert save(link, OLD) == link
    assert link.is_symlink()
    assert os.listdir(tmp_path / "real") == ["a.safetensors"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(tmp_path / "a.safetensors", OLD)
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o640


def test_load_names_what_it_cannot_open(tmp_path: Path) -> None:
    save(tmp_path / "disc.safetensors", OLD)
    with pytest.raises(CheckpointError, match=rf"disk.safetensors: No such file.*mean {tmp_path}/disc.safetensors\?"):
        load(tmp_path / "disk.safetensors")
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: Is a directory.$"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match=r"File name too long; nothing was written"):
        save(tmp_path / ("x" * 300), OLD)
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "disc.safetensors").read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/torn.safetensors: tensor 'param.w' .* 4 bytes are missing"):
        load(tmp_path / "torn.safetensors")


def test_loaded_arrays_do_not_alias_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(path, OLD)
    load(path).tensors["param.w"][:] = -1
    first = load(path)
    save(path, NEW)
    assert same(first.tensors, OLD)


def test_metadata_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "disc.safetensors", OLD, {"note": "warm"})
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", None)  # no array is made
        assert load_metadata(path) == {"note": "warm"}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{path}: .*1 bytes are missing"):
        load_metadata(path)
    with pytest.raises(CheckpointError, match=r"disk.safetensors: No such file.*mean .*disc.safetensors"):
        load_metadata(tmp_path / "disk.safetensors")


def test_other_files_are_written_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run" / "latest"
    assert write_file(path, [b"one", b"", memoryview(b"two")]) == path
    assert path.read_bytes() == b"onetwo"
    (path.parent / ".antegrad-0123456789abcdef.partial").touch()

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(CheckpointError, match=r"latest: No space left on device; the file that was there is unchanged"):
        write_file(path, [b"three"])
    assert path.read_bytes() == b"onetwo"
    assert os.listdir(path.parent) == ["latest"]
