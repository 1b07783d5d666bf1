"""Each model against its twins in JAX and torch: logits, running statistics, and in f64 all gradients.

Those in f32 show in what training makes of them: `test_fifty_steps`, `test_short_runs`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, random
from antegrad.nn.models import GPTConfig, ViTConfig
from benchmarks.twins import twin
from benchmarks.twins.twin import Twin
from tests.support import assert_close
from tests.twins.support import SIDES, need

KEY = random.key(0)
CONFIG = {"vocabulary": 17, "context": 8, "layers": 1, "heads": 2, "features": 8}
TWINS: dict[str, tuple[Callable[..., Twin], tuple[int, ...]]] = {
    "disc": (twin.disc, (9, 2)),
    "mlp": (lambda **options: twin.mlp((20, 16, 12, 10), **options), (7, 20)),
    "cnn": (lambda **options: twin.cnn((8, 8, 3), (4, 6, 8), 16, **options), (5, 8, 8, 3)),
    "resnet20": (lambda **options: twin.resnet20(8, **options), (4, 16, 16, 3)),
    "gpt": (lambda **options: twin.gpt(GPTConfig(**CONFIG), **options), (3, 6)),
    "gpt without biases": (
        lambda **options: twin.gpt(GPTConfig(**CONFIG, bias=False), **options),
        (3, 6),
    ),
    "vit": (lambda **options: twin.vit(ViTConfig(8, 4, 3, 5, 1, 2, 8), **options), (3, 8, 8, 3)),
}
"""By name: the model, with few features, and the shape of its input."""

Values = tuple[np.ndarray, dict[str, np.ndarray]]
"""Logits and new state."""
Gradients = dict[str, np.ndarray]


@cache
def case(name: str, dtype: str) -> tuple[Twin, np.ndarray, np.ndarray]:
    """The twin with weights none of which is 0 or 1, and a batch."""
    make, shape = TWINS[name]
    rng, made = np.random.default_rng(1), make(key=KEY, dtype=dtype)
    weights = {n: moved(n, v, rng) for n, v in made.model.named_parameters().items()}
    made = Twin(made.name, made.model.with_parameters(weights), made.jax_apply, made.make_module, made.loss)
    x = rng.normal(size=shape).astype(made.arrays()[0][next(iter(weights))].dtype)
    if name.startswith("gpt"):
        return made, rng.integers(0, 17, shape).astype(np.int32), rng.integers(0, 17, shape).astype(np.int32)
    if name == "disc":
        return made, x, np.sign(rng.normal(size=(len(x), 1))).astype(x.dtype)
    return made, x, rng.integers(0, 5, len(x)).astype(np.int32)


def moved(name: str, value: Any, rng: np.random.Generator) -> np.ndarray:
    """The array with some noise; a running variance stays positive."""
    noise = rng.uniform(0, 0.2, np.shape(value)) if name.endswith("var") else rng.normal(0, 0.1, np.shape(value))
    return (np.asarray(value) + noise).astype(value.dtype)


def arrays(named: Any, names: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(named[name]) for name in names}


@cache
def by_antegrad(name: str, dtype: str) -> Values:
    made, x, _ = case(name, dtype)
    logits, changed = ag.compile(nn.training_call, device="cpu")(made.model, x)
    return np.asarray(logits), arrays(changed.named_parameters(), made.arrays()[1])


@cache
def gradients_by_antegrad(name: str, dtype: str) -> Gradients:
    made, x, y = case(name, dtype)

    def loss(model: Any, x: Any, y: Any) -> Any:
        return made.antegrad_loss(nn.training_call(model, x)[0], y)

    gradients = ag.compile(ag.grad(loss), device="cpu")(made.model, x, y)
    return arrays(gradients.named_parameters(), made.arrays()[0])


def by_jax(made: Twin, x: np.ndarray, y: np.ndarray | None = None) -> tuple[Values, Gradients]:
    """Without targets there are no gradients."""
    import jax

    from benchmarks.twins import jax_training

    loss: Any = getattr(jax_training, made.loss)
    parameters, state = made.arrays()

    def objective(parameters: Any) -> Any:
        logits, new = made.jax_apply(parameters, state, x)
        return None if y is None else loss(logits, y), (logits, new)

    with jax.enable_x64(True):
        compiled = jax.jit(objective if y is None else jax.grad(objective, has_aux=True))
        gradients, (logits, new) = compiled(parameters)
    return (np.asarray(logits), arrays(new, state)), {} if y is None else arrays(gradients, parameters)


def by_torch(made: Twin, x: np.ndarray, y: np.ndarray | None = None) -> tuple[Values, Gradients]:
    """Without targets there are no gradients."""
    from benchmarks.twins import torch_training, torch_weights

    loss: Any = getattr(torch_training, made.loss)
    parameters, state = made.arrays()
    module = made.torch_module()
    logits = module(torch_training.to_torch(x))
    if y is not None:
        loss(logits, torch_training.to_torch(y)).backward()
    gradients = {} if y is None else torch_weights.gradients(module, parameters)
    return (logits.detach().numpy(), torch_weights.arrays(module, state)), gradients


def assert_same(found: Gradients, wanted: Gradients, allowed: float, what: str) -> None:
    """Relative to the largest element of all arrays: the gradient of a key's bias is 0 but for rounding."""
    assert found.keys() == wanted.keys()
    largest = max((np.max(np.abs(value)) for value in wanted.values()), default=0)
    for key, value in found.items():
        assert_close(value, wanted[key].astype(np.float64), allowed, f"{what} {key}", scale=largest)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", TWINS)
def test_values_in_f32(name: str, side: str) -> None:
    need(side)
    made, x, _ = case(name, "f32")
    logits, state = by_antegrad(name, "f32")
    (of_twin, state_of_twin), _ = (by_jax if side == "jax" else by_torch)(made, x)
    assert logits.dtype == of_twin.dtype == np.float32
    assert_same({"logits": logits}, {"logits": of_twin}, 1e-5, "the")
    assert_same(state, state_of_twin, 1e-5, "state")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", TWINS)
def test_values_and_gradients_in_f64(name: str, side: str) -> None:
    need(side)
    made, x, y = case(name, "f64")
    logits, state = by_antegrad(name, "f64")
    (of_twin, state_of_twin), gradients_of_twin = (by_jax if side == "jax" else by_torch)(made, x, y)
    assert logits.dtype == of_twin.dtype == np.float64
    assert_same({"logits": logits}, {"logits": of_twin}, 1e-12, "the")
    assert_same(state, state_of_twin, 1e-12, "state")
    assert_same(gradients_by_antegrad(name, "f64"), gradients_of_twin, 1e-12, "gradient of")


def test_weights_come_back_from_torch() -> None:
    need("torch")
    from benchmarks.twins import torch_weights

    for name in TWINS:
        made, _, _ = case(name, "f32")
        parameters, state = made.arrays()
        found = torch_weights.arrays(made.torch_module(), {**parameters, **state})
        assert found.keys() == {**parameters, **state}.keys()
        for key, value in {**parameters, **state}.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{name}: {key}")


def test_weights_that_do_not_fit_are_refused() -> None:
    need("torch")
    from benchmarks.twins import torch_models, torch_weights

    weights, _ = case("gpt", "f32")[0].arrays()
    with pytest.raises(ValueError, match=r"GPT has no place for \['blocks.0.attention.key.b'"):
        torch_weights.load(torch_models.GPT(GPTConfig(**CONFIG, bias=False)), weights)
    del weights["embedding.w"]
    with pytest.raises(ValueError, match=r"GPT needs arrays for \['embedding.w'\]"):
        torch_weights.load(torch_models.GPT(GPTConfig(**CONFIG)), weights)


@pytest.mark.parametrize("changes", [{"rolled": True}, {"dropout": 0.1}])
def test_models_without_twin_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no dropout and no rolled blocks"):
        twin.gpt(GPTConfig(**CONFIG, **changes), key=KEY)
    with pytest.raises(ValueError, match="no dropout and no rolled blocks"):
        twin.vit(ViTConfig(**changes), key=KEY)
