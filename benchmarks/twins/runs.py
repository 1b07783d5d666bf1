"""Training on given batches with antegrad, JAX or torch, from the same weights: the loss of each step.

Inputs ``x`` and targets ``y`` have the axes [steps, batch, ...]: step i is done on ``x[i]``, ``y[i]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import antegrad as ag
from antegrad import data, optim, train
from benchmarks.twins.recipes import Recipe
from benchmarks.twins.twin import Twin


def trainer_losses(
    twin: Twin, optimizer: optim.Optimizer, x: np.ndarray, y: np.ndarray, device: str = "cpu"
) -> np.ndarray:
    """By `train.Trainer`, whose epoch is all steps in order. It reports losses in f32."""
    trainer = train.Trainer(
        twin.model, twin.antegrad_loss, optimizer, batch_size=x.shape[1], shuffle=False, device=device
    )
    rows = (array.reshape(-1, *array.shape[2:]) for array in (x, y))
    return np.array(trainer.fit(data.Dataset(*rows), 1, verbose=False).steps)


def step_states(
    twin: Twin, optimizer: optim.Optimizer, x: np.ndarray, y: np.ndarray, device: str = "cpu"
) -> Iterator[tuple[float, train.TrainState]]:
    """By `ag.train_step`, for models without state: the loss of each step, and what the step made of the weights."""
    step = ag.train_step(twin.model, twin.antegrad_loss, optimizer, x[0], y[0])
    run, state = ag.compile(step.step, device=device), step.init()
    for inputs, targets in zip(x, y, strict=True):
        loss, *arrays = run(*state.arrays, inputs, targets)
        state = state.with_arrays(arrays)
        yield float(np.asarray(loss)), state


def jax_losses(twin: Twin, recipe: Recipe, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By JAX and Optax, one dispatch a step, in the element type of the model.

    The scalars of Optax are f64, because in f32 its ``1 - 0.999**t`` keeps four digits, and the first update is off by
    a few millionths.
    """
    import jax

    from benchmarks.twins import jax_training

    with jax.enable_x64(True):
        transform = jax_training.optimizer(recipe)
        step = jax_training.train_step(twin.jax_apply, transform, getattr(jax_training, twin.loss))
        parameters, state = jax.device_put(twin.arrays())
        opt, found = transform.init(parameters), []
        for inputs, targets in zip(x, y, strict=True):
            parameters, state, opt, value = step(parameters, state, opt, inputs, targets)
            found.append(float(value))
    return np.array(found)


def torch_losses(twin: Twin, recipe: Recipe, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By torch, eagerly."""
    from benchmarks.twins import torch_training

    loss: Any = getattr(torch_training, twin.loss)
    module, to_torch = twin.torch_module(), torch_training.to_torch
    optimizer, rates = torch_training.optimizer(recipe, module), torch_training.rates(recipe)
    step = torch_training.train_step(module, optimizer, loss, rates if callable(recipe.rate) else None)
    return np.array([step(to_torch(inputs), to_torch(targets)).item() for inputs, targets in zip(x, y, strict=True)])
