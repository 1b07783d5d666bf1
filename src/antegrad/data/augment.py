"""Augmentation as programs: images are changed on the device, differently in each epoch, always from the raw data.

What happens to a sample depends on (seed, epoch, its place in the data) alone: not on the batch that it comes in.
Mixtures take their partner from the batch, and are the exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antegrad import ops, random
from antegrad.errors import SettingError, ShapeError
from antegrad.ir.types import is_float, is_integer, type_of
from antegrad.optim import settings

__all__ = ["Augment", "CutMix", "Cutout", "HorizontalFlip", "MixUp", "Normalize", "RandomCrop"]


@dataclass(frozen=True)
class Augment:
    """Changes one after the other: ``Augment([RandomCrop(4), HorizontalFlip()])``.

    Each is called as ``change(key, places, x, y)`` with a key of its own, the places of the samples in the data
    (i32[batch]), inputs f32[batch,height,width,channels] and targets, and gives new inputs and targets. Those of this
    module raise `ShapeError` for what is no batch of images.
    """

    changes: Sequence[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.changes, Sequence) or not all(map(callable, self.changes)):
            raise SettingError(
                f"Augment takes a list of changes, such as [RandomCrop(4), HorizontalFlip()], found {self.changes!r}"
            )

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        for number, change in enumerate(self.changes):
            x, y = change(random.fold_in(key, number), places, x, y)
        return x, y


def draws(key: Any, places: Any, count: int) -> list[Any]:
    """`count` times f32[batch], uniform in [0, 1): functions of the key and of each sample's place."""
    places = ops.convert(places, "u32")
    words = [ops.threefry2x32(key, ops.full(places.shape, i, "u32"), places)[0] for i in range(count)]
    return [ops.convert(word >> 8, "f32") * 2.0**-24 for word in words]


def _whole(uniform: Any, count: int) -> Any:
    """A whole number from 0 to ``count - 1`` (i32)."""
    return ops.minimum(ops.convert(uniform * count, "i32"), count - 1)


@dataclass(frozen=True)
class RandomCrop:
    """A window of the image's own size, from the image with `padding` black pixels on each side."""

    padding: int

    def __post_init__(self) -> None:
        settings.whole("RandomCrop", "padding", self.padding, 1)

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        batch, height, width, _ = _image_shape("RandomCrop", x)
        around = (self.padding, self.padding)
        padded = ops.pad(x, ((0, 0), around, around, (0, 0)))
        down, right = (_whole(u, 2 * self.padding + 1) for u in draws(key, places, 2))
        rows = ops.expand_dims(down, (1, 2)) + ops.reshape(ops.arange(height), (1, height, 1))
        columns = ops.expand_dims(right, (1, 2)) + ops.reshape(ops.arange(width), (1, 1, width))
        images = ops.reshape(ops.arange(batch), (batch, 1, 1))
        return padded[images, rows, columns], y


@dataclass(frozen=True)
class HorizontalFlip:
    """The mirror image with probability `probability`."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        settings.number("HorizontalFlip", "probability", self.probability, "[0, 1]")

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        _image_shape("HorizontalFlip", x)
        turned = draws(key, places, 1)[0] < self.probability
        return ops.where(ops.expand_dims(turned, (1, 2, 3)), ops.flip(x, 2), x), y


@dataclass(frozen=True)
class Cutout:
    """A black square of `size` pixels somewhere in the image, cut off at its border.

    Source: DeVries and Taylor, "Improved regularization of convolutional neural networks with cutout" (2017).
    """

    size: int

    def __post_init__(self) -> None:
        settings.whole("Cutout", "size", self.size, 1)

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        inside = _box(draws(key, places, 2), _image_shape("Cutout", x), ops.full(places.shape, float(self.size)))
        return ops.where(ops.expand_dims(inside, 3), 0.0, x), y


def _box(centre: Sequence[Any], shape: tuple[int, ...], size: Any, wide: Any = None) -> Any:
    """bool[batch,height,width]: the box of `size` (by `wide`) around a drawn centre."""
    masks, extents = [], (size, size if wide is None else wide)
    for uniform, count, extent, axis in zip(centre, shape[1:3], extents, (1, 2), strict=True):
        middle = ops.convert(_whole(uniform, count), "f32")
        low = ops.floor(middle - extent / 2 + 0.5)
        places = ops.convert(ops.arange(count), "f32")
        inside = ops.logical_and(places >= ops.expand_dims(low, 1), places < ops.expand_dims(low + extent, 1))
        masks.append(ops.expand_dims(inside, 3 - axis))
    return ops.logical_and(*masks)


@dataclass(frozen=True)
class MixUp:
    """Each image mixed with another of the batch, and their targets alike; `classes` is the number of classes.

    The share of the image itself is drawn uniformly (a Beta distribution with alpha = 1). Targets become probabilities
    f32[batch,classes]. Source: Zhang et al., "mixup: beyond empirical risk minimization" (2018).
    """

    classes: int

    def __post_init__(self) -> None:
        settings.whole("MixUp", "classes", self.classes, 1)

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        _image_shape("MixUp", x)
        share = draws(key, places, 1)[0]
        of_image = ops.expand_dims(share, (1, 2, 3))
        return x * of_image + ops.flip(x, 0) * (1 - of_image), _mixed_targets(y, share, self.classes)


@dataclass(frozen=True)
class CutMix:
    """A box of each image replaced by that of another of the batch, and the targets mixed by area.

    The share of the image itself is drawn uniformly; the box is cut off at the border. Source: Yun et al., "CutMix"
    (2019).
    """

    classes: int

    def __post_init__(self) -> None:
        settings.whole("CutMix", "classes", self.classes, 1)

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        shape = _image_shape("CutMix", x)
        share, *centre = draws(key, places, 3)
        side = ops.sqrt(1 - share)
        inside = _box(centre, shape, ops.floor(side * shape[1]), ops.floor(side * shape[2]))
        kept = 1 - ops.mean(ops.convert(inside, "f32"), (1, 2))
        mixed = ops.where(ops.expand_dims(inside, 3), ops.flip(x, 0), x)
        return mixed, _mixed_targets(y, kept, self.classes)


def _mixed_targets(y: Any, share: Any, classes: int) -> Any:
    """`share` of each target, and the rest of that of the partner, as probabilities."""
    if is_integer(y.dtype) and y.ndim == 1:
        y = ops.one_hot(y, classes)
    if y.ndim != 2 or y.shape[1] != classes:
        raise ShapeError(f"mixing needs one target a sample of {classes} classes, found {type_of(y)}")
    own = ops.expand_dims(share, 1)
    return y * own + ops.flip(y, 0) * (1 - own)


@dataclass(frozen=True)
class Normalize:
    """``(x - mean) / std``, by channel. What an evaluation needs too is better the first layer of the model."""

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        for name, interval in (("mean", "(-inf, inf)"), ("std", "(0, inf)")):
            for value in getattr(self, name):
                settings.number("Normalize", name, value, interval)
        if len(self.mean) != len(self.std):
            raise SettingError(f"Normalize: mean has {len(self.mean)} channels and std {len(self.std)}")

    def __call__(self, key: Any, places: Any, x: Any, y: Any) -> tuple[Any, Any]:
        return self.normalized(x), y

    def normalized(self, x: Any) -> Any:
        """`x` normalized: a layer for `nn.Sequential`."""
        if not x.ndim or x.shape[-1] != len(self.mean) or not is_float(x.dtype):
            raise ShapeError(
                f"Normalize with {len(self.mean)} channels is for floats with as many along the last axis, "
                f"found {type_of(x)}"
            )
        mean, std = (ops.stack([ops.full((), value, x.dtype) for value in side]) for side in (self.mean, self.std))
        return (x - mean) / std


def _image_shape(change: str, x: Any) -> tuple[int, int, int, int]:
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) != 4:
        found = f"{len(x)} inputs" if shape is None else type_of(x)
        raise ShapeError(f"{change} is for images [batch,height,width,channels], found {found}")
    return shape
