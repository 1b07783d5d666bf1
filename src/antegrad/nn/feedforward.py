"""The feed-forward part of a transformer block: two maps with an activation between, or a gated one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import ops, random
from antegrad.ir.types import DTypeLike
from antegrad.nn import initializers
from antegrad.nn.layers import Dense
from antegrad.nn.module import Module, static


def tanh_gelu(x: Any) -> Any:
    """The approximation of GELU that GPT-2 was trained with: ``ops.gelu(x, approximate=True)``."""
    return ops.gelu(x, approximate=True)


class MLP(Module):
    """``down(activation(up(x)))``: from `features` to `hidden` and back.

    Arguments of the constructor: both sizes; the activation, exact GELU by default; the initializer of the weights, and
    another one for the second map where it writes to a residual stream.
    """

    up: Dense
    down: Dense
    activation: Callable[..., Any] = static()

    def __init__(
        self,
        features: int,
        hidden: int,
        activation: Callable[..., Any] = ops.gelu,
        *,
        key: Any,
        bias: bool = True,
        initializer: Callable[..., Any] = initializers.lecun_normal,
        output_initializer: Callable[..., Any] | None = None,
        dtype: DTypeLike = "f32",
    ) -> None:
        first, second = random.split(key)
        self._set(
            up=Dense(features, hidden, key=first, initializer=initializer, bias=bias, dtype=dtype),
            down=Dense(
                hidden, features, key=second, initializer=output_initializer or initializer, bias=bias, dtype=dtype
            ),
            activation=activation,
        )

    def __call__(self, x: Any) -> Any:
        """`x` [..., features] to the same shape."""
        return self.down(self.activation(self.up(x)))


class SwiGLU(Module):
    """``down(silu(gate(x)) * up(x))``, without biases unless asked for, as in Llama.

    With two thirds of the `hidden` size of an `MLP` it has as many parameters. Source: Shazeer, "GLU variants improve
    transformer" (2020), arXiv:2002.05202.
    """

    gate: Dense
    up: Dense
    down: Dense

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        key: Any,
        bias: bool = False,
        initializer: Callable[..., Any] = initializers.lecun_normal,
        output_initializer: Callable[..., Any] | None = None,
        dtype: DTypeLike = "f32",
    ) -> None:
        first, second, third = random.split(key, 3)
        self._set(
            gate=Dense(features, hidden, key=first, initializer=initializer, bias=bias, dtype=dtype),
            up=Dense(features, hidden, key=second, initializer=initializer, bias=bias, dtype=dtype),
            down=Dense(
                hidden, features, key=third, initializer=output_initializer or initializer, bias=bias, dtype=dtype
            ),
        )

    def __call__(self, x: Any) -> Any:
        """`x` [..., features] to the same shape."""
        return self.down(ops.silu(self.gate(x)) * self.up(x))
