"""The recipes of the workloads make the same steps with antegrad, Optax and torch, in f64."""

from __future__ import annotations

import numpy as np
import pytest

from antegrad import optim, random
from benchmarks.twins import batches, recipes, runs, twin
from benchmarks.twins.recipes import Recipe
from tests.twins.support import SIDES, assert_follows, need

STEPS = 8
RECIPES: dict[str, Recipe] = {
    "adam": recipes.Adam(1e-2),
    "adamw": recipes.AdamW(1e-2, b2=0.99, weight_decay=0.5),
    "sgd": recipes.SGD(0.1, momentum=0.9),
    "sgd with decay": recipes.SGD(0.1, momentum=0.9, weight_decay=0.1),
}


def compare(recipe: Recipe, side: str, allowed: float) -> None:
    made, (x, y) = twin.mlp((784, 16, 10), key=random.key(0), dtype="f64"), batches.digits(STEPS, 16)
    x = x.astype(np.float64)
    found = np.array([loss for loss, _ in runs.step_states(made, recipe.antegrad(), x, y)])
    assert_follows(found, (runs.jax_losses if side == "jax" else runs.torch_losses)(made, recipe, x, y), allowed)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", RECIPES)
def test_steps(name: str, side: str) -> None:
    need(side)
    compare(RECIPES[name], side, 1e-12)


def test_schedule_in_torch() -> None:
    need("torch")
    recipe = recipes.AdamW(optim.schedules.warmup_cosine(1e-2, 3, STEPS), weight_decay=0.5)
    # Schedules are computed in f32, and on XLA they may round otherwise than on the host.
    compare(recipe, "torch", 1e-6)


def test_optax_takes_no_schedule() -> None:
    need("jax")
    from benchmarks.twins import jax_training

    with pytest.raises(TypeError, match="takes a learning rate that is a number, found <function"):
        jax_training.optimizer(recipes.Adam(optim.schedules.constant(1e-3)))
