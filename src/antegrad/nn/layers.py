"""Layers: `Dense`, `Sequential`, and `Function` for activations in a `Sequential`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import ops
from antegrad.ir.types import DTypeLike, type_of
from antegrad.nn import initializers
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor

Activation = Callable[[Any], Any]


class Dense(Module):
    """An affine map of the last axis: ``x @ w + b``, and `activation` of that where there is one.

    Arguments of the constructor: sizes of the input and output axis, a threefry `key` for the weights, the activation,
    the initializer of `w` (LeCun normal by default, as in Flax), and whether there is a bias, which starts at 0.
    Parameters: ``w`` and ``b``.
    """

    w: Any
    """f32[inputs,outputs]"""
    b: Any
    """f32[outputs], or None"""
    activation: Activation | None = static(default=None)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        key: Any,
        activation: Activation | None = None,
        initializer: initializers.Initializer = initializers.lecun_normal,
        bias: bool = True,
        dtype: DTypeLike = "f32",
    ) -> None:
        w = initializer(key, (inputs, outputs), dtype)
        self._set(w=w, b=ops.zeros((outputs,), dtype) if bias else None, activation=activation)

    def __call__(self, x: Any) -> Any:
        """`x` [..., inputs] to [..., outputs]; a `ShapeError` that names the layer when the last axis differs."""
        x = as_tensor(x)
        inputs, outputs = self.w.shape
        if x.ndim == 0 or x.shape[-1] != inputs:
            raise misfit(
                f"Dense({inputs} -> {outputs}) takes an input whose last axis has size {inputs}, "
                f"found {type_of(x)}; its weight is {type_of(self.w)}"
            )
        return activated(ops.matmul(x, self.w), self.b, self.activation)


def activated(product: Any, bias: Any, activation: Activation | None) -> Any:
    """``activation(product + bias)``, without what is None."""
    y = product if bias is None else ops.add(product, bias)
    return y if activation is None else activation(y)


class Function(Module):
    """A function without parameters as a layer, such as an activation."""

    function: Callable[..., Any] = static()

    def __call__(self, x: Any) -> Any:
        return self.function(x)


def as_layer(layer: Callable[..., Any]) -> Module:
    """A module as it is, and a plain function as a `Function`."""
    return layer if isinstance(layer, Module) else Function(layer)


class Sequential(Module):
    """Layers one after the other; parameters are called ``0.w``, ``0.b``, ``2.w`` by the place of their layer.

    A plain function among the layers becomes a `Function`. In a printed program the values between the layers are
    called ``h0``, ``h1`` and so on, one for each layer that has parameters.
    """

    layers: tuple[Any, ...]

    transparent = "layers"

    def __init__(self, *layers: Callable[..., Any]) -> None:
        self._set(layers=tuple(map(as_layer, layers)))

    def __call__(self, x: Any) -> Any:
        stage = -1
        for layer in self.layers:
            stage += not isinstance(layer, Function)
            x = layer(x)
            if layer is not self.layers[-1]:
                x = ops.name(x, f"h{max(stage, 0)}")
        return x

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)
