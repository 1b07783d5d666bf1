"""Residual networks: ResNet-20 and its deeper kin for CIFAR, and ResNet-18 for ImageNet or CIFAR.

Source: He et al., "Deep residual learning for image recognition" (2015), arXiv:1512.03385.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from antegrad import ops, random
from antegrad.errors import SettingError
from antegrad.ir.types import DTypeLike
from antegrad.nn import initializers
from antegrad.nn.batch_norm import BatchNorm
from antegrad.nn.convolution import Conv2D
from antegrad.nn.layers import Dense
from antegrad.nn.module import Module, static
from antegrad.nn.pooling import GlobalAvgPool, MaxPool

he_normal = initializers.variance_scaling(2.0, "fan_out", "normal")
"""As torchvision draws the kernels."""


class ConvNorm(Module):
    """A convolution without bias, and a batch norm. Parameters: ``conv.w``, ``norm.scale``, ``norm.bias``."""

    conv: Conv2D
    norm: BatchNorm

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, *, key: Any, dtype: DTypeLike) -> None:
        options = {"stride": stride, "padding": kernel // 2, "bias": False, "initializer": he_normal, "dtype": dtype}
        self._set(conv=Conv2D(inputs, outputs, kernel, key=key, **options), norm=BatchNorm(outputs, dtype=dtype))

    def __call__(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Subsample(Module):
    """A shortcut without parameters: every `stride`-th pixel, and zeros as new channels (option A of He et al.)."""

    stride: int = static()
    extra: int = static()

    def __call__(self, x: Any) -> Any:
        if self.stride > 1:
            x = x[:, :: self.stride, :: self.stride, :]
        return ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, self.extra))) if self.extra else x


class BasicBlock(Module):
    """``relu(second(relu(first(x))) + shortcut(x))``, where `first` has the stride.

    Parameters: ``first....``, ``second....`` and, for a projection, ``shortcut....``, those of a `ConvNorm` each.
    """

    first: ConvNorm
    second: ConvNorm
    shortcut: ConvNorm | Subsample

    def __init__(
        self, inputs: int, outputs: int, stride: int, *, key: Any, option: Literal["A", "B"], dtype: DTypeLike
    ) -> None:
        keys = random.split(key, 3)
        self._set(first=ConvNorm(inputs, outputs, 3, stride, key=keys[0], dtype=dtype))
        self._set(second=ConvNorm(outputs, outputs, 3, 1, key=keys[1], dtype=dtype))
        if option == "A" or (inputs == outputs and stride == 1):
            self._set(shortcut=Subsample(stride, outputs - inputs))
        else:
            self._set(shortcut=ConvNorm(inputs, outputs, 1, stride, key=keys[2], dtype=dtype))

    def __call__(self, x: Any) -> Any:
        return ops.relu(ops.add(self.second(ops.relu(self.first(x))), self.shortcut(x)))


class ResNet(Module):
    """A stem, blocks, the mean over all pixels, and a dense layer. Input f32[N,H,W,3], result f32[N,classes].

    Parameters: ``stem....``, ``blocks.0....`` and so on, ``head.w``, ``head.b``.
    """

    stem: ConvNorm
    pool: MaxPool | None
    blocks: tuple[BasicBlock, ...]
    mean: GlobalAvgPool
    head: Dense

    def __call__(self, x: Any) -> Any:
        x = ops.relu(self.stem(x))
        x = x if self.pool is None else self.pool(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.mean(x))


def _blocks(
    widths: Sequence[int], depth: int, keys: Iterator[Any], option: Literal["A", "B"], dtype: DTypeLike
) -> tuple[BasicBlock, ...]:
    """`depth` blocks of each width; the first of every width but the first halves the size."""
    blocks, inputs = [], widths[0]
    for stage, width in enumerate(widths):
        for place in range(depth):
            stride = 2 if stage and not place else 1
            blocks.append(BasicBlock(inputs, width, stride, key=next(keys), option=option, dtype=dtype))
            inputs = width
    return tuple(blocks)


def resnet20(
    classes: int = 10,
    *,
    key: Any,
    depth: int = 20,
    option: Literal["A", "B"] = "A",
    dtype: DTypeLike = "f32",
) -> ResNet:
    """The network for CIFAR's 32x32 images, of 16, 32 and 64 channels: 269,722 parameters with 10 classes.

    Shortcuts across a change of size have no parameters (option A of He et al., as there for CIFAR); with option "B"
    they are projections. A `depth` of 32, 44, 56 or 110 gives the deeper ones. Raises `SettingError` for a depth that
    is not ``6 * n + 2``, and for another option.
    """
    if option not in ("A", "B"):
        raise SettingError(f"resnet20: the option must be 'A' or 'B', found {option!r}")
    if depth < 8 or depth % 6 != 2:
        raise SettingError(f"resnet20: the depth must be 6 * n + 2, such as 20, 32 or 56, found {depth}")
    count = (depth - 2) // 6
    keys = iter(random.split(key, 3 * count + 2))
    stem = ConvNorm(3, 16, 3, 1, key=next(keys), dtype=dtype)
    blocks = _blocks((16, 32, 64), count, keys, option, dtype)
    return ResNet(stem, None, blocks, GlobalAvgPool(), Dense(64, classes, key=next(keys), dtype=dtype))


def resnet18(
    classes: int = 1000, *, key: Any, stem: Literal["imagenet", "cifar"] = "imagenet", dtype: DTypeLike = "f32"
) -> ResNet:
    """The network of 64 to 512 channels with projections (option B): 11,689,512 parameters with 1000 classes.

    The stem for "imagenet" is a 7x7 convolution and a max pooling, both with stride 2; that for "cifar" is a 3x3
    convolution that keeps the size. Raises `SettingError` for another stem.
    """
    if stem not in ("imagenet", "cifar"):
        raise SettingError(f"resnet18: the stem must be 'imagenet' or 'cifar', found {stem!r}")
    keys = iter(random.split(key, 10))
    large = stem == "imagenet"
    first = ConvNorm(3, 64, 7 if large else 3, 2 if large else 1, key=next(keys), dtype=dtype)
    blocks = _blocks((64, 128, 256, 512), 2, keys, "B", dtype)
    head = Dense(512, classes, key=next(keys), dtype=dtype)
    return ResNet(first, MaxPool(3, 2, 1) if large else None, blocks, GlobalAvgPool(), head)
