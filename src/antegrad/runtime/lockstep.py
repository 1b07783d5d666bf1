"""Programs for several ranks on the host: each rank runs the printed NumPy text, and they meet at the collectives.

Every rank is a thread, and its thread object knows two things that the printed collectives ask for: ``rank``, and
``exchange``, which gives what all ranks of a group pass. Nothing else passes between them, so results do not depend on
which thread is ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from antegrad.errors import ProgramError, SettingError, ShapeError
from antegrad.ir.program import Program
from antegrad.runtime import host
from antegrad.runtime.signature import Signature

Groups = Sequence[Sequence[int]]


@dataclass
class _Meeting:
    """One collective of one group: what its ranks passed so far, and how many have gone on with that."""

    what: tuple[Any, ...]
    given: dict[int, Any] = field(default_factory=dict)
    gone: int = 0


class _World:
    """What the ranks share: the collectives that are under way, who waits in one, and who has ended."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self._waiting: dict[int, tuple[tuple[int, ...], _Meeting]] = {}
        self._ended: dict[int, BaseException | None] = {}
        self._apart = ""

    def exchange(self, rank: int, group: tuple[int, ...], number: int, what: tuple[Any, ...], value: Any) -> list[Any]:
        """What the ranks of `group` pass in their exchange `number`; waits for all of them."""
        with self._changed:
            meeting = self._meetings.setdefault((group, number), _Meeting(what))
            if meeting.what != what:
                self._apart = self._apart or _differ({rank: what, next(iter(meeting.given)): meeting.what})
                self._changed.notify_all()
                raise _Apart(self._apart)
            meeting.given[rank] = value
            if len(meeting.given) < len(group):
                self._wait(rank, group, meeting)
            else:
                for other in group:
                    self._waiting.pop(other, None)
                self._changed.notify_all()
            meeting.gone += 1
            if meeting.gone == len(group):
                del self._meetings[group, number]
            return [meeting.given[other] for other in group]

    def _wait(self, rank: int, group: tuple[int, ...], meeting: _Meeting) -> None:
        self._waiting[rank] = group, meeting
        try:
            while len(meeting.given) < len(group):
                self._check(rank, group, meeting)
                self._changed.wait()
        finally:
            self._waiting.pop(rank, None)

    def _check(self, rank: int, group: tuple[int, ...], meeting: _Meeting) -> None:
        """Raise where `rank` would wait for ever."""
        still = len(self._waiting) + len(self._ended) == self._size
        if still and not any(self._absent(*each) for each in self._waiting.values()):
            self._apart = self._apart or _each_waits({rank: group for rank, (group, _) in self._waiting.items()})
            self._changed.notify_all()
        if self._apart:
            raise _Apart(self._apart)
        for other in self._absent(group, meeting):
            raise _Apart(_alone(rank, other, self._size)) from self._ended.get(other)

    def _absent(self, group: tuple[int, ...], meeting: _Meeting) -> list[int]:
        """Those of `group` who cannot come any more."""
        return [each for each in group if each not in meeting.given and (each in self._ended or each >= self._size)]

    def leave(self, rank: int, error: BaseException | None) -> None:
        with self._changed:
            self._ended[rank] = error
            self._waiting.pop(rank, None)
            self._changed.notify_all()


class _Apart(ProgramError):
    """The ranks do not come to the same collectives."""


ADVICE = "every rank must come to the same collectives in the same order"


def _alone(rank: int, other: int, size: int) -> str:
    reason = "which has ended" if other < size else f"but only the ranks 0 to {size - 1} run"
    return f"rank {rank} waits in a collective for rank {other}, {reason}: {ADVICE}"


def _differ(found: dict[int, tuple[Any, ...]]) -> str:
    listed = " while ".join(f"rank {rank} is at {_name(what)}" for rank, what in sorted(found.items()))
    return f"{listed}: {ADVICE}"


def _name(what: tuple[Any, ...]) -> str:
    name, dtype, shape = what
    return f"{name} for {dtype}{list(shape)}"


def _each_waits(waiting: dict[int, tuple[int, ...]]) -> str:
    listed = ", ".join(f"rank {rank} over {group}" for rank, group in sorted(waiting.items()))
    return f"all ranks that have not ended wait in different collectives, {listed}: {ADVICE}"


class _Rank:
    """One rank: its function, and what came of it."""

    def __init__(self, world: _World, rank: int, work: Callable[[], Any]) -> None:
        self.world, self.rank, self.work = world, rank, work
        self.result: Any = None
        self.error: BaseException | None = None
        self._numbers: dict[tuple[int, ...], int] = {}

    def exchange(self, value: Any, what: str, groups: Groups) -> list[Any]:
        group = next((tuple(group) for group in groups if self.rank in group), None)
        if group is None:
            raise ProgramError(f"rank {self.rank} is in none of the groups {groups}")
        number = self._numbers[group] = self._numbers.get(group, -1) + 1
        return self.world.exchange(self.rank, group, number, (what, value.dtype, value.shape), value)

    def run(self) -> None:
        """Run in the current thread, which is this rank until it ends."""
        attributes = threading.current_thread().__dict__
        outer = {name: attributes[name] for name in ("rank", "exchange") if name in attributes}
        attributes.update(rank=self.rank, exchange=self.exchange)
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        finally:
            del attributes["rank"], attributes["exchange"]
            attributes.update(outer)  # the thread may be a rank that runs other ranks
            self.world.leave(self.rank, self.error)


def lockstep(work: Sequence[Callable[[], Any]], here: int = 0) -> list[Any]:
    """The results of the functions in `work`, one for each rank, which meet at the collectives.

    The rank `here` runs in the calling thread, so that a debugger steps through it as through any function.
    Raises what a rank raises (the first by rank, with a note of which), `ProgramError` where the ranks come to
    different collectives or one waits for another that has ended, and `SettingError` where `here` is no rank.
    """
    if not isinstance(here, (int, np.integer)) or not 0 <= here < len(work):
        raise SettingError(f"lockstep: here must be one of the {len(work)} ranks, counted from 0, found {here}")
    world = _World(len(work))
    ranks = [_Rank(world, number, function) for number, function in enumerate(work)]
    threads = [threading.Thread(target=each.run, daemon=True) for each in ranks if each.rank != here]
    for thread in threads:
        thread.start()
    ranks[here].run()
    for thread in threads:
        thread.join()
    failed = [each for each in ranks if each.error is not None]
    if failed:
        first = next((each for each in failed if not isinstance(each.error, _Apart)), failed[0])
        assert first.error is not None
        first.error.add_note(f"on rank {first.rank} of {len(ranks)}")
        raise first.error
    return [each.result for each in ranks]


def run_ranks(program: Program, arguments: Sequence[Sequence[Any]], here: int = 0) -> list[tuple[np.ndarray, ...]]:
    """The outputs of `program` on each rank, for the arrays that each is given, on the host.

    `arguments` has the inputs of each rank, arrays of exactly the input types. Raises `ShapeError` and `DTypeError` for
    others, naming rank and input, `ProgramError` for a program that is for another number of ranks, and what `lockstep`
    raises.
    """
    check_ranks(program, len(arguments))
    signature, work = Signature.of(program), []
    host.function(program)  # once, before several threads ask for it
    for rank, own in enumerate(arguments):
        try:
            arrays = [np.asarray(leaf) for leaf in signature.checked(list(own))]
        except (ShapeError, TypeError) as error:
            raise type(error)(f"rank {rank}: {error}") from None
        work.append(lambda arrays=arrays: host.run(program, [*arrays, *program.captured]))
    return lockstep(work, here)


def check_ranks(program: Program, count: int) -> None:
    """Raise `ProgramError` unless all collectives of `program` are for `count` ranks."""
    for equation in program.all_equations():
        groups = equation.params["groups"] if equation.primitive.communicates else ()
        found = sum(map(len, groups))
        if groups and found != count:
            place = f"\n  at {equation.source}" if str(equation.source) else ""
            raise ProgramError(
                f"program {program.name}: {equation.primitive.name} is for {found} ranks, found {count}{place}"
            )
