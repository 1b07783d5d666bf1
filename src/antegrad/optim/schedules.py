"""Learning rates as functions of the step.

A schedule is called with `count`, the number of updates done before this one: 0 for the first, as an i32 scalar (traced
or not) or a Python int. It gives a scalar f32, computed in f32 (so `count` is exact up to 2**24).

Warm-up rises by one share an update and begins with the first: ``(count + 1) / steps``. Four steps to a peak of 1 give
0.25, 0.5, 0.75, 1. (`optax` begins at 0, so that its first update changes nothing.) What comes after a warm-up, and
everything else, counts from 0: the first value of a decay is its peak. After its last step every schedule keeps its
end value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from antegrad import ops
from antegrad.optim.optimizer import Schedule

__all__ = [
    "constant", "cosine", "exponential", "join", "linear", "linear_warmup", "one_cycle", "step", "warmup_cosine", "wsd",
]  # fmt: skip


def constant(value: float) -> Schedule:
    """`value` at every step."""
    return lambda count: ops.full((), value)


def linear_warmup(peak: float, steps: int) -> Schedule:
    """``peak * (count + 1) / steps``, and `peak` from the update number `steps` on."""
    _need_steps("linear_warmup", steps)

    def rate(count: Any) -> Any:
        return ops.multiply(ops.minimum(ops.divide(ops.add(_float(count), 1.0), steps), 1.0), peak)

    return rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` at count 0 in a straight line to `end` at count `steps`. As ``optax.linear_schedule``."""
    _need_steps("linear", steps)
    return lambda count: _between(start, end, ops.subtract(1.0, _progress(count, steps)))


def cosine(peak: float, steps: int, end: float = 0.0) -> Schedule:
    """``end + (peak - end) * (1 + cos(pi * count / steps)) / 2``: half a cosine from `peak` to `end` at count `steps`.

    As ``optax.cosine_decay_schedule(peak, steps, alpha=end / peak)``. Source: Loshchilov and Hutter, "SGDR: stochastic
    gradient descent with warm restarts" (2017), without restarts.
    """
    _need_steps("cosine", steps)

    def rate(count: Any) -> Any:
        wave = ops.cos(ops.multiply(_progress(count, steps), math.pi))
        return _between(peak, end, ops.add(ops.multiply(wave, 0.5), 0.5))

    return rate


def exponential(initial: float, rate: float, steps: int, staircase: bool = False) -> Schedule:
    """``initial * rate ** (count / steps)``; with `staircase` the exponent is rounded down. It has no last step.

    As ``optax.exponential_decay(initial, steps, rate, staircase=staircase)``.
    """
    _need_steps("exponential", steps)
    if not rate > 0:
        raise ValueError(f"exponential: rate must be above 0, found {rate!r}")

    def value(count: Any) -> Any:
        exponent = ops.divide(_float(count), steps)
        exponent = ops.floor(exponent) if staircase else exponent
        return ops.multiply(ops.exp(ops.multiply(exponent, math.log(rate))), initial)

    return value


def step(initial: float, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """``initial * factor ** n``, where n of the `boundaries` are at most `count`.

    As ``torch.optim.lr_scheduler.MultiStepLR`` and ``optax.piecewise_constant_schedule``.
    """
    _need_ascending("step", boundaries)

    def rate(count: Any) -> Any:
        value = ops.full((), initial)
        for number, boundary in enumerate(boundaries, start=1):
            value = ops.where(ops.less(_whole(count), boundary), value, initial * factor**number)
        return value

    return rate


def one_cycle(
    peak: float, steps: int, warmup_fraction: float = 0.3, start_divisor: float = 25.0, end_divisor: float = 1e4
) -> Schedule:
    """Half a cosine up to `peak` and half a cosine down, over `steps` updates.

    From ``peak / start_divisor`` at count 0 to `peak` at count ``int(warmup_fraction * steps)``, then to
    ``peak / (start_divisor * end_divisor)`` at count `steps`. As ``optax.cosine_onecycle_schedule``. Source: Smith and
    Topin, "Super-convergence: very fast training of neural networks using large learning rates" (2018).
    """
    turn = int(warmup_fraction * steps)
    _need_ascending("one_cycle", [0, turn, steps])
    start = peak / start_divisor
    rise = cosine(start, turn, peak)
    return join([rise, cosine(peak, steps - turn, start / end_divisor)], [turn])


def wsd(peak: float, warmup: int, stable: int, decay: int, end: float = 0.0) -> Schedule:
    """Warm-up, stable, decay: `linear_warmup` over `warmup` updates, `peak` for `stable`, then `linear` to `end`.

    `end` is reached at count ``warmup + stable + decay``. Source: Hu et al., "MiniCPM: unveiling the potential of small
    language models with scalable training strategies" (2024).
    """
    turn = warmup + stable
    return join([linear_warmup(peak, warmup), linear(peak, end, decay)], [turn])


def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0) -> Schedule:
    """`linear_warmup` over `warmup` updates, then `cosine` to `end`, which is reached at count `steps`.

    As ``optax.warmup_cosine_decay_schedule`` from count `warmup` on; the warm-up is one share ahead of its.
    """
    return join([linear_warmup(peak, warmup), cosine(peak, steps - warmup, end)], [warmup])


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """The first schedule before the first boundary, the second from there on, and so forth.

    Each one but the first counts from its boundary. As ``optax.join_schedules``.

    Raises `ValueError` unless there is one boundary less than schedules and they ascend.
    """
    _need_ascending("join", boundaries)
    if len(schedules) != len(boundaries) + 1:
        raise ValueError(f"join: {len(schedules)} schedules need {len(schedules) - 1} boundaries, found {boundaries}")

    def rate(count: Any) -> Any:
        count = _whole(count)
        value = schedules[0](count)
        for boundary, schedule in zip(boundaries, schedules[1:], strict=True):
            value = ops.where(ops.less(count, boundary), value, schedule(ops.subtract(count, boundary)))
        return value

    return rate


def _whole(count: Any) -> Any:
    return ops.convert(count, "i32")


def _float(count: Any) -> Any:
    return ops.convert(count, "f32")


def _progress(count: Any, steps: int) -> Any:
    """``count / steps`` from 0 to 1, and 0 before and 1 after."""
    return ops.clip(ops.divide(_float(count), steps), 0.0, 1.0)


def _between(start: float, end: float, share: Any) -> Any:
    """`start` for a share of 1, `end` for 0, both exactly, and in proportion between them."""
    value = ops.multiply(share, start)
    return ops.add(value, ops.multiply(ops.subtract(1.0, share), end)) if end else value


def _need_steps(schedule: str, steps: int) -> None:
    if not steps >= 1:
        raise ValueError(f"{schedule}: at least one step is needed, found {steps!r}")


def _need_ascending(schedule: str, boundaries: Sequence[int]) -> None:
    if any(low >= high for low, high in itertools.pairwise(boundaries)):
        raise ValueError(f"{schedule}: the boundaries must ascend, found {list(boundaries)}")
