"""A GPU: the disc's agreement with the host with and without TF32, time per step, executables; the Trainer's bits.

    PYTHONPATH=src python benchmarks/gpu_check.py [--device gpu]

Needs jax with CUDA, NumPy and ml_dtypes, and nothing else. With ``--device cpu`` it checks itself where no GPU is.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

import antegrad as ag
from antegrad import losses, nn, optim, parallel, random, train

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples import disc

STEPS = 200
ROUNDS = 9


def seconds(run: Any, calls: int = 1) -> float:
    """Median time of `calls` calls, the last result awaited."""
    found = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            result = run()
        jax.block_until_ready(result)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


class Stepping:
    """A compiled step program that carries its donated state from call to call."""

    def __init__(self, program: ag.Program, step: train.TrainStep, batch: list[Any], device: str) -> None:
        self.run = ag.compile(program, device=device, donate=step.state_names)
        self.arrays, self.batch = step.init().arrays, batch

    def __call__(self) -> Any:
        loss, *self.arrays = self.run(*self.arrays, *self.batch)
        return loss


def check_trainer(device: str) -> None:
    """The Trainer with and without graph capture, deterministic or not, resident and streamed, in f32 and bf16."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1050, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, 1050).astype(np.int32)
    cases = {
        "plain": {}, "captured": {"graph_capture": True}, "one step a dispatch": {"steps_per_dispatch": 1},
        "streamed": {"stream": True}, "deterministic": {"deterministic": True}, "bf16": {"precision": "bf16"},
        "bf16, captured": {"precision": "bf16", "graph_capture": True},
    }  # fmt: skip
    states: dict[str, Any] = {}
    for name, settings in cases.items():
        for attempt in range(2):
            model = nn.models.cnn((28, 28, 1), channels=((16,), (32,)), hidden=(64,), key=random.key(0))
            trainer = train.Trainer(
                model, losses.cross_entropy, optim.adam(1e-3), batch_size=100, device=device, **settings
            )
            history = trainer.fit((x, y), 3, verbose=False)
            states[f"{name} {attempt}"] = ag.tree.leaves(trainer.state)
        twin = "bf16 0" if name.startswith("bf16") else "plain 0"
        equal = {each: _same(states[f"{name} 0"], states[each]) for each in (f"{name} 1", twin)}
        seconds_an_epoch, loss = min(record["seconds"] for record in history), history[-1]["loss"]
        print(f"trainer   {name:<20} loss {loss:.6f}, {seconds_an_epoch:.3f} s an epoch, same bits: {equal}")


def check_parallel(device: str) -> None:
    """DDP and ZeRO on all devices of the platform beside the plain step: losses, time, collectives that are run."""
    mesh = parallel.mesh(device=device)
    rng, size = np.random.default_rng(0), 64 * mesh.size
    x = rng.standard_normal((20 * size, 784)).astype(np.float32)
    y = rng.integers(0, 10, 20 * size).astype(np.int32)
    for name in (None, *parallel.NAMES):
        where = parallel.strategy(name, mesh) if name else None
        trainer = train.Trainer(
            nn.models.mlp([784, 512, 256, 10], key=random.key(0)), losses.cross_entropy, optim.adam(1e-3),
            batch_size=size, parallel=where, device=None if where else device,
        )  # fmt: skip
        history = trainer.fit((x, y), 5, verbose=False)
        seconds_an_epoch, loss = min(record["seconds"] for record in history), history[-1]["loss"]
        assert trainer.engine is not None
        kinds = r" (all-reduce|reduce-scatter|all-gather)(?:-start)?\("
        held = dict(Counter(re.findall(kinds, trainer.engine.compiled.hlo())))
        print(f"parallel  {name or 'plain':<6} loss {loss:.6f}, {seconds_an_epoch:.3f} s an epoch, {held}")


def _same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu")
    args = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, jax {jax.__version__}, numpy {np.__version__}")
    for device in ag.devices():
        print(f"device    {device}")
    try:
        ag.default_device(args.device)
    except ag.DeviceError as error:
        print(error)
        return 1
    print(f"chosen    {ag.default_device()}")

    train_key, _, model_key = random.split(random.key(20260921), 3)
    x = random.uniform(train_key, (512, 2), low=-1, high=1)
    y, model = disc.labels(x), disc.build(model_key)
    step = ag.train_step(model, losses.mean_squared_error, optim.adam(0.02), x, y)
    inputs = [*model.named_parameters().values(), x, y]
    for precision, meaning in (("default", "TF32 allowed on NVIDIA"), ("highest", "full f32")):
        worst, relative = disc.agreement(ag.with_precision(step.gradient, precision), inputs, args.device)
        print(f"agreement {worst:.2e} absolute, {relative:.2e} relative to the host; precision {precision} ({meaning})")

    batch = [jax.device_put(array, ag.default_device().handle) for array in (x, y)]
    single = Stepping(step.step, step, batch, args.device)
    many = Stepping(train.repeat(step, STEPS), step, batch, args.device)
    first = np.asarray(many())
    print(f"loss      {first[0]:.6f} at step 0, {first[-1]:.6f} at step {STEPS - 1}")
    single()
    print(f"time      {1e3 * seconds(single, STEPS) / STEPS:.4f} ms a step, one dispatch each")
    print(f"time      {1e3 * seconds(many) / STEPS:.4f} ms a step, {STEPS} steps a dispatch")
    print(f"compiled  {single.run.executables} executable for single steps, {many.run.executables} for {STEPS} steps")
    check_trainer(args.device)
    check_parallel(args.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
