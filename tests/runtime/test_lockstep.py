"""Several ranks in lockstep on the host: results, errors in every rank, ranks that part ways, and debuggers."""

from __future__ import annotations

import bdb
import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ops.communication import all_gather, all_reduce, axis_index, collective_permute, reduce_scatter
from antegrad.runtime import host
from antegrad.runtime.lockstep import lockstep, run_ranks

X = np.arange(6.0)
PATIENCE = 60
"""Seconds after which ranks are taken to wait for ever."""


def each_rank(work: Callable[[int], Any], count: int, here: int = 0) -> list[Any]:
    """`lockstep` of ``work(rank)``, which must come to an end."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(lockstep([lambda rank=rank: work(rank) for rank in range(count)], here))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert ended, "the ranks wait for ever"
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Any:
    before = threading.active_count()
    yield
    assert threading.active_count() == before
    assert not {"rank", "exchange"} & set(vars(threading.current_thread()))


# Results


@pytest.mark.parametrize("here", [0, 2])
def test_results_are_in_the_order_of_the_ranks(here: int) -> None:
    callers = threading.get_ident()
    found = lockstep([lambda rank=rank: (rank, threading.get_ident() == callers) for rank in range(3)], here)
    assert found == [(rank, rank == here) for rank in range(3)]


def test_many_ranks() -> None:
    found = each_rank(lambda rank: all_reduce(X * rank, 24), 24)
    assert all((each == X * 276).all() for each in found)


def test_results_do_not_depend_on_who_is_ahead() -> None:
    """Sums are in the order of the ranks, also where a rank is late."""
    numbers = np.random.default_rng(0).normal(size=(4, 50)) * 10.0 ** np.arange(-8, 8, 4)[:, None]

    def work(rank: int, late: int) -> list[Any]:
        x, seen = numbers[rank], []
        for step in range(8):
            if rank == (late + step) % 4:
                time.sleep(0.002)
            seen += [all_reduce(x, 4), all_reduce(x, ((0, 2), (1, 3))), all_gather(x, 4)]
            x = np.tanh(seen[-3] - x)
        return seen

    expected = each_rank(lambda rank: work(rank, -1), 4)
    for late in range(4):
        found = each_rank(lambda rank, late=late: work(rank, late), 4)
        for own, truth in zip(found, expected, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(own, truth, strict=True))


def test_groups_go_on_by_themselves() -> None:
    """One pair of ranks makes more steps than the other."""

    def work(rank: int) -> list[float]:
        return [float(all_reduce(np.float64(rank + step), ((0, 2), (1, 3)))) for step in range(3 + 4 * (rank % 2))]

    assert each_rank(work, 4) == [[2, 4, 6], [4, 6, 8, 10, 12, 14, 16]] * 2


def test_what_has_been_exchanged_is_let_go() -> None:
    alive: list[int] = []

    def work(rank: int) -> None:
        old = []
        for _ in range(4):
            x = X + rank
            old.append(weakref.ref(x))
            all_gather(x, 2)
            del x
        all_reduce(X, 2)
        if rank == 0:
            gc.collect()
            alive.append(sum(ref() is not None for ref in old))

    each_rank(work, 2)
    assert alive == [0]


def test_programs_take_their_captured_arrays_along() -> None:
    table = np.arange(100.0).reshape(50, 2)
    program = ag.capture(lambda i: all_reduce(ops.take(table, i, 0), 2), np.array([0, 1], np.int32))
    assert program.captured
    found = run_ranks(program, [[np.array([0, 1], np.int32)], [np.array([2, 49], np.int32)]])
    assert all((own[0] == table[[0, 1]] + table[[2, 49]]).all() for own in found)


def test_warnings_are_off_in_every_thread() -> None:
    """As for a program on one device; warnings are errors in these tests."""
    program = ag.capture(lambda x: all_reduce(ops.log(x) / x, 3), np.zeros(2))
    assert all(np.isinf(own[0]).all() for own in run_ranks(program, [[np.zeros(2)]] * 3))


def test_a_rank_may_run_ranks_of_its_own() -> None:
    def work(rank: int) -> float:
        before = all_reduce(np.float64(rank), 2)
        inner = lockstep([lambda i=i: all_reduce(np.float64(10 * rank + i), 3) for i in range(3)], here=rank)
        return float(before + 100 * sum(inner) + all_reduce(np.float64(rank), 2) + axis_index(2) / 2)

    assert each_rank(work, 2) == [902.0, 9902.5]


def test_after_an_error_inside_the_outer_ranks_go_on() -> None:
    def work(rank: int) -> float:
        with pytest.raises(ZeroDivisionError):
            lockstep([lambda: 1 // 0, lambda: all_reduce(X, 2)])
        return float(all_reduce(np.float64(rank), 2))

    assert each_rank(work, 2) == [1, 1]


# Errors of a rank


def failing(rank: int, error: BaseException) -> Callable[[int], Any]:
    """All ranks sum; `rank` raises between two sums."""

    def work(own: int) -> Any:
        first = all_reduce(X, 3)
        if own == rank:
            raise error
        return all_reduce(first, 3)

    return work


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), bdb.BdbQuit()], ids=repr)
def test_what_a_rank_raises_reaches_the_caller(rank: int, error: BaseException) -> None:
    error = type(error)(*error.args)
    with pytest.raises(type(error)) as caught:
        each_rank(failing(rank, error), 3)
    assert caught.value is error
    assert error.__notes__ == [f"on rank {rank} of 3"]


def test_the_first_rank_that_raises_is_heard() -> None:
    def work(rank: int) -> None:
        if rank:
            raise ValueError(f"rank {rank}")
        all_reduce(X, 3)

    with pytest.raises(ValueError, match="rank 1"):
        each_rank(work, 3)


def test_a_line_of_the_program_is_in_the_traceback() -> None:
    program = ag.capture(lambda x: all_reduce(ops.sin(x), 2), X)
    with pytest.raises(TypeError, match="sin") as caught:
        each_rank(lambda rank: host.function(program)(X if rank == 0 else "text"), 2)
    names = []
    trace = caught.value.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert any(name.startswith("<antegrad") for name in names)


# Ranks that part ways


@pytest.mark.parametrize("early", [0, 1, 2])
def test_a_rank_that_ends_early(early: int) -> None:
    waiting = 1 if early == 0 else 0
    message = f"rank {waiting} waits in a collective for rank {early}, which has ended"
    with pytest.raises(ag.ProgramError, match=message):
        each_rank(lambda rank: None if rank == early else all_reduce(X, 3), 3)


def test_a_rank_with_one_collective_more() -> None:
    def work(rank: int) -> None:
        for _ in range(3 + (rank == 1)):
            all_reduce(X, 2)

    with pytest.raises(ag.ProgramError, match="rank 1 waits in a collective for rank 0, which has ended: every rank"):
        each_rank(work, 2)


def test_a_condition_that_ranks_decide_differently() -> None:
    function = ag.capture(lambda p, x: ag.cond(p, lambda v: all_reduce(v, 2), lambda v: v, x), True, X)
    with pytest.raises(ag.ProgramError, match="rank 1 waits in a collective for rank 0, which has ended"):
        run_ranks(function, [[np.bool_(False), X], [np.bool_(True), X]])


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (lambda: all_gather(X, 2), r"all_gather along 0 for float64\[6\]"),
        (lambda: all_reduce(X, 2, "max"), r"all_reduce of maximum for float64\[6\]"),
        (lambda: all_reduce(X[:5], 2), r"all_reduce of add for float64\[5\]"),
        (lambda: all_reduce(X.astype(np.float32), 2), r"all_reduce of add for float32\[6\]"),
        (lambda: reduce_scatter(X, 2), r"reduce_scatter along 0 for float64\[6\]"),
        (lambda: collective_permute(X, 2, [(0, 1)]), r"collective_permute by \(\(0, 1\),\) for float64\[6\]"),
    ],
)
@pytest.mark.parametrize("late", [0, 1])
def test_different_collectives(other: Callable[[], Any], found: str, late: int) -> None:
    def work(rank: int) -> Any:
        if rank == late:
            time.sleep(0.01)
        return other() if rank == 1 else all_reduce(X, 2)

    own = r"all_reduce of add for float64\[6\]"
    with pytest.raises(ag.ProgramError, match=f"rank 0 is at {own} while rank 1 is at {found}: every rank must"):
        each_rank(work, 2)


@pytest.mark.parametrize("late", [0, 1])
def test_ranks_that_wait_for_each_other(late: int) -> None:
    """In collectives of different groups, or of the same ones in another order."""

    def work(rank: int) -> Any:
        if rank == late:
            time.sleep(0.01)
        return all_reduce(X, ((0, 1), (2, 3)) if rank == 0 else ((1, 0), (2, 3)))

    listed = r"rank 0 over \(0, 1\), rank 1 over \(1, 0\)"
    with pytest.raises(ag.ProgramError, match=f"all ranks that have not ended wait in different collectives, {listed}"):
        each_rank(work, 4)


def test_an_error_elsewhere_counts_more_than_waiting() -> None:
    def work(rank: int) -> Any:
        if rank == 2:
            raise OSError("gone")
        return all_reduce(X, ((0, 2), (1, 3))) if rank != 1 else all_reduce(X, 4)

    with pytest.raises(OSError, match="gone"):
        each_rank(work, 4)


def test_a_rank_may_catch_the_error() -> None:
    def work(rank: int) -> Any:
        if rank == 2:
            return None
        with pytest.raises(ag.ProgramError):
            all_reduce(X, 3)
        return float(all_reduce(np.float64(rank), ((0, 1), (2, 3)))) if rank < 2 else None

    assert each_rank(work, 3) == [1, 1, None]


def test_too_few_ranks_do_not_wait() -> None:
    with pytest.raises(ag.ProgramError, match="rank 0 waits in a collective for rank 2, but only the ranks 0 to 1 run"):
        each_rank(lambda rank: all_reduce(X, 3), 2)


def test_too_many_ranks() -> None:
    with pytest.raises(ag.ProgramError, match=r"rank 2 is in none of the groups \[range\(0, 2\)\]"):
        each_rank(lambda rank: all_reduce(X, 2), 3)


# Arguments


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_program_is_for_its_number_of_ranks(count: int) -> None:
    def function(x: Any) -> Any:
        return ag.scan(lambda c, row: (c + all_reduce(row, 3), row), x[0], x)

    program = ag.capture(function, X)
    with pytest.raises(ag.ProgramError, match=rf"all_reduce is for 3 ranks, found {count}\n  at .*test_lockstep.py:"):
        run_ranks(program, [[X]] * count)


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        ([X[:2]], ag.ShapeError, r"rank 1: program f: input x must be f64\[6\], found f64\[2\]"),
        ([X.astype(np.float32)], ag.DTypeError, r"rank 1: program f: input x must be f64\[6\], found f32\[6\]"),
        ([], ag.ShapeError, "rank 1: program f takes 1 array"),
    ],
)
def test_arguments_of_a_rank_are_checked(second: Sequence[Any], error: type[Exception], message: str) -> None:
    program = ag.capture(lambda x: all_reduce(x, 2), X, name="f")
    with pytest.raises(error, match=message):
        run_ranks(program, [[X], second])


@pytest.mark.parametrize("here", [-1, 2])
def test_here_is_a_rank(here: int) -> None:
    with pytest.raises(ag.SettingError, match=f"here must be one of the 2 ranks, counted from 0, found {here}"):
        lockstep([lambda: 1] * 2, here)
    with pytest.raises(ag.SettingError, match="here must be one of the 0 ranks"):
        lockstep([])


# Debuggers


class Stepper(bdb.Bdb):
    """A debugger that steps through every line, as a person would with `pdb`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def user_line(self, frame: FrameType) -> None:
        import linecache

        if frame.f_code.co_filename.startswith("<antegrad"):
            self.lines.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno).split("  #")[0].strip())
        self.set_step()


@pytest.mark.parametrize("here", [0, 1])
def test_a_debugger_steps_through_the_rank_of_the_calling_thread(here: int) -> None:
    def function(x: Any) -> Any:
        doubled = x * 2
        total = all_reduce(doubled, 2)
        return total - doubled

    program = ag.capture(function, X)
    debugger = Stepper()
    found = debugger.runcall(run_ranks, program, [[X], [X + 1]], here)
    np.testing.assert_array_equal([own[0] for own in found], [2 * X + 2, 2 * X])
    line = "total = all_reduce(doubled, np.add, [range(2)])"
    assert debugger.lines.index("doubled = x * 2") < debugger.lines.index(line)
    assert "total, *others = exchange(x, f'all_reduce of {combine.__name__}', groups)" in debugger.lines
    assert debugger.lines[-1].startswith("return ")


def test_quitting_the_debugger_ends_all_ranks() -> None:
    class Quitter(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            if frame.f_code.co_filename.startswith("<antegrad"):
                self.set_quit()
            else:
                self.set_step()

    program = ag.capture(lambda x: all_reduce(x, 2), X)
    with pytest.raises(ag.ProgramError, match="rank 1 waits in a collective for rank 0, which has ended"):
        lockstep([lambda: Quitter().runcall(host.run, program, [X]), lambda: host.run(program, [X])])
