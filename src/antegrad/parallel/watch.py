"""The processes of one run watch each other, so that none waits for ever for a peer that is lost.

Process 0 serves a small TCP channel, and every process, 0 included, is a client of it: see `Watch`. A collective that
waits for a lost peer often raises nothing (the peer is stopped, or its machine is gone), and where it waits no Python
exception reaches the main thread. A thread of its own therefore hears of the loss, says it, and ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from antegrad.errors import AntegradError
from antegrad.parallel.channel import AwakeClock, Background, Server, encode, hang_up, heartbeat, own, receive

__all__ = ["EXIT_CODE", "PeerError", "Server", "Watch", "serve"]

EXIT_CODE = 75
"""With what a process ends because of a lost peer: EX_TEMPFAIL of sysexits.h, try again."""
GRACE = 2.0
"""Seconds from the news of a loss to the end of this process, in which its main thread may end by itself."""
ADVICE = 'The run goes on from its last checkpoint with resume="latest".'


class PeerError(AntegradError, RuntimeError):
    """Another process of the run is lost, or has failed; the message names it, and `rank` is its number."""

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class Watch:
    """This process's part of the channel between the `count` processes of a run; it is number `index` of them.

        server = serve(2)                               # in process 0
        with Watch(0, 2, server.address, token=server.token, server=server) as watch:
            watch.gather("losses", 0.5)                 # [0.5, ...], from every process

    `address` and `token` are the server's. `timeout` is in seconds, and the same in all processes: a peer that gives no
    sign of life for so long is lost (the news takes up to half as long again). A peer whose connection closes is lost
    at once, and so is one that calls `fail`. One that has begun fewer dispatches than another (`progress`), and begins
    no more for `timeout`, hangs.

    When a peer is lost, every process writes one line on stderr that names it, runs ``on_lost(line)`` in a thread, and
    ends with `EXIT_CODE` after `grace` seconds, wherever its main thread is; with ``end=False`` the methods below raise
    `PeerError`, and that is all. They may be called from any thread.

    Raises `PeerError` when the server cannot be reached within `timeout`.
    """

    def __init__(
        self,
        index: int,
        count: int,
        address: tuple[str, int],
        *,
        timeout: float = 60.0,
        token: str = "",
        on_lost: Callable[[str], Any] | None = None,
        server: Server | None = None,
        end: bool = True,
        grace: float = GRACE,
    ) -> None:
        self.index, self.count, self.timeout = index, count, timeout
        self._on_lost, self._end, self._grace, self._server = on_lost, end, grace, server
        self._steps, self._busy = 0, 0
        self._lock = threading.RLock()
        self._waiting: dict[tuple[str, int], Future[Any]] = {}
        self._numbers: dict[str, int] = defaultdict(int)
        self._verdict: tuple[str, int] | None = None
        self._decided, self._acknowledged = threading.Event(), threading.Event()
        self._closed = self._server_left = False
        self._clock = AwakeClock(heartbeat(timeout))
        self._heard = 0.0
        self._thread = Background("antegrad-watch")
        try:
            self._thread.call(self._connect(address, token))
        except BaseException:
            self._closed = True
            self._thread.stop()
            raise

    def gather(self, topic: str, value: Any, *, timeout: float | None = None) -> list[Any]:
        """The `value` of each process, by rank, waiting for all. Values are what JSON has: a tuple comes as a list.

        The calls of one topic are matched in their order: the third of one process belongs to the third of another.
        Different topics may be under way at once from several threads. `timeout` stands for the run's own here.

        Raises `PeerError` when a peer is lost, or when it has not come within `timeout` after the last that came.
        """
        with self._lock:
            number = self._numbers[topic]
            message = {"kind": "value", "topic": topic, "number": number, "value": value, "timeout": timeout}
            frame = encode(message)
            self._check()
            self._numbers[topic] += 1
            future = self._waiting[topic, number] = Future()
        self._send(frame)
        return future.result()

    def progress(self, steps: int) -> None:
        """Note that this process is about to begin its dispatch number `steps`, which the others begin too.

        Call it before each such dispatch: a process that waits in a collective is then ahead of the one it waits for.
        It costs nothing, as the number travels with the next heartbeat. Only differences between processes count.
        """
        self._steps = steps

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within the block this process may let the others wait for it: it does long work that they do not do."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def fail(self, message: str) -> None:
        """Tell all others that this process ends with an error; they end too. It returns when they have been told."""
        with self._lock:
            if self._verdict is not None or self._closed:
                return
            self._verdict = (f"this process (rank {self.index}) has failed: {message}", self.index)
            self._settle()
        self._send(encode({"kind": "fail", "message": message}))
        self._acknowledged.wait(self._grace)

    def verdict(self, wait: float = 0.0) -> str | None:
        """Who is lost and why, as far as it is known within `wait` seconds; None when all is well.

        A collective that a lost peer breaks can raise before the news comes: a second of `wait` is ample then.
        """
        self._decided.wait(wait)
        return self._verdict[0] if self._verdict else None

    def leave(self) -> None:
        """Say that this process has done its work, and wait until all others have too. Raises `PeerError`."""
        with self._lock:
            self._check()
            future = self._waiting["", -1] = Future()
        self._send(encode({"kind": "leave"}))
        future.result()

    def close(self) -> None:
        """Goodbye: from now on the end of this process is no loss. In process 0 it ends the channel for the others."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._settle()
        self._thread.call(hang_up(self._writer, {"kind": "bye"} if self._verdict is None else None))
        self._thread.stop()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and not isinstance(error, PeerError):
            self.fail(describe(error))
        self.close()

    def _check(self) -> None:
        if self._verdict is not None:
            raise PeerError(*self._verdict)
        if self._closed or self._server_left:
            raise PeerError("this process has said goodbye" if self._closed else "rank 0 has said goodbye", 0)

    def _settle(self) -> None:
        """Release everybody who waits; the lock is held."""
        self._decided.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerError(*(self._verdict or ("the channel is closed", 0))))
        self._waiting.clear()

    def _send(self, frame: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: whoever waits has been released
            self._thread.loop.call_soon_threadsafe(self._writer.write, frame)

    async def _connect(self, address: tuple[str, int], token: str) -> None:
        """Connect and be admitted; the server may start a little later than this process."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                reader, self._writer = await asyncio.wait_for(asyncio.open_connection(*address), self.timeout)
                break
            except (OSError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise PeerError(f"rank 0 cannot be reached at {address[0]}:{address[1]}: {error}", 0) from error
                await asyncio.sleep(0.1)
        own(self._writer)
        self._writer.write(encode({"kind": "hello", "token": token, "rank": self.index, "count": self.count}))
        answer = await receive(reader, self.timeout)
        if not answer or answer["kind"] != "welcome":
            self._writer.close()
            raise PeerError(f"rank 0 does not admit this process: {(answer or {}).get('why', 'no answer')}", 0)
        self._thread.keep(self._listen(reader))
        self._thread.keep(self._tick())

    async def _tick(self) -> None:
        while not self._writer.is_closing():
            self._writer.write(encode({"kind": "beat", "steps": self._steps, "busy": self._busy > 0}))
            await asyncio.sleep(self._clock.interval)
            self._clock.advance()
            if self._clock.now - self._heard > self.timeout and not self._server_left:
                self._lose(0, f"gave no sign of life for {self.timeout:g} s")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader)) is not None:
            self._heard = self._clock.now
            match message["kind"]:
                case "values":
                    self._resolve((message["topic"], message["number"]), message["values"])
                case "left":
                    self._resolve(("", -1), None)
                case "verdict":
                    self._acknowledged.set()
                    self._lose(message["rank"], message["why"])
                case "bye":
                    self._part()
        if not self._server_left:
            self._lose(0, "died (its connection closed)")
        self._writer.close()

    def _resolve(self, key: tuple[str, int], value: Any) -> None:
        with self._lock:
            future = self._waiting.pop(key, None)
        if future is not None:
            future.set_result(value)

    def _part(self) -> None:
        """Rank 0 has said goodbye: what others still wait for cannot come, but nobody is lost."""
        with self._lock:
            self._server_left = True
            self._resolve(("", -1), None)
            for future in self._waiting.values():
                future.set_exception(PeerError("rank 0 has said goodbye", 0))
            self._waiting.clear()

    def _lose(self, rank: int, why: str) -> None:
        """The first verdict counts: say it, and end."""
        if rank == self.index:
            line = f"antegrad: the other processes gave this one (rank {rank}) up: it {why}; it ends. {ADVICE}"
        else:
            line = f"antegrad: rank {rank} {why}; this process (rank {self.index}) ends. {ADVICE}"
        with self._lock:
            if self._verdict is not None or self._closed:
                return
            if self._end:  # first, because whoever is released no longer holds back the SIGTERM of a launcher
                _say(line)
            self._verdict = (f"rank {rank} {why}", rank)
            self._settle()
        if rank == 0:  # it may only be stopped: when it goes on, it reads this
            self._writer.write(encode({"kind": "lost", "rank": 0, "why": why}))
        if self._end:
            threading.Thread(target=self._finish, args=(line,), name="antegrad-watch-end", daemon=True).start()

    def _finish(self, line: str) -> None:
        """End the process, whatever its other threads do."""
        begun = time.monotonic()
        if self._on_lost is not None:
            _within(self._grace, self._on_lost, line)
        time.sleep(max(0.0, self._grace - (time.monotonic() - begun)))
        _within(0.5, flush)
        os._exit(EXIT_CODE)


def serve(
    count: int, host: str = "127.0.0.1", port: int = 0, *, timeout: float = 60.0, token: str | None = None
) -> Server:
    """Start the channel for `count` processes in process 0; port 0 takes a free one. It has `address` and `token`.

    An empty `host` listens on all interfaces. `token` is random unless given. Raises OSError when the port is taken.
    """
    return Server(count, host, port, timeout=timeout, token=token)


def describe(error: BaseException) -> str:
    """The class and the first line of an exception."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def flush() -> None:
    """Write out what Python holds back for stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _say(line: str) -> None:
    """Write one line on stderr, past Python's buffers, whose lock may be taken; not where nobody reads it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.platform == "win32" or select.select([], [2], [], 1.0)[1]:
            os.write(2, f"{line}\n".encode())


def _within(seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    thread.join(seconds)
