"""Time from Python to StableHLO: capture, reverse with simplification, and emission; and to the printed NumPy text.

    python benchmarks/compile_time.py

Measures the disc, and a residual network whose forward program has 5,000 equations.
"""

from __future__ import annotations

import statistics
import time

import antegrad as ag
from antegrad import ops


def disc(parameters, x, y):
    h0 = ops.relu(x @ parameters["w0"] + parameters["b0"])
    h1 = ops.relu(h0 @ parameters["w1"] + parameters["b1"])
    residual = h1 @ parameters["w2"] + parameters["b2"] - y
    return ops.mean(residual * residual)


def deep(layers, x):
    for layer in layers:
        x = x + ops.tanh(x @ layer["w"] + layer["b"])
    return ops.mean(x * x)


def measure(name: str, function, *examples, rounds: int) -> None:
    stages: dict[str, list[float]] = {}
    for _ in range(rounds):
        marks = [time.perf_counter()]
        program = ag.capture(function, *examples)
        marks.append(time.perf_counter())
        gradient = ag.reverse(program)
        marks.append(time.perf_counter())
        gradient.stablehlo()
        marks.append(time.perf_counter())
        gradient.python()
        marks.append(time.perf_counter())
        for stage, a, b in zip(("capture", "reverse", "StableHLO", "NumPy"), marks, marks[1:], strict=False):
            stages.setdefault(stage, []).append(b - a)
        stages.setdefault("to StableHLO", []).append(marks[3] - marks[0])
    counts = f"{len(program.equations)} equations, {len(gradient.equations)} with the gradient"
    listed = ", ".join(f"{stage} {1e3 * statistics.median(times):.1f} ms" for stage, times in stages.items())
    print(f"{name}: {counts}\n  median of {rounds}: {listed}")


def main() -> None:
    sizes = {"w0": (2, 16), "b0": (16,), "w1": (16, 16), "b1": (16,), "w2": (16, 1), "b2": (1,)}
    parameters = {name: ag.spec(shape) for name, shape in sizes.items()}
    measure("disc", disc, parameters, ag.spec((512, 2)), ag.spec((512, 1)), rounds=15)
    layers = [{"w": ag.spec((16, 16)), "b": ag.spec((16,))} for _ in range(1000)]
    measure("deep", deep, layers, ag.spec((8, 16)), rounds=5)


if __name__ == "__main__":
    main()
