"""Embedding and the output layer that shares its weights."""

from __future__ import annotations

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random
from tests.nn.layer_checks import call, check_layer
from tests.support import devices, run


def embedding(vocabulary: int = 5, features: int = 3, **keywords) -> nn.Embedding:
    return nn.Embedding(vocabulary, features, key=random.key(2), **keywords)


class Tied(nn.Module):
    embedding: nn.Embedding

    def __call__(self, x):
        return self.embedding.attend(ops.tanh(self.embedding(x)))


@pytest.mark.parametrize("device", devices())
def test_rows(device: str) -> None:
    layer, x = embedding(), np.array([[0, 4, -1], [9, -9, 2]], np.int32)
    (found,) = run(ag.capture(call, layer, x), [layer, x], device)
    np.testing.assert_array_equal(found, layer.w[[[0, 4, 4], [4, 0, 2]]])
    assert repr(layer) == "Embedding(w=f32[5,3])"


def test_gradient_adds_up_over_repeated_words() -> None:
    layer, x = embedding(), np.array([1, 3, 1], np.int32)
    gradient = ag.grad(lambda layer: ops.sum(layer(x)))(layer).w
    np.testing.assert_array_equal(gradient, np.float32([[0], [2], [0], [1], [0]]) * np.ones(3, "f"))
    ag.check_gradient(lambda layer: layer(x), layer)


def test_layer() -> None:
    check_layer(embedding(), np.array([[1, 2], [4, 0]], np.int32))


def test_attend_is_the_transpose(rng: np.random.Generator) -> None:
    layer, x = embedding(), rng.normal(size=(2, 4, 3)).astype("f")
    np.testing.assert_allclose(layer.attend(x), x @ layer.w.T, rtol=1e-6)


def test_tied_weights_are_one_array() -> None:
    model, x = Tied(embedding()), np.array([1, 3], np.int32)
    assert list(model.named_parameters()) == ["embedding.w"]
    ag.check_gradient(lambda model: model(x), model)
    program = ag.capture(call, model, x)
    assert {eq.source.layer for eq in program.equations} == {"", "embedding"}


def test_the_variance_is_that_of_the_features() -> None:
    assert np.std(embedding(400, 64).w) == pytest.approx(1 / 8, rel=0.02)
    assert np.std(embedding(400, 64, initializer=nn.initializers.normal(0.02)).w) == pytest.approx(0.02, rel=0.02)
    assert embedding(dtype="bf16").w.dtype == ag.spec((), "bf16").dtype


def test_misfits() -> None:
    model = nn.Sequential(embedding())
    expected = r"Embedding\(5, 3\) takes integers, found f32\[2\].*\n  at layer 0, .*test_embedding.py"
    with pytest.raises(ag.DTypeError, match=expected):
        model(np.zeros(2, np.float32))
    with pytest.raises(ag.ShapeError, match=r"attend of Embedding\(5, 3\) .* size 3, found f32\[2,4\]"):
        model[0].attend(np.zeros((2, 4), np.float32))
