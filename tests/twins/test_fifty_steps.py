"""The losses of fifty steps of Adam follow those of JAX with Optax, and of torch, from the same weights and batches.

In f64 all three agree to the last digits, so the formulas are equal. In f32 there is a limit to what can be asked:
where rounding carries one activation over the kink of a ReLU, or to another winner of a max pooling, the gradient
jumps, and Adam's first steps, which hardly depend on the size of a gradient, spread the jump. JAX started from weights
that differ in the last bit then leaves its own losses: by 1e-3 for an MLP, by 2e-2 in 50 steps of the default CNN at
32x32 pixels. Hence the free runs in f32 have weights and batches for which no such jump happens (they keep within 4e-7
of themselves when every weight is moved by one unit in the last place), and of a CNN at 32x32 pixels each step is
followed from the weights and moments before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from antegrad import random, train
from antegrad.nn.models import GPTConfig
from benchmarks.twins import batches, recipes, runs, twin
from benchmarks.twins.twin import Twin
from tests.twins.support import SIDES, assert_follows, need

STEPS = 50
RECIPE = recipes.Adam(1e-3)


def mlp(dtype: str) -> tuple[Twin, np.ndarray, np.ndarray]:
    return twin.mlp((784, 256, 128, 10), key=random.key(3), dtype=dtype), *batches.digits(STEPS, 128)


def cnn(dtype: str) -> tuple[Twin, np.ndarray, np.ndarray]:
    return twin.cnn(channels=(4, 8, 8), hidden=32, key=random.key(0), dtype=dtype), *batches.photographs(STEPS, 16)


def small_cnn(dtype: str) -> tuple[Twin, np.ndarray, np.ndarray]:
    made = twin.cnn((8, 8, 3), channels=(8, 16, 32), hidden=64, key=random.key(2), dtype=dtype)
    return made, *batches.thumbnails(STEPS, 32)


def gpt(dtype: str) -> tuple[Twin, np.ndarray, np.ndarray]:
    bias = dtype == "f64"  # each of the two once
    config = GPTConfig(vocabulary=batches.VOCABULARY, context=16, layers=2, heads=2, features=64, bias=bias)
    return twin.gpt(config, key=random.key(0), dtype=dtype), *batches.characters(STEPS, 32, 16)


Case = Callable[[str], tuple[Twin, np.ndarray, np.ndarray]]
BOUNDS: list[tuple[Case, float]] = [(mlp, 1e-6), (small_cnn, 1e-4), (gpt, 1e-4)]


@cache
def prepared(case: Case, dtype: str) -> tuple[Twin, np.ndarray, np.ndarray]:
    made, x, y = case(dtype)
    return made, x.astype(np.float64) if dtype == "f64" and x.dtype == np.float32 else x, y


@cache
def by_steps(case: Case) -> np.ndarray:
    made, x, y = prepared(case, "f64")
    return np.array([loss for loss, _ in runs.step_states(made, RECIPE.antegrad(), x, y)])


@cache
def by_trainer(case: Case) -> np.ndarray:
    made, x, y = prepared(case, "f32")
    return runs.trainer_losses(made, RECIPE.antegrad(), x, y)


def by_twin(side: str, case: Case, dtype: str) -> np.ndarray:
    made, x, y = prepared(case, dtype)
    return (runs.jax_losses if side == "jax" else runs.torch_losses)(made, RECIPE, x, y)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", [mlp, cnn, gpt], ids=lambda case: case.__name__)
def test_in_f64(case: Case, side: str) -> None:
    need(side)
    assert_follows(by_steps(case), by_twin(side, case, "f64"), 1e-10)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("case", "allowed"), [pytest.param(case, allowed, id=case.__name__) for case, allowed in BOUNDS]
)
def test_in_f32(case: Case, allowed: float, side: str) -> None:
    need(side)
    expected = by_twin(side, case, "f32")
    assert expected[-1] < 0.9 * expected[0]
    assert_follows(by_trainer(case), expected, allowed)


Resume = Callable[[train.TrainState, Any, Any], np.ndarray]
"""From antegrad's state, and inputs and targets of some steps, to the losses of these steps."""


def resumed_in_jax(made: Twin) -> Resume:
    import jax

    from benchmarks.twins import jax_training

    transform = jax_training.optimizer(RECIPE)
    step = jax_training.train_step(made.jax_apply, transform)

    def run(state: train.TrainState, x: Any, y: Any) -> np.ndarray:
        with jax.enable_x64(True):
            p, count, m, v = (jax.device_put(part) for part in parts(state))
            first, *rest = transform.init(p)
            opt, found = (first._replace(count=count, mu=m, nu=v), *rest), []
            layers: dict[str, Any] = {}
            for inputs, targets in zip(x, y, strict=True):
                p, layers, opt, loss = step(p, layers, opt, inputs, targets)
                found.append(float(loss))
        return np.array(found)

    return run


def resumed_in_torch(made: Twin) -> Resume:
    import torch

    from benchmarks.twins import torch_training, torch_weights

    to_torch, modules = torch_training.to_torch, [made.torch_module() for _ in range(3)]

    def run(state: train.TrainState, x: Any, y: Any) -> np.ndarray:
        p, count, m, v = parts(state)
        for module, arrays in zip(modules, (p, m, v), strict=True):
            torch_weights.load(module, arrays)
        optimizer = torch_training.optimizer(RECIPE, modules[0])
        for weight, first, second in zip(*(module.parameters() for module in modules), strict=True):
            optimizer.state[weight] = {
                "step": torch.tensor(float(count)),
                "exp_avg": first.detach().clone(),
                "exp_avg_sq": second.detach().clone(),
            }
        step = torch_training.train_step(modules[0], optimizer)
        return np.array([step(to_torch(a), to_torch(b)).item() for a, b in zip(x, y, strict=True)])

    return run


def parts(state: train.TrainState) -> Iterator[Any]:
    """Parameters, the count of steps, and both moments of Adam, by antegrad's names."""
    opt = state.optimizer_state
    for named in (state.model.named_parameters(), None, *(opt[key].named_parameters() for key in "mv")):
        yield np.asarray(opt["count"]) if named is None else {n: np.array(value) for n, value in named.items()}


@pytest.mark.parametrize("side", SIDES)
def test_each_step_of_a_cnn_in_f32(side: str) -> None:
    need(side)
    made, x, y = prepared(cnn, "f32")
    resumed = (resumed_in_jax if side == "jax" else resumed_in_torch)(made)
    losses, states = zip(*runs.step_states(made, RECIPE.antegrad(), x, y), strict=True)
    for step in range(1, STEPS - 1):
        followed = resumed(states[step - 1], x[step : step + 2], y[step : step + 2])
        assert_follows(np.array(losses[step : step + 2]), followed, 1e-4)
