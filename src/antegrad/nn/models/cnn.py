"""A small convolutional network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antegrad import ops, random
from antegrad.errors import ShapeError
from antegrad.ir.types import DTypeLike
from antegrad.nn import initializers
from antegrad.nn.convolution import Conv2D
from antegrad.nn.layers import Dense, Sequential
from antegrad.nn.pooling import Flatten, MaxPool


def cnn(
    image: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    *,
    key: Any,
    channels: Sequence[Sequence[int]] = ((32, 64), (128,)),
    hidden: Sequence[int] = (256,),
    activation: Callable[[Any], Any] = ops.relu,
    initializer: initializers.Initializer = initializers.kaiming_normal,
    dtype: DTypeLike = "f32",
) -> Sequential:
    """Stages of 3x3 convolutions that keep the size, each stage closed by a 2x2 max pooling, then dense layers.

    `image` is (height, width, channels) of one; `channels` are those that the convolutions of each stage make, and
    `hidden` the sizes of the dense layers before the last. By default: convolutions to 32 and 64 channels, pooling, one
    to 128, pooling, dense 256, dense 10. Input f32[N,H,W,C], result f32[N,classes].

    Parameters: ``0.w``, ``0.b`` and so on by the place of the layer. Raises `ShapeError` for an image that cannot be
    halved for every stage.
    """
    height, width, features = image
    if min(height, width) < 2 ** len(channels):
        raise ShapeError(f"cnn: an image of {height}x{width} cannot be halved {len(channels)} times")
    count = sum(map(len, channels)) + len(hidden) + 1
    keys = iter(random.split(key, count))
    options = {"initializer": initializer, "dtype": dtype}
    layers: list[Any] = []
    for stage in channels:
        for outputs in stage:
            layers += [Conv2D(features, outputs, 3, key=next(keys), **options), activation]
            features = outputs
        layers.append(MaxPool(2))
        height, width = height // 2, width // 2
    layers.append(Flatten())
    size = height * width * features
    for outputs in hidden:
        layers += [Dense(size, outputs, key=next(keys), **options), activation]
        size = outputs
    return Sequential(*layers, Dense(size, classes, key=next(keys), **options))
