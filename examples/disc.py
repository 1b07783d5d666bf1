"""Learn which points of the plane lie in a disc (+1) and which outside (-1), and show that everything worked."""

import argparse
import json
import math
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import antegrad as ag
from antegrad import losses, nn, optim, random, train

CENTRE, RADIUS = (0.15, -0.10), 0.70
TRAINING_POINTS, HELDOUT_POINTS, GRID = 512, 1024, (24, 48)
REPORT_EVERY = 50


def labels(points: np.ndarray) -> np.ndarray:
    distance = np.hypot(points[:, :1] - CENTRE[0], points[:, 1:] - CENTRE[1])
    return np.where(distance < RADIUS, np.float32(1), np.float32(-1))


def build(key: np.ndarray) -> nn.Sequential:
    first, second, third = random.split(key, 3)
    layers = nn.Dense(2, 16, key=first), nn.relu, nn.Dense(16, 16, key=second), nn.relu, nn.Dense(16, 1, key=third)
    return nn.Sequential(*layers)


def predict(model: nn.Sequential, points: np.ndarray) -> np.ndarray:
    return model(points)


def grid() -> np.ndarray:
    rows, columns = (np.linspace(-1, 1, count, dtype=np.float32) for count in GRID)
    return np.stack(np.meshgrid(columns, -rows), axis=-1).reshape(-1, 2)


def agreement(program: ag.Program, arrays: list[np.ndarray], device: str) -> tuple[float, float]:
    """Largest difference between `device` and the host over every output: absolute, and relative to its output."""
    pairs = zip(program.run(*arrays, device="host"), program.run(*arrays, device=device), strict=True)
    found = [(float(np.max(np.abs(host - other))), float(np.max(np.abs(host)))) for host, other in pairs]
    return max(difference for difference, _ in found), max(difference / size for difference, size in found)


def draw(truth: np.ndarray, learned: np.ndarray) -> None:
    print(f"  {'ground truth':<{GRID[1]}}   learned")
    for left, right in zip(truth.reshape(GRID), learned.reshape(GRID), strict=True):
        print(" ", "".join("#" if v > 0 else "." for v in left), " ", "".join("#" if v > 0 else "." for v in right))


def plot(path: Path, points: np.ndarray, learned: np.ndarray) -> None:
    """The learned surface and the true circle, where matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return print("picture  none: install antegrad[plot] for boundary.png")
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(5, 5))).add_subplot(aspect="equal", title="learned value and true boundary")
    axes.contourf(*(points[:, i].reshape(GRID) for i in (0, 1)), learned.reshape(GRID), levels=20, cmap="RdBu")
    angle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(CENTRE[0] + RADIUS * np.cos(angle), CENTRE[1] + RADIUS * np.sin(angle), "k--")
    figure.savefig(path, dpi=100)
    print(f"picture  {path}")


def fit(step: train.TrainStep, x: np.ndarray, y: np.ndarray, device: str, steps: int) -> tuple[train.TrainState, dict]:
    """Train in dispatches of 50 steps; the last state, and what there is to report."""
    chunk, started = math.gcd(steps, REPORT_EVERY), time.perf_counter()
    run = ag.compile(train.repeat(step, chunk), device=device, donate=step.state_names)
    compiled, state, history = time.perf_counter(), step.init(), []
    for _ in range(steps // chunk):
        chunk_losses, *arrays = run(*state.arrays, x, y)
        state = state.with_arrays(arrays)
        history += np.asarray(chunk_losses).tolist()
    seconds = time.perf_counter() - compiled
    for number in (*range(0, steps, REPORT_EVERY), steps - 1):
        print(f"  step {number:>4}  loss {history[number]:.6f}")
    print(f"time     {seconds:.3f} s, {1e3 * seconds / steps:.3f} ms a step, and {compiled - started:.2f} s to compile")
    print(f"compiled {run.executables} executable for training")
    report = {"loss_first": history[0], "loss_last": history[-1], "losses": history}
    return state, report | {"ms_per_step": 1e3 * seconds / steps, "executables_training": run.executables}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None, help="host, cpu, gpu or tpu; by default the best there is")
    parser.add_argument("--steps", type=int, default=600, help="at least 1")
    parser.add_argument("--seed", type=int, default=20260921)
    parser.add_argument("--out", type=Path, default=Path("out/disc"))
    if (args := parser.parse_args()).steps < 1:
        parser.error(f"--steps must be at least 1, found {args.steps}")
    try:
        run(**vars(args))
    except ag.AntegradError as error:
        parser.exit(1, f"disc: {error}\n")


def run(device: str | None, steps: int, seed: int, out: Path) -> None:
    ag.checkpoint.ensure_writable(out)
    if device:
        ag.default_device(device)
    device = ag.default_device().name
    train_key, heldout_key, model_key = random.split(random.key(seed), 3)
    x = random.uniform(train_key, (TRAINING_POINTS, 2), low=-1, high=1)
    heldout = random.uniform(heldout_key, (HELDOUT_POINTS, 2), low=-1, high=1)
    y, model = labels(x), build(model_key)
    print(f"task     +1 inside the disc centred at {CENTRE} with radius {RADIUS}, -1 outside")
    print(f"data     {len(x)} training and {len(heldout)} held-out points in [-1,1]^2, seed {seed}")
    print(f"model    {', '.join(f'{name} {value.shape}' for name, value in model.named_parameters().items())}")

    step = ag.train_step(model, losses.mean_squared_error, optim.adam(0.02), x, y)
    forward, gradient = len(step.forward.equations), len(step.gradient.equations)
    print(f"programs {forward} equations forward, {gradient} with the gradient")
    print(f"device   {ag.describe_device()}")
    worst, relative = agreement(step.gradient, [*model.named_parameters().values(), x, y], device)
    print(f"check    {device} against host at step 0: {worst:.2e} absolute, {relative:.2e} relative")
    if device.startswith("gpu"):
        print("         (NVIDIA GPUs may round the operands of matrix products to TF32, 10 bits of mantissa)")
    state, report = fit(step, x, y, device, steps)

    path, predicting = out / "disc.safetensors", ag.compile(predict, device=device)
    step.save(path, state, seed=seed)
    restored = ag.train_step(build(model_key), losses.mean_squared_error, optim.adam(0.02), x, y).load(path)
    predictions = np.asarray(predicting(state.model, heldout))
    same = all(np.array_equal(a, b) for a, b in zip(state.arrays, restored.arrays, strict=True))
    same = bool(same and np.array_equal(predictions, np.asarray(predicting(restored.model, heldout))))
    print(f"saved    {path} ({path.stat().st_size} bytes)")
    print(f"reload   parameters and predictions bit-identical: {same}; Adam: {restored.optimizer_state['count']} steps")

    truth, learned = labels(points := grid()), np.asarray(predicting(restored.model, points))
    disagreeing = int(np.sum((truth > 0) != (learned > 0)))
    total = report["executables_training"] + predicting.executables
    accuracy = float(np.mean((predictions > 0) == (labels(heldout) > 0)))
    draw(truth, learned)
    print(f"boundary {disagreeing} of {truth.size} grid cells disagree")
    print(f"compiled {total} executables with inference")
    print(f"accuracy {accuracy:.2%} on held-out points")
    report |= {"device": device, "heldout_accuracy": accuracy, "equations_forward": forward}
    report |= {"equations_gradient": gradient, "executables_total": total, "check_max_abs": worst}
    report |= {"check_relative": relative, "reload_bit_identical": same, "disagreeing_cells": disagreeing}
    texts = {"summary.json": json.dumps(report, indent=2) + "\n", "gradient.py": step.gradient.python()}
    for name, text in (texts | {"gradient.mlir": step.gradient.stablehlo()}).items():
        (out / name).write_text(text)
    plot(out / "boundary.png", points, learned)


if __name__ == "__main__":
    main()
