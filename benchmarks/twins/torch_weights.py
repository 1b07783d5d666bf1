"""Where each array of antegrad stands in a twin of torch: to fill the twin, and to read what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.twins import torch_models as models

OIHW_OF_HWIO = (3, 2, 0, 1)


@dataclass(frozen=True)
class Place:
    """A tensor of a module, or some of its rows, that holds the array of antegrad called `name`.

    The array is seen in the shape `view` (None for its own), its axes are put into the order `axes` (None for their
    own), and the result has the elements of the tensor in order.
    """

    name: str
    tensor: Tensor
    axes: tuple[int, ...] | None = None
    view: tuple[int, ...] | None = None
    rows: tuple[int, int] | None = None

    def fill(self, array: Any) -> None:
        """Copy antegrad's array into the module."""
        view, axes = self._order(np.shape(array))
        seen = np.ascontiguousarray(np.reshape(array, view).transpose(axes))
        with torch.no_grad():
            target = self._part(self.tensor)
            target.copy_(torch.tensor(seen).reshape(target.shape))

    def read(self, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        """What fills `tensor`, which is shaped as that of the module, as antegrad's array of `shape`."""
        view, axes = self._order(shape)
        values = self._part(tensor.detach()).numpy().reshape([view[axis] for axis in axes])
        return values.transpose(np.argsort(axes)).reshape(shape)

    def _order(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        view = self.view or shape
        return view, self.axes or tuple(range(len(view)))

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor if self.rows is None else tensor[slice(*self.rows)]


def load(module: nn.Module, arrays: Mapping[str, Any]) -> None:
    """Fill `module` with antegrad's named arrays, those of the state included; every name must have its place."""
    found, kind = {place.name: place for place in places(module)}, type(module).__name__
    if missing := sorted(found.keys() - arrays.keys()):
        raise ValueError(f"{kind} needs arrays for {missing}")
    if extra := sorted(arrays.keys() - found.keys()):
        raise ValueError(f"{kind} has no place for {extra}")
    for name, place in found.items():
        place.fill(arrays[name])


def gradients(module: nn.Module, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The gradients of `module` in antegrad's names and layouts; `like` has the parameters that are asked for."""
    found = {}
    for place in places(module):
        if place.name in like:
            assert place.tensor.grad is not None, f"{place.name} has no gradient"
            found[place.name] = place.read(place.tensor.grad, np.shape(like[place.name]))
    return found


def arrays(module: nn.Module, like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies of the parameters and statistics of `module` in antegrad's names and layouts; `like` has those wanted."""
    return {p.name: p.read(p.tensor, np.shape(like[p.name])).copy() for p in places(module) if p.name in like}


def places(module: nn.Module) -> list[Place]:
    """Where the arrays of antegrad's model stand in its twin."""
    kinds = {
        nn.Sequential: _sequential,
        models.ResNet: _resnet,
        models.GPT: _gpt,
        models.ViT: _vit,
    }
    return list(kinds[type(module)](module))


def _linear(name: str, layer: nn.Linear, rows: tuple[int, int] | None = None) -> Iterator[Place]:
    yield Place(f"{name}.w", layer.weight, (1, 0), rows=rows)
    if layer.bias is not None:
        yield Place(f"{name}.b", layer.bias, rows=rows)


def _conv(name: str, layer: nn.Conv2d) -> Iterator[Place]:
    yield Place(f"{name}.w", layer.weight, OIHW_OF_HWIO)
    if layer.bias is not None:
        yield Place(f"{name}.b", layer.bias)


def _norm(name: str, layer: Any) -> Iterator[Place]:
    yield Place(f"{name}.scale", layer.weight)
    if layer.bias is not None:
        yield Place(f"{name}.bias", layer.bias)
    if isinstance(layer, nn.BatchNorm2d):
        yield Place(f"{name}.mean", layer.running_mean)
        yield Place(f"{name}.var", layer.running_var)


def _sequential(module: nn.Sequential) -> Iterator[Place]:
    channels = 0
    for index, layer in enumerate(module):
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
            yield from _conv(str(index), layer)
        elif isinstance(layer, nn.Linear):
            flattened = channels and isinstance(module[index - 1], nn.Flatten)
            yield from _after_flatten(str(index), layer, channels) if flattened else _linear(str(index), layer)


def _after_flatten(name: str, layer: nn.Linear, channels: int) -> Iterator[Place]:
    """A dense layer over flattened images: (row, column, channel) in antegrad, (channel, row, column) in torch."""
    outputs, inputs = layer.weight.shape
    size = round((inputs // channels) ** 0.5)
    yield Place(f"{name}.w", layer.weight, OIHW_OF_HWIO, (size, size, channels, outputs))
    yield Place(f"{name}.b", layer.bias)


def _resnet(module: models.ResNet) -> Iterator[Place]:
    yield from _conv("stem.conv", module.conv1)
    yield from _norm("stem.norm", module.bn1)
    for index, block in enumerate(module.blocks):
        yield from _conv(f"blocks.{index}.first.conv", block.conv1)
        yield from _norm(f"blocks.{index}.first.norm", block.bn1)
        yield from _conv(f"blocks.{index}.second.conv", block.conv2)
        yield from _norm(f"blocks.{index}.second.norm", block.bn2)
    yield from _linear("head", module.fc)


def _blocks(blocks: nn.Sequential) -> Iterator[Place]:
    for index, block in enumerate(blocks):
        name, size = f"blocks.{index}", block.attn.proj.in_features
        yield from _norm(f"{name}.attention_norm", block.ln1)
        for part, kind in enumerate(("query", "key", "value")):
            yield from _linear(f"{name}.attention.{kind}", block.attn.qkv, (part * size, (part + 1) * size))
        yield from _linear(f"{name}.attention.output", block.attn.proj)
        yield from _norm(f"{name}.mlp_norm", block.ln2)
        yield from _linear(f"{name}.mlp.up", block.fc1)
        yield from _linear(f"{name}.mlp.down", block.fc2)


def _gpt(module: models.GPT) -> Iterator[Place]:
    yield Place("embedding.w", module.wte.weight)
    yield Place("positions.table", module.wpe.weight)
    yield from _blocks(module.blocks)
    yield from _norm("norm", module.norm)


def _vit(module: models.ViT) -> Iterator[Place]:
    features, channels, size, _ = module.patches.weight.shape
    yield Place("patches.w", module.patches.weight, OIHW_OF_HWIO, (size, size, channels, features))
    yield Place("patches.b", module.patches.bias)
    yield Place("class_token", module.class_token)
    yield Place("positions.table", module.positions)
    yield from _blocks(module.blocks)
    yield from _norm("norm", module.norm)
    yield from _linear("head", module.head)
