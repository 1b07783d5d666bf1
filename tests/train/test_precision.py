"""bf16 in training: what it does to the programs of real models, and that they learn as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from antegrad import losses, nn, optim, random, train
from antegrad.ir.program import Program
from antegrad.ir.types import BF16, spec
from antegrad.nn.models import GPTConfig
from antegrad.passes.autocast import autocast
from antegrad.train.objective import Objective
from antegrad.train.programs import StepPrograms


def mnist_mlp() -> Objective:
    model = nn.Sequential(nn.Flatten(), nn.models.mlp([784, 256, 128, 10], key=random.key(0)))
    return Objective(model, losses.cross_entropy)


def mnist_conv() -> Objective:
    keys = random.split(random.key(0), 3)
    layers = [lambda x: x[..., None], nn.Conv2D(1, 16, 3, key=keys[0]), nn.relu, nn.MaxPool(2)]
    layers += [nn.Conv2D(16, 32, 3, key=keys[1]), nn.relu, nn.MaxPool(2), nn.Flatten()]
    return Objective(nn.Sequential(*layers, nn.Dense(7 * 7 * 32, 10, key=keys[2])), losses.cross_entropy)


def gpt(rolled: bool = False) -> Objective:
    config = GPTConfig(vocabulary=65, context=64, layers=2, heads=4, features=64, bias=False, rolled=rolled)
    return Objective(nn.models.GPT(config, key=random.key(0)), losses.sequence_cross_entropy)


IMAGES = spec((128, 28, 28), "u8"), spec((128,), "i32")
TEXT = spec((64, 64), "i32"), spec((64, 64), "i32")
MODELS = {
    "mnist_mlp": (mnist_mlp, IMAGES), "mnist_conv": (mnist_conv, IMAGES), "gpt": (gpt, TEXT),
    "gpt, rolled": (lambda: gpt(rolled=True), TEXT),
}  # fmt: skip


def programs(name: str, transform: Any = lambda program: program) -> StepPrograms:
    make, types = MODELS[name]
    return StepPrograms(make(), optim.adam(1e-3), *types, transform=transform)


def lines(program: Program) -> list[tuple[Any, ...]]:
    return [
        (equation.primitive.name, equation.input_types, equation.output_types) for equation in program.all_equations()
    ]


@pytest.mark.parametrize("name", MODELS)
def test_activations_take_little_more_than_half(name: str) -> None:
    wide, narrow = (programs(name, *transform).gradient.cost().activation_bytes for transform in ((), (autocast,)))
    assert 0 < narrow <= 0.6 * wide


@pytest.mark.parametrize("name", MODELS)
def test_without_the_policy_nothing_is_cast(name: str) -> None:
    """The f32 programs are those of a Trainer that knows no precision, equation for equation."""
    make, types = MODELS[name]
    trainer = train.Trainer(make().model, make().loss, optim.adam(1e-3), device="host", precision="f32")
    plain = make().training(*types, weighted=False, mean=True)
    assert trainer.transformed(plain) is plain
    assert not [row for row in lines(programs(name).step) if any(t.dtype == BF16 for t in (*row[1], *row[2]))]


@pytest.mark.parametrize("name", MODELS)
def test_the_state_and_what_is_reported_stay_f32(name: str) -> None:
    step = programs(name, autocast).step
    assert step.output_types == programs(name).step.output_types
    assert BF16 not in {type.dtype for type in (*step.input_types, *step.output_types)}


def test_it_learns_as_well_as_f32() -> None:
    """A network on points of three rings: the last losses differ by less than those of two seeds do."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 3000).astype(np.int32)
    angles, radii = rng.uniform(0, 2 * np.pi, 3000), labels + rng.uniform(0, 1.2, 3000)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1).astype(np.float32)

    def loss(seed: int, precision: Any) -> float:
        model = nn.models.mlp([2, 64, 64, 3], key=random.key(seed))
        trainer = train.Trainer(
            model, losses.cross_entropy, optim.adam(3e-3), batch_size=50, seed=seed, device="cpu", precision=precision
        )
        trainer.fit((points[:2000], labels[:2000]), 8, verbose=False)
        return trainer.evaluate((points[2000:], labels[2000:]))["loss"]

    exact = [loss(seed, "f32") for seed in range(3)]
    rounded = [loss(seed, "bf16") for seed in range(3)]
    spread = max(exact) - min(exact)
    assert abs(np.mean(rounded) - np.mean(exact)) < spread
    assert max(rounded) < 0.6 < np.log(3)
