"""Training steps of antegrad beside those of JAX with Optax and of torch, from the same weights on the same batches.

    python -m benchmarks                    # all workloads, all sides that are installed
    python -m benchmarks W1 W4a --rounds 15 --sides antegrad jax

Each side runs in a process of its own. They take turns, round by round; printed are the median milliseconds of a step,
the median of the ratios of neighbouring rounds (antegrad over the other: below 1 antegrad is faster) in time and in
processor time, which other work on the machine disturbs less, the fraction of the measured roof, and the peak memory.
The roof is the time that the step's matrix products and convolutions would take at the rate of one large product of f32
matrices. Sides whose losses differ are an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads import WORKLOADS, Workload

SIDES = ("antegrad", "jax", "torch")
CHECKED = 4
"""Steps after which the losses of all sides are compared."""


@dataclass
class Worker:
    """A side in its process."""

    side: str
    process: subprocess.Popen[str]
    built: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peak: int = 0

    @classmethod
    def start(cls, workload: str, side: str) -> Worker:
        command = [sys.executable, "-m", "benchmarks.worker", workload, side]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        worker = cls(side, process)
        worker.built = worker.answer()
        return worker

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.side}: the worker stopped with {self.process.wait()}")
        return json.loads(line)

    def run(self, steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        found = self.answer()
        self.peak = int(found["peak"])
        return found

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def products_rate() -> float:
    """Floating-point operations a second of a product of f32 matrices, the best of several."""
    a = np.random.default_rng(0).random((2048, 2048), np.float32)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(times)


def compare(workload: Workload, sides: Sequence[str], rounds: int) -> list[Worker]:
    """All sides of a workload, timed in turns."""
    workers = [Worker.start(workload.name, side) for side in sides]
    _check_losses(workload, workers)
    for number in range(rounds):
        for worker in workers if number % 2 == 0 else workers[::-1]:
            found = worker.run(workload.steps)
            worker.seconds.append(found["seconds"] / workload.steps)
            worker.processor.append(found["processor"] / workload.steps)
    for worker in workers:
        worker.stop()
    return workers


def _check_losses(workload: Workload, workers: list[Worker]) -> None:
    """The same loss after a few steps on all sides, or there is nothing to compare."""
    steps = max(CHECKED, workload.dispatch)
    losses = {worker.side: worker.run(steps)["loss"] for worker in workers}
    first = next(iter(losses.values()))
    if any(abs(loss - first) > workload.agree * abs(first) for loss in losses.values()):
        raise SystemExit(f"{workload.name}: the losses after {steps} steps differ: {losses}")


def row(workload: Workload, workers: list[Worker], rate: float) -> dict[str, object]:
    """Medians in milliseconds, ratios to the first side, the fraction of the roof, and peaks in MiB."""
    first = workers[0]
    medians = {worker.side: statistics.median(worker.seconds) * 1e3 for worker in workers}
    ratios = {worker.side: _ratio(first.seconds, worker.seconds) for worker in workers[1:]}
    processor = {worker.side: _ratio(first.processor, worker.processor) for worker in workers[1:]}
    roof = (first.built["flops"] or 0) / rate * 1e3
    return {
        "workload": workload.name,
        "title": workload.title,
        "ms": medians,
        "ratio": ratios,
        "processor_ratio": processor,
        "roof_ms": roof,
        "of_roof": roof / medians[first.side],
        "peak_mib": {worker.side: worker.peak / 2**20 for worker in workers},
    }


def _ratio(own: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def table(rows: list[dict], sides: Sequence[str]) -> str:
    """The rows as a table of Markdown."""
    others = sides[1:]
    head = ["workload", *(f"{side}, ms" for side in sides), *(f"{sides[0]} / {other}" for other in others)]
    head += [*(f"processor time / {other}" for other in others), "roof, ms", "of roof"]
    lines = [[*head, *(f"peak {side}, MiB" for side in sides)]]
    lines.append(["---"] * len(lines[0]))
    for found in rows:
        cells = [f"{found['workload']} {found['title']}", *(_ms(found["ms"][side]) for side in sides)]
        cells += [f"{found[kind][other]:.2f}" for kind in ("ratio", "processor_ratio") for other in others]
        cells += [_ms(found["roof_ms"]), f"{found['of_roof']:.0%}"]
        lines.append([*cells, *(f"{found['peak_mib'][side]:.0f}" for side in sides)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="all that are installed by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    args = parser.parse_args()
    unknown = [name for name in args.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {', '.join(unknown)}: there are {', '.join(WORKLOADS)}")
    sides = args.sides or [side for side in SIDES if importlib.util.find_spec(side)]
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in (*sides, "jaxlib") if name != "antegrad")
    rate = products_rate()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {packages}")
    print(f"{args.rounds} rounds; products of f32 matrices at {rate / 1e9:.0f} GFLOP/s", flush=True)
    rows = []
    for name in args.workloads or WORKLOADS:
        workers = compare(WORKLOADS[name], sides, args.rounds)
        rows.append(row(WORKLOADS[name], workers, rate))
        print(f"{name}: " + ", ".join(f"{side} {ms:.4g} ms" for side, ms in rows[-1]["ms"].items()), flush=True)
    print("\n" + table(rows, sides))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
