"""The loss of a process, in each way that one can be lost, ends all others with a line that names it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from antegrad.errors import SettingError
from antegrad.parallel import channel
from antegrad.parallel.watch import EXIT_CODE, PeerError, Watch, serve

PATIENCE = 60.0
"""Seconds after which a test gives up; nothing here takes nearly so long."""


@contextmanager
def watches(count: int, timeout: float = PATIENCE) -> Iterator[list[Watch]]:
    """The `count` processes of a run as so many objects in this one, which a verdict does not end."""
    server = serve(count, timeout=timeout)
    made: list[Watch] = []
    try:
        for rank in range(count):
            mine = server if rank == 0 else None
            made.append(Watch(rank, count, server.address, timeout=timeout, token=server.token, server=mine, end=False))
        yield made
    finally:
        for watch in reversed(made):
            watch.close()


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """What the calls return when each runs in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(call) for call in calls]]


def test_gather_keeps_ranks_topics_and_order_apart() -> None:
    def many(watch: Watch, topic: str) -> list[Any]:
        return [watch.gather(topic, [topic, watch.index, number]) for number in range(50)]

    with watches(3) as run:
        topics = ("loss", "checkpoint")
        found = together([lambda w=watch, t=topic: many(w, t) for topic in topics for watch in run])
    for place, results in enumerate(found):
        topic = topics[place // 3]
        assert results == [[[topic, rank, number] for rank in range(3)] for number in range(50)]


def test_gather_takes_what_json_has() -> None:
    values = [{"a": [1, 2.5, None, True]}, "text\nof lines, and ünïcode", list(range(100_000))]
    with watches(3) as run:
        found = together([lambda w=watch: w.gather("x", values[w.index]) for watch in run])
        assert found == [values] * 3
        with pytest.raises(TypeError):
            run[0].gather("x", object())
        assert together([lambda w=watch: w.gather("x", w.index) for watch in run]) == [[0, 1, 2]] * 3


def test_a_stranger_is_kept_out() -> None:
    server = serve(1)
    with Watch(0, 1, server.address, token=server.token, server=server, end=False) as watch:
        with pytest.raises(PeerError, match="token"):
            Watch(0, 1, server.address, token="guess", end=False)
        with pytest.raises(PeerError, match="rank 0 is there already"):
            Watch(0, 1, server.address, token=server.token, end=False)
        with pytest.raises(PeerError, match="rank 2 of 3 in a run of 1"):
            Watch(2, 3, server.address, token=server.token, end=False)
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\0\0\0\2[]", b""):
            with socket.create_connection(server.address) as stranger:
                stranger.sendall(noise)
        assert watch.gather("x", 5) == [5]
        assert watch.verdict() is None


@pytest.mark.parametrize("hello", [b'{"kind": "hello", "token": "\\ud800"}', b"[" * 4000])
def test_a_stranger_that_says_what_cannot_be_read_is_refused(hello: bytes, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(1)
    with socket.create_connection(server.address) as stranger:
        stranger.sendall(len(hello).to_bytes(4, "big") + hello)
        with stranger.makefile("rb") as answers:
            answer = answers.read()
    server.close()
    assert b"the token is not that of this run" in answer
    assert not caplog.text, "asyncio logs what nobody catches"


def test_a_message_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LARGEST", 100)
    with pytest.raises(SettingError, match="a message of 102 bytes between processes; at most 100 are allowed"):
        channel.encode("x" * 100)  # pyright: ignore[reportArgumentType]


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(PeerError, match="rank 0 cannot be reached"):
            Watch(1, 2, taken.getsockname(), timeout=0.5, end=False)


def test_a_failure_names_rank_and_reason_everywhere() -> None:
    with ThreadPoolExecutor(1) as pool, watches(3) as run:
        held = pool.submit(run[0].gather, "x", 1)
        run[2].fail("disk full")
        with pytest.raises(PeerError, match="rank 2 failed: disk full") as caught:
            held.result(PATIENCE)
        assert caught.value.rank == 2
        assert run[1].verdict(PATIENCE) == "rank 2 failed: disk full"
        with pytest.raises(PeerError, match="rank 2 failed"):
            run[1].gather("y", 1)
        with pytest.raises(PeerError, match="has failed: disk full"):
            run[2].gather("y", 1)


def test_an_exception_that_leaves_the_block_is_a_failure() -> None:
    with watches(2) as run:
        with pytest.raises(KeyError), run[1]:
            raise KeyError("weights")
        assert run[0].verdict(PATIENCE) == "rank 1 failed: KeyError: 'weights'"


def test_a_hanging_main_thread_is_named() -> None:
    with watches(3, timeout=0.4) as run:
        for watch in run:
            watch.progress(4)
        assert run[0].verdict(wait=0.9) is None, "equal counts are no lag, however long a dispatch takes"
        for watch in (run[0], run[2]):
            watch.progress(5)
        found = run[0].verdict(PATIENCE)
        assert found == "rank 1 hangs (it has been at dispatch 4 for 0.4 s, others are at 5)"


def test_a_slow_process_that_goes_on_does_not_hang() -> None:
    with watches(2, timeout=0.4) as run:
        run[0].progress(1000)
        for step in range(8):  # two timeouts
            run[1].progress(step + 1)
            assert run[0].verdict(wait=0.1) is None


def test_a_busy_process_may_be_waited_for() -> None:
    with ThreadPoolExecutor(1) as pool, watches(2, timeout=0.4) as run:
        run[1].progress(1)
        with run[0].busy():
            held = pool.submit(run[1].gather, "saved", 1)
            assert run[1].verdict(wait=0.9) is None
        run[0].progress(1)
        assert run[0].gather("saved", 0) == [0, 1]
        assert held.result(PATIENCE) == [0, 1]


def test_who_does_not_come_to_a_gather_is_named() -> None:
    with watches(3, timeout=0.5) as run:
        calls = [lambda w=watch: w.gather("epoch", 0, timeout=0.9) for watch in (run[0], run[2])]
        with pytest.raises(PeerError, match=r"rank 1 did not come to 'epoch' within 0.9 s after rank 0, 2") as caught:
            together(calls)
        assert caught.value.rank == 1


def test_who_never_connects_is_named() -> None:
    server = serve(2, timeout=0.5)
    with Watch(0, 2, server.address, timeout=0.5, token=server.token, server=server, end=False) as alone:
        assert alone.verdict(PATIENCE) == "rank 1 did not connect within 0.5 s"


def test_goodbye_is_no_death() -> None:
    with watches(3, timeout=0.4) as run:
        run[2].close()
        assert run[0].verdict(wait=0.9) is None
        run[0].close()
        assert run[1].verdict(wait=0.9) is None
        with pytest.raises(PeerError, match="rank 0 has said goodbye"):
            run[1].gather("x", 1)
        run[1].close()
        run[1].close()


def test_leaving_waits_for_all() -> None:
    with ThreadPoolExecutor(3) as pool, watches(3) as run:
        first = [pool.submit(watch.leave) for watch in run[:2]]
        assert wait(first, timeout=0.3).done == set()
        run[2].leave()
        for future in first:
            future.result(PATIENCE)


def test_who_has_left_while_others_go_on_is_named() -> None:
    with ThreadPoolExecutor(1) as pool, watches(2, timeout=0.4) as run:
        left = pool.submit(run[1].leave)
        run[0].progress(3)
        expected = "rank 1 has ended its part"
        with pytest.raises(PeerError, match=expected):
            left.result(PATIENCE)


WORKER = """
import os, sys, time
from antegrad.parallel.watch import Watch, serve

rank, count, port, token, then = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
timeout = float(sys.argv[6])
server = serve(count, timeout=timeout) if rank == 0 else None
if server:
    print(server.address[1], server.token, flush=True)
address, token = (server.address, server.token) if server else (("127.0.0.1", port), token)
hook = lambda line: print("hook", line, flush=True)
watch = Watch(rank, count, address, timeout=timeout, token=token, server=server, on_lost=hook, grace=0.5)
watch.gather("begin", rank)
if then == f"fork {rank}" and os.fork() == 0:
    time.sleep(120)
    os._exit(0)
watch.gather("ready", rank)
print("ready", flush=True)
if then == f"fail {rank}":
    watch.fail("disk full")
    os._exit(3)
time.sleep(120)
"""


class Processes:
    """Three real processes, ready."""

    def __init__(self, then: str, timeout: float) -> None:
        self.timeout = str(timeout)
        self.children: list[subprocess.Popen[str]] = []
        try:
            self._start(0, "0", "-", then)
            port, token = self._line(0).split()
            for rank in (1, 2):
                self._start(rank, port, token, then)
            assert [self._line(rank) for rank in range(3)] == ["ready\n"] * 3
        except BaseException:
            self.end()
            raise

    def _start(self, rank: int, port: str, token: str, then: str) -> None:
        command = [sys.executable, "-c", WORKER, str(rank), "3", port, token, then, self.timeout]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.children.append(subprocess.Popen(command, start_new_session=True, **pipes))

    def _line(self, rank: int) -> str:
        stream = self.children[rank].stdout
        assert stream is not None
        return stream.readline()

    def send(self, rank: int, number: int) -> None:
        self.children[rank].send_signal(number)

    def result(self, rank: int) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a process that ends by itself."""
        out, error = self.children[rank].communicate(timeout=PATIENCE)
        return self.children[rank].returncode, out, error

    def end(self) -> None:
        for child in self.children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


@contextmanager
def processes(then: str = "wait", timeout: float = PATIENCE) -> Iterator[Processes]:
    run = Processes(then, timeout)
    try:
        yield run
    finally:
        run.end()


def said(lost: int, why: str, rank: int) -> str:
    advice = 'The run goes on from its last checkpoint with resume="latest".'
    return f"antegrad: rank {lost} {why}; this process (rank {rank}) ends. {advice}\n"


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_process_ends_all(victim: int) -> None:
    with processes() as run:
        run.send(victim, signal.SIGKILL)
        for rank in {0, 1, 2} - {victim}:
            code, out, error = run.result(rank)
            line = said(victim, "died (its connection closed)", rank)
            assert (code, out, error) == (EXIT_CODE, f"hook {line}", line)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_process_ends_all_and_itself_when_it_goes_on(victim: int) -> None:
    with processes(timeout=6.0) as run:
        run.send(victim, signal.SIGSTOP)
        for rank in {0, 1, 2} - {victim}:
            code, _, error = run.result(rank)
            assert (code, error) == (EXIT_CODE, said(victim, "gave no sign of life for 6 s", rank))
        run.send(victim, signal.SIGCONT)
        code, _, error = run.result(victim)
        assert code == EXIT_CODE
        assert error.startswith(f"antegrad: the other processes gave this one (rank {victim}) up: it gave no sign")


def test_a_failing_process_ends_all() -> None:
    with processes("fail 1") as run:
        assert run.result(1)[0] == 3
        for rank in (0, 2):
            code, _, error = run.result(rank)
            assert (code, error) == (EXIT_CODE, said(1, "failed: disk full", rank))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="forks while threads run")
def test_a_forked_child_does_not_hide_the_death_of_its_parent() -> None:
    with processes("fork 1") as run:
        run.send(1, signal.SIGKILL)
        code, _, error = run.result(0)
        assert (code, error) == (EXIT_CODE, said(1, "died (its connection closed)", 0))


def test_a_run_that_is_stopped_as_a_whole_goes_on() -> None:
    with processes(timeout=5.0) as run:
        for rank in range(3):
            run.send(rank, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            run.children[1].wait(7.0)
        for rank in range(3):
            run.send(rank, signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            run.children[1].wait(0.8)
        assert [child.poll() for child in run.children] == [None] * 3
