"""The seven workloads that training is timed on, each described once for antegrad, JAX and torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from antegrad import random
from antegrad.nn.models import GPTConfig
from benchmarks.twins import batches, twin
from benchmarks.twins.recipes import SGD, Adam, AdamW, Recipe
from benchmarks.twins.twin import Twin


@dataclass(frozen=True)
class Workload:
    """A model, its optimizer, and batches ``x``, ``y`` with the axes [count, batch, ...]."""

    name: str
    title: str
    make: Callable[[], Twin]
    recipe: Recipe
    draw: Callable[[], tuple[np.ndarray, np.ndarray]]
    steps: int
    """Steps of a round, so that one takes about a second."""
    dispatch: int = 1
    """Steps in one dispatch of JAX (`lax.scan` above 1); antegrad decides itself."""
    agree: float = 1e-3
    """How far the losses of the sides may be apart, relatively, after a few steps, or 200 of the disc.

    At the learning rate of W3 rounding grows fast: torch itself, from weights moved by a unit in the last place, is
    percents away from its own losses after ten steps."""


def _disc() -> tuple[np.ndarray, np.ndarray]:
    """512 points of a square, and whether each lies in a disc: one batch."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1, 512, 2)).astype(np.float32)
    y = (np.square(x).sum(-1, keepdims=True) < 0.5).astype(np.float32)
    return x, y


def _gpt(layers: int, heads: int, features: int, context: int) -> Callable[[], Twin]:
    config = GPTConfig(
        vocabulary=batches.VOCABULARY, context=context, layers=layers, heads=heads, features=features, bias=False
    )
    return partial(twin.gpt, config, key=random.key(0))


_KEY = random.key(0)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "W1", "MNIST MLP 784-256-128-10, batch 128, Adam", partial(twin.mlp, key=_KEY), Adam(),
            partial(batches.digits, 100, 128), 400,
        ),
        Workload(
            "W2", "CIFAR CNN, batch 128, Adam", partial(twin.cnn, key=_KEY), Adam(),
            partial(batches.photographs, 4, 128), 4,
        ),
        Workload(
            "W3", "ResNet-20, batch 128, SGD with momentum", partial(twin.resnet20, key=_KEY), SGD(0.1),
            partial(batches.photographs, 4, 128), 4, agree=0.05,
        ),
        Workload(
            "W4a", "GPT 4 layers, 4 heads, 128 wide, context 128, batch 32, AdamW", _gpt(4, 4, 128, 128), AdamW(),
            partial(batches.characters, 4, 32, 128), 4,
        ),
        Workload(
            "W4b", "GPT 6 layers, 6 heads, 384 wide, context 256, batch 8, AdamW", _gpt(6, 6, 384, 256), AdamW(),
            partial(batches.characters, 4, 8, 256), 2,
        ),
        Workload(
            "W5", "disc, 600 full-batch steps, Adam", partial(twin.disc, key=_KEY), Adam(0.02), _disc, 600, 200, 0.2,
        ),
        Workload(
            "W6", "ViT, patch 4, 192 wide, 6 layers, 3 heads, batch 64, AdamW", partial(twin.vit, key=_KEY), AdamW(),
            partial(batches.photographs, 4, 64), 2,
        ),
    )
}  # fmt: skip
