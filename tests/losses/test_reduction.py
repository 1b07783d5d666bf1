"""Weights of samples and reductions: means by hand, samples that are not there, batches put together, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, ops
from antegrad.errors import DTypeError, ShapeError
from tests.support import devices, run

F32 = np.float32
NAN, INF = float("nan"), float("inf")


def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, shape).astype(F32)


def probabilities(*shape: int) -> np.ndarray:
    rows = draw(*shape, low=0.1)
    return rows / rows.sum(-1, keepdims=True)


LABELS = np.array([0, 2, 1, 2, 1], np.int32)
CLASS_WEIGHTS = np.array([0.5, 2, 1], F32)
EVERY: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "mean_squared_error": (losses.mean_squared_error, [draw(5, 3), draw(5, 3, high=2)]),
    "l1": (losses.l1, [draw(5, 3), draw(5, 3, high=2)]),
    "huber": (losses.huber, [draw(5, 3), draw(5, 3, high=2)]),
    "gaussian_nll": (losses.gaussian_nll, [draw(5, 3), draw(5, 3, high=2), draw(5, 3, low=0.5)]),
    "binary_cross_entropy_with_logits": (losses.binary_cross_entropy_with_logits, [draw(5, 3), draw(5, 3, low=0)]),
    "hinge": (losses.hinge, [draw(5, 3), draw(5, 3, high=2)]),
    "kl_divergence": (losses.kl_divergence, [draw(5, 4, 3), probabilities(5, 4, 3)]),
    "kl_divergence-axis": (
        lambda *xs, **k: losses.kl_divergence(*xs, axis=1, **k),
        [draw(5, 4, 3), draw(5, 4, 3, low=0)],
    ),
    "cross_entropy": (lambda x, **k: losses.cross_entropy(x, LABELS, **k), [draw(5, 3)]),
    "cross_entropy-all": (
        lambda x, w, **k: losses.cross_entropy(x, LABELS, label_smoothing=0.1, weights=w, ignore_index=1, **k),
        [draw(5, 3), CLASS_WEIGHTS],
    ),
    "cross_entropy-probabilities": (
        lambda x, q, w, **k: losses.cross_entropy(x, q, label_smoothing=0.1, weights=w, **k),
        [draw(5, 3), probabilities(5, 3), CLASS_WEIGHTS],
    ),
    "cross_entropy-axis": (
        lambda x, **k: losses.cross_entropy(x, np.stack([LABELS, LABELS], 1), axis=1, **k),
        [draw(5, 3, 2)],
    ),
    "sequence_cross_entropy": (
        lambda x, **k: losses.sequence_cross_entropy(x, np.stack([LABELS, LABELS], 1), ignore_index=2, **k),
        [draw(5, 2, 3)],
    ),
    "cosine_distance": (losses.cosine_distance, [draw(5, 4), draw(5, 4, high=2)]),
    "contrastive": (losses.contrastive, [draw(5, 4), draw(5, 4, high=2)]),
    "nt_xent": (losses.nt_xent, [draw(5, 4), draw(5, 4, high=2)]),
}
WEIGHTS = np.array([0.5, 2, 0, 1, 3], F32)


def test_every_loss_is_listed_here() -> None:
    public = {
        name for name in vars(losses) if callable(getattr(losses, name)) and name[0] in "abcdefghijklmnopqrstuvwxyz"
    }
    assert {name.partition("-")[0] for name in EVERY} == public - {"check_labels"}


def of_samples(arrays: list[np.ndarray], kept: Any) -> list[np.ndarray]:
    """The arrays with a row for each sample, of some samples only."""
    return [array[kept] if len(array) == 5 else array for array in arrays]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", EVERY)
def test_weights_multiply_losses_and_count_in_the_mean(name: str, device: str) -> None:
    """Every weight above 0, so that no loss depends on which samples are there."""
    loss, arrays = EVERY[name]
    weights = WEIGHTS + F32(0.25)

    def every(*xs: Any) -> Any:
        arrays, weights = xs[:-1], xs[-1]
        reductions = [loss(*arrays, sample_weights=weights, reduction=r) for r in ("none", "sum", "mean")]
        return *reductions, *loss(*arrays, sample_weights=weights, reduction="sums"), loss(*arrays, reduction="sums")

    program = ag.capture(every, *arrays, weights)
    each, total, mean, sum_, count, plain_sum, plain_count = run(program, [*arrays, weights], device)
    plain = np.asarray(loss(*arrays, reduction="none"))
    spread = weights.reshape(5, *[1] * (plain.ndim - 1)).astype(np.float64)
    np.testing.assert_allclose(each, plain * spread, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose([total, sum_], (plain * spread).sum(), rtol=2e-6)
    np.testing.assert_allclose(mean, sum_ / count, rtol=2e-7)
    np.testing.assert_allclose(plain_sum / plain_count, loss(*arrays), rtol=2e-6)
    one_each = loss(*arrays, sample_weights=np.ones(5, F32), reduction="sums")
    np.testing.assert_allclose(one_each, [plain_sum, plain_count], rtol=2e-6)
    assert {array.dtype for array in (each, total, mean, sum_, count, plain_count)} == {np.dtype(F32)}
    assert {array.shape for array in (total, mean, sum_, count, plain_sum, plain_count)} == {()}


COUNTS = {
    "cross_entropy": 6.5,
    "cross_entropy-all": 0.5 * 0.5 + 2 + 1,
    "cross_entropy-axis": 13,
    "sequence_cross_entropy": 2 * 3.5,
    "kl_divergence": 6.5 * 4,
    **dict.fromkeys(["cross_entropy-probabilities", "cosine_distance", "contrastive", "nt_xent"], 6.5),
}


@pytest.mark.parametrize("name", EVERY)
def test_what_losses_count(name: str) -> None:
    """The sum of the weights; for every element; times the class weight; and not at all where ignored."""
    loss, arrays = EVERY[name]
    assert loss(*arrays, sample_weights=WEIGHTS, reduction="sums")[1] == COUNTS.get(name, 6.5 * 3)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", EVERY)
def test_a_sample_of_weight_zero_is_not_there(name: str, device: str, bad: float) -> None:
    """Value and every gradient are bit for bit those with another sample there, and near those without it."""
    loss, arrays = EVERY[name]

    def mean(*xs: Any) -> Any:
        return loss(*xs[:-1], sample_weights=ops.stop_gradient(xs[-1]))

    poisoned = [array.copy() for array in arrays]
    for array in poisoned:
        if len(array) == 5:
            array[2] = bad
    program = ag.reverse(ag.capture(mean, *arrays, WEIGHTS))
    results = run(program, [*poisoned, WEIGHTS], device)
    for found, expected in zip(results, run(program, [*arrays, WEIGHTS], device), strict=True):
        np.testing.assert_array_equal(found, expected)
    if name in ("contrastive", "nt_xent", "mean_squared_error", "gaussian_nll", "kl_divergence", "cosine_distance"):
        kept = [0, 1, 3, 4]
        fewer = ag.reverse(ag.capture(mean, *of_samples(arrays, kept), WEIGHTS[kept]))
        without = run(fewer, [*of_samples(arrays, kept), WEIGHTS[kept]], device)
        np.testing.assert_allclose(results[0], without[0], rtol=1e-6)
        for found, expected in zip(results[1:-1], without[1:-1], strict=True):
            np.testing.assert_allclose(found[kept], expected, rtol=0, atol=1e-6)
            assert not found[2].any()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", EVERY)
def test_the_mean_of_nothing_is_zero(name: str, device: str) -> None:
    loss, arrays = EVERY[name]
    nothing = np.zeros(5, F32)
    bad = [np.full_like(array, NAN) if len(array) == 5 else array for array in arrays]
    program = ag.reverse(ag.capture(lambda *xs: loss(*xs, sample_weights=nothing), *arrays))
    assert all(not np.any(found) for found in run(program, bad, device))
    assert [float(value) for value in loss(*bad, sample_weights=nothing, reduction="sums")] == [0, 0]


def test_weights_of_tokens_and_of_sequences() -> None:
    logits, labels = draw(2, 3, 4), np.array([[0, 1, 2], [3, 0, 1]])
    each = np.asarray(losses.sequence_cross_entropy(logits, labels, reduction="none"))
    tokens = np.array([[1, 0, 2], [0.5, 1, 1]], F32)
    found = losses.sequence_cross_entropy(logits, labels, sample_weights=tokens)
    np.testing.assert_allclose(found, (each * tokens).sum() / tokens.sum(), rtol=1e-6)
    found = losses.sequence_cross_entropy(logits, labels, sample_weights=np.array([1, 3], F32))
    np.testing.assert_allclose(found, (each[0].sum() + 3 * each[1].sum()) / 12, rtol=1e-6)
    one = losses.sequence_cross_entropy(logits, labels, sample_weights=np.array(7, F32))
    np.testing.assert_allclose(one, each.mean(), rtol=1e-6)


def test_the_gradient_of_a_weight_is_its_loss() -> None:
    x, y, weights = draw(4), np.zeros(4, F32), np.array([0, 1, 2, 3], F32)
    program = ag.reverse(
        ag.capture(lambda w: losses.mean_squared_error(x, y, sample_weights=w, reduction="sum"), weights)
    )
    found = run(program, [weights], "host")[1]
    np.testing.assert_allclose(found[1:], x[1:] ** 2, rtol=1e-6)
    assert found[0] == 0


# Batches put together


@pytest.mark.parametrize("device", devices())
def test_micro_batches_of_tokens_give_the_mean_of_all_tokens(device: str) -> None:
    """Losses of 6 in 2 tokens and 4 in 8, padded to 10: 10 / 10, where the mean of means is 1.75."""
    program = ag.capture(lambda p, t, w: losses.l1(p, t, sample_weights=w, reduction="sums"), *[ag.spec((10,))] * 3)
    pairs = []
    for values in ([2.0, 4.0], [0.5] * 8):
        padding = 10 - len(values)
        arrays = [np.array([*values, *[NAN] * padding], F32), np.zeros(10, F32)]
        pairs.append(run(program, [*arrays, np.array([1] * len(values) + [0] * padding, F32)], device))
    assert [[float(value) for value in pair] for pair in pairs] == [[6, 2], [4, 8]]
    assert sum(total for total, _ in pairs) / sum(count for _, count in pairs) == 1.0


@pytest.mark.parametrize("device", devices())
def test_a_short_last_batch_counts_its_samples(device: str) -> None:
    """Means of 10 over two samples and of 9 over one: 29 / 3, where the mean of means is 9.5."""
    program = ag.capture(
        lambda p, t, w: losses.mean_squared_error(p, t, sample_weights=w, reduction="sums"),
        *[ag.spec((2, 4)), ag.spec((2, 4)), ag.spec((2,))],
    )
    batches = [([[3.0] * 4, [np.sqrt(11)] * 4], [1.0, 1.0]), ([[3.0] * 4, [INF] * 4], [1.0, 0.0])]
    pairs = [
        run(program, [np.array(rows, F32), np.zeros((2, 4), F32), np.array(weights, F32)], device)
        for rows, weights in batches
    ]
    assert [float(count) for _, count in pairs] == [8, 4]
    mean = sum(total for total, _ in pairs) / sum(count for _, count in pairs)
    np.testing.assert_allclose(mean, 29 / 3, rtol=2e-7)


def test_sums_are_added_over_uneven_batches() -> None:
    logits, labels = draw(9, 3), np.array([0, 1, 2, 1, 0, 2, 2, 1, 0])
    options: dict[str, Any] = {"weights": CLASS_WEIGHTS, "ignore_index": 1}
    parts = [
        losses.cross_entropy(logits[cut], labels[cut], reduction="sums", **options)
        for cut in np.split(np.arange(9), [2, 7])
    ]
    mean = sum(total for total, _ in parts) / sum(count for _, count in parts)
    np.testing.assert_allclose(mean, losses.cross_entropy(logits, labels, **options), rtol=1e-6)


# Element types and refusals


def test_f64_losses_have_f64_sums_and_bf16_ones_f32() -> None:
    ones = np.ones(70000)
    for dtype, expected in (("f64", "f64"), ("f32", "f32"), ("bf16", "f32")):
        values = ones.astype(ag.spec((), dtype).dtype)
        total, count = losses.l1(values, values * 0, reduction="sums", sample_weights=values)
        assert {total.dtype, count.dtype} == {ag.spec((), expected).dtype}
        assert (total, count) == (70000, 70000)


def test_labels_of_absent_samples_are_not_checked() -> None:
    logits, labels = np.zeros((3, 4), F32), np.array([1, -1, 3])
    with pytest.raises(losses.LabelError, match=r"labels\[1\] is -1"):
        losses.cross_entropy(logits, labels, sample_weights=np.array([0, 1, 1], F32))
    for options in ({}, {"ignore_index": 0}):
        found = losses.cross_entropy(logits, labels, sample_weights=np.array([1, 0, 1], F32), **options)
        np.testing.assert_allclose(found, np.log(4), rtol=1e-6)
    with pytest.raises(losses.LabelError, match=r"labels\[1\] is -1"):
        ag.capture(lambda x: losses.cross_entropy(x, labels, sample_weights=np.ones(3, F32)), logits)
    program = ag.capture(
        lambda w: losses.cross_entropy(logits, labels, sample_weights=w, reduction="none"), ag.spec((3,))
    )
    found = run(program, [np.array([1, 0, 2], F32)], "host")[0]
    np.testing.assert_allclose(found, [np.log(4), 0, 2 * np.log(4)], rtol=1e-6)
    assert np.isnan(run(program, [np.ones(3, F32)], "host")[0]).tolist() == [False, True, False]


@pytest.mark.parametrize("name", EVERY)
def test_weights_must_fit(name: str) -> None:
    loss, arrays = EVERY[name]
    name = "cross_entropy" if name.startswith("sequence") else name.partition("-")[0]
    with pytest.raises(ShapeError, match=rf"{name}: the shape of sample_weights, f32\[4\], must be the beginning of"):
        loss(*arrays, sample_weights=np.ones(4, F32))
    with pytest.raises(ShapeError, match=rf"{name}: the shape of sample_weights, f32\[5,1,1,1\], .*\(5"):
        loss(*arrays, sample_weights=np.ones((5, 1, 1, 1), F32))
    with pytest.raises(
        DTypeError, match=rf"{name}: sample_weights are float, found bool\[5\](.|\n)*test_reduction\.py"
    ):
        loss(*arrays, sample_weights=np.ones(5, bool))
