"""Layers without parameters on images, against NumPy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn
from tests.nn.layer_checks import check_bf16, check_layer
from tests.support import assert_close

LAYERS: dict[str, tuple[Any, Any]] = {
    "max": (nn.MaxPool(2), lambda f, x: f.max_pool2d(x, 2)),
    "max strided": (nn.MaxPool(3, 2, 1), lambda f, x: f.max_pool2d(x, 3, 2, 1)),
    "mean": (nn.AvgPool((2, 3), 1), lambda f, x: f.avg_pool2d(x, (2, 3), 1)),
    "mean padded": (nn.AvgPool(3, 2, 1), lambda f, x: f.avg_pool2d(x, 3, 2, 1)),
    "mean inside": (nn.AvgPool(3, 2, 1, False), lambda f, x: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "bins": (nn.AdaptiveAvgPool((2, 3)), lambda f, x: f.adaptive_avg_pool2d(x, (2, 3))),
    "global": (nn.GlobalAvgPool(), lambda f, x: x.mean((2, 3))),
    "nearest": (nn.Upsample(2), lambda f, x: f.interpolate(x, scale_factor=2)),
    "bilinear": (nn.Upsample((2, 3), "bilinear"), lambda f, x: f.interpolate(x, scale_factor=(2, 3), mode="bilinear")),
}


@pytest.fixture
def images(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(2 * 4 * 6 * 2).reshape(2, 4, 6, 2).astype("f") / 10


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, images: np.ndarray) -> None:
    check_layer(LAYERS[name][0], images[:1, :, :4], order=1)


@pytest.mark.parametrize("name", LAYERS)
def test_as_torch(name: str, images: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    layer, theirs = LAYERS[name]
    expected = theirs(torch.nn.functional, torch.tensor(images).movedim(-1, 1))
    expected = (expected.movedim(1, -1) if expected.ndim == 4 else expected).numpy()
    assert_close(np.asarray(layer(images)), expected.astype(np.float64), 1e-6, name)
    check_bf16(layer, images)


def test_sequences() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    np.testing.assert_array_equal(nn.MaxPool(2)(x), x[:, 1::2])
    np.testing.assert_array_equal(nn.GlobalAvgPool()(x), x.mean(1))
    np.testing.assert_array_equal(nn.Upsample(2)(x), x.repeat(2, 1))


def test_flatten() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    check_layer(nn.Flatten(), x, order=1)
    np.testing.assert_array_equal(nn.Flatten()(x), x.reshape(2, 12))
    np.testing.assert_array_equal(nn.Flatten(2)(x), x.reshape(2, 3, 4))
    assert nn.Flatten()(x[:, 0, 0, 0]).shape == (2, 1)
    assert nn.Flatten()(x[:0]).shape == (0, 12)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.MaxPool(3), (1, 2, 2, 1), r"max_pool of f32\[1,2,2,1\]: a window of 3"),
        (nn.AvgPool((2, 2)), (1, 4, 1), r"avg_pool of f32\[1,4,1\]: window must be"),
        (nn.GlobalAvgPool(), (2, 3), r"GlobalAvgPool .*3 axes or more, found f32\[2,3\]"),
        (nn.Flatten(2), (2,), r"Flatten .*2 axes or more, found f32\[2\]"),
        (nn.Upsample((2, 2)), (1, 4, 1), r"Upsample by \(2, 2\) .*found f32\[1,4,1\]"),
    ],
    ids=["max", "mean", "global", "flatten", "upsample"],
)
def test_misfits(layer: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ag.ShapeError, match=message + r"(.|\n)*\n  at layer 0, .*test_pooling.py"):
        nn.Sequential(layer)(np.zeros(shape, np.float32))
