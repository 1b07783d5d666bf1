"""Repeat: the values and gradients of the layers in a row, their own keys and state, and its names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random, tree
from tests.nn.layer_checks import EPS, call, check_layer
from tests.support import GRADIENT_EPS, assert_close

WIDTH, COUNT = 4, 3


class Block(nn.Module):
    norm: nn.LayerNorm
    dense: nn.Dense
    drop: nn.Dropout
    batch: nn.BatchNorm

    def __init__(self, key: Any, rate: float = 0.25) -> None:
        self._set(norm=nn.LayerNorm(WIDTH), dense=nn.Dense(WIDTH, WIDTH, key=key, activation=nn.tanh))
        self._set(drop=nn.Dropout(rate), batch=nn.BatchNorm(WIDTH))

    def __call__(self, x):
        return x + self.batch(self.drop(self.dense(self.norm(x))))


def stack(**keywords: Any) -> nn.Repeat:
    return nn.Repeat(Block, COUNT, key=random.key(5), **keywords)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(6, WIDTH)).astype("f")


def test_layer(x: np.ndarray) -> None:
    check_layer(stack(), x[:2], order=1)


def test_values_are_those_of_the_layers_in_a_row(x: np.ndarray) -> None:
    model = stack()
    expected = x
    for key in random.split(random.key(5), COUNT):
        expected = Block(key)(expected)
    np.testing.assert_array_equal(model(x), expected)
    np.testing.assert_array_equal(nn.Sequential(*(model[i] for i in range(len(model))))(x), expected)


def test_parameters_have_one_more_axis() -> None:
    named = stack().named_parameters()
    assert list(named)[:4] == ["layers.norm.scale", "layers.norm.bias", "layers.dense.w", "layers.dense.b"]
    assert named["layers.dense.w"].shape == (COUNT, WIDTH, WIDTH)
    assert nn.state_paths(stack()) == {"layers.batch.mean", "layers.batch.var"}
    assert stack().parameter_count() == COUNT * Block(random.key(0)).parameter_count()


def trained(model: Any, x: Any, key: Any, weights: Any = None) -> Any:
    result, after = nn.training_call(model, x, key=key, sample_weights=weights)
    return ops.sum(ops.square(result)), result, tree.named_leaves(after)


@pytest.mark.parametrize(
    ("device", "save"), [("host", None), ("host", "nothing"), ("host", "dots"), ("cpu", "nothing")]
)
def test_training_is_that_of_the_layers_in_a_row(save: Any, device: str, x: np.ndarray) -> None:
    """Result, state and gradients, with the same dropout masks."""
    key, weights = random.key(9), np.float32([1, 1, 1, 1, 1, 0])
    found = []
    for model in (stack(remat=save), stack(unroll=True)):
        wrapped = nn.Sequential(nn.Dense(WIDTH, WIDTH, key=key), model)
        program = ag.capture(trained, wrapped, x, key, weights)
        gradient = ag.reverse(program, [n for n in program.input_names if n[:1] in "01"])
        found.append([np.asarray(y) for y in gradient.run(wrapped, x, key, weights, device=device)])
    for rolled, row in zip(*found, strict=True):
        assert_close(rolled, row.astype(np.float64), GRADIENT_EPS["f32"] * EPS, f"save={save}")
        if device == "host":
            np.testing.assert_array_equal(rolled, row)


def test_each_layer_has_its_own_mask_and_state(x: np.ndarray) -> None:
    ones = np.ones((1, 64), np.float32)
    model = nn.Repeat(lambda key: nn.Dropout(0.25), 4, key=random.key(0))
    kept = nn.training_call(model, ones, key=random.key(1))[0] > 0
    assert np.mean(kept) == pytest.approx(0.75**4, abs=0.2)
    again = nn.training_call(model, ones, key=random.key(1))[0] > 0
    np.testing.assert_array_equal(again, kept)
    after = nn.training_call(stack(), x, key=random.key(1))[1]
    means = after.layers.batch.mean
    assert means.shape == (COUNT, WIDTH)
    assert len(np.unique(means)) == COUNT * WIDTH


@pytest.mark.parametrize("unroll", [False, True])
def test_sample_weights_reach_every_layer(unroll: bool, x: np.ndarray) -> None:
    weights = np.float32([1, 0, 1, 1, 2, 1])
    model = nn.Repeat(lambda key: nn.BatchNorm(WIDTH), 2, key=random.key(0), unroll=unroll)
    y, after = nn.training_call(model, x, sample_weights=weights)
    expected = x
    for index in range(2):
        expected, own = nn.training_call(nn.BatchNorm(WIDTH), expected, sample_weights=weights)
        np.testing.assert_array_equal(after.layers.mean[index], own.mean)
    np.testing.assert_array_equal(y, expected)


def test_called_twice_the_state_moves_twice(x: np.ndarray) -> None:
    class Twice(nn.Module):
        inner: nn.Repeat

        def __call__(self, x):
            return self.inner(self.inner(x))

    make = lambda key: nn.BatchNorm(WIDTH)  # noqa: E731
    _, after = nn.training_call(Twice(nn.Repeat(make, 1, key=random.key(0))), x)
    norm = nn.BatchNorm(WIDTH)
    y, norm = nn.training_call(norm, x)
    _, norm = nn.training_call(norm, y)
    np.testing.assert_array_equal(after.inner.layers.mean[0], norm.mean)


def test_other_arguments_go_to_every_layer(x: np.ndarray) -> None:
    class Shift(nn.Module):
        dense: nn.Dense

        def __call__(self, x, by):
            return self.dense(x) + by

    def make(key):
        return Shift(nn.Dense(WIDTH, WIDTH, key=key))

    by = np.arange(WIDTH, dtype=np.float32)
    results = [nn.Repeat(make, 2, key=random.key(0), **k)(x, by) for k in ({}, {"unroll": True}, {"remat": "nothing"})]
    first, second = (make(key) for key in random.split(random.key(0), 2))
    for result in results:
        np.testing.assert_array_equal(result, second(first(x, by), by))


def test_equations_know_their_layer(x: np.ndarray) -> None:
    program = ag.capture(call, nn.Sequential(stack()), x)
    assert {"0.layers.norm", "0.layers.dense"} <= {equation.source.layer for equation in program.all_equations()}


def test_misfits(x: np.ndarray) -> None:
    widening = nn.Repeat(lambda key: nn.Dense(WIDTH, 5, key=key), 2, key=random.key(0))
    with pytest.raises(ag.ShapeError, match=r"made f32\[6,5\] of f32\[6,4\]\n  at layer 0, .*test_repeat.py"):
        nn.Sequential(widening)(x)
    with pytest.raises(ag.ShapeError, match=r"Dense\(4 -> 5\) .*found f32\[6,3\].*\n  at layer 0.layers"):
        nn.Sequential(widening)(x[:, :3])
    rates = iter([0.1, 0.2])
    with pytest.raises(ag.ShapeError, match=r"alone: layer 1 is Dropout\(rate=0.2\), layer 0 is Dropout\(rate=0.1\)"):
        nn.Repeat(lambda key: nn.Dropout(next(rates)), 2, key=random.key(0))
    with pytest.raises(ag.ShapeError, match="at least one layer, found 0"):
        nn.Repeat(Block, 0, key=random.key(0))
