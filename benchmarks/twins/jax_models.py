"""The models in plain JAX: pure functions of a dict of arrays by antegrad's own parameter names, such as ``0.w``.

Images are [batch, height, width, channels], kernels HWIO. Nothing is done here for the sake of speed, nor against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from antegrad.nn.models import GPTConfig, ViTConfig

Arrays = Mapping[str, Any]


def dense(p: Arrays, name: str, x: Any) -> Any:
    """``x @ w + b``, where there is a b."""
    y = x @ p[f"{name}.w"]
    return y + p[f"{name}.b"] if f"{name}.b" in p else y


def conv(p: Arrays, name: str, x: Any, stride: int = 1) -> Any:
    """A convolution that keeps the size, or divides it by the stride."""
    w = p[f"{name}.w"]
    around = [(size // 2, size // 2) for size in w.shape[:2]]
    y = lax.conv_general_dilated(x, w, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + p[f"{name}.b"] if f"{name}.b" in p else y


def max_pool(x: Any) -> Any:
    """The largest of 2 x 2."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def layer_norm(p: Arrays, name: str, x: Any, eps: float) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.var(x, axis=-1, keepdims=True)
    y = (x - mean) * lax.rsqrt(var + eps) * p[f"{name}.scale"]
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def batch_norm(
    p: Arrays, state: Arrays, name: str, x: Any, momentum: float = 0.1, eps: float = 1e-5
) -> tuple[Any, dict[str, Any]]:
    """In training: normalized by the batch, and the running statistics, which follow the unbiased variance."""
    mean, var = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
    count = x.size // x.shape[-1]
    y = (x - mean) * lax.rsqrt(var + eps) * p[f"{name}.scale"] + p[f"{name}.bias"]
    batch = {f"{name}.mean": mean, f"{name}.var": var * count / (count - 1)}
    return y, {key: (1 - momentum) * state[key] + momentum * value for key, value in batch.items()}


def attention(p: Arrays, name: str, x: Any, heads: int, causal: bool) -> Any:
    batch, length, features = x.shape
    query, key, value = (
        dense(p, f"{name}.{part}", x).reshape(batch, length, heads, -1) for part in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(features // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
    return dense(p, f"{name}.output", y.reshape(batch, length, features))


def block(p: Arrays, name: str, x: Any, heads: int, causal: bool, eps: float) -> Any:
    """A block of a transformer with the norms first."""
    x = x + attention(p, f"{name}.attention", layer_norm(p, f"{name}.attention_norm", x, eps), heads, causal)
    h = dense(p, f"{name}.mlp.up", layer_norm(p, f"{name}.mlp_norm", x, eps))
    return x + dense(p, f"{name}.mlp.down", jax.nn.gelu(h, approximate=False))


def mlp(p: Arrays, x: Any) -> Any:
    """`nn.models.mlp` with ReLU: the classifier of digits, and the disc."""
    *hidden, last = sorted({int(name.split(".")[0]) for name in p})
    for layer in hidden:
        x = jax.nn.relu(dense(p, str(layer), x))
    return dense(p, str(last), x)


def cnn(p: Arrays, x: Any) -> Any:
    """`nn.models.cnn` with two convolutions before the first pooling, one before the second, and two dense layers."""
    x = jax.nn.relu(conv(p, "0", x))
    x = max_pool(jax.nn.relu(conv(p, "2", x)))
    x = max_pool(jax.nn.relu(conv(p, "5", x)))
    x = jax.nn.relu(dense(p, "9", x.reshape(len(x), -1)))
    return dense(p, "11", x)


def resnet20(p: Arrays, state: Arrays, x: Any) -> tuple[Any, dict[str, Any]]:
    """`nn.models.resnet20` (option A) in training, also of other depths: logits and running statistics."""
    new: dict[str, Any] = {}

    def conv_norm(name: str, x: Any, stride: int = 1) -> Any:
        y, moved = batch_norm(p, state, f"{name}.norm", conv(p, f"{name}.conv", x, stride))
        new.update(moved)
        return y

    x = jax.nn.relu(conv_norm("stem", x))
    for index in range(sum(name.endswith("first.conv.w") for name in p)):
        name = f"blocks.{index}"
        extra = p[f"{name}.first.conv.w"].shape[-1] - x.shape[-1]
        stride = 2 if extra else 1
        y = conv_norm(f"{name}.second", jax.nn.relu(conv_norm(f"{name}.first", x, stride)))
        shortcut = jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (0, extra)))
        x = jax.nn.relu(y + shortcut)
    return dense(p, "head", jnp.mean(x, axis=(1, 2))), new


def gpt(p: Arrays, tokens: Any, config: GPTConfig) -> Any:
    """`nn.models.GPT` without dropout, whose blocks are not rolled: the logits of each next token."""
    x = p["embedding.w"][tokens] + p["positions.table"][: tokens.shape[1]]
    for index in range(config.layers):
        x = block(p, f"blocks.{index}", x, config.heads, causal=True, eps=1e-5)
    return layer_norm(p, "norm", x, 1e-5) @ p["embedding.w"].T


def vit(p: Arrays, images: Any, config: ViTConfig) -> Any:
    """`nn.models.ViT` with a class token, without dropout, whose blocks are not rolled."""
    batch, size = len(images), config.patch
    kernel = p["patches.w"].reshape(size, size, config.channels, config.features)
    layout = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(images, kernel, (size, size), "VALID", dimension_numbers=layout) + p["patches.b"]
    x = x.reshape(batch, -1, config.features)
    token = jnp.broadcast_to(p["class_token"], (batch, 1, config.features))
    x = jnp.concatenate([token, x], axis=1) + p["positions.table"]
    for index in range(config.layers):
        x = block(p, f"blocks.{index}", x, config.heads, causal=False, eps=1e-6)
    return dense(p, "head", layer_norm(p, "norm", x, 1e-6)[:, 0])
