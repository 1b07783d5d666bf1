"""A training step in JAX with Optax, as their users write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.twins.recipes import SGD, Adam, AdamW, Recipe

Apply = Callable[[Any, Any, Any], tuple[Any, Any]]
"""From parameters, state and inputs to the result and the new state."""
Loss = Callable[[Any, Any], Any]
Step = Callable[[Any, Any, Any, Any, Any], tuple[Any, Any, Any, Any]]
"""From parameters, state, optimizer state, inputs and targets to the first three and the loss."""


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def mean_squared_error(prediction: Any, target: Any) -> Any:
    return jnp.mean((prediction - target) ** 2)


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """The optimizer of `recipe`, whose rate is a number."""
    if callable(recipe.rate):
        raise TypeError(f"jax_training.optimizer takes a learning rate that is a number, found {recipe.rate!r}")
    match recipe:
        case Adam(rate):
            return optax.adam(rate)
        case AdamW(rate, b2, weight_decay):
            matrices = lambda parameters: jax.tree.map(lambda p: p.ndim >= 2, parameters)  # noqa: E731
            return optax.adamw(rate, b2=b2, weight_decay=weight_decay, mask=matrices)
        case SGD(rate, momentum, weight_decay):
            plain = optax.sgd(rate, momentum=momentum)
            return optax.chain(optax.add_decayed_weights(weight_decay), plain) if weight_decay else plain


def train_step(apply: Apply, transform: optax.GradientTransformation, loss: Loss = cross_entropy) -> Step:
    """The step under `jax.jit`; it takes the memory of the parameters and both states."""

    def objective(parameters: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        prediction, state = apply(parameters, state, x)
        return loss(prediction, y), state

    def step(parameters: Any, state: Any, opt: Any, x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
        (value, state), gradient = jax.value_and_grad(objective, has_aux=True)(parameters, state, x, y)
        updates, opt = transform.update(gradient, opt, parameters)
        return optax.apply_updates(parameters, updates), state, opt, value

    return jax.jit(step, donate_argnums=(0, 1, 2))
