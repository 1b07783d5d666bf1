"""Dropout and stochastic depth: which mask when, what the rates mean, and keys that are missing."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random
from antegrad.ir.types import DTYPES
from tests.nn.layer_checks import call
from tests.support import devices, run

ONES = np.ones(64, np.float32)


class Both(nn.Module):
    """The results of two dropout layers on the same input."""

    first: nn.Dropout
    second: nn.Dropout

    def __call__(self, x):
        return self.first(x), self.second(x)


def masks(seed: int, step: int, rank: int = 0, device: str = "host") -> list[np.ndarray]:
    """What both layers do in a step of a run; whatever came before it plays no part."""

    def trained(model, x, key, step, rank):
        return nn.training_call(model, x, key=random.fold_in(random.fold_in(key, step), rank))[0]

    arguments = Both(nn.Dropout(0.5), nn.Dropout(0.5)), ONES, random.key(seed), np.int32(step), np.int32(rank)
    return run(ag.capture(trained, *arguments), arguments, device)


def test_case_dropout_key_per_step() -> None:
    found = [*masks(0, 0), *masks(0, 1), *masks(0, 0, rank=1), *masks(1, 0)]
    for a, b in itertools.combinations(found, 2):
        assert 0.2 < np.mean(a != b) < 0.8
    np.testing.assert_array_equal(masks(0, 1), masks(0, 1))
    np.testing.assert_array_equal(masks(0, 1, device="cpu"), masks(0, 1))
    again = pickle.loads(pickle.dumps(Both(nn.Dropout(0.5), nn.Dropout(0.5))))
    key = random.fold_in(random.fold_in(random.key(0), 1), 0)
    np.testing.assert_array_equal(nn.training_call(again, ONES, key=key)[0], masks(0, 1))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("rate", [0.1, 0.75])
def test_the_mean_stays(rate: float, device: str) -> None:
    x = np.ones((200, 100), np.float32)
    arguments = nn.Dropout(rate), x, random.key(1)
    program = ag.capture(lambda model, x, key: nn.training_call(model, x, key=key)[0], *arguments)
    y = np.asarray(program.run(*arguments, device=device))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(1 - rate)}
    deviation = (rate / (1 - rate) / y.size) ** 0.5
    assert abs(float(y.mean(dtype=np.float64)) - 1) < 4 * deviation


def test_evaluation_is_the_identity() -> None:
    for layer in (nn.Dropout(0.5), nn.StochasticDepth(0.5), nn.Dropout(1.0)):
        assert ag.capture(call, layer, ONES).equations == ()
        np.testing.assert_array_equal(layer(ONES), ONES)


def test_rates_without_a_choice_need_no_key() -> None:
    x = np.float32([1, np.inf, np.nan])
    np.testing.assert_array_equal(nn.training_call(nn.Dropout(0.0), x)[0], x)
    np.testing.assert_array_equal(nn.training_call(nn.Dropout(1.0), x)[0], [0, 0, 0])
    np.testing.assert_array_equal(nn.training_call(nn.StochasticDepth(1.0), x)[0], [0, 0, 0])


def test_gradient_and_type_follow_the_mask() -> None:
    def trained(x):
        return nn.training_call(nn.Dropout(0.5), x, key=random.key(3))[0]

    np.testing.assert_array_equal(ag.grad(lambda x: ops.sum(trained(x)))(ONES), trained(ONES))
    ag.check_gradient(trained, ONES[:6])
    assert trained(ONES.astype(DTYPES["bf16"])).dtype == DTYPES["bf16"]


def test_stochastic_depth_drops_whole_samples() -> None:
    x = np.ones((64, 3, 2), np.float32)
    y = nn.training_call(nn.StochasticDepth(0.25), x, key=random.key(0))[0]
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert (y == y[:, :1, :1]).all()
    assert 4 < np.sum(y[:, 0, 0] == 0) < 30


def test_a_layer_called_twice_draws_twice() -> None:
    class Twice(nn.Module):
        drop: nn.Dropout

        def __call__(self, x):
            return self.drop(x), self.drop(x)

    first, second = nn.training_call(Twice(nn.Dropout(0.5)), ONES, key=random.key(0))[0]
    assert (first != second).any()


def test_a_missing_key_names_the_layer() -> None:
    model = nn.Sequential(nn.relu, nn.Dropout(0.5))
    expected = r"Dropout\(0\.5\) needs a random key in training.*\n  at layer 1, .*test_dropout.py"
    with pytest.raises(ag.TraceError, match=expected):
        nn.training_call(model, ONES)


@pytest.mark.parametrize("layer", [nn.Dropout, nn.StochasticDepth])
@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_is_a_probability(layer: type, rate: float) -> None:
    with pytest.raises(ValueError, match=r"the rate must be in \[0, 1\], found"):
        layer(rate)


def test_a_scalar_has_no_samples() -> None:
    with pytest.raises(ag.ShapeError, match="first axis is the batch"):
        nn.StochasticDepth(0.5)(np.float32(1))
