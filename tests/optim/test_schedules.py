"""Learning rates: the first values, the turns, the ends and what follows, exactly, and against optax and torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import optax
import pytest

import antegrad as ag
from antegrad.optim import schedules
from antegrad.optim.schedules import (
    constant,
    cosine,
    exponential,
    join,
    linear,
    linear_warmup,
    one_cycle,
    step,
    warmup_cosine,
    wsd,
)
from tests.support import devices, run

F32 = np.float32
Schedule = Callable[..., object]


def values(schedule: Schedule, counts: list[int]) -> list[float]:
    return [float(schedule(count)) for count in counts]  # pyright: ignore[reportArgumentType]


def test_case_schedule_first_step() -> None:
    """The first update uses a quarter of the peak: none is lost."""
    assert values(linear_warmup(1.0, 4), [0, 1, 2, 3, 4, 5, 100]) == [0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert values(linear_warmup(0.5, 1), [0, 1]) == [0.5, 0.5]


def test_constant() -> None:
    assert values(constant(0.25), [0, 7]) == [0.25, 0.25]


def test_linear() -> None:
    assert values(linear(1.0, 0.5, 4), [0, 1, 2, 3, 4, 5, 99]) == [1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]


def test_cosine() -> None:
    found = values(cosine(1.0, 4, 0.5), [0, 1, 2, 3, 4, 5, 99])
    slant = 0.25 * math.sqrt(0.5)
    np.testing.assert_allclose(found, [1, 0.75 + slant, 0.75, 0.75 - slant, 0.5, 0.5, 0.5], rtol=1.2e-7)
    assert found[0] == 1
    assert found[4:] == [0.5] * 3
    assert values(cosine(1.0, 4), [4, 5]) == [0, 0]


def test_step() -> None:
    rates = [F32(rate) for rate in (1e-3, 1e-4, 1e-5)]
    found = values(step(1e-3, [2, 4]), [0, 1, 2, 3, 4, 99])
    assert found == [rates[0], rates[0], rates[1], rates[1], rates[2], rates[2]]
    assert values(step(1.0, []), [0, 9]) == [1, 1]


def test_exponential() -> None:
    np.testing.assert_allclose(values(exponential(2.0, 0.25, 2), [0, 1, 2, 4]), [2, 1, 0.5, 0.125], rtol=2e-7)
    stairs = values(exponential(2.0, 0.25, 2, staircase=True), [0, 1, 2, 3, 4])
    np.testing.assert_allclose(stairs, [2, 2, 0.5, 0.5, 0.125], rtol=2e-7)


def test_wsd() -> None:
    found = values(wsd(1.0, 2, 3, 4, end=0.5), list(range(12)))
    assert found == [0.5, 1, 1, 1, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]
    assert values(wsd(1.0, 2, 0, 2), [0, 1, 2, 3, 4]) == [0.5, 1, 1, 0.5, 0]


def test_warmup_cosine() -> None:
    found = values(warmup_cosine(1.0, 2, 6, 0.5), [0, 1, 2, 4, 6, 7])
    np.testing.assert_allclose(found, [0.5, 1, 1, 0.75, 0.5, 0.5], rtol=1.2e-7)


def test_one_cycle() -> None:
    schedule = one_cycle(1.0, 10, warmup_fraction=0.4, start_divisor=4, end_divisor=25)
    found = values(schedule, [0, 2, 4, 7, 10, 11])
    np.testing.assert_allclose(found, [0.25, 0.625, 1, 0.505, 0.01, 0.01], rtol=2e-7)


def test_join_counts_from_each_boundary() -> None:
    schedule = join([linear(0.0, 1.0, 8), constant(5.0), linear(2.0, 0.0, 2)], [2, 4])
    assert values(schedule, [0, 1, 2, 3, 4, 5, 6, 7]) == [0, 0.125, 5, 5, 2, 1, 0, 0]


AGAINST_OPTAX: dict[str, tuple[Schedule, Schedule, int]] = {
    "linear": (linear(1e-3, 1e-4, 50), optax.linear_schedule(1e-3, 1e-4, 50), 0),
    "cosine": (cosine(3e-4, 60, 3e-5), optax.cosine_decay_schedule(3e-4, 60, alpha=0.1), 0),
    "exponential": (exponential(1e-3, 0.9, 10), optax.exponential_decay(1e-3, 10, 0.9), 0),
    "staircase": (
        exponential(1e-3, 0.9, 10, staircase=True),
        optax.exponential_decay(1e-3, 10, 0.9, staircase=True),
        0,
    ),
    "step": (step(1e-2, [20, 40], 0.2), optax.piecewise_constant_schedule(1e-2, {20: 0.2, 40: 0.2}), 0),
    "one_cycle": (one_cycle(0.1, 60), optax.cosine_onecycle_schedule(60, 0.1), 0),
    "warmup_cosine": (
        warmup_cosine(3e-4, 10, 60, 3e-5),
        optax.warmup_cosine_decay_schedule(0.0, 3e-4, 10, 60, 3e-5),
        10,
    ),
    "join": (
        join([constant(1.0), linear(2.0, 0.0, 20)], [30]),
        optax.join_schedules([optax.constant_schedule(1.0), optax.linear_schedule(2.0, 0.0, 20)], [30]),
        0,
    ),
}


@pytest.mark.parametrize("name", AGAINST_OPTAX)
def test_schedules_are_those_of_optax(name: str) -> None:
    """From the count given on to well after the end."""
    own, theirs, first = AGAINST_OPTAX[name]
    counts = list(range(first, 80))
    expected = np.array([float(theirs(count)) for count in counts])  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(values(own, counts), expected, rtol=2e-6, atol=1e-7 * expected.max())


def test_the_warmup_is_one_share_ahead_of_that_of_optax() -> None:
    theirs = optax.linear_schedule(0.0, 1e-3, 8)
    expected = [float(theirs(count + 1)) for count in range(12)]
    np.testing.assert_allclose(values(linear_warmup(1e-3, 8), list(range(12))), expected, rtol=3e-7)


def test_step_is_multi_step_of_torch() -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6], 0.5)
    expected = []
    for _ in range(9):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(values(step(0.1, [3, 6], 0.5), list(range(9))), expected, rtol=1e-7)


EVERY = {
    "constant": constant(1e-3),
    "linear_warmup": linear_warmup(1e-3, 7),
    "linear": linear(1e-3, 1e-5, 20),
    "cosine": cosine(1e-3, 20, 1e-5),
    "exponential": exponential(1e-3, 0.7, 5),
    "step": step(1e-3, [5, 9]),
    "one_cycle": one_cycle(1e-3, 20),
    "wsd": wsd(1e-3, 5, 5, 5),
    "warmup_cosine": warmup_cosine(1e-3, 5, 20),
    "join": join([constant(1.0), cosine(1e-3, 9)], [4]),
}


def test_every_schedule_is_listed_here() -> None:
    assert set(EVERY) == set(schedules.__all__)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", EVERY)
def test_a_traced_count_gives_the_same_f32(name: str, device: str) -> None:
    schedule = EVERY[name]
    program = ag.capture(schedule, ag.spec((), "i32"))
    for count in (0, 1, 4, 5, 10, 19, 20, 21, 10**6):
        (found,) = run(program, [np.array(count, np.int32)], device)
        assert (found.shape, found.dtype) == ((), np.float32)
        allowed = 0 if device == "host" else 3e-7  # XLA's cosine and exponential round otherwise
        np.testing.assert_allclose(found, schedule(count), rtol=allowed, atol=1e-10)
        assert np.isfinite(found)
        assert found >= 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: linear_warmup(1.0, 0),
        lambda: linear(1.0, 0.0, 0),
        lambda: cosine(1.0, 0),
        lambda: exponential(1.0, 0.5, 0),
        lambda: exponential(1.0, 0.0, 5),
        lambda: step(1.0, [4, 2]),
        lambda: one_cycle(1.0, 2),
        lambda: one_cycle(1.0, 10, warmup_fraction=1.0),
        lambda: wsd(1.0, 0, 1, 1),
        lambda: warmup_cosine(1.0, 5, 5),
        lambda: join([constant(1.0)], [3]),
        lambda: join([constant(1.0)] * 3, [3, 3]),
    ],
)
def test_what_makes_no_schedule_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^\w+: (at least one step|rate must|the boundaries|\d schedules)"):
        make()
