"""Programs for several ranks on the host: each rank runs the printed NumPy text, and they meet at the collectives.

Every rank is a thread, and its thread object knows two things that the printed collectives ask for: ``rank``, and
``exchange``, which gives what all ranks of a group pass. Nothing else passes between them, so results do not depend on
which thread is ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from antegrad.errors import ProgramError, ShapeError
from antegrad.ir.program import Program
from antegrad.runtime import host
from antegrad.runtime.signature import Signature

Groups = Sequence[Sequence[int]]


class _World:
    """What the ranks share: the collectives that are under way, and who has ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._meetings: dict[tuple[tuple[int, ...], int], dict[int, Any]] = {}
        self._ended: dict[int, BaseException | None] = {}

    def exchange(self, rank: int, group: tuple[int, ...], number: int, value: Any) -> list[Any]:
        """What the ranks of `group` pass in their exchange `number`; waits for all of them."""
        with self._changed:
            meeting = self._meetings.setdefault((group, number), {})
            meeting[rank] = value
            self._changed.notify_all()
            while len(meeting) < len(group):
                missing = [other for other in group if other in self._ended and other not in meeting]
                if missing:
                    raise _Alone(rank, missing[0]) from self._ended[missing[0]]
                self._changed.wait()
            return [meeting[other] for other in group]

    def leave(self, rank: int, error: BaseException | None) -> None:
        with self._changed:
            self._ended[rank] = error
            self._changed.notify_all()


class _Alone(ProgramError):
    """A rank waits for one that has ended."""

    def __init__(self, rank: int, other: int) -> None:
        super().__init__(
            f"rank {rank} waits in a collective for rank {other}, which has ended: every rank must come to the same "
            "collectives in the same order"
        )


class _Rank:
    """One rank: its function, and what came of it."""

    def __init__(self, world: _World, rank: int, work: Callable[[], Any]) -> None:
        self.world, self.rank, self.work = world, rank, work
        self.result: Any = None
        self.error: BaseException | None = None
        self._numbers: dict[tuple[int, ...], int] = {}

    def exchange(self, value: Any, groups: Groups) -> list[Any]:
        group = next((tuple(group) for group in groups if self.rank in group), None)
        if group is None:
            raise ProgramError(f"rank {self.rank} is in none of the groups {groups}")
        number = self._numbers[group] = self._numbers.get(group, -1) + 1
        return self.world.exchange(self.rank, group, number, value)

    def run(self) -> None:
        """Run in the current thread, which is this rank until it ends."""
        thread: Any = threading.current_thread()
        thread.rank, thread.exchange = self.rank, self.exchange
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        finally:
            del thread.rank, thread.exchange
            self.world.leave(self.rank, self.error)


def lockstep(work: Sequence[Callable[[], Any]], here: int = 0) -> list[Any]:
    """The results of the functions in `work`, one for each rank, which meet at the collectives.

    The rank `here` runs in the calling thread, so that a debugger steps through it as through any function.
    Raises what a rank raises (the first by rank), and `ProgramError` where a rank waits for one that has ended.
    """
    world = _World()
    ranks = [_Rank(world, number, function) for number, function in enumerate(work)]
    threads = [threading.Thread(target=each.run, daemon=True) for each in ranks if each.rank != here]
    for thread in threads:
        thread.start()
    ranks[here].run()
    for thread in threads:
        thread.join()
    errors = [each.error for each in ranks if each.error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, _Alone)), errors[0])
    return [each.result for each in ranks]


def run_ranks(program: Program, arguments: Sequence[Sequence[Any]], here: int = 0) -> list[tuple[np.ndarray, ...]]:
    """The outputs of `program` on each rank, for the arrays that each is given, on the host.

    `arguments` has the inputs of each rank, arrays of exactly the input types. Raises `ShapeError` and `DTypeError` for
    others, naming rank and input, and what `lockstep` raises.
    """
    signature, work = Signature.of(program), []
    host.function(program)  # once, before several threads ask for it
    for rank, own in enumerate(arguments):
        try:
            arrays = [np.asarray(leaf) for leaf in signature.checked(list(own))]
        except (ShapeError, TypeError) as error:
            raise type(error)(f"rank {rank}: {error}") from None
        work.append(lambda arrays=arrays: host.run(program, [*arrays, *program.captured]))
    return lockstep(work, here)
