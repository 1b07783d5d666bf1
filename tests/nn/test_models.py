"""Models: their numbers of parameters, shapes, and a residual network against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, random, tree
from antegrad.nn import models
from tests.support import assert_close

KEY = random.key(3)


def shapes_of(make: Any, **keywords: Any) -> Any:
    """The model with types for arrays: nothing is drawn."""
    program = ag.capture(lambda key: make(key=key, **keywords), KEY)
    return tree.unflatten(program.structure, program.output_types)


def output_of(model: Any, *shape: int) -> str:
    return str(ag.capture(lambda model, x: model(x), model, ag.spec(shape)).output_types[0])


def test_mlp() -> None:
    model = models.mlp([784, 256, 128, 10], key=KEY)
    assert model.parameter_count() == 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10
    assert list(model.named_parameters()) == ["0.w", "0.b", "2.w", "2.b", "4.w", "4.b"]
    assert output_of(model, 7, 784) == "f32[7,10]"
    assert models.mlp([2, 3], key=KEY, activation=nn.tanh, dtype="bf16")[0].w.dtype == ag.spec((), "bf16").dtype
    with pytest.raises(ag.ShapeError, match=r"an output at least, found \[3\]"):
        models.mlp([3], key=KEY)


def test_cnn() -> None:
    model = shapes_of(models.cnn)
    convolutions = 27 * 32 + 32 + 9 * 32 * 64 + 64 + 9 * 64 * 128 + 128
    assert model.parameter_count() == convolutions + 8 * 8 * 128 * 256 + 256 + 2570
    assert output_of(model, 4, 32, 32, 3) == "f32[4,10]"
    small = models.cnn((9, 11, 1), 3, key=KEY, channels=[[4], [8]], hidden=[])
    assert output_of(small, 2, 9, 11, 1) == "f32[2,3]"
    with pytest.raises(ag.ShapeError, match="an image of 3x8 cannot be halved 2 times"):
        models.cnn((3, 8, 1), key=KEY)


def test_resnet20() -> None:
    assert models.resnet20(key=KEY).parameter_count() == 269_722
    projections = 16 * 32 + 32 * 64 + 2 * (32 + 64)
    assert shapes_of(models.resnet20, option="B").parameter_count() == 269_722 + projections
    assert shapes_of(models.resnet20, depth=32).parameter_count() == 464_154
    assert output_of(models.resnet20(key=KEY), 2, 32, 32, 3) == "f32[2,10]"
    with pytest.raises(ValueError, match="6 \\* n \\+ 2, such as 20, 32 or 56, found 18"):
        models.resnet20(key=KEY, depth=18)


def test_resnet18() -> None:
    model = shapes_of(models.resnet18)
    assert model.parameter_count() == 11_689_512
    assert output_of(model, 1, 64, 64, 3) == "f32[1,1000]"
    cifar = shapes_of(models.resnet18, classes=10, stem="cifar")
    assert cifar.parameter_count() == 11_173_962
    assert output_of(cifar, 1, 32, 32, 3) == "f32[1,10]"
    with pytest.raises(ValueError, match="'imagenet' or 'cifar', found 'mnist'"):
        models.resnet18(key=KEY, stem="mnist")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("option", ["A", "B"])
@pytest.mark.parametrize("training", [False, True])
def test_resnet_as_torch(training: bool, option: Any, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    model = models.resnet20(key=KEY, depth=8, option=option)
    x = rng.normal(size=(2, 8, 8, 3)).astype("f")

    def conv_norm(layer: Any, x: Any, stride: int) -> Any:
        w = torch.tensor(layer.conv.w.transpose(3, 2, 0, 1).copy())
        y = f.conv2d(x, w, None, stride, w.shape[-1] // 2)
        norm = [torch.tensor(a.copy()) for a in (layer.norm.mean, layer.norm.var, layer.norm.scale, layer.norm.bias)]
        return f.batch_norm(y, *norm, training=training)

    y = f.relu(conv_norm(model.stem, torch.tensor(x).movedim(-1, 1), 1))
    for index, block in enumerate(model.blocks):
        stride = 2 if index else 1
        inner = conv_norm(block.second, f.relu(conv_norm(block.first, y, stride)), 1)
        if isinstance(block.shortcut, models.resnet.ConvNorm):
            y = conv_norm(block.shortcut, y, stride)
        else:
            y = f.pad(y[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, inner.shape[1] - y.shape[1]))
        y = f.relu(inner + y)
    expected = y.mean((2, 3)) @ torch.tensor(model.head.w) + torch.tensor(model.head.b)
    found = nn.training_call(model, x)[0] if training else model(x)
    assert_close(np.asarray(found), expected.numpy().astype(np.float64), 1e-5, option)


def test_resnet_trains(rng: np.random.Generator) -> None:
    """One step of gradient descent on the state and parameters of a small one lowers its loss."""
    model = models.resnet20(4, key=KEY, depth=8)
    x, labels = rng.normal(size=(8, 8, 8, 3)).astype("f"), np.arange(8, dtype=np.int32) % 4

    def loss(model: Any) -> Any:
        return ag.losses.cross_entropy(nn.training_call(model, x)[0], labels)

    before, gradient = ag.value_and_grad(loss)(model)
    moved = tree.map(lambda p, g: p - np.float32(0.1) * g, model, gradient)
    assert float(loss(moved)) < float(before)
    assert not np.any(gradient.stem.norm.mean)
