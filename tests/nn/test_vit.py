"""ViT against a transformer of torch over the patches of a torch convolution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, random
from antegrad.nn.models import ViT, ViTConfig
from antegrad.nn.models.vit import patches
from tests.nn.torch_reference import assert_same_as_torch, require_torch
from tests.support import assert_close

KEY = random.key(0)
TINY = ViTConfig(size=8, patch=4, channels=3, classes=5, layers=2, heads=2, features=8)
NAMES = [
    (r"^layers\.", "blocks."),
    *(
        (r"self_attn\.in_proj_(weight|bias)$", r"attention.{query,key,value}.\1"),
        (r"self_attn\.out_proj", "attention.output"),
    ),
    *((r"linear1", "mlp.up"), (r"linear2", "mlp.down"), (r"norm1", "attention_norm"), (r"norm2", "mlp_norm")),
    *(
        (r"norm\.weight$", "norm.scale"),
        (r"weight$", "w"),
        (r"(?<!norm\.)bias$", "b"),
        (r"^table\.w$", "positions.table"),
    ),
]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def reference(config: ViTConfig) -> tuple[Any, Any]:
    """The modules of a ViT in torch, and the function from them and images [N, H, W, C] to logits."""
    torch = require_torch()
    c, options = config.features, {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    blocks = [
        torch.nn.TransformerEncoderLayer(c, config.heads, 4 * c, layer_norm_eps=1e-6, **options)
        for _ in range(config.layers)
    ]
    places = (config.size // config.patch) ** 2
    with_token = config.pooling == "class"
    module = torch.nn.ModuleDict(
        {
            "patches": torch.nn.Linear(config.patch**2 * config.channels, c),
            "table": torch.nn.Embedding(places + with_token, c),
            "layers": torch.nn.ModuleList(blocks),
            "norm": torch.nn.LayerNorm(c, eps=1e-6),
            "head": torch.nn.Linear(c, config.classes),
        }
    )
    if with_token:
        module.register_parameter("class_token", torch.nn.Parameter(torch.randn(c)))

    def logits(module: Any, images: Any) -> Any:
        p, weight = config.patch, module["patches"].weight
        kernel = weight.reshape(c, p, p, config.channels).permute(0, 3, 1, 2)
        x = torch.nn.functional.conv2d(images.permute(0, 3, 1, 2), kernel, module["patches"].bias, stride=p)
        x = x.flatten(2).transpose(1, 2)
        if with_token:
            x = torch.cat((module.class_token.expand(len(x), 1, c), x), 1)
        x = x + module["table"].weight
        for block in module["layers"]:
            x = block(x)
        x = module["norm"](x)
        return module["head"](x[:, 0] if with_token else x.mean(1))

    return module, logits


@pytest.mark.parametrize("changes", [{}, {"pooling": "mean", "rolled": True}], ids=["class", "mean"])
def test_is_that_of_torch(changes: dict[str, Any]) -> None:
    config = replace(TINY, **changes)
    module, logits = reference(config)
    ours = ViT(config, key=KEY, dtype="f64")
    assert_same_as_torch(ours, NAMES, module, lambda m, x: m(x), logits, draw(2, 8, 8, 3))


def test_patches_go_row_by_row() -> None:
    images = np.arange(2 * 4 * 6 * 3, dtype=np.float32).reshape(2, 4, 6, 3)
    found = patches(images, 2)
    expected = [images[:, i : i + 2, j : j + 2].reshape(2, -1) for i in (0, 2) for j in (0, 2, 4)]
    np.testing.assert_array_equal(found, np.stack(expected, 1))


def test_the_default_has_2_7_million_parameters() -> None:
    program = ag.capture(lambda key: ViT(ViTConfig(), key=key), ag.spec((2,), "u32"))
    blocks = 6 * (12 * 192**2 + 13 * 192)
    ends = (48 + 1) * 192 + 192 + 65 * 192 + 2 * 192 + 193 * 10
    assert sum(type.size for type in program.output_types) == blocks + ends == 2_693_578


def test_rolled_blocks_are_the_same_model() -> None:
    plain, rolled = (ViT(replace(TINY, rolled=way), key=KEY) for way in (False, True))
    images = draw(2, 8, 8, 3).astype(np.float32)
    assert_close(rolled(images), np.asarray(plain(images), np.float64), 1e-6, "logits")


def test_dropout_acts_in_training_alone() -> None:
    model, images = ViT(replace(TINY, dropout=0.5), key=KEY), draw(2, 8, 8, 3).astype(np.float32)
    plain = ViT(TINY, key=KEY)
    np.testing.assert_array_equal(model(images), plain(images))
    assert not np.allclose(nn.training_call(model, images, key=KEY)[0], model(images))


def test_bf16() -> None:
    images = ag.ops.convert(draw(2, 8, 8, 3).astype(np.float32), "bf16")
    assert str(ViT(TINY, key=KEY, dtype="bf16")(images).dtype) == "bfloat16"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ag.ShapeError, match=r"the patch must divide the size.*size 8, patch 3"):
        ViT(replace(TINY, patch=3), key=KEY)
    with pytest.raises(ag.ShapeError, match="pooling 'max'"):
        ViT(replace(TINY, pooling="max"), key=KEY)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ag.ShapeError, match=r"ViT takes images \[batch, 8, 8, 3\], found f32\[2,3,8,8\]"):
        ViT(TINY, key=KEY)(np.ones((2, 3, 8, 8), np.float32))
