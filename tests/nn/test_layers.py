"""Dense with a fused activation, and containers of layers side by side."""

from __future__ import annotations

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random
from tests.nn.layer_checks import check_layer


def dense(inputs: int, outputs: int, seed: int = 0, **keywords) -> nn.Dense:
    return nn.Dense(inputs, outputs, key=random.key(seed), **keywords)


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_dense():
    check_layer(dense(3, 4, activation=nn.tanh), data(2, 3))


def test_dense_fuses_its_activation():
    x = data(5, 3)
    np.testing.assert_array_equal(dense(3, 4, activation=nn.relu)(x), nn.Sequential(dense(3, 4), nn.relu)(x))
    assert list(dense(3, 4, activation=nn.relu).named_parameters()) == ["w", "b"]
    assert repr(dense(3, 4, activation=nn.relu)) == "Dense(w=f32[3,4], b=f32[4], activation=relu)"


def test_a_misfit_in_a_stack_names_layer_sizes_and_input():
    model = nn.Sequential(dense(3, 4), nn.relu, dense(5, 2))
    expected = r"Dense\(5 -> 2\) .* size 5, found f32\[7,4\].*\n  at layer 2, .*test_layers.py"
    with pytest.raises(ag.ShapeError, match=expected):
        model(data(7, 3))


def test_residual():
    layer = nn.Residual(nn.Sequential(dense(3, 4), nn.tanh, dense(4, 3)))
    x = data(2, 3)
    check_layer(layer, x, order=1)
    np.testing.assert_array_equal(layer(x), x + layer.body(x))
    assert list(layer.named_parameters()) == ["body.0.w", "body.0.b", "body.2.w", "body.2.b"]


def test_residual_with_a_shortcut():
    layer = nn.Residual(nn.Sequential(dense(3, 4), nn.relu), dense(3, 4, 1, bias=False))
    x = data(2, 3)
    np.testing.assert_allclose(layer(x), layer.body(x) + x @ layer.shortcut.w, rtol=1e-6)
    assert list(layer.named_parameters()) == ["body.0.w", "body.0.b", "shortcut.w"]


def test_residual_refuses_to_broadcast():
    with pytest.raises(ag.ShapeError, match=r"of f32\[2,3\] the body makes f32\[2,1\], and what went in is f32\[2,3\]"):
        nn.Residual(dense(3, 1))(data(2, 3))
    with pytest.raises(ag.ShapeError, match=r"the body makes f32\[2,1\], and its shortcut makes f32\[2,4\]"):
        nn.Residual(dense(3, 1), dense(3, 4))(data(2, 3))


def test_parallel_adds_or_concatenates():
    branches = [dense(3, 2), nn.Sequential(dense(3, 2, 1), nn.relu), dense(3, 2, 2)]
    x = data(4, 3)
    parts = [branch(x) for branch in branches]
    check_layer(nn.Parallel(branches, "concatenate"), x, order=1)
    np.testing.assert_array_equal(nn.Parallel(branches)(x), parts[0] + parts[1] + parts[2])
    np.testing.assert_array_equal(nn.Parallel(branches, "concatenate")(x), np.concatenate(parts, -1))
    assert list(nn.Parallel(branches).named_parameters()) == ["0.w", "0.b", "1.0.w", "1.0.b", "2.w", "2.b"]
    both = nn.Parallel([nn.relu, ops.negative], combine="concatenate")
    np.testing.assert_array_equal(both(np.float32([[-1, 2]])), [[0, 2, 1, -2]])


def test_parallel_refuses_branches_that_differ():
    with pytest.raises(ag.ShapeError, match=r"must have one type: of f32\[4,3\] they make f32\[4,2\], f32\[4,1\]"):
        nn.Parallel([dense(3, 2), dense(3, 1)])(data(4, 3))
    with pytest.raises(ag.ShapeError, match=r"agree in all others: of f32\[4,3\] they make f32\[4,3\], f32\[3,4\]"):
        nn.Parallel([nn.relu, ops.transpose], "concatenate")(data(4, 3))
    with pytest.raises(ValueError, match="'sum' or 'concatenate', found 'mean'"):
        nn.Parallel([nn.relu], "mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one branch"):
        nn.Parallel([])
