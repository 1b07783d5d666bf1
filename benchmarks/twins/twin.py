"""The workloads: each model of antegrad with its functions in JAX and its modules in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from antegrad import losses, nn, random
from antegrad.nn.models import GPT, GPTConfig, ViT, ViTConfig
from benchmarks.twins import jax_models

LossName = Literal["cross_entropy", "mean_squared_error"]


@dataclass(frozen=True)
class Twin:
    """A model with its weights, and the same function in JAX and in torch.

    `loss` is the name of a function of `antegrad.losses`, `jax_training` and `torch_training` alike.
    """

    name: str
    model: nn.Module
    jax_apply: Callable[[Any, Any, Any], tuple[Any, Any]]
    """From parameters, state and inputs to logits and the new state."""
    make_module: Callable[[], Any]
    """The module of torch with weights of its own."""
    loss: LossName = "cross_entropy"

    @property
    def antegrad_loss(self) -> Callable[..., Any]:
        return getattr(losses, self.loss)

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Copies of the parameters and of the state, by antegrad's names."""
        state = nn.state_paths(self.model)
        named = {name: np.array(value) for name, value in self.model.named_parameters().items()}
        parameters = {name: value for name, value in named.items() if name not in state}
        return parameters, {name: named[name] for name in named if name in state}

    def torch_module(self) -> Any:
        """A module of torch with the model's weights and element type."""
        from benchmarks.twins import torch_weights

        parameters, state = self.arrays()
        module = self.make_module()
        module = module.double() if next(iter(parameters.values())).dtype == np.float64 else module
        torch_weights.load(module, {**parameters, **state})
        return module


def mlp(sizes: tuple[int, ...] = (784, 256, 128, 10), *, key: Any, dtype: str = "f32") -> Twin:
    """The classifier of digits, over flat images."""

    def module() -> Any:
        from benchmarks.twins import torch_models

        return torch_models.mlp(sizes)

    return Twin("mlp", nn.models.mlp(sizes, key=key, dtype=dtype), _stateless(jax_models.mlp), module)


def disc(*, key: Any, dtype: str = "f32") -> Twin:
    """The network of `examples/disc.py`."""

    def module() -> Any:
        from benchmarks.twins import torch_models

        return torch_models.mlp((2, 16, 16, 1))

    keys, sizes = random.split(key, 3), ((2, 16), (16, 16), (16, 1))
    first, second, third = (nn.Dense(*size, key=own, dtype=dtype) for size, own in zip(sizes, keys, strict=True))
    model = nn.Sequential(first, nn.relu, second, nn.relu, third)
    return Twin("disc", model, _stateless(jax_models.mlp), module, "mean_squared_error")


def cnn(
    image: tuple[int, int, int] = (32, 32, 3),
    channels: tuple[int, int, int] = (32, 64, 128),
    hidden: int = 256,
    *,
    key: Any,
    dtype: str = "f32",
) -> Twin:
    """The small convolutional network; images are square."""

    def module() -> Any:
        from benchmarks.twins import torch_models

        return torch_models.cnn(image, 10, channels, hidden)

    stages = channels[:2], channels[2:]
    model = nn.models.cnn(image, channels=stages, hidden=(hidden,), key=key, dtype=dtype)
    return Twin("cnn", model, _stateless(jax_models.cnn), module)


def resnet20(depth: int = 20, *, key: Any, dtype: str = "f32") -> Twin:
    """ResNet-20 with option A, in training."""

    def module() -> Any:
        from benchmarks.twins import torch_models

        return torch_models.ResNet(depth=depth)

    return Twin("resnet20", nn.models.resnet20(key=key, depth=depth, dtype=dtype), jax_models.resnet20, module)


def gpt(config: GPTConfig, *, key: Any, dtype: str = "f32") -> Twin:
    """GPT over tokens i32[batch, length]."""

    def module() -> Any:
        from benchmarks.twins import torch_models

        return torch_models.GPT(config)

    if config.rolled or config.dropout or config.tanh_gelu:
        raise ValueError(f"the twins of GPT have exact GELU, no dropout and no rolled blocks, found {config}")
    apply = _stateless(partial(jax_models.gpt, config=config))
    return Twin("gpt", GPT(config, key=key, dtype=dtype), apply, module)


def vit(config: ViTConfig | None = None, *, key: Any, dtype: str = "f32") -> Twin:
    """ViT with a class token."""
    config = config or ViTConfig()

    def module() -> Any:
        from benchmarks.twins import torch_models

        return torch_models.ViT(config)

    if config.rolled or config.dropout or config.pooling != "class":
        raise ValueError(f"the twins of ViT have a class token, no dropout and no rolled blocks, found {config}")
    apply = _stateless(partial(jax_models.vit, config=config))
    return Twin("vit", ViT(config, key=key, dtype=dtype), apply, module)


def _stateless(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    return lambda parameters, state, x: (function(parameters, x), state)
