"""Learning rates: the first values, the turns, the ends and what follows, exactly, and against optax and torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import optax
import pytest

import antegrad as ag
from antegrad.errors import SettingError
from antegrad.optim import schedules
from antegrad.optim.schedules import (
    constant,
    cosine,
    cosine_restarts,
    exponential,
    join,
    linear,
    linear_warmup,
    one_cycle,
    polynomial,
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


@pytest.mark.parametrize(("shape", "middle"), [("linear", 0.75), ("cosine", 0.75), ("sqrt", 1 - 0.5**1.5)])
def test_wsd_decays_in_each_shape(shape: str, middle: float) -> None:
    found = values(wsd(1.0, 2, 3, 4, end=0.5, shape=shape), [4, 5, 7, 9, 10])
    np.testing.assert_allclose(found, [1, 1, middle, 0.5, 0.5], rtol=1.2e-7)
    assert (found[1], found[3]) == (1, 0.5)


def test_polynomial() -> None:
    assert values(polynomial(1.0, 0.5, 4, power=2), [0, 1, 2, 3, 4, 5]) == [1, 0.78125, 0.625, 0.53125, 0.5, 0.5]
    assert values(polynomial(1.0, 0.0, 4, power=0.5), [0, 3, 4, 9]) == [1, 0.5, 0, 0]
    counts = list(range(12))
    np.testing.assert_allclose(
        values(polynomial(3.0, 1.0, 10), counts), values(linear(3.0, 1.0, 10), counts), rtol=1.2e-7
    )


def test_cosine_restarts() -> None:
    periods = [4, 2, 6]
    found = values(cosine_restarts(1.0, periods, 0.5), list(range(14)))
    expected = [value for period in periods for value in values(cosine(1.0, period, 0.5), list(range(period)))]
    assert found == [*expected, 0.5, 0.5]
    assert values(cosine_restarts(1.0, [4]), list(range(6))) == values(cosine(1.0, 4), list(range(6)))


def test_warmup_cosine() -> None:
    found = values(warmup_cosine(1.0, 2, 6, 0.5), [0, 1, 2, 4, 6, 7])
    np.testing.assert_allclose(found, [0.5, 1, 1, 0.75, 0.5, 0.5], rtol=1.2e-7)


def test_one_cycle() -> None:
    schedule = one_cycle(1.0, 10, warmup_fraction=0.4, start_divisor=4, end_divisor=25)
    found = values(schedule, [0, 2, 4, 7, 10, 11])
    np.testing.assert_allclose(found, [0.25, 0.625, 1, 0.505, 0.01, 0.01], rtol=2e-7)


def test_one_cycle_in_three_phases() -> None:
    schedule = one_cycle(1.0, 10, 0.3, start_divisor=4, end_divisor=25, three_phases=True, shape="linear")
    found = values(schedule, [0, 1, 3, 5, 6, 8, 10, 11])
    np.testing.assert_allclose(found, [0.25, 0.5, 1, 0.5, 0.25, 0.13, 0.01, 0.01], rtol=2e-7)


def test_one_cycle_turns_at_the_nearest_count() -> None:
    """0.29 * 100 is 28.999999999999996 in f64."""
    before, turn, after = values(one_cycle(1.0, 100, 0.29), [28, 29, 30])
    assert turn == 1
    assert max(before, after) < 1


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
    "polynomial": (polynomial(1e-3, 1e-4, 50, 1.7), optax.polynomial_schedule(1e-3, 1e-4, 1.7, 50), 0),
    "restarts": (
        cosine_restarts(1e-3, [20, 30], 1e-4),
        optax.sgdr_schedule(
            [
                {"init_value": 1e-3, "peak_value": 1e-3, "warmup_steps": 0, "decay_steps": n, "end_value": 1e-4}
                for n in (20, 30)
            ]
        ),
        0,
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


def by_torch(name: str, peak: float, steps: int, **settings: object) -> list[float]:
    """The learning rates of a torch scheduler, one for each update."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], peak)
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **settings)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


AGAINST_TORCH: dict[str, tuple[Schedule, str, dict[str, object]]] = {
    "step": (step(0.1, [3, 6], 0.5), "MultiStepLR", {"milestones": [3, 6], "gamma": 0.5}),
    "exponential": (exponential(0.1, 0.9, 1), "ExponentialLR", {"gamma": 0.9}),
    "linear": (
        linear(0.05, 0.1, 20),
        "LinearLR",
        {"start_factor": 0.5, "end_factor": 1.0, "total_iters": 20},
    ),
    "cosine": (cosine(0.1, 30, 0.01), "CosineAnnealingLR", {"T_max": 30, "eta_min": 0.01}),
    "restarts": (
        cosine_restarts(0.1, [5, 10, 20], 0.01),
        "CosineAnnealingWarmRestarts",
        {"T_0": 5, "T_mult": 2, "eta_min": 0.01},
    ),
    "polynomial": (polynomial(0.1, 0.0, 25, 2.0), "PolynomialLR", {"total_iters": 25, "power": 2.0}),
}


@pytest.mark.parametrize("name", AGAINST_TORCH)
def test_schedules_are_those_of_torch(name: str) -> None:
    own, theirs, settings = AGAINST_TORCH[name]
    expected = by_torch(theirs, 0.1, 30, **settings)
    np.testing.assert_allclose(values(own, list(range(30))), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("three_phases", [False, True])
@pytest.mark.parametrize("shape", ["cosine", "linear"])
@pytest.mark.parametrize(("steps", "fraction"), [(40, 0.25), (37, 0.3), (9, 0.4)])
def test_one_cycle_is_that_of_torch(steps: int, fraction: float, shape: str, three_phases: bool) -> None:
    own = one_cycle(0.1, steps, fraction, 20.0, 500.0, three_phases, shape)
    expected = by_torch(
        "OneCycleLR",
        0.1,
        steps + 1,
        max_lr=0.1,
        total_steps=steps + 1,
        pct_start=(round(fraction * steps) + 1) / (steps + 1),
        div_factor=20.0,
        final_div_factor=500.0,
        three_phase=three_phases,
        anneal_strategy={"cosine": "cos"}.get(shape, shape),
        cycle_momentum=False,
    )
    np.testing.assert_allclose(values(own, list(range(steps + 1))), expected, rtol=1e-6)


EVERY = {
    "constant": constant(1e-3),
    "linear_warmup": linear_warmup(1e-3, 7),
    "linear": linear(1e-3, 1e-5, 20),
    "cosine": cosine(1e-3, 20, 1e-5),
    "exponential": exponential(1e-3, 0.7, 5),
    "step": step(1e-3, [5, 9]),
    "cosine_restarts": cosine_restarts(1e-3, [5, 6, 9], 1e-5),
    "polynomial": polynomial(1e-3, 1e-5, 20, 1.5),
    "one_cycle": one_cycle(1e-3, 20, three_phases=True),
    "wsd": wsd(1e-3, 5, 5, 5, shape="sqrt"),
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


LAST = 2**31 - 1


def exact(formula: Callable[[float], float], steps: int) -> Callable[[int], float]:
    """A decay from 1 to 0.25 in f64: `formula` of the share that is left."""
    return lambda count: 0.25 + 0.75 * formula((steps - count) / steps)


LONG: dict[str, tuple[Schedule, Callable[[int], float]]] = {
    "linear_warmup": (linear_warmup(1.0, LAST), lambda count: (count + 1) / LAST),
    "linear": (linear(1.0, 0.25, LAST), exact(lambda left: left, LAST)),
    "linear to 0": (linear(1.0, 0.0, LAST), lambda count: (LAST - count) / LAST),
    "cosine to 0": (cosine(1.0, LAST), lambda count: math.sin(math.pi / 2 * (LAST - count) / LAST) ** 2),
    "restarts": (
        cosine_restarts(1.0, [2**24 + 1, LAST - 2**24 - 1]),
        lambda count: (
            math.cos(math.pi / 2 * count / (2**24 + 1)) ** 2
            if count < 2**24 + 1
            else math.sin(math.pi / 2 * (LAST - count) / (LAST - 2**24 - 1)) ** 2
        ),
    ),
    "polynomial": (polynomial(1.0, 0.0, LAST, 2), lambda count: ((LAST - count) / LAST) ** 2),
    "wsd": (
        wsd(1.0, 5, 2**24, LAST - 5 - 2**24, shape="sqrt"),
        lambda count: (
            1
            if count <= 5 + 2**24
            else (LAST - count) / (LAST - 5 - 2**24) / (1 + math.sqrt((count - 5 - 2**24) / (LAST - 5 - 2**24)))
        ),
    ),
    "step": (step(1.0, [2**24 + 1, LAST], 0.5), lambda count: 0.5 ** ((count > 2**24) + (count >= LAST))),
    "join": (
        join([constant(1.0), linear(2.0, 0.0, 10)], [LAST - 10]),
        lambda count: 1 if count < LAST - 10 else (LAST - count) / 5,
    ),
    "staircase": (exponential(1.0, 0.5, 2**25 + 1, staircase=True), lambda count: 0.5 ** (count // (2**25 + 1))),
    "exponential": (exponential(1.0, 0.5, 2**27 + 1), lambda count: 0.5 ** (count / (2**27 + 1))),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", LONG)
def test_no_step_is_taken_for_another(name: str, device: str) -> None:
    """Counts that f32 cannot tell apart; the last steps of a decay keep their digits."""
    schedule, truth = LONG[name]
    program = ag.capture(schedule, ag.spec((), "i32"))
    counts = [2**24 - 1, 2**24, 2**24 + 1, 2**24 + 2, 2**25, 2**25 + 1, 2**30 + 1, LAST - 10, LAST - 3, LAST - 1, LAST]
    for count in counts:
        (found,) = run(program, [np.array(count, np.int32)], device)
        bound = 1.2e-7 * (3 - math.log2(truth(count)) if name in ("staircase", "exponential") else 4)
        np.testing.assert_allclose(found, truth(count), rtol=bound, err_msg=str(count))


NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear_warmup(1.0, 0), r"linear_warmup: steps must be a whole number in \[1, 2\*\*31\), found 0"),
        (lambda: linear_warmup(1.0, 2**31), r"linear_warmup: steps must be .*, found 2147483648"),
        (lambda: linear_warmup(1.0, 4.0), r"linear_warmup: steps must be .*, found 4\.0"),  # pyright: ignore
        (lambda: constant(NAN), r"constant: value must be a number in \[0, inf\), found nan"),
        (lambda: constant("1e-3"), r"constant: value must be a number in .*, found '1e-3'"),  # pyright: ignore
        (lambda: constant(True), r"constant: value must be .*, found True"),
        (lambda: constant(10**400), r"constant: value must be .*, found 10000"),
        (lambda: linear(1.0, 0.0, 0), "linear: steps"),
        (lambda: linear(1.0, -0.1, 5), "linear: end must be .* found -0.1"),
        (lambda: cosine(1.0, 0), "cosine: steps"),
        (lambda: cosine(math.inf, 5), "cosine: peak must be .* found inf"),
        (lambda: cosine_restarts(1.0, []), "cosine_restarts: at least one period"),
        (lambda: cosine_restarts(1.0, [3, 0]), r"cosine_restarts: periods\[1\] must be .* found 0"),
        (lambda: cosine_restarts(1.0, [LAST, 1]), "cosine_restarts: the sum of the periods must be"),
        (lambda: polynomial(1.0, 0.0, 5, 0.0), r"polynomial: power must be a number in \(0, inf\), found 0\.0"),
        (lambda: exponential(1.0, 0.5, 0), "exponential: steps"),
        (lambda: exponential(1.0, 0.0, 5), "exponential: rate must be"),
        (lambda: exponential(1.0, NAN, 5), "exponential: rate must be"),
        (lambda: exponential(1.0, 0.5, 5, 1), "exponential: staircase must be True or False, found 1"),  # pyright: ignore
        (lambda: step(1.0, [4, 2]), r"step: the boundaries must ascend, found \[4, 2\]"),
        (lambda: step(1.0, [4.5]), r"step: boundaries\[0\] must be a whole number"),  # pyright: ignore
        (lambda: step(1.0, [4], -1.0), "step: factor must be"),
        (lambda: one_cycle(1.0, 1), "one_cycle: the boundaries must ascend"),
        (lambda: one_cycle(1.0, 10, warmup_fraction=1.0), r"one_cycle: warmup_fraction must be a number in \(0, 1\)"),
        (lambda: one_cycle(1.0, 10, 0.5, three_phases=True), "one_cycle: the boundaries must ascend"),
        (lambda: one_cycle(1.0, 10, start_divisor=0.5), "one_cycle: start_divisor must be"),
        (lambda: one_cycle(1.0, 10, shape="cos"), "one_cycle: shape must be 'cosine' or 'linear', found 'cos'"),
        (lambda: wsd(1.0, 0, 1, 1), "wsd: warmup must be"),
        (lambda: wsd(1.0, 1, -1, 1), "wsd: stable must be"),
        (lambda: wsd(1.0, 1, 1, 1, shape="exp"), "wsd: shape must be 'linear', 'cosine' or 'sqrt', found 'exp'"),
        (lambda: warmup_cosine(1.0, 5, 5), r"warmup_cosine: steps must be a whole number in \[6, 2\*\*31\), found 5"),
        (lambda: join([constant(1.0)], [3]), "join: 1 schedules need 0 boundaries"),
        (lambda: join([constant(1.0)] * 3, [3, 3]), "join: the boundaries must ascend"),
        (lambda: join([constant(1.0), 0.1], [3]), r"join: schedules\[1\] must be a function, found 0.1"),  # pyright: ignore
    ],
)
def test_what_makes_no_schedule_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}"):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    assert values(linear(np.float64(1.0), np.float32(0.5), np.int64(2)), [1, 2]) == [0.75, 0.5]  # pyright: ignore
