"""The launcher, and processes that are joined by JAX: real ones, on the CPU."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from antegrad.errors import SettingError
from antegrad.parallel.launch import launch as launched
from antegrad.parallel.watch import EXIT_CODE

PATIENCE = 60.0
"""Seconds after which a test gives up; nothing here takes nearly so long."""
OURS = re.compile("ANTEGRAD_|JAX_|SLURM_|OMPI_|KUBERNETES_|JOB_COMPLETION|PJRT_|XLA_|TPU_")


def environment(**extra: str) -> dict[str, str]:
    """That of this process without what names a run, on the CPU."""
    return {**{k: v for k, v in os.environ.items() if not OURS.match(k)}, "JAX_PLATFORMS": "cpu", **extra}


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python with arguments and variables; what still runs when the test ends is killed."""
    children: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **extra: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        children.append(child)
        return child

    yield run
    for child in children:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def finish(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that ends by itself."""
    out, error = child.communicate(timeout=PATIENCE)
    return child.returncode, out, error


def lines_of(out: str, rank: int) -> list[str]:
    return [line.removeprefix(f"[{rank}] ") for line in out.splitlines() if line.startswith(f"[{rank}] ")]


def script(folder: Path, text: str) -> str:
    file = folder / "script.py"
    file.write_text(f"import os, signal, sys, time\nrank = int(os.environ['ANTEGRAD_PROCESS_INDEX'])\n{text}")
    return str(file)


def launch(start: Start, *arguments: str) -> subprocess.Popen[str]:
    return start("-m", "antegrad", "launch", *arguments)


def read_until(child: subprocess.Popen[str], text: str, times: int) -> str:
    """What the process writes until `text` has come so often."""
    assert child.stdout is not None
    found = ""
    while found.count(text) < times:
        line = child.stdout.readline()
        assert line, f"it ended: {found}"
        found += line
    return found


def test_lines_come_with_their_rank_in_order(start: Start, tmp_path: Path) -> None:
    text = """
for number in range(300):
    print("line", number, file=sys.stderr if number % 2 else sys.stdout)
print("arguments", sys.argv[1:], os.environ["JAX_NUM_CPU_DEVICES"], os.environ["JAX_LOCAL_DEVICE_IDS"])
print("drawn", end="\\r"); print("again", end="")
"""
    options = ("--processes", "2", "--devices-per-process", "3")
    code, out, error = finish(launch(start, *options, script(tmp_path, text), "-m", "--processes", "7"))
    assert (code, error) == (0, "")
    for rank in range(2):
        devices = "0,1,2" if rank == 0 else "3,4,5"
        last = [f"arguments ['-m', '--processes', '7'] 3 {devices}", "again"]
        assert lines_of(out, rank) == [*(f"line {number}" for number in range(300)), *last]


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [("os.__dict__.pop('waitid', None)", 3), ("os.killpg = lost", 3), ("os.waitid = lost", 1)],
)
def test_the_launcher_ends_on_every_system(start: Start, tmp_path: Path, lacking: str, expected: int) -> None:
    """macOS has no `os.waitid` before Python 3.13, and permits no signal to a group of which all have ended."""
    text = f"""
import os, sys
from antegrad.parallel.launch import launch
def lost(*arguments):
    raise PermissionError("not here")
{lacking}
sys.exit(launch([{script(tmp_path, "sys.exit(3 * rank)")!r}], processes=2))
"""
    code, _, error = finish(start("-c", text))
    assert code == expected
    assert f"failed first, with exit code {expected}" in error


def test_a_process_that_cannot_be_started_ends_the_others(start: Start, tmp_path: Path) -> None:
    text = f"""
import threading
from antegrad.parallel.launch import launch
begin, begun = threading.Thread.start, []
def start(thread):
    begun.append(thread)
    if len(begun) == 4:
        raise RuntimeError("can't start new thread")
    begin(thread)
threading.Thread.start = start
launch([{script(tmp_path, "time.sleep(120)")!r}], processes=2)
"""
    code, _, error = finish(start("-c", text))
    assert code == 1
    assert "DeviceError: launch: rank 1 of 2 processes could not be started: can't start new thread" in error


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        ("processes must be a whole number .* found True", {"processes": True}),
        ("processes must be a whole number .* found 2.5", {"processes": 2.5}),
        ("devices_per_process must be a whole number .* found 0", {"devices_per_process": 0}),
        ("restarts must be a whole number .* found -1", {"restarts": -1}),
        (r"timeout must be a number in \(0, 1e8\], found inf", {"timeout": float("inf")}),
        (r"timeout must be a number in \(0, 1e8\], found nan", {"timeout": float("nan")}),
        (r"grace must be a number in \[0, 1e8\], found inf", {"grace": float("inf")}),
        ("port must be 0 or the number of a port, .* found 65536", {"port": 1 << 16}),
        ("command must be a list: .* found 'script.py'", {"command": "script.py"}),
        (r"command must be a list: .* found \[\]", {"command": []}),
    ],
)
def test_arguments_that_are_refused(match: str, changed: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"launch: {match}"):
        launched(**{"command": ["script.py"], "processes": 2, **changed})


def test_more_processes_than_pipes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    with pytest.raises(SettingError, match=r"launch: processes must be at most 64, found 65: .* so many files open"):
        launched(["script.py"], processes=65)


def test_a_module_is_run_too(start: Start) -> None:
    code, out, _ = finish(launch(start, "--processes", "2", "-m", "calendar", "2024", "2"))
    assert code == 0
    assert "29" in " ".join(lines_of(out, 0)) == " ".join(lines_of(out, 1))


def test_the_first_failure_stops_all_and_is_reported(start: Start, tmp_path: Path) -> None:
    text = """
print("started", flush=True)
if rank == 1:
    time.sleep(0.5)
    raise SystemExit("no such file")
signal.signal(signal.SIGTERM, lambda number, frame: (print("told to end"), sys.exit(9)))
time.sleep(120)
"""
    code, out, error = finish(launch(start, "--processes", "3", script(tmp_path, text)))
    assert code == 1
    assert lines_of(out, 0) == lines_of(out, 2) == ["started", "told to end"]
    report = "antegrad: rank 1 failed first, with exit code 1; the others were stopped. Its last lines:\n"
    assert error == f"{report}[1] started\n[1] no such file\n"


def test_who_followed_another_is_not_blamed(start: Start, tmp_path: Path) -> None:
    text = f"sys.exit({EXIT_CODE}) if rank == 0 else (time.sleep(1.0), os.kill(os.getpid(), signal.SIGSEGV))"
    code, _, error = finish(launch(start, "--processes", "2", script(tmp_path, text)))
    assert code == 128 + signal.SIGSEGV
    assert "rank 1 failed first, by SIGSEGV" in error


@pytest.mark.parametrize("code", [0, 4])
def test_who_leaves_the_others_waiting_is_named(start: Start, tmp_path: Path, code: int) -> None:
    """It ends without an error, so nothing is stopped; if the others fail for want of it, that is said."""
    text = f"sys.exit() if rank == 1 else (time.sleep(2.0), sys.exit({code}))"
    ended, _, error = finish(launch(start, "--processes", "3", "--timeout", "0.5", script(tmp_path, text)))
    assert ended == code
    told = "antegrad: rank 1 ended with exit code 0, and rank 0 and 2 still ran 0.5 s later\n"
    failed = "failed first, with exit code 4 (rank 1 had ended before, without an error); the others were stopped"
    assert error.startswith(told)
    assert (failed in error) == (code == 4)


def test_who_is_stopped_is_named(start: Start, tmp_path: Path) -> None:
    """The others end because of it, and it itself does not end at all."""
    text = f"""
print("started", flush=True)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
sys.exit({EXIT_CODE})
"""
    call = f"launch([{script(tmp_path, text)!r}], processes=3, grace=0.5)"
    code, _, error = finish(start("-c", f"import sys; from antegrad.parallel.launch import launch; sys.exit({call})"))
    assert code == EXIT_CODE
    assert error.startswith("antegrad: rank 1 did not go on (stopped, or hanging); the others gave up, and all were")
    assert error.endswith("Its last lines:\n[1] started\n")


def test_a_process_that_does_not_end_is_killed(start: Start, tmp_path: Path) -> None:
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1.0 if rank == 1 else 120)
sys.exit(4)
"""
    call = f"launch([{script(tmp_path, text)!r}], processes=2, grace=0.5)"
    code, _, error = finish(start("-c", f"import sys; from antegrad.parallel.launch import launch; sys.exit({call})"))
    assert code == 4
    assert "rank 1 failed first, with exit code 4" in error


def test_a_failed_run_is_started_again(start: Start, tmp_path: Path) -> None:
    text = f"""
marks = {str(tmp_path)!r} + f"/mark{{rank}}"
with open(marks, "a") as file:
    file.write("x")
print("attempt", len(open(marks).read()))
if rank == 1 and len(open(marks).read()) < 3:
    sys.exit(5)
time.sleep(0.5)
"""
    file = script(tmp_path, text)
    code, out, error = finish(launch(start, "--processes", "2", "--restarts", "2", file))
    assert code == 0
    assert lines_of(out, 1) == ["attempt 1", "attempt 2", "attempt 3"]
    assert error.count("rank 1 failed first, with exit code 5") == 2
    assert "starting all again, 2 of 2 times" in error


INTERRUPTED = """
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
print("ready", os.getpgrp() == os.getpid(), flush=True)
while not seen:
    time.sleep(0.02)
time.sleep(0.5)
print("seen", seen, flush=True)
if len(sys.argv) > 1:
    time.sleep(120)
sys.exit(6)
"""


def test_ctrl_c_reaches_each_once_and_nothing_restarts(start: Start, tmp_path: Path) -> None:
    child = launch(start, "--processes", "2", "--restarts", "3", script(tmp_path, INTERRUPTED))
    assert read_until(child, "ready", 2).count("ready True") == 2, "each in a group of its own"
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    code, out, error = finish(child)
    assert code == 6
    assert lines_of(out, 0) == lines_of(out, 1) == ["seen [2]"]
    assert "interrupted" in error
    assert "again" not in error


def test_the_second_ctrl_c_kills(start: Start, tmp_path: Path) -> None:
    child = launch(start, "--processes", "2", script(tmp_path, INTERRUPTED), "stay")
    read_until(child, "ready", 2)
    child.send_signal(signal.SIGINT)
    read_until(child, "seen", 2)
    child.send_signal(signal.SIGINT)
    assert finish(child)[0] == 128 + signal.SIGKILL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends children with their parent")
def test_a_killed_launcher_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    child = launch(start, "--processes", "2", script(tmp_path, "print('pid', os.getpid())\ntime.sleep(120)"))
    pids = [int(number) for number in re.findall(r"pid (\d+)", read_until(child, "pid", 2))]
    child.kill()
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_command_line(start: Start) -> None:
    code, out, _ = finish(start("-m", "antegrad", "devices"))
    assert code == 0
    assert re.match(r"host \(NumPy.*\ncpu \(.*\nantegrad runs on cpu", out)
    code, _, error = finish(launch(start, "--processes", "0", "script.py"))
    assert (code, error) == (2, "antegrad: launch: processes must be a whole number in [1, 2**31), found 0\n")
    code, _, error = finish(launch(start, "--processes", "2"))
    assert code == 2
    assert "no script to run was given" in error


JOINED = """
import sys, time
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from antegrad.parallel import processes

processes.initialize()
processes.initialize()
rank = processes.index()
assert processes.leader() == (rank == 0)
print("gathered", processes.watch().gather("ranks", [rank]), process_allgather(np.float32(rank)), flush=True)
if sys.argv[1] == "fail" and rank == 1:
    raise ValueError("the loss is not a number\\nat step 3")
if sys.argv[1] == "end":
    time.sleep(rank)
    sys.exit()
step = 0
while True:
    step += 1
    processes.watch().progress(step)
    process_allgather(np.ones(1000, np.float32))
    if step == 20:
        print("going", flush=True)
    time.sleep(0.005)
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def joined(start: Start, then: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes with the variables that any scheduler can set, and three seconds of patience."""
    shared = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "ANTEGRAD_PROCESS_COUNT": "2",
        "ANTEGRAD_PROCESS_TIMEOUT": "3",
    }
    yield [start("-c", JOINED, then, **shared, ANTEGRAD_PROCESS_INDEX=str(rank)) for rank in range(2)]


def test_launched_processes_compute_together_and_part(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "joined.py"
    file.write_text(JOINED)
    code, out, error = finish(launch(start, "--processes", "2", str(file), "end"))
    assert (code, error) == (0, "")
    for rank in range(2):
        assert "gathered [[0], [1]] [0. 1.]" in lines_of(out, rank)


def test_a_slurm_step_needs_no_launcher(start: Start) -> None:
    step = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": free_port(),
    }
    children = [start("-c", JOINED, "end", **step, SLURM_PROCID=str(r), SLURM_LOCALID=str(r)) for r in range(2)]
    for child in children:
        code, out, error = finish(child)
        assert code == 0, error
        assert "gathered [[0], [1]] [0. 1.]" in out


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_in_a_collective_is_named(start: Start, victim: int) -> None:
    with joined(start, "go on") as children:
        read_until(children[1 - victim], "going", 1)
        children[victim].kill()
        code, _, error = finish(children[1 - victim])
    assert code == EXIT_CODE
    assert f"antegrad: rank {victim} died (its connection closed); this process (rank {1 - victim}) ends." in error


def test_a_process_stopped_in_a_collective_is_named(start: Start) -> None:
    with joined(start, "go on") as children:
        read_until(children[0], "going", 1)
        children[1].send_signal(signal.SIGSTOP)
        code, _, error = finish(children[0])
    assert code == EXIT_CODE
    assert re.search(r"antegrad: rank 1 (gave no sign of life for 3 s|hangs .*); this process \(rank 0\) ends", error)


def test_an_exception_that_nobody_catches_is_told_to_the_others(start: Start) -> None:
    with joined(start, "fail") as children:
        code, _, error = finish(children[1])
        assert code == 1
        assert "ValueError: the loss is not a number\nat step 3\n" in error
        code, _, error = finish(children[0])
    assert code == EXIT_CODE
    assert "antegrad: rank 1 failed: ValueError: the loss is not a number; this process (rank 0) ends." in error


@pytest.mark.parametrize(
    "variables", [{"JAX_NUM_CPU_DEVICES": "4"}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}]
)
def test_a_mesh_leaves_the_devices_that_were_set(start: Start, variables: dict[str, str]) -> None:
    code = "from antegrad.parallel import mesh; print(mesh(2).size, mesh(4).size, mesh().size)"
    ended, out, error = finish(start("-c", code, **variables))
    assert (ended, out) == (0, "2 4 4\n"), error


def test_devices_are_asked_for_before_jax_starts(start: Start) -> None:
    code = """
import os, jax
from antegrad.errors import DeviceError
from antegrad.parallel import processes
processes.initialize()
assert not processes.watch() and processes.count() == 1
processes.local_devices(3)
assert len(jax.devices()) == 3 and int(os.environ["PJRT_NPROC"]) >= 6
processes.local_devices(3)
processes.local_devices(2)
try:
    processes.local_devices(4)
except DeviceError as error:
    print(error)
"""
    ended, out, error = finish(start("-c", code))
    assert ended == 0, error
    assert out.startswith("4 CPU devices were asked for, but JAX has started with 3: ")
    late = "import jax; jax.devices(); from antegrad.parallel.processes import initialize; initialize()"
    variables = {"ANTEGRAD_PROCESS_COUNT": "2", "ANTEGRAD_PROCESS_INDEX": "0", "JAX_COORDINATOR_ADDRESS": "localhost:1"}
    ended, _, error = finish(start("-c", late, **variables))
    assert ended == 1
    assert "DeviceError: antegrad.parallel.initialize() came after JAX had started its devices: call it first" in error
