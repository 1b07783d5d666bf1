"""Metrics against plain NumPy, on the host and on XLA, and at the points where scores are equal or no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad.errors import DTypeError, ShapeError
from antegrad.train import metrics
from tests.support import devices, run

NAN, INF = math.nan, math.inf


def on_each_device(metric: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """The values of `metric`, which are the same at once, and captured on each device."""
    value = np.asarray(metric(*arrays))
    program = ag.capture(metric, *arrays)
    for device in devices():
        (found,) = run(program, arrays, device)
        assert found.dtype == value.dtype
        np.testing.assert_allclose(found, value, rtol=1e-6)
    return value


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("label", [np.uint8, np.int8, np.int32, np.int64, np.uint32])
def test_accuracy(dtype: Any, label: Any, rng: np.random.Generator) -> None:
    scores = rng.normal(size=(64, 5)).astype(dtype)
    labels = rng.integers(0, 5, 64).astype(label)
    value = on_each_device(metrics.accuracy, scores, labels)
    assert value.dtype == np.float32
    assert np.array_equal(value, np.argmax(scores.astype(np.float64), 1) == labels)


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("shape", [(), (6,), (4, 3), (0,), (0, 3)])
def test_top_k(k: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    scores = rng.integers(0, 4, (*shape, 7)).astype(np.float32)  # many are equal
    labels = rng.integers(0, 7, shape).astype(np.int32)
    value = on_each_device(metrics.top_k(k), scores, labels)
    best = np.argsort(-scores, -1, kind="stable")[..., :k]
    assert value.shape == shape
    assert np.array_equal(value, np.any(best == labels[..., None], -1))
    if k == 1:
        assert np.array_equal(value, metrics.accuracy(scores, labels))


@pytest.mark.parametrize(
    ("scores", "label", "first", "second"),
    [
        ([1, 1, 1], 0, 1, 1),
        ([1, 1, 1], 1, 0, 1),
        ([1, 1, 1], 2, 0, 0),
        ([-INF, -INF, -INF], 0, 1, 1),
        ([-INF, -INF, -INF], 2, 0, 0),
        ([INF, 0, INF], 2, 0, 1),
        ([0.0, -0.0, -1], 1, 0, 1),
        ([NAN, NAN, NAN], 0, 0, 0),
        ([0, NAN, 1], 1, 0, 0),
        ([0, NAN, 1], 2, 0, 1),
        ([5, 1, 0], -100, 0, 0),
        ([-5, -1, -2], -1, 0, 0),
        ([-5, -1, -2], 3, 0, 0),
    ],
)
def test_awkward_scores(scores: list[float], label: int, first: int, second: int) -> None:
    arrays = np.array([scores], np.float32), np.array([label], np.int32)
    assert on_each_device(metrics.accuracy, *arrays) == [first]
    assert on_each_device(metrics.top_k(2), *arrays) == [second]


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3), (4, 3, 2), (0,), (0, 3)])
@pytest.mark.parametrize(
    ("metric", "reference"),
    [(metrics.mean_absolute_error, np.abs), (metrics.mean_squared_error, np.square)],
    ids=["absolute", "squared"],
)
def test_errors(metric: Any, reference: Any, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    prediction, target = rng.normal(size=(2, *shape))
    expected = reference(prediction - target).reshape(shape[0], math.prod(shape[1:])).mean(1)
    value = on_each_device(metric, prediction, target)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        narrow = on_each_device(metric, prediction.astype(dtype), target.astype(dtype))
        assert narrow.dtype == np.float32
        assert narrow.shape == shape[:1]


def test_16_bit_errors_are_computed_in_f32() -> None:
    prediction, target = np.full((1, 4), 300, np.float16), np.zeros((1, 4), np.float16)
    assert metrics.mean_squared_error(prediction, target) == [90000]  # above the largest f16


def test_perplexity() -> None:
    assert metrics.perplexity(0.0) == 1
    assert metrics.perplexity(math.log(65)) == pytest.approx(65, rel=1e-6)
    assert metrics.perplexity(89.0) == INF
    losses = np.array([0.5, 100], np.float32)
    np.testing.assert_allclose(on_each_device(metrics.perplexity, losses), [math.exp(0.5), INF], rtol=1e-6)


SCORES, LABELS = np.zeros((4, 3), np.float32), np.zeros(4, np.int32)


@pytest.mark.parametrize(
    ("metric", "arrays", "error", "message"),
    [
        (metrics.accuracy, (SCORES, LABELS[:, None]), ShapeError, r"accuracy: .*f32\[4,3\] and labels i32\[4,1\]"),
        (metrics.accuracy, (SCORES, LABELS[:3]), ShapeError, r"labels i32\[3\]"),
        (metrics.accuracy, (SCORES[:, :0], LABELS), ShapeError, r"at least 1 classes"),
        (metrics.accuracy, (np.float32(1), LABELS), ShapeError, r"scores f32\[\]"),
        (metrics.accuracy, (SCORES, SCORES), DTypeError, r"accuracy: .*labels f32\[4,3\]"),
        (metrics.accuracy, (LABELS[:, None], LABELS), DTypeError, r"scores i32\[4,1\]"),
        (metrics.accuracy, (SCORES, LABELS > 0), DTypeError, r"labels bool\[4\]"),
        (metrics.top_k(4), (SCORES, LABELS), ShapeError, r"top_4: the scores are f32\[4,3\], expected at least 4"),
        (metrics.mean_absolute_error, (SCORES, SCORES[:, 0]), ShapeError, r"prediction f32\[4,3\] and target f32\[4\]"),
        (metrics.mean_absolute_error, (np.float32(1), np.float32(1)), ShapeError, "samples along the first axis"),
        (metrics.mean_squared_error, (SCORES[:, 0], LABELS), DTypeError, r"target i32\[4\]: use .astype"),
    ],
)
def test_what_does_not_fit(metric: Any, arrays: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as info:
        metric(*arrays)
    assert "test_metrics.py:" in str(info.value)
    with pytest.raises(error, match=message) as info:
        ag.capture(metric, *arrays)
    assert "test_metrics.py:" in str(info.value)


def test_top_k_has_a_name() -> None:
    assert metrics.top_k(5).__name__ == "top_5"
    for k in (0, 1.5, True):
        with pytest.raises(ag.SettingError, match=f"top_k: k must be a whole number .*found {k}"):
            metrics.top_k(k)
