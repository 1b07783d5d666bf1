"""What the processes of a run say to each other, and the side of process 0 that hears all of them: see `watch`.

A message is a JSON object after its length in four bytes. The token is compared, not encrypted: it keeps out strangers
and the processes of other runs, and belongs on a network that the run's own collectives could be trusted to.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from antegrad.errors import SettingError

LARGEST, LARGEST_HELLO = 1 << 28, 1 << 12
"""Bytes of a message, and of one from a stranger."""
HELLO_TIMEOUT = 10.0


def heartbeat(timeout: float) -> float:
    """Seconds between two signs of life: several fit into `timeout`."""
    return min(timeout / 6, 5.0)


def encode(message: dict[str, Any]) -> bytes:
    """The bytes of one message. Raises TypeError for what JSON does not have, `SettingError` for one too large."""
    data = json.dumps(message).encode()
    if len(data) > LARGEST:
        raise SettingError(f"a message of {len(data)} bytes between processes; at most {LARGEST} are allowed")
    return len(data).to_bytes(4, "big") + data


async def receive(
    reader: asyncio.StreamReader, timeout: float | None = None, largest: int = LARGEST
) -> dict[str, Any] | None:
    """The next message; None when the connection has ended, or what came is none."""
    try:
        async with asyncio.timeout(timeout):
            size = int.from_bytes(await reader.readexactly(4), "big")
            message = json.loads(await reader.readexactly(size)) if size <= largest else None
    except (asyncio.IncompleteReadError, OSError, ValueError, RecursionError):  # TimeoutError is an OSError
        return None
    return message if isinstance(message, dict) and "kind" in message else None


async def hang_up(writer: asyncio.StreamWriter, last: dict[str, Any] | None = None) -> None:
    """Say the `last` word, and close; a peer that does not read is not waited for."""
    if last is not None and not writer.is_closing():
        writer.write(encode(last))
    writer.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(1.0):
            return await writer.wait_closed()
    writer.transport.abort()


_connections: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()


def own(writer: asyncio.StreamWriter) -> None:
    """Keep this connection from forked children: while they live, the end of this process would not close it."""
    _connections.add(writer)


def _disown() -> None:
    for writer in _connections:
        if (descriptor := writer.get_extra_info("socket").fileno()) >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_disown)


class AwakeClock:
    """Seconds in which this process ran: a stop of it (SIGSTOP, a suspended machine) counts as two ticks at most.

    After a stop of the whole run nobody has waited for anybody.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.now = 0.0
        self._last = time.monotonic()

    def advance(self) -> None:
        """One tick has passed, which should have taken `interval`."""
        now = time.monotonic()
        self.now += min(now - self._last, 2 * self.interval)
        self._last = now


class Background:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` returns, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def keep(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` until it ends or the loop does."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End all tasks, then the loop and the thread."""
        self.call(self._cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Member:
    """One process, as the server knows it. Times are of the server's clock."""

    writer: asyncio.StreamWriter
    heard: float
    moved: float
    """When it last began a dispatch, or was not behind, or asked for patience."""
    steps: int = 0
    busy: bool = False
    leaving: bool = False
    gone: bool = False


@dataclass
class Meeting:
    """The values of one call of `gather`."""

    since: float
    """When the last value came, or somebody who is missing asked for patience."""
    timeout: float
    values: dict[int, Any] = field(default_factory=dict)


class Server:
    """The side of process 0: it hears all, collects values, and decides who is lost. See `watch.serve`."""

    def __init__(
        self, count: int, host: str = "127.0.0.1", port: int = 0, *, timeout: float = 60.0, token: str | None = None
    ) -> None:
        self.count, self.timeout = count, timeout
        self.token = secrets.token_hex(16) if token is None else token
        self.address = (host, port)
        self._clock = AwakeClock(heartbeat(timeout))
        self._members: dict[int, Member] = {}
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._verdict: dict[str, Any] | None = None
        self._thread = Background("antegrad-watch-server")
        try:
            self._thread.call(self._start(host, port))
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        """Say goodbye to those who are still there, and end."""
        self._thread.call(self._bye())
        self._thread.stop()

    async def _start(self, host: str, port: int) -> None:
        if not host and socket.has_dualstack_ipv6():  # one socket, as two would get different free ports
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server((host, port))
        self._server = await asyncio.start_server(self._attend, sock=listener)
        self.address = (host, listener.getsockname()[1])
        self._thread.keep(self._tick())

    async def _bye(self) -> None:
        self._server.close()
        await asyncio.gather(*(hang_up(member.writer, {"kind": "bye"}) for member in self._present()))

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Everything that one connection brings."""
        own(writer)
        with contextlib.suppress(asyncio.CancelledError):
            hello = await receive(reader, HELLO_TIMEOUT, LARGEST_HELLO)
            why = self._refusal(hello)
            if hello is None or why:
                writer.write(encode({"kind": "refused", "why": why}))
            else:
                await self._hear(hello["rank"], reader, writer)
        await hang_up(writer)

    def _refusal(self, hello: dict[str, Any] | None) -> str:
        token = None if hello is None else str(hello.get("token")).encode(errors="surrogatepass")
        if hello is None or token is None or not hmac.compare_digest(token, self.token.encode()):
            return "the token is not that of this run"
        if hello.get("count") != self.count or hello.get("rank") not in range(self.count):
            return f"rank {hello.get('rank')} of {hello.get('count')} in a run of {self.count} processes"
        return f"rank {hello['rank']} is there already" if hello["rank"] in self._members else ""

    async def _hear(self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member = self._members[rank] = Member(writer, self._clock.now, self._clock.now)
        writer.write(encode({"kind": "welcome"}))
        if self._verdict:
            writer.write(encode(self._verdict))
        while (message := await receive(reader)) is not None:
            member.heard = self._clock.now
            self._take(rank, member, message)
        if not member.gone:
            member.gone = True
            self._condemn(rank, "died (its connection closed)")

    def _take(self, rank: int, member: Member, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "beat":
                if message["steps"] != member.steps:
                    member.steps, member.moved = message["steps"], self._clock.now
                member.busy = message["busy"]
            case "value":
                self._collect(rank, message)
            case "leave":
                member.leaving = True
            case "bye":
                member.gone = True
            case "fail":
                member.gone = True
                self._condemn(rank, f"failed: {message['message']}")
            case "lost":
                self._condemn(message["rank"], message["why"])
        if message["kind"] in ("leave", "bye") and self._all_leave():
            self._tell({"kind": "left"})

    def _all_leave(self) -> bool:
        return len(self._members) == self.count and all(m.leaving or m.gone for m in self._members.values())

    def _collect(self, rank: int, message: dict[str, Any]) -> None:
        key = (message["topic"], message["number"])
        meeting = self._meetings.setdefault(key, Meeting(self._clock.now, 0.0))
        meeting.values[rank] = message["value"]
        meeting.since = self._clock.now
        asked = message["timeout"]
        meeting.timeout = max(meeting.timeout, self.timeout if asked is None else asked)
        if len(meeting.values) == self.count:
            del self._meetings[key]
            values = [meeting.values[rank] for rank in range(self.count)]
            self._tell({"kind": "values", "topic": key[0], "number": key[1], "values": values})

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._clock.interval)
            self._clock.advance()
            self._tell({"kind": "beat"})
            if self._verdict is None:
                self._judge()

    def _judge(self) -> None:
        now = self._clock.now
        for rank in range(self.count):
            member = self._members.get(rank)
            if member is None and now > self.timeout:
                self._condemn(rank, f"did not connect within {self.timeout:g} s")
            elif member is not None and not member.gone and now - member.heard > self.timeout:
                self._condemn(rank, f"gave no sign of life for {self.timeout:g} s")
        self._judge_progress(now)
        for (topic, _), meeting in self._meetings.items():
            self._judge_meeting(topic, meeting, now)

    def _judge_progress(self, now: float) -> None:
        furthest = max((member.steps for member in self._members.values()), default=0)
        for rank, member in self._members.items():
            if member.steps >= furthest or member.busy:
                member.moved = now
            elif now - member.moved > self.timeout:
                does = "has ended its part" if member.leaving or member.gone else "hangs"
                where = f"it has been at dispatch {member.steps} for {self.timeout:g} s, others are at {furthest}"
                self._condemn(rank, f"{does} ({where})")

    def _judge_meeting(self, topic: str, meeting: Meeting, now: float) -> None:
        missing = [rank for rank in range(self.count) if rank not in meeting.values]
        here = ", ".join(str(rank) for rank in sorted(meeting.values))
        for rank in missing:
            if rank in self._members and (self._members[rank].leaving or self._members[rank].gone):
                self._condemn(rank, f"has ended its part, and rank {here} waits for it at {topic!r}")
        if any(rank in self._members and self._members[rank].busy for rank in missing):
            meeting.since = now
        elif now - meeting.since > meeting.timeout:
            others = f", and neither did rank {' or '.join(map(str, missing[1:]))}" if missing[1:] else ""
            why = f"did not come to {topic!r} within {meeting.timeout:g} s after rank {here}{others}"
            self._condemn(missing[0], why)

    def _condemn(self, rank: int, why: str) -> None:
        """The first verdict counts. All are told."""
        if self._verdict is None:
            self._verdict = {"kind": "verdict", "rank": rank, "why": why}
            self._tell(self._verdict)

    def _present(self) -> Iterable[Member]:
        return [member for member in self._members.values() if not member.writer.is_closing()]

    def _tell(self, message: dict[str, Any]) -> None:
        frame = encode(message)
        for member in self._present():
            member.writer.write(frame)
