"""LayerNorm, RMSNorm and GroupNorm: formulas in f64, torch, large offsets, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn
from tests.nn.layer_checks import check_bf16, check_layer
from tests.support import assert_close

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "layer": (nn.LayerNorm(6), (2, 3, 6)),
    "layer without bias": (nn.LayerNorm(6, bias=False, eps=1e-3), (3, 6)),
    "rms": (nn.RMSNorm(6), (2, 3, 6)),
    "group": (nn.GroupNorm(2, 6), (2, 3, 2, 6)),
    "instance": (nn.GroupNorm(6, 6), (2, 5, 6)),
    "one group": (nn.GroupNorm(1, 6), (3, 6)),
}


def drawn(layer: Any, rng: np.random.Generator) -> Any:
    """`layer` with parameters that are neither 0 nor 1."""
    named = layer.named_parameters()
    return layer.with_parameters({name: rng.normal(size=leaf.shape).astype("f") for name, leaf in named.items()})


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, rng: np.random.Generator) -> None:
    layer, shape = LAYERS[name]
    check_layer(drawn(layer, rng), rng.normal(size=shape).astype("f"), order=2 if len(shape) == 2 else 1)


@pytest.mark.parametrize("name", LAYERS)
def test_as_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    layer, shape = LAYERS[name]
    layer, x = drawn(layer, rng), rng.normal(3, 2, size=shape).astype("f")
    scale, bias = (None if a is None else torch.tensor(a) for a in (layer.scale, getattr(layer, "bias", None)))
    f = torch.nn.functional
    if isinstance(layer, nn.GroupNorm):
        moved = torch.movedim(torch.tensor(x), -1, 1)
        expected = torch.movedim(f.group_norm(moved, layer.groups, scale, bias, layer.eps), 1, -1)
    elif isinstance(layer, nn.RMSNorm):
        expected = f.rms_norm(torch.tensor(x), (6,), scale, layer.eps)
    else:
        expected = f.layer_norm(torch.tensor(x), (6,), scale, bias, layer.eps)
    assert_close(layer(x), expected.numpy().astype(np.float64), 1e-6, name)


@pytest.mark.parametrize("name", LAYERS)
def test_bf16_is_computed_in_f32(name: str, rng: np.random.Generator) -> None:
    layer, shape = LAYERS[name]
    check_bf16(layer, rng.normal(100, 1, size=shape))


@pytest.mark.parametrize("layer", [nn.LayerNorm(3), nn.GroupNorm(1, 3)], ids=["layer", "group"])
def test_a_large_offset_cancels(layer: Any) -> None:
    x = np.float32([[10000, 10001, 10002]])
    np.testing.assert_allclose(layer(x), [[-1.22474, 0, 1.22474]], atol=1e-5)


def test_parameters_have_names() -> None:
    assert list(nn.LayerNorm(4).named_parameters()) == ["scale", "bias"]
    assert list(nn.LayerNorm(4, bias=False).named_parameters()) == ["scale"]
    assert list(nn.RMSNorm(4).named_parameters()) == ["scale"]
    assert list(nn.GroupNorm(2, 4).named_parameters()) == ["scale", "bias"]


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.LayerNorm(4), (2, 3), r"LayerNorm\(4\) .*size 4, found f32\[2,3\]"),
        (nn.RMSNorm(4), (), r"RMSNorm\(4\) .*size 4, found f32\[\]"),
        (nn.GroupNorm(2, 4), (4,), r"GroupNorm\(2 groups of 4\) .*size 4, of 2 axes or more, found f32\[4\]"),
    ],
    ids=["layer", "rms", "group"],
)
def test_misfits(layer: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ag.ShapeError, match=message + r"\n  at layer 0, .*test_normalization.py"):
        nn.Sequential(layer)(np.zeros(shape, np.float32))


def test_integers_and_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ag.DTypeError, match=r"LayerNorm\(3\) takes floats, found i32\[3\]"):
        nn.LayerNorm(3)(np.arange(3, dtype=np.int32))
    with pytest.raises(ag.ShapeError, match="3 groups do not divide 4 features"):
        nn.GroupNorm(3, 4)
