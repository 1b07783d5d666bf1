"""The trainer of language models: windows of a text, the same bits however they are made, and its two measures."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, ops, optim, random, train, tree
from antegrad.train.feeds import WindowFeed, streams

VOCABULARY, CONTEXT, BATCH, STEPS = 11, 8, 4, 25
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 200).astype(np.uint16)
HELD_OUT = np.random.default_rng(1).integers(0, VOCABULARY, 61).astype(np.uint16)


class Bigram(nn.Module):
    """Scores of the next token by the last one."""

    table: Any

    def __call__(self, tokens: Any) -> Any:
        return self.table[tokens]


def bigram(vocabulary: int = VOCABULARY) -> Bigram:
    return Bigram(np.asarray(random.normal(random.key(0), (vocabulary, vocabulary))))


def small() -> nn.Module:
    """With dropout, so that the keys of the steps count too."""
    first, second = random.split(random.key(0))
    layers = nn.Embedding(VOCABULARY, 8, key=first), nn.Dropout(0.2), nn.Dense(8, VOCABULARY, key=second)
    return nn.Sequential(*layers)


def trainer(model: Any = None, **settings: Any) -> train.AutoregressiveTrainer:
    optimizer = settings.pop("optimizer", None) or optim.adamw(0.01)
    settings = {"context": CONTEXT, "batch_size": BATCH, "device": "host", **settings}
    return train.AutoregressiveTrainer(model or bigram(), optimizer, **settings)


def fit(made: train.AutoregressiveTrainer, steps: int = STEPS, tokens: Any = TOKENS, **keywords: Any) -> train.History:
    return made.fit(tokens, steps, verbose=False, **{"eval_every": 10, **keywords})


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@cache
def reference(steps: int = STEPS, device: str = "host") -> tuple[train.AutoregressiveTrainer, train.History]:
    """Trained in one go."""
    made = trainer(small(), device=device)
    return made, fit(made, steps)


# windows


def starts(feed: WindowFeed, step: int, seed: int = 0) -> np.ndarray:
    """Where the windows of a step begin, in a text whose tokens are their own places."""
    places = np.arange(feed.tokens, dtype=np.int32)
    rows = feed.rows(places, None, np.asarray(random.key(seed)), np.int32(0), np.int32(step))
    inputs, targets = np.asarray(rows.x), np.asarray(rows.y)
    assert inputs.shape == targets.shape == (feed.batch, feed.context)
    np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(feed.context))
    np.testing.assert_array_equal(targets, inputs + 1)
    return inputs[:, 0]


def test_windows_are_a_function_of_seed_step_and_row() -> None:
    few, many = WindowFeed(1000, CONTEXT, 4), WindowFeed(1000, CONTEXT, 9)
    for step in (0, 1, 77, 100_000):
        np.testing.assert_array_equal(starts(few, step), starts(many, step)[:4])
        key = random.fold_in(random.fold_in(random.key(0), 0), step)
        np.testing.assert_array_equal(starts(few, step), random.randint(key, (4,), 0, 1000 - CONTEXT))
    drawn = [tuple(starts(few, step, seed)) for step in range(20) for seed in (0, 1)]
    assert len(set(drawn)) == 40


def test_windows_lie_within_the_text_and_reach_its_ends() -> None:
    feed = WindowFeed(CONTEXT + 5, CONTEXT, 64)
    assert set(np.concatenate([starts(feed, step) for step in range(5)])) == {0, 1, 2, 3, 4}
    assert set(starts(WindowFeed(CONTEXT + 1, CONTEXT, 64), 0)) == {0}


class Counted(nn.Module):
    """Its gradient counts the tokens that it gets; the rest gives it the shape of a model."""

    weights: Any

    def __call__(self, tokens: Any) -> Any:
        seen = self.weights[tokens]
        return ops.broadcast_to(ops.expand_dims(seen, -1), (*seen.shape, VOCABULARY))


@pytest.mark.parametrize("device_batches", [True, False])
def test_training_sees_the_windows_of_the_seed(device_batches: bool) -> None:
    """Across evaluations, dispatches and a continued fit: the tokens of all windows, counted by the gradient."""
    made = trainer(
        Counted(np.zeros(VOCABULARY, np.float32)), optimizer=optim.sgd(1.0), seed=5, steps_per_dispatch=3,
        loss=lambda prediction, target: -prediction, device_batches=device_batches,
    )  # fmt: skip
    fit(made, 7, eval_every=4)
    fit(made, 12, eval_every=5)
    feed, expected = WindowFeed(len(TOKENS), CONTEXT, BATCH), np.zeros(VOCABULARY)
    for step in range(12):
        rows = feed.rows(TOKENS, None, np.asarray(random.key(5)), np.int32(0), np.int32(step))
        expected += np.bincount(np.asarray(rows.x).ravel(), minlength=VOCABULARY) / (BATCH * CONTEXT)
    np.testing.assert_allclose(made.state["param"]["weights"], expected, rtol=1e-5)


def test_the_order_stream_is_not_that_of_dropout() -> None:
    keys = [tuple(np.asarray(key)) for key in streams(np.asarray(random.key(0)))]
    assert len(set(keys)) == 3


# the same bits


SETTINGS: dict[str, dict[str, Any]] = {
    "host": {"device_batches": False},
    "one": {"steps_per_dispatch": 1},
    "seven": {"steps_per_dispatch": 7},
    "host-one": {"device_batches": False, "steps_per_dispatch": 1},
    "captured": {"graph_capture": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_bits_do_not_depend_on_how_steps_are_run(settings: dict[str, Any]) -> None:
    made = trainer(small(), device="cpu", **settings)
    history, (expected, whole) = fit(made), reference(device="cpu")
    assert same(made.state, expected.state)
    assert np.array_equal(history.steps, whole.steps)


def test_bits_do_not_depend_on_when_it_is_evaluated() -> None:
    """Evaluations at other steps, in two calls, and a step count that is no multiple of eval_every."""
    made = trainer(small())
    fit(made, 13, validation=HELD_OUT)
    history = fit(made, STEPS, eval_every=4, validation=HELD_OUT)
    assert [record["step"] for record in history] == [16, 20, 24, 25]
    assert same(made.state, reference()[0].state)
    assert made.executables == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_tokens_are_kept_in_16_bits(dtype: type) -> None:
    made = trainer(small())
    fit(made, tokens=TOKENS.astype(dtype))
    assert same(made.state, reference()[0].state)
    assert made.engine is not None
    assert {leaf.dtype for leaf in made.engine._on_device} == {np.dtype(np.uint16)}


def test_a_large_vocabulary_needs_32_bits() -> None:
    made = trainer(Bigram(np.zeros((70_000, 1), np.float32)), loss=lambda prediction, target: prediction[..., 0])
    with pytest.raises(losses.LabelError, match="the model has a vocabulary of 1"):
        fit(made, 1, tokens=TOKENS)
    large = Wide(np.zeros(70_000, np.float32))
    made = trainer(large, loss=lambda prediction, target: prediction[..., 0])
    tokens = np.arange(69_000, 69_100)
    fit(made, 1, tokens=tokens)
    assert made.engine is not None
    assert {leaf.dtype for leaf in made.engine._on_device} == {np.dtype(np.int32)}
    assert np.flatnonzero(made.state["param"]["weights"]).min() >= 69_000


class Wide(nn.Module):
    weights: Any

    def __call__(self, tokens: Any) -> Any:
        return ops.expand_dims(self.weights[tokens], -1) + ops.zeros((70_000,))


class Stop(train.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_checkpoint(self, trainer: Any, step: int, path: Path) -> None:
        if step >= self.step:
            raise RuntimeError("stopped")


@pytest.mark.parametrize("stop", [3, 10, 24])
def test_resume(tmp_path: Path, stop: int) -> None:
    """Within a round, at its end, and in the last one; with other evaluations than before."""
    with pytest.raises(RuntimeError, match="stopped"):
        fit(trainer(small()), run=tmp_path, checkpoint_every=1, callbacks=[Stop(stop)])
    made = trainer(small())
    history = fit(made, run=tmp_path, resume="latest", callbacks=[Stop(1000)])
    assert same(made.state, reference()[0].state)
    assert [record["step"] for record in history] == [10, 20, 25]
    longer = trainer(small())
    history = fit(longer, 31, run=tmp_path, resume="latest", callbacks=[Stop(1000)], eval_every=3)
    assert [record["step"] for record in history] == [10, 20, 25, 27, 30, 31]
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 5, 6]
    assert same(longer.state, reference(31)[0].state)


def test_another_context_is_another_run(tmp_path: Path) -> None:
    fit(trainer(), 2, run=tmp_path)
    with pytest.raises(ag.CheckpointError, match="context: saved 8, now 7"):
        fit(trainer(context=7), 4, run=tmp_path, resume="latest")


def test_accumulation_gives_the_same_training() -> None:
    made, whole = (trainer(accumulate=parts, optimizer=optim.sgd(1.0)) for parts in (2, 1))
    fit(made), fit(whole)
    np.testing.assert_allclose(made.state["param"]["table"], whole.state["param"]["table"], rtol=1e-5, atol=1e-6)


def test_clipping_is_that_of_the_optimizers() -> None:
    clipped = trainer(clip_norm=0.01, optimizer=optim.sgd(1.0))
    chained = trainer(optimizer=optim.chain(optim.clip_by_global_norm(0.01), optim.sgd(1.0)))
    fit(clipped, 3), fit(chained, 3)
    assert same(clipped.state, chained.state)
    moved = clipped.state["param"]["table"] - bigram().table
    assert 0.009 < np.linalg.norm(moved) <= 0.03 * (1 + 1e-5)


# measures


def measured(model: Any, tokens: np.ndarray, windows: int) -> tuple[float, float]:
    """Mean loss and how often the first is right, in f64."""
    loss, right = [], []
    for window in range(windows):
        text = tokens[window * CONTEXT : (window + 1) * CONTEXT + 1].astype(np.int64)
        logits = np.asarray(model(text[None, :-1].astype(np.int32)))[0].astype(np.float64)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        loss += list(-logs[np.arange(CONTEXT), text[1:]])
        right += list(logits.argmax(-1) == text[1:])
    return float(np.mean(loss)), float(np.mean(right))


@pytest.mark.parametrize(("tokens", "windows"), [(HELD_OUT, None), (HELD_OUT, 3), (HELD_OUT[: CONTEXT + 1], None)])
def test_val_loss_and_val_top1(tokens: np.ndarray, windows: int | None) -> None:
    """Every window once, of 7 with a batch of 4, of 3, and of one; what is no whole window is left out."""
    made, _ = reference()
    loss, right = measured(made.model, tokens, windows or (len(tokens) - 1) // CONTEXT)
    assert made.val_loss(tokens, windows) == pytest.approx(loss, rel=2e-6)
    assert made.val_top1(tokens, windows) == pytest.approx(right, rel=1e-6)


def test_records_hold_what_the_measures_give() -> None:
    for batches in (True, False):
        made = trainer(ema=0.5, device_batches=batches, metrics={"top1": train.metrics.accuracy})
        history = fit(made, 12, validation=HELD_OUT, val_windows=5)
        assert history["step"] == [10, 12]
        assert history["val_loss"][-1] == made.val_loss(HELD_OUT, 5) != made.val_loss(HELD_OUT)
        assert history["val_top1"][-1] == made.val_top1(HELD_OUT, 5)
        assert history["val_loss"][-1] == pytest.approx(measured(made.model, HELD_OUT, 5)[0], rel=2e-6)
        assert len(history.steps) == 12
        np.testing.assert_allclose(history["loss"][0], history.steps[:10].mean(), rtol=1e-6)
        np.testing.assert_allclose(history["loss"][1], history.steps[10:].mean(), rtol=1e-6)


def test_eval_every_is_a_tenth_by_default() -> None:
    assert fit(trainer(), 20, eval_every=None)["step"] == list(range(2, 21, 2))
    assert fit(trainer(), 3, eval_every=None)["step"] == [1, 2, 3]


# refused


def gpt(context: int) -> nn.Module:
    config = nn.models.GPTConfig(vocabulary=VOCABULARY, context=context, layers=1, heads=2, features=8)
    return nn.models.GPT(config, key=random.key(0))


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "context": (lambda: trainer(context=0), ag.SettingError, "context must be a whole number .*found 0"),
    "augment": (lambda: trainer(augment=print), ag.SettingError, "takes no augment"),
    "shuffle": (lambda: trainer(shuffle=False, stream=True), ag.SettingError, "takes no shuffle, stream"),
    "steps": (lambda: fit(trainer(), 0), ag.SettingError, "steps must be a whole number .*found 0"),
    "part": (lambda: fit(trainer(), 2.5, eval_every=None), ag.SettingError, "steps must be .*found 2.5"),
    "every": (lambda: fit(trainer(), eval_every=0), ag.SettingError, "eval_every must be .*found 0"),
    "no text": (lambda: fit(trainer(), val_windows=3), ag.SettingError, "val_windows=3 needs validation"),
    "windows": (
        lambda: fit(trainer(), validation=HELD_OUT, val_windows=8), ag.ShapeError,
        "validation: 61 tokens have 7 windows of 8, not 8",
    ),
    "part of a window": (lambda: trainer().val_loss(TOKENS, 2.5), ag.SettingError, "val_loss: windows .*found 2.5"),
    "no window": (lambda: trainer().val_top1(TOKENS, 0), ag.SettingError, "val_top1: windows .*found 0"),
    "part of val_windows": (
        lambda: fit(trainer(), validation=HELD_OUT, val_windows=2.5), ag.SettingError, "fit: val_windows .*found 2.5",
    ),
    "rank": (lambda: fit(trainer(), tokens=TOKENS.reshape(2, -1)), ag.DTypeError, r"tokens: .*found u16\[2,100\]"),
    "float": (lambda: fit(trainer(), tokens=TOKENS.astype(np.float32)), ag.DTypeError, r"tokens: .*found f32\[200\]"),
    "short": (
        lambda: fit(trainer(), tokens=TOKENS[:CONTEXT]), ag.ShapeError, "tokens: a window needs 9 tokens, found 8",
    ),
    "empty": (lambda: fit(trainer(), tokens=TOKENS[:0]), ag.ShapeError, "a window needs 9 tokens, found 0"),
    "short validation": (
        lambda: fit(trainer(), validation=TOKENS[:3]), ag.ShapeError, "validation: a window needs 9 tokens, found 3",
    ),
    "unknown": (
        lambda: fit(trainer(), tokens=np.where(np.arange(200) % 50 == 7, 11, TOKENS)), losses.LabelError,
        r"tokens\[7\] is 11, and the model has a vocabulary of 11; 4 of 200",
    ),
    "negative": (lambda: fit(trainer(), tokens=TOKENS.astype(int) - 1), losses.LabelError, r"tokens\[\d+\] is -1"),
    "unknown validation": (
        lambda: fit(trainer(), validation=TOKENS + np.uint16(9)), losses.LabelError, r"validation\[\d+\] is \d+",
    ),
    "long": (lambda: fit(trainer(gpt(4))), ag.ShapeError, r"GPT takes tokens .*context 4, found i32\[1,8\]"),
    "epoch": (lambda: trainer().train_epoch(TOKENS), ag.SettingError, "has no epochs"),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused_before_any_work(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()
