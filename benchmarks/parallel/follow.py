"""How closely DDP and ZeRO on several devices follow the losses of one device, on real data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import losses, nn, ops, optim, parallel, random, train, tree
from antegrad.nn.models import GPT, GPTConfig, cnn
from benchmarks.twins import batches
from benchmarks.twins.twin import Twin, mlp

STEPS = 100
LEVELS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Run:
    """One training: a model, its data and settings, for `STEPS` steps of a batch size that 4 devices divide."""

    name: str
    train: Callable[[parallel.Strategy | None, str | None], np.ndarray]
    """The loss of each step, with a strategy or on one device."""
    within: float
    """How far a loss may be off, relatively, after so many steps of sums in another order."""


def _flat(drawn: batches.Batches) -> tuple[np.ndarray, np.ndarray]:
    """Batches as one data set."""
    x, y = drawn
    return x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:])


def _classified(model: Any, drawn: batches.Batches, optimizer: optim.Optimizer, **settings: Any) -> np.ndarray:
    x, y = _flat(drawn)
    trainer = train.Trainer(model, losses.cross_entropy, optimizer, batch_size=len(x) // STEPS, **settings)
    return trainer.fit((x, y), 1, verbose=False).steps


def _mlp(strategy: parallel.Strategy | None, device: str | None) -> np.ndarray:
    twin: Twin = mlp(key=random.key(0))
    drawn = batches.digits(STEPS, 128)
    return _classified(twin.model, drawn, optim.adam(1e-3), parallel=strategy, device=device)


def smooth_cnn() -> nn.Module:
    """Three convolutions with GELU and average pooling, which have no kinks.

    Where a ReLU or a maximum turns over, two trainings part that differ in a last bit: one with them does not follow
    even itself (see `kinks`).
    """
    keys = random.split(random.key(0), 5)
    first = nn.Conv2D(3, 16, 3, key=keys[0]), ops.gelu, nn.Conv2D(16, 32, 3, key=keys[1]), ops.gelu, nn.AvgPool(2)
    second = nn.Conv2D(32, 32, 3, key=keys[2]), ops.gelu, nn.AvgPool(2), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Dense(2048, 64, key=keys[3]), ops.gelu, nn.Dense(64, 10, key=keys[4]))


def _cnn(strategy: parallel.Strategy | None, device: str | None) -> np.ndarray:
    drawn = batches.photographs(STEPS, 16)
    return _classified(smooth_cnn(), drawn, optim.adam(1e-3), parallel=strategy, device=device)


def kinks(strategy: parallel.Strategy | None, device: str | None, moved: int | None = None) -> np.ndarray:
    """The same with ReLU and max pooling; with `moved`, a seed, from weights that are moved by one unit in the last
    place, up or down, to see how far such a training leaves itself."""
    model = cnn(key=random.key(0), channels=((16, 32), (32,)), hidden=(64,))
    if moved is not None:
        rng = np.random.default_rng(moved)
        ends = np.array([-np.inf, np.inf], np.float32)
        model = tree.map(lambda leaf: np.nextafter(leaf, rng.choice(ends, leaf.shape)), model)
    return _classified(model, batches.photographs(STEPS, 16), optim.adam(1e-3), parallel=strategy, device=device)


def _gpt(strategy: parallel.Strategy | None, device: str | None) -> np.ndarray:
    config = GPTConfig(vocabulary=batches.VOCABULARY, context=64, layers=4, heads=4, features=128, bias=False)
    x, y = batches.characters(1, 1, 50_000)
    trainer = train.AutoregressiveTrainer(
        GPT(config, key=random.key(0)),
        optim.adamw(1e-3, b2=0.99, weight_decay=0.1),
        context=64,
        batch_size=12,
        clip_norm=1.0,
        parallel=strategy,
        device=device,
    )
    return trainer.fit(np.append(x[0, 0], y[0, 0, -1]), STEPS, verbose=False).steps


RUNS = {run.name: run for run in (Run("MLP", _mlp, 1e-5), Run("CNN", _cnn, 1e-4), Run("GPT", _gpt, 1e-4))}


def strategies(mesh: parallel.Mesh, levels: Iterable[int] = LEVELS) -> list[parallel.Strategy]:
    """DDP (level 0) and ZeRO on `mesh`."""
    return [parallel.zero(level, mesh) if level else parallel.ddp(mesh) for level in levels]


def follow(run: Run, sizes: Iterable[int] = (1, 2, 4), device: str = "cpu") -> dict[str, Any]:
    """The losses on one device, and by devices and strategy those of all others."""
    meshes = {size: parallel.mesh(size, device=device) for size in sorted(sizes, reverse=True)}
    found: dict[str, Any] = {"alone": run.train(None, device)}
    for size, mesh in meshes.items():
        for strategy in strategies(mesh):
            found[f"{size} {strategy.name}"] = run.train(strategy, None)
    return found


def furthest(found: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest relative difference of a loss from that on one device."""
    alone = found["alone"]
    return {name: float(np.max(np.abs(values / alone - 1))) for name, values in found.items() if name != "alone"}
