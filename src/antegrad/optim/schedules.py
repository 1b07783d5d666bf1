"""Learning rates as functions of the step.

A schedule is called with `count`, the number of updates done before this one: 0 for the first, as an i32 scalar (traced
or not) or a Python int. It gives a scalar f32. Counts are compared and subtracted as integers, so that no step up to
2**31 - 1 is taken for another, and what is left of a decay keeps its digits.

Warm-up rises by one share an update and begins with the first: ``(count + 1) / steps``. Four steps to a peak of 1 give
0.25, 0.5, 0.75, 1. (`optax` begins at 0, so that its first update changes nothing.) What comes after a warm-up, and
everything else, counts from 0: the first value of a decay is its peak. After its last step every schedule keeps its
end value.

All rates are numbers >= 0, and all numbers of steps whole numbers >= 1; a `SettingError` names one that is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import SettingError
from antegrad.optim import settings
from antegrad.optim.optimizer import Schedule

__all__ = [
    "constant", "cosine", "cosine_restarts", "exponential", "join", "linear", "linear_warmup", "one_cycle",
    "polynomial", "step", "warmup_cosine", "wsd",
]  # fmt: skip


def constant(value: float) -> Schedule:
    """`value` at every step."""
    value = _rate("constant", "value", value)
    return lambda count: ops.full((), value)


def linear_warmup(peak: float, steps: int) -> Schedule:
    """``peak * (count + 1) / steps``, and `peak` from the update number `steps` on."""
    peak, steps = _rate("linear_warmup", "peak", peak), settings.whole("linear_warmup", "steps", steps, 1)

    def rate(count: Any) -> Any:
        reached = ops.add(ops.clip(_whole(count), 0, steps - 1), 1)
        return ops.multiply(ops.divide(_float(reached), steps), peak)

    return rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` at count 0 in a straight line to `end` at count `steps`.

    As ``optax.linear_schedule`` and ``torch.optim.lr_scheduler.LinearLR``.
    """
    start, end = _rate("linear", "start", start), _rate("linear", "end", end)
    return _decay("linear", start, end, settings.whole("linear", "steps", steps, 1))


def cosine(peak: float, steps: int, end: float = 0.0) -> Schedule:
    """``end + (peak - end) * (1 + cos(pi * count / steps)) / 2``: half a cosine from `peak` to `end` at count `steps`.

    As ``optax.cosine_decay_schedule(peak, steps, alpha=end / peak)`` and
    ``torch.optim.lr_scheduler.CosineAnnealingLR``. Source: Loshchilov and Hutter, "SGDR: stochastic gradient descent
    with warm restarts" (2017), without restarts.
    """
    peak, end = _rate("cosine", "peak", peak), _rate("cosine", "end", end)
    return _decay("cosine", peak, end, settings.whole("cosine", "steps", steps, 1))


def cosine_restarts(peak: float, periods: Sequence[int], end: float = 0.0) -> Schedule:
    """`cosine` over ``periods[0]`` steps, then again from `peak` over ``periods[1]``, and so forth.

    After the last of the `periods` it stays at `end`. With periods of ``T_0 * T_mult**n`` steps it is
    ``torch.optim.lr_scheduler.CosineAnnealingWarmRestarts``. Source: as that of `cosine`.
    """
    owner = "cosine_restarts"
    peak, end = _rate(owner, "peak", peak), _rate(owner, "end", end)
    lengths = [settings.whole(owner, f"periods[{i}]", period, 1) for i, period in enumerate(periods)]
    if not lengths:
        raise SettingError(f"{owner}: at least one period is needed")
    settings.whole(owner, "the sum of the periods", sum(lengths), 1)
    restarts = np.cumsum(lengths[:-1], dtype=np.int32)
    longer = np.diff(np.array(lengths, np.int32))

    def rate(count: Any) -> Any:
        count = _whole(count)
        restarted = ops.greater_equal(count, restarts)
        start = ops.sum(ops.where(restarted, np.array(lengths[:-1], np.int32), 0))
        length = ops.add(ops.sum(ops.where(restarted, longer, 0)), lengths[0])
        return _between(peak, end, *_waves(*_progress(ops.subtract(count, start), length)))

    return rate


def polynomial(start: float, end: float, steps: int, power: float = 1.0) -> Schedule:
    """``end + (start - end) * (1 - count / steps) ** power``, from `start` at count 0 to `end` at count `steps`.

    `power` is above 0. As ``optax.polynomial_schedule(start, end, power, steps)``, and for an end of 0
    ``torch.optim.lr_scheduler.PolynomialLR``.
    """
    start, end = _rate("polynomial", "start", start), _rate("polynomial", "end", end)
    steps = settings.whole("polynomial", "steps", steps, 1)
    power = settings.number("polynomial", "power", power, "(0, inf)")

    def rate(count: Any) -> Any:
        share = ops.power(_progress(count, steps)[1], power)
        return _between(start, end, ops.subtract(1.0, share), share)

    return rate


def exponential(initial: float, rate: float, steps: int, staircase: bool = False) -> Schedule:
    """``initial * rate ** (count / steps)``; with `staircase` the exponent is rounded down. It has no last step.

    `rate` is above 0. As ``optax.exponential_decay(initial, steps, rate, staircase=staircase)``, and for one step
    ``torch.optim.lr_scheduler.ExponentialLR``. The exponent is rounded to f32, and so the result is off by its
    logarithm's size in units in the last place.
    """
    initial = _rate("exponential", "initial", initial)
    steps = settings.whole("exponential", "steps", steps, 1)
    slope = math.log(settings.number("exponential", "rate", rate, "(0, inf)"))
    settings.flag("exponential", "staircase", staircase)

    def value(count: Any) -> Any:
        count = _whole(count)
        exponent = _float(ops.floor_divide(count, steps))
        if not staircase and steps > 1:
            exponent = ops.add(exponent, ops.divide(_float(ops.remainder(count, steps)), steps))
        return ops.multiply(ops.exp(ops.multiply(exponent, slope)), initial)

    return value


def step(initial: float, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """``initial * factor ** n``, where n of the `boundaries` are at most `count`.

    `factor` is >= 0. As ``torch.optim.lr_scheduler.MultiStepLR`` and ``optax.piecewise_constant_schedule``.
    """
    initial, factor = _rate("step", "initial", initial), _rate("step", "factor", factor)
    boundaries = _ascending("step", boundaries)

    def rate(count: Any) -> Any:
        value = ops.full((), initial)
        for number, boundary in enumerate(boundaries, start=1):
            value = ops.where(ops.less(_whole(count), boundary), value, initial * factor**number)
        return value

    return rate


def one_cycle(
    peak: float,
    steps: int,
    warmup_fraction: float = 0.3,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
    three_phases: bool = False,
    shape: str = "cosine",
) -> Schedule:
    """Up to `peak` and down again over `steps` updates, each in half a cosine or in a straight line.

    From ``peak / start_divisor`` at count 0 to `peak` at count ``turn = round(warmup_fraction * steps)``, then to
    ``peak / (start_divisor * end_divisor)`` at count `steps`. With `three_phases` the way down passes the value of the
    start at count ``2 * turn``. Source: Smith and Topin, "Super-convergence: very fast training of neural networks
    using large learning rates" (2018).

    As ``optax.cosine_onecycle_schedule``, and as ``torch.optim.lr_scheduler.OneCycleLR`` with ``total_steps=steps + 1``
    and ``pct_start=(turn + 1) / (steps + 1)``: torch counts the update at the end too, and turns one step before its
    fraction.

    Arguments:
      warmup_fraction: in (0, 1), and below one half for `three_phases`.
      start_divisor, end_divisor: >= 1.
      shape: "cosine" or "linear".
    """
    owner = "one_cycle"
    peak, steps = _rate(owner, "peak", peak), settings.whole(owner, "steps", steps, 1)
    turn = round(settings.number(owner, "warmup_fraction", warmup_fraction, "(0, 1)") * steps)
    start = peak / settings.number(owner, "start_divisor", start_divisor, "[1, inf)")
    end = start / settings.number(owner, "end_divisor", end_divisor, "[1, inf)")
    shape = settings.choice(owner, "shape", shape, ("cosine", "linear"))
    turns = [turn, 2 * turn] if settings.flag(owner, "three_phases", three_phases) else [turn]
    values = [start, peak, start, end] if three_phases else [start, peak, end]
    counts = _ascending(owner, [0, *turns, steps])
    pairs = zip(itertools.pairwise(values), itertools.pairwise(counts), strict=True)
    return join([_decay(shape, low, high, to - since) for (low, high), (since, to) in pairs], turns)


def wsd(peak: float, warmup: int, stable: int, decay: int, end: float = 0.0, shape: str = "linear") -> Schedule:
    """Warm-up, stable, decay: `linear_warmup` over `warmup` updates, `peak` for `stable` (>= 0), then down to `end`.

    `end` is reached at count ``warmup + stable + decay``, in a `shape` with d from 0 to 1: "linear"; "cosine"; or
    "sqrt", ``end + (peak - end) * (1 - sqrt(d))``. Source: Hu et al., "MiniCPM: unveiling the potential of small
    language models with scalable training strategies" (2024); sqrt: Hägele et al., "Scaling laws and compute-optimal
    training beyond fixed training durations" (2024).
    """
    peak, end = _rate("wsd", "peak", peak), _rate("wsd", "end", end)
    decay = settings.whole("wsd", "decay", decay, 1)
    shape = settings.choice("wsd", "shape", shape, tuple(_SHAPES))
    turn = settings.whole("wsd", "warmup", warmup, 1) + settings.whole("wsd", "stable", stable, 0)
    return join([linear_warmup(peak, warmup), _decay(shape, peak, end, decay)], [turn])


def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0) -> Schedule:
    """`linear_warmup` over `warmup` updates, then `cosine` to `end`, which is reached at count `steps`.

    As ``optax.warmup_cosine_decay_schedule`` from count `warmup` on; the warm-up is one share ahead of its.
    """
    peak, end = _rate("warmup_cosine", "peak", peak), _rate("warmup_cosine", "end", end)
    warmup = settings.whole("warmup_cosine", "warmup", warmup, 1)
    steps = settings.whole("warmup_cosine", "steps", steps, warmup + 1)
    return join([linear_warmup(peak, warmup), cosine(peak, steps - warmup, end)], [warmup])


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """The first schedule before the first boundary, the second from there on, and so forth.

    Each one but the first counts from its boundary. As ``optax.join_schedules``.

    Raises `SettingError` unless there is one boundary less than schedules and they ascend.
    """
    boundaries = _ascending("join", boundaries)
    schedules = [settings.function("join", f"schedules[{i}]", schedule) for i, schedule in enumerate(schedules)]
    if len(schedules) != len(boundaries) + 1:
        raise SettingError(f"join: {len(schedules)} schedules need {len(schedules) - 1} boundaries, found {boundaries}")

    def rate(count: Any) -> Any:
        count = _whole(count)
        value = schedules[0](count)
        for boundary, schedule in zip(boundaries, schedules[1:], strict=True):
            value = ops.where(ops.less(count, boundary), value, schedule(ops.subtract(count, boundary)))
        return value

    return rate


def _decay(shape: str, start: float, end: float, steps: int) -> Schedule:
    """From `start` at count 0 to `end` at count `steps`, in one of `_SHAPES`."""
    return lambda count: _between(start, end, *_SHAPES[shape](*_progress(count, steps)))


def _whole(count: Any) -> Any:
    return ops.convert(count, "i32")


def _float(count: Any) -> Any:
    return ops.convert(count, "f32")


def _progress(count: Any, steps: Any) -> tuple[Any, Any]:
    """The shares of `steps` that are done and left: the difference is one of integers, and so exact."""
    done = ops.minimum(ops.maximum(_whole(count), 0), steps)
    whole = _float(steps) if hasattr(steps, "dtype") else steps
    return ops.divide(_float(done), whole), ops.divide(_float(ops.subtract(steps, done)), whole)


def _waves(done: Any, left: Any) -> tuple[Any, Any]:
    """``(1 - cos(pi * done)) / 2`` and ``(1 + cos(pi * done)) / 2``, as squares, which do not cancel near 0."""
    sine, cosine = (ops.sin(ops.multiply(share, math.pi / 2)) for share in (done, left))
    return ops.square(sine), ops.square(cosine)


def _roots(done: Any, left: Any) -> tuple[Any, Any]:
    """``sqrt(done)`` and ``1 - sqrt(done)``, as a quotient, which does not cancel near 0."""
    root = ops.sqrt(done)
    return root, ops.divide(left, ops.add(root, 1.0))


_SHAPES = {"linear": lambda done, left: (done, left), "cosine": _waves, "sqrt": _roots}
"""From the shares of the steps that are done and left to the shares of the end and of the start."""


def _between(start: float, end: float, at_end: Any, at_start: Any) -> Any:
    """``start * at_start + end * at_end``, for shares that are exactly 0 and 1 at both ends."""
    value = ops.multiply(at_start, start)
    return ops.add(value, ops.multiply(at_end, end)) if end else value


def _rate(owner: str, name: str, value: float) -> float:
    return settings.number(owner, name, value, "[0, inf)")


def _ascending(owner: str, boundaries: Sequence[int]) -> list[int]:
    """The `boundaries` as integers."""
    listed = [settings.whole(owner, f"boundaries[{i}]", boundary, 0) for i, boundary in enumerate(boundaries)]
    if any(low >= high for low, high in itertools.pairwise(listed)):
        raise SettingError(f"{owner}: the boundaries must ascend, found {listed}")
    return listed
