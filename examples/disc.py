"""Learn a disc in the plane with a small network, and show the evidence that everything worked.

Points inside the disc centred at (0.15, -0.10) with radius 0.70 are labelled +1, those outside -1.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np

import antegrad as ag
from antegrad import losses, nn, optim, random, train

CENTRE, RADIUS = (0.15, -0.10), 0.70
TRAINING_POINTS, HELDOUT_POINTS, GRID = 512, 1024, (24, 48)
REPORT_EVERY = 50


def labels(points: np.ndarray) -> np.ndarray:
    inside = np.hypot(points[:, :1] - CENTRE[0], points[:, 1:] - CENTRE[1]) < RADIUS
    return np.where(inside, np.float32(1), np.float32(-1))


def build(key: np.ndarray) -> nn.Sequential:
    first, second, third = random.split(key, 3)
    he = nn.initializers.kaiming_normal
    return nn.Sequential(
        nn.Dense(2, 16, key=first, initializer=he),
        nn.relu,
        nn.Dense(16, 16, key=second, initializer=he),
        nn.relu,
        nn.Dense(16, 1, key=third),
    )


def grid() -> np.ndarray:
    rows, columns = (np.linspace(end, -end, count, dtype=np.float32) for end, count in zip((1, -1), GRID, strict=True))
    return np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)


def agreement(program: ag.Program, arrays: list[np.ndarray], device: str) -> tuple[float, float]:
    """Largest difference between `device` and the host over every output: absolute, and relative to its output."""
    worst, relative = 0.0, 0.0
    for host, other in zip(program.run(*arrays, device="host"), program.run(*arrays, device=device), strict=True):
        difference = float(np.max(np.abs(host - other)))
        worst, relative = max(worst, difference), max(relative, difference / float(np.max(np.abs(host))))
    return worst, relative


def draw(truth: np.ndarray, learned: np.ndarray) -> None:
    print(f"  {'ground truth':<{GRID[1]}}   learned")
    for left, right in zip(truth.reshape(GRID), learned.reshape(GRID), strict=True):
        print(" ", "".join("#" if v > 0 else "." for v in left), " ", "".join("#" if v > 0 else "." for v in right))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=None, help="host, cpu, gpu or tpu; by default the best there is")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=20260921)
    parser.add_argument("--out", type=Path, default=Path("out/disc"))
    args = parser.parse_args()
    if args.device:
        ag.default_device(args.device)
    device = ag.default_device().name
    ag.checkpoint.ensure_writable(args.out)

    train_key, heldout_key, model_key = random.split(random.key(args.seed), 3)
    x = random.uniform(train_key, (TRAINING_POINTS, 2), low=-1, high=1)
    heldout = random.uniform(heldout_key, (HELDOUT_POINTS, 2), low=-1, high=1)
    y, model = labels(x), build(model_key)
    print(f"task     +1 inside the disc centred at {CENTRE} with radius {RADIUS}, -1 outside")
    print(f"data     {len(x)} training and {len(heldout)} held-out points in [-1,1]^2, seed {args.seed}")
    print(f"model    {', '.join(f'{name} {value.shape}' for name, value in model.named_parameters().items())}")

    step = ag.train_step(model, losses.mean_squared_error, optim.adam(0.02), x, y)
    forward, gradient = len(step.forward.equations), len(step.gradient.equations)
    print(f"programs {forward} equations forward, {gradient} with the gradient")
    print(f"device   {ag.describe_device()}")
    worst, relative = agreement(step.gradient, [*model.named_parameters().values(), x, y], device)
    print(f"check    {device} against host at step 0: {worst:.2e} absolute, {relative:.2e} relative")
    if device == "gpu":
        print("         (NVIDIA GPUs may round the operands of matrix products to TF32, which has 10 bits of mantissa)")

    chunk = math.gcd(args.steps, REPORT_EVERY)
    run = ag.compile(train.repeat(step, chunk), device=device, donate=step.state_names)
    state, history = step.init(), []
    started = time.perf_counter()
    for _ in range(args.steps // chunk):
        chunk_losses, *arrays = run(*state.arrays, x, y)
        state = state.with_arrays(arrays)
        history += np.asarray(chunk_losses).tolist()
    seconds = time.perf_counter() - started
    for number in (*range(0, args.steps, REPORT_EVERY), args.steps - 1):
        print(f"  step {number:>4}  loss {history[number]:.6f}")
    training_executables = run.executables
    print(f"time     {seconds:.2f} s with compilation, {1e3 * seconds / args.steps:.3f} ms a step")
    print(f"compiled {training_executables} executable for training")

    predict = ag.compile(lambda model, points: model(points), device=device)
    path = args.out / "disc.safetensors"
    step.save(path, state, seed=args.seed)
    restored = ag.train_step(build(model_key), losses.mean_squared_error, optim.adam(0.02), x, y).load(path)
    predictions = np.asarray(predict(state.model, heldout))
    identical = all(np.array_equal(a, b) for a, b in zip(state.arrays, restored.arrays, strict=True))
    identical &= np.array_equal(predictions, np.asarray(predict(restored.model, heldout)))
    count = int(restored.optimizer_state["count"])
    print(f"saved    {path} ({path.stat().st_size} bytes)")
    print(f"reload   parameters and held-out predictions bit-identical: {identical}; Adam has done {count} steps")

    points = grid()
    truth, learned = labels(points), np.asarray(predict(restored.model, points))
    disagreeing = int(np.sum((truth > 0) != (learned > 0)))
    accuracy = float(np.mean((predictions > 0) == (labels(heldout) > 0)))
    executables = training_executables + predict.executables
    draw(truth, learned)
    print(f"boundary {disagreeing} of {truth.size} grid cells disagree")
    print(f"compiled {executables} executables with inference")
    print(f"accuracy {accuracy:.2%} on held-out points")

    summary = {
        "device": device, "loss_first": history[0], "loss_last": history[-1], "losses": history,
        "heldout_accuracy": accuracy, "equations_forward": forward, "equations_gradient": gradient,
        "executables_training": training_executables, "executables_total": executables,
        "ms_per_step": 1e3 * seconds / args.steps, "check_max_abs": worst, "check_relative": relative,
        "reload_bit_identical": identical, "disagreeing_cells": disagreeing,
    }  # fmt: skip
    (args.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    (args.out / "gradient.py").write_text(step.gradient.python())
    (args.out / "gradient.mlir").write_text(step.gradient.stablehlo())
    plot(args.out / "boundary.png", points, learned)


def plot(path: Path, points: np.ndarray, learned: np.ndarray) -> None:
    """The learned surface and the true circle, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("picture  none: install antegrad[plot] for boundary.png")
        return
    axes = (figure := Figure(figsize=(5, 5))).add_subplot(aspect="equal", title="learned value and true boundary")
    axes.contourf(*(points[:, i].reshape(GRID) for i in (0, 1)), learned.reshape(GRID), levels=20, cmap="RdBu")
    angle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(CENTRE[0] + RADIUS * np.cos(angle), CENTRE[1] + RADIUS * np.sin(angle), "k--")
    figure.savefig(path, dpi=100)
    print(f"picture  {path}")


if __name__ == "__main__":
    main()
