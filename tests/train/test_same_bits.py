"""The state at the end has the same bits however the steps are dispatched, and wherever the data lie."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from antegrad import data, losses, nn, ops, optim, random, train, tree

COUNT, BATCH, EPOCHS = 45, 8, 3
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (COUNT, 6, 6, 1)).astype(np.uint8)
LABELS = RNG.integers(0, 3, COUNT).astype(np.int32)
AUGMENT = data.Augment([data.RandomCrop(1), data.MixUp(3)])


def dense() -> nn.Module:
    """Layers with state and with random masks."""
    first, second = random.split(random.key(0))
    layers = nn.Dense(36, 16, key=first), nn.BatchNorm(16), nn.relu, nn.Dropout(0.3), nn.Dense(16, 3, key=second)
    return nn.Sequential(nn.Flatten(), *layers)


def convolution() -> nn.Module:
    """On XLA:CPU there is no loop around it, and one step a dispatch."""
    first, second = random.split(random.key(0))
    layers = nn.Conv2D(1, 4, 3, key=first), nn.BatchNorm(4), nn.relu, nn.Dropout(0.3)
    return nn.Sequential(*layers, lambda x: ops.mean(x, (1, 2)), nn.Dense(4, 3, key=second))


MODELS = {"dense": dense, "convolution": convolution}


@cache
def trainer(model: str, precision: Any, streamed: bool, captured: bool) -> train.Trainer:
    return train.Trainer(
        MODELS[model](), losses.cross_entropy, optim.adam(0.01), batch_size=BATCH, device="cpu", precision=precision,
        augment=AUGMENT, ema=0.9, clip_norm=1.0, stream=streamed, graph_capture=captured,
        metrics={"error": lambda p, y: ops.abs(p - y) if p.ndim == y.ndim else ops.abs(p - ops.one_hot(y, 3))},
    )  # fmt: skip


class Clock:
    """Time that passes unevenly, so that "auto" runs one step, or a few, or all that are left."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def __call__(self) -> float:
        self.calls += 1
        self.now += (0.5, 0.1, 0.2, 1e-4, 0.6)[self.calls % 5]
        return self.now


def trained(made: train.Trainer, steps: Any) -> tuple[list[Any], list[Any], list[int]]:
    """The state and the history of a training from the start, and after which steps it came back from the device."""
    made.restore({**initial(made), "failed": np.int32(-1)})
    made.epoch, made.steps_per_dispatch, made.clock = 0, steps, Clock()
    seen: list[int] = []

    class See(train.Callback):
        def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
            seen.append(step)

    history = made.fit((IMAGES, LABELS), EPOCHS, validation=(IMAGES, LABELS), callbacks=[See()], verbose=False)
    values = [(record["loss"], record["error"], record["val_loss"], record["val_error"]) for record in history]
    return tree.leaves(made.state), [values, history.steps.tolist()], seen


def initial(made: train.Trainer) -> Any:
    """The state before the first step."""
    engine = made.engine or made.captured(data.as_dataset((IMAGES, LABELS)))
    return engine.programs.init()


@cache
def reference(model: str, precision: Any) -> tuple[list[Any], list[Any], list[int]]:
    return trained(trainer(model, precision, False, False), 1)


STEPS = EPOCHS * -(-COUNT // BATCH)


WAYS = [
    *((model, precision, streamed, False, steps)
      for model, precision in (("dense", "f32"), ("dense", "bf16"), ("convolution", "f32"))
      for streamed in (False, True) for steps in (1, 7, 4, "auto")),
    *(("dense", precision, False, True, "auto") for precision in ("f32", "bf16")),
]  # fmt: skip
"""Model, precision, whether the data are streamed, whether the step is captured, steps a dispatch."""


@pytest.mark.parametrize(("model", "precision", "streamed", "captured", "steps"), WAYS)
def test_the_same_bits(model: str, precision: Any, streamed: bool, captured: bool, steps: Any) -> None:
    """With dropout, augmentation, BatchNorm's state, an average of the weights, clipping and a short last batch.

    `captured` changes something on NVIDIA GPUs alone; here it shows that it is taken and does no harm.
    """
    state, values, seen = trained(trainer(model, precision, streamed, captured), steps)
    expected, expected_values, single = reference(model, precision)
    assert single == list(range(1, STEPS + 1))
    assert seen[-1] == STEPS
    assert {1: len(seen) == STEPS, 7: len(seen) == EPOCHS, 4: len(seen) == 2 * EPOCHS}.get(steps, len(seen) < STEPS)
    assert values == expected_values
    for found, wanted in zip(state, expected, strict=True):
        assert found.dtype == wanted.dtype
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_reference_has_trained(precision: Any) -> None:
    """What is compared is no state that anything leaves: all of it has moved, and weights stay in f32."""
    made = trainer("dense", precision, False, False)
    before = initial(made)
    trained(made, 1)
    for group in ("param", "state"):
        for name, value in made.state[group].items():
            assert value.dtype == np.float32
            assert not np.array_equal(value, before[group][name]), name
    assert int(made.state["step"]) == STEPS
    f32, bf16 = (reference("dense", each)[1][1] for each in ("f32", "bf16"))
    assert f32 != bf16
    np.testing.assert_allclose(f32, bf16, rtol=0.1)
