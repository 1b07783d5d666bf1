"""What DDP on one device costs over the plain step, and what capture and passes cost over the plain capture."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from antegrad import losses, optim, parallel, random, train
from antegrad.data import as_dataset
from benchmarks.twins import batches
from benchmarks.twins.twin import mlp

ROUNDS = 15


def _trainer(strategy: parallel.Strategy | None) -> train.Trainer:
    return train.Trainer(
        mlp(key=random.key(0)).model, losses.cross_entropy, optim.adam(1e-3), batch_size=128, parallel=strategy,
        device=None if strategy else "cpu",
    )  # fmt: skip


def _rounds(trainer: train.Trainer, data: Any) -> Callable[[], float]:
    engine = trainer.captured(as_dataset(data))
    trainer.start(engine, as_dataset(data))
    steps = engine.feed.steps
    engine.dispatch(0, 0, steps)

    def once() -> float:
        started = time.perf_counter()
        engine.dispatch(0, 0, steps)
        return time.perf_counter() - started

    return once


def _captured(strategy: parallel.Strategy | None, data: Any) -> float:
    started = time.perf_counter()
    _trainer(strategy).captured(as_dataset(data))
    return time.perf_counter() - started


def overhead() -> None:
    """Interleaved rounds; medians, and of the ratios of neighbours the median too."""
    x, y = batches.digits(400, 128)
    data = x.reshape(-1, x.shape[-1]), y.reshape(-1)
    alone = parallel.ddp(parallel.mesh(1, device="cpu"))
    plain, ranked = _rounds(_trainer(None), data), _rounds(_trainer(alone), data)
    pairs = [(plain(), ranked()) for _ in range(ROUNDS)]
    ratio = statistics.median(other / one for one, other in pairs)
    print(f"MNIST MLP, 400 steps: plain {statistics.median(p for p, _ in pairs) / 400 * 1e6:.1f} us a step")
    print(f"  DDP on one device: {ratio:.3f} of that")
    four = parallel.mesh(4, device="cpu")
    for name in parallel.NAMES:
        strategy = parallel.strategy(name, four)
        captures = [(_captured(None, data), _captured(strategy, data)) for _ in range(7)]
        ratio = statistics.median(other / one for one, other in captures)
        print(f"  capture and passes, {name} on four: {ratio:.2f} of {np.median([c for c, _ in captures]):.3f} s")
