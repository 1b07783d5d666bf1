"""Start one run as several processes on this machine, show what they write, and end them together.

What the processes are told is in their environment: see `antegrad.parallel.processes`, whose `initialize` reads it.
Across machines their scheduler does this work: ``srun python script.py`` needs no launcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from antegrad.errors import DeviceError, SettingError
from antegrad.optim import settings
from antegrad.parallel.channel import heartbeat
from antegrad.parallel.processes import ADDRESS, COUNT, INDEX, SECONDS, THREADS, TIMEOUT, pool_size
from antegrad.parallel.watch import EXIT_CODE

__all__ = ["launch"]

SETTLE = 3.0
"""Seconds that the process which began the trouble gets to end, after another one has ended because of it, beside those
in which all hear of it."""
LAST_LINES = 20
LONGEST_LINE = 1 << 16
PR_SET_PDEATHSIG = 1


def launch(
    command: Sequence[str],
    *,
    processes: int,
    devices_per_process: int = 1,
    timeout: float = 60.0,
    restarts: int = 0,
    port: int = 0,
    grace: float = 15.0,
) -> int:
    """Run ``python COMMAND`` as `processes` processes, and return the exit code of the first that failed, or 0.

    Each process has `devices_per_process` CPU devices, and as many GPUs of its own where there are some. Every line
    that they write comes to stdout behind ``[rank]``. When one fails, the others get SIGTERM, and SIGKILL after `grace`
    seconds; after that everything is started again, up to `restarts` times. SIGINT and SIGTERM go to all of them, the
    second time as SIGKILL, and nothing is started again. A process that a signal ended counts as 128 + its number.

    `timeout` is how long a silent peer is waited for, in seconds; `port` is that of process 0, 0 for a free one.
    Raises `SettingError` for numbers out of range, `DeviceError` when not all processes can be started.
    """
    if isinstance(command, str) or not command:
        settings.refuse("launch", "command", "a list: a script, or -m and a module, and their arguments", command)
    processes = _pipes(settings.whole("launch", "processes", processes, 1))
    devices_per_process = settings.whole("launch", "devices_per_process", devices_per_process, 1)
    timeout = settings.number("launch", "timeout", timeout, SECONDS)
    restarts = settings.whole("launch", "restarts", restarts, 0)
    if settings.whole("launch", "port", port, 0) >= 1 << 16:
        settings.refuse("launch", "port", "0 or the number of a port, which is below 65536", port)
    grace = settings.number("launch", "grace", grace, "[0, 1e8]")
    code = 0
    for attempt in range(restarts + 1):
        environments = _environments(processes, devices_per_process, timeout, port or _free_port())
        attempted = _Attempt(
            [[sys.executable, "-u", *command]] * processes, environments, grace, timeout
        )
        code = attempted.run()
        if code == 0 or attempted.interrupted or attempt == restarts:
            break
        _say(f"starting all again, {attempt + 1} of {restarts} times")
    return code


def _pipes(processes: int) -> int:
    """`processes`, if the launcher may have a pipe from each."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and processes > limit:
        raise SettingError(
            f"launch: processes must be at most {limit}, found {processes}: the launcher has a pipe from each, and "
            "may have so many files open (ulimit -n)"
        )
    return processes


def _environments(processes: int, devices: int, timeout: float, port: int) -> list[dict[str, str]]:
    common = {
        ADDRESS: f"127.0.0.1:{port}",
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_CPU_DEVICES": str(devices),
        COUNT: str(processes),
        TIMEOUT: str(timeout),
        THREADS: str(pool_size(devices)),
    }
    return [
        {
            **os.environ,
            **common,
            INDEX: str(rank),
            "JAX_LOCAL_DEVICE_IDS": ",".join(str(rank * devices + device) for device in range(devices)),
        }
        for rank in range(processes)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class _Rank:
    """One process."""

    process: subprocess.Popen[bytes]
    reader: threading.Thread | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    code: int | None = None
    """As a shell has it: 128 and the number of the signal."""
    forwarded: bool = False

    def forward(self, number: int) -> None:
        """Pass a signal on, once: a trainer that gets it twice ends without saving."""
        if not self.forwarded:
            self.forwarded = True
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it and its own children, if it still runs."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS where all have ended
                os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end. While its number cannot be taken by another, end the children of one that failed."""
        if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on; before that, the children live on
            with contextlib.suppress(ChildProcessError):
                end = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
                if end is not None and end.si_status != 0:
                    self.kill()
        code = self.process.wait()
        self.code = code if code >= 0 else 128 - code


class _Attempt:
    """All processes, once."""

    def __init__(
        self, commands: list[list[str]], environments: list[dict[str, str]], grace: float, timeout: float
    ) -> None:
        self._commands, self._environments = commands, environments
        self._grace, self._timeout = grace, timeout
        self._ranks: list[_Rank] = []
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._order: list[int] = []
        self._first: int | None = None
        """The rank that the others were stopped for."""
        self._given_up: list[int] = []
        """The ranks that go on while all that ended did so because of a lost peer: they are stopped, or hang."""
        self.interrupted = 0
        self._told = False
        """Whether it was said who has left the others."""

    def run(self) -> int:
        """Start all, and wait for all; the code of the one that failed first."""
        with _handlers(self._interrupt):
            try:
                for command, environment in zip(self._commands, self._environments, strict=True):
                    if not self.interrupted:
                        self._start(command, environment)
                while self._running() and (self.interrupted or not self._failures()):
                    waits = self._order and not self._told and not self.interrupted
                    if not self._await(self._timeout if waits else None):
                        self._tell()
                if self._failures() and not self.interrupted:
                    self._stop()
            finally:
                self._kill()
        return self._report()

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        number = len(self._ranks)
        try:
            rank = _Rank(_opened(command, environment))
            self._ranks.append(rank)  # at once, so that a signal reaches it
            self._follow(number, rank)
        except (OSError, RuntimeError) as error:  # the latter where there are no more threads
            several = len(self._commands)
            raise DeviceError(f"launch: rank {number} of {several} processes could not be started: {error}") from error
        if self.interrupted:  # while it was being started
            rank.forward(signal.SIGTERM)

    def _follow(self, number: int, rank: _Rank) -> None:
        rank.reader = threading.Thread(target=_relay, args=(number, rank), daemon=True)
        try:
            rank.reader.start()
            threading.Thread(target=self._wait, args=(number, rank), daemon=True).start()
        except RuntimeError:
            rank.kill()
            self._ranks.pop()  # nobody will hear of its end
            raise

    def _wait(self, number: int, rank: _Rank) -> None:
        try:
            rank.wait()
        finally:  # nobody waits for ever
            self._ended.put(number)

    def _await(self, seconds: float | None) -> bool:
        """Wait for the end of one more process; False when none came within `seconds`."""
        try:
            self._order.append(self._ended.get(timeout=seconds))
        except queue.Empty:
            return False
        return True

    def _running(self) -> bool:
        return len(self._order) < len(self._ranks)

    def _failures(self) -> list[int]:
        """The ranks that failed in the order of their ends; those that only followed another one last."""
        failed = [rank for rank in self._order if self._ranks[rank].code != 0]
        return sorted(failed, key=lambda rank: self._ranks[rank].code == EXIT_CODE)

    def _tell(self) -> None:
        """Who has ended without an error while others go on, who may wait for it."""
        self._told = True
        going = [rank for rank in range(len(self._ranks)) if rank not in self._order]
        ended, others = (_named(ranks) for ranks in (sorted(self._order), going))
        _say(f"{ended} ended with exit code 0, and {others} still ran {self._timeout:g} s later")

    def _stop(self) -> None:
        """End those that go on after a failure."""
        deadline = time.monotonic() + SETTLE + heartbeat(self._timeout)
        while self._running() and self._ranks[self._failures()[0]].code == EXIT_CODE:
            if not self._await(max(0.0, deadline - time.monotonic())):
                self._given_up = [rank for rank in range(len(self._ranks)) if rank not in self._order]
                break
        self._first = self._given_up[0] if self._given_up else self._failures()[0]
        for rank in self._ranks:
            rank.forward(signal.SIGTERM)
        deadline = time.monotonic() + self._grace
        while self._running() and self._await(max(0.0, deadline - time.monotonic())):
            pass

    def _kill(self) -> None:
        """No process stays behind."""
        for rank in self._ranks:
            rank.kill()
        while self._running():
            self._await(None)
        for rank in self._ranks:
            if rank.reader is not None:
                rank.reader.join(2.0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted += 1
        for rank in self._ranks:
            if self.interrupted == 1:
                rank.forward(number)
            else:
                rank.kill()

    def _report(self) -> int:
        failures = self._failures()
        if not failures:
            return 0
        first = failures[0] if self._first is None else self._first
        code = EXIT_CODE if self._given_up else self._ranks[first].code or 1  # 1 where it is not known
        if self.interrupted:
            _say(f"interrupted; rank {first} ended first, {_how(code)}")
            return code
        _say(f"{self._cause(first, code)}. Its last lines:")
        for line in self._ranks[first].last:
            _write(2, f"[{first}] {line}")
        return code

    def _cause(self, first: int, code: int) -> str:
        if self._given_up:
            named = _named(self._given_up)
            return f"{named} did not go on (stopped, or hanging); the others gave up, and all were ended"
        if code == EXIT_CODE:
            return f"all gave up a rank that hangs, {_how(code)}: each said which; rank {first} ended first"
        left = [rank for rank in self._order[: self._order.index(first)] if self._ranks[rank].code == 0]
        before = f" ({_named(left)} had ended before, without an error)" if left else ""
        return f"rank {first} failed first, {_how(code)}{before}; the others were stopped"


def _opened(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # the Ctrl-C of a terminal comes once, through the launcher
        preexec_fn=_die_with(os.getpid()),
    )


def _named(ranks: Sequence[int]) -> str:
    """``rank 0, 1 and 3``"""
    *most, last = map(str, ranks)
    return f"rank {', '.join(most)} and {last}" if most else f"rank {last}"


def _how(code: int) -> str:
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(code - 128).name}"
    return f"with exit code {code}"


def _relay(number: int, rank: _Rank) -> None:
    """Pass on the lines of one process."""
    assert rank.process.stdout is not None
    for line in _lines(rank.process.stdout):
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]  # of a line drawn anew, its last state
        rank.last.append(text)
        _write(1, f"[{number}] {text}")


def _lines(stream: Any) -> Iterator[bytes]:
    """The lines of a pipe, without their ends; a very long one in pieces."""
    held = b""
    while chunk := stream.read1(1 << 16):
        *whole, held = (held + chunk).split(b"\n")
        yield from whole
        if len(held) > LONGEST_LINE:
            yield held
            held = b""
    if held:
        yield held
    stream.close()


_output = threading.Lock()


def _write(descriptor: int, line: str) -> None:
    """One whole line; the launcher goes on when nobody reads it any more."""
    data = f"{line}\n".encode()
    with _output, contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def _say(text: str) -> None:
    _write(2, f"antegrad: {text}")


@contextlib.contextmanager
def _handlers(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """SIGINT and SIGTERM go to `handler` within the block; one that was ignored (nohup) stays ignored."""
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in previous:
            signal.signal(number, old)


def _die_with(parent: int) -> Callable[[], None] | None:
    """What a child does before it becomes Python: on Linux, ask to be killed when its parent is."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
