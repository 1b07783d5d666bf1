"""Side-by-side timing: candidates take turns in one process, and medians and ratios are reported."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, list[float]]:
    """Seconds that each candidate took in each round, in turn, after one call each that does not count."""
    for run in candidates.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            started = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - started)
    return times


def report(times: Mapping[str, list[float]], baseline: str, per: int = 1, unit: str = "ms") -> dict[str, float]:
    """Print medians per `per` repetitions and the median of the pairwise ratios to `baseline`; give the ratios."""
    scale = {"ms": 1e3, "us": 1e6}[unit] / per
    ratios = {}
    for name, own in times.items():
        pairs = [a / b for a, b in zip(own, times[baseline], strict=True)]
        ratios[name] = statistics.median(pairs)
        middle, low = statistics.median(own) * scale, min(own) * scale
        print(f"{name:<40} {middle:9.4f} {unit} (least {low:9.4f})   {ratios[name]:6.3f} x {baseline}")
    return ratios
