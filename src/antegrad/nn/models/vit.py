"""ViT: a transformer over the patches of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from antegrad import ops, random
from antegrad.ir.types import DTypeLike, type_of
from antegrad.nn import initializers
from antegrad.nn.dropout import Dropout
from antegrad.nn.layers import Dense, Sequential
from antegrad.nn.module import Module, static
from antegrad.nn.normalization import LayerNorm
from antegrad.nn.positions import LearnedPositions
from antegrad.nn.repeat import Repeat
from antegrad.nn.transformer import TransformerBlock, in_a_row
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor

SMALL = initializers.truncated_normal(0.02)
EPS = 1e-6


@dataclass(frozen=True)
class ViTConfig:
    """The sizes of a ViT; by default for images of CIFAR-10 (2.7 million parameters).

    Images are `size` x `size` with `channels`, cut into patches of `patch` x `patch`. The class is read off a class
    token ("class"), or off the mean over the patches ("mean"). `hidden` is four times `features` by default. `dropout`
    is used for embeddings and what each part of a block adds. `rolled` as in `GPTConfig`.
    """

    size: int = 32
    patch: int = 4
    channels: int = 3
    classes: int = 10
    layers: int = 6
    heads: int = 3
    features: int = 192
    hidden: int | None = None
    pooling: Literal["class", "mean"] = "class"
    dropout: float = 0.0
    rolled: bool = False


class ViT(Module):
    """Logits of the classes of an image: ``model(images)``.

    Patches are mapped to features, learned positions are added, blocks with the norm first follow, and a last norm
    and map for what was pooled. Source: Dosovitskiy et al., "An image is worth 16x16 words" (2020), arXiv:2010.11929.
    """

    patches: Dense
    class_token: Any
    """f32[features], or None"""
    positions: LearnedPositions
    dropout: Dropout | None
    blocks: Sequential | Repeat
    norm: LayerNorm
    head: Dense
    config: ViTConfig = static()

    def __init__(self, config: ViTConfig, *, key: Any, dtype: DTypeLike = "f32") -> None:
        if config.size % config.patch or config.pooling not in ("class", "mean"):
            raise misfit(
                f"ViT: the patch must divide the size, and pooling be 'class' or 'mean', found size {config.size}, "
                f"patch {config.patch} and pooling {config.pooling!r}"
            )
        of_patches, of_positions, of_blocks, of_head = random.split(key, 4)
        features, with_token = config.features, config.pooling == "class"
        tokens = (config.size // config.patch) ** 2 + with_token

        def block(key: Any) -> TransformerBlock:
            return TransformerBlock(
                features, config.heads, config.hidden, key=key, dropout=config.dropout, eps=EPS, initializer=SMALL,
                dtype=dtype,
            )  # fmt: skip

        self._set(
            patches=Dense(config.patch**2 * config.channels, features, key=of_patches, dtype=dtype),
            class_token=ops.zeros((features,), dtype) if with_token else None,
            positions=LearnedPositions(tokens, features, key=of_positions, dtype=dtype),
            dropout=Dropout(config.dropout) if config.dropout else None,
            blocks=in_a_row(block, config.layers, key=of_blocks, rolled=config.rolled),
            norm=LayerNorm(features, eps=EPS, dtype=dtype),
            head=Dense(features, config.classes, key=of_head, initializer=SMALL, dtype=dtype),
            config=config,
        )

    def __call__(self, images: Any) -> Any:
        """`images` float[batch, size, size, channels] to logits [batch, classes]."""
        config = self.config
        images, expected = as_tensor(images), (config.size, config.size, config.channels)
        if images.shape[1:] != expected:
            raise misfit(f"ViT takes images [batch, {', '.join(map(str, expected))}], found {type_of(images)}")
        x = self.patches(patches(images, config.patch))
        if self.class_token is not None:
            token = ops.broadcast_to(self.class_token, (x.shape[0], 1, config.features))
            x = ops.concatenate((token, x), axis=1)
        x = self.positions(x)
        x = self.norm(self.blocks(x if self.dropout is None else self.dropout(x)))
        return self.head(x[:, 0] if config.pooling == "class" else ops.mean(x, axis=1))


def patches(images: Any, size: int) -> Any:
    """The patches of [batch, H, W, C] row by row, each flattened: [batch, H / size * W / size, size * size * C].

    The order within a patch is (row, column, channel), so a `Dense` over it is a convolution with an HWIO kernel of
    this size and stride.
    """
    batch, height, width, channels = images.shape
    grid = ops.reshape(images, (batch, height // size, size, width // size, size, channels))
    ordered = ops.transpose(grid, (0, 1, 3, 2, 4, 5))
    return ops.reshape(ordered, (batch, height // size * (width // size), size * size * channels))
