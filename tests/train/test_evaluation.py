"""Evaluation and prediction: every sample once, whatever the size of the data and wherever they lie."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import data, losses, nn, ops, optim, random, train, tree
from antegrad.runtime import memory
from antegrad.train import engine, evaluation, placement
from antegrad.train import trainer as trainer_module

BATCH = 8
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3 * BATCH + 2, 6)).astype(np.float32)
Y = RNG.integers(0, 3, len(X)).astype(np.int32)
METRICS = {"accuracy": train.metrics.accuracy, "top2": train.metrics.top_k(2)}


def mlp() -> nn.Module:
    first, second = random.split(random.key(0))
    layers = nn.Dense(6, 16, key=first), nn.BatchNorm(16), nn.relu, nn.Dropout(0.5), nn.Dense(16, 3, key=second)
    return nn.Sequential(*layers)


def trainer(model: Any = None, loss: Any = losses.cross_entropy, **settings: Any) -> train.Trainer:
    settings = {"batch_size": BATCH, "device": "cpu", "metrics": METRICS, **settings}
    return train.Trainer(model or mlp(), loss, settings.pop("optimizer", None) or optim.adam(0.01), **settings)


def measured(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Loss and metrics in f64, of all samples at once."""
    logits = np.asarray(model(x), np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-logits, -1)
    return {
        "loss": float(-logs[np.arange(len(y)), y].mean()),
        "accuracy": float((order[:, 0] == y).mean()),
        "top2": float((order[:, :2] == y[:, None]).any(-1).mean()),
    }


SIZES = [1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, len(X)]


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_every_sample_counts_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one sample, of fewer than a batch, of some batches and a part; resident and streamed give the same bits."""
    monkeypatch.setattr(evaluation, "CHUNK", 2)  # so that there are several parts
    resident, streamed = trainer(device=device, stream=False), trainer(device=device, stream=True)
    for size in SIZES if device == "host" else (1, BATCH + 1, len(X)):
        x, y = X[:size], Y[:size]
        found = resident.evaluate((x, y))
        assert list(found) == ["loss", "accuracy", "top2"]
        assert found == pytest.approx(measured(mlp(), x, y), rel=1e-6), size
        assert streamed.evaluate((x, y)) == found, size
        predictions = resident.predict(x)
        assert type(predictions) is np.ndarray
        np.testing.assert_allclose(predictions, np.asarray(mlp()(x)), rtol=1e-5, atol=1e-6)
        assert np.array_equal(streamed.predict(x), predictions)


def test_convolutions_are_evaluated_batch_by_batch() -> None:
    """Where loops are slow, each batch is a dispatch of its own."""
    key = random.key(0)
    model = nn.Sequential(nn.Conv2D(1, 3, 3, key=key), lambda x: ops.mean(x, (1, 2)))
    x = RNG.integers(0, 256, (19, 4, 4, 1)).astype(np.uint8)
    for streamed in (False, True):
        made = trainer(model, stream=streamed)
        found = made.evaluate((x, Y[:19]))
        assert found == pytest.approx(measured(model, x.astype(np.float32) / 255, Y[:19]), rel=2e-6)


def test_images_of_8_bits_are_divided_on_the_device() -> None:
    images = RNG.integers(0, 256, (BATCH + 3, 4, 4, 1)).astype(np.uint8)
    model = nn.Sequential(nn.Flatten(), nn.Dense(16, 3, key=random.key(0)))
    made, y = trainer(model), Y[: BATCH + 3]
    expected = images.astype(np.float32) / 255
    assert made.evaluate((images, y)) == pytest.approx(measured(model, expected, y), rel=1e-6)
    np.testing.assert_allclose(made.predict(images), np.asarray(model(expected)), rtol=1e-5, atol=1e-6)


def test_before_training_while_averaging_and_after_a_restore() -> None:
    """Of the weights: the first, then the averaged ones with the layers' state, then those that were put back."""
    made = trainer(ema=0.9)
    before = made.evaluate((X, Y))
    assert before == pytest.approx(measured(mlp(), X, Y), rel=1e-6)
    made.fit((X, Y), 3, verbose=False)
    after, state = made.evaluate((X, Y)), made.state
    assert after == pytest.approx(measured(made.model, X, Y), rel=1e-6)
    assert not np.array_equal(made.model.named_parameters()["0.w"], state["param"]["0.w"])
    assert made.model.named_parameters()["1.mean"].any(), "BatchNorm evaluates with its running statistics"
    np.testing.assert_allclose(made.predict(X), np.asarray(made.model(X)), rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(tree.leaves(made.state), tree.leaves(state), strict=True))
    other = trainer(ema=0.9)
    other.restore(state)
    assert other.evaluate((X, Y)) == after
    assert np.array_equal(other.predict(X), made.predict(X))


class Two(nn.Module):
    """Two inputs, and results by name."""

    dense: Any

    def __call__(self, inputs: Any) -> Any:
        left, right = inputs
        return {"sum": self.dense(left + right), "pair": (left[:, :2], ops.sum(right, 1))}


def test_several_inputs_and_results() -> None:
    """They are trained on, evaluated and predicted as any others, resident and streamed."""
    model = Two(nn.Dense(6, 3, key=random.key(0)))
    states = []
    for streamed in (False, True):
        made = trainer(
            model, lambda p, y: losses.cross_entropy(p["sum"], y, reduction="none"), metrics={}, stream=streamed
        )
        history = made.fit(data.Dataset(X, X[::-1], Y), 3, validation=(X, X[::-1], Y), verbose=False)
        found = made.predict((X, X[::-1]))
        assert found["pair"][0].shape == (len(X), 2)
        np.testing.assert_allclose(found["pair"][1], X[::-1].sum(1), rtol=1e-4, atol=1e-5)
        logits = np.asarray(made.model((X, X[::-1]))["sum"])
        np.testing.assert_allclose(found["sum"], logits, rtol=1e-5, atol=1e-6)
        assert history[-1]["val_loss"] == pytest.approx(float(losses.cross_entropy(logits, Y)), rel=1e-6)
        states.append(tree.leaves(made.state))
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))


def test_metrics_with_keywords() -> None:
    def at_least(prediction: Any, target: Any, *, margin: float) -> Any:
        return ops.convert(ops.max(prediction, -1) - ops.min(prediction, -1) >= margin, "f32")

    metrics = {f"margin{m}": partial(at_least, margin=m) for m in (0.5, 2.0)}
    made = trainer(metrics=metrics, loss=partial(losses.cross_entropy, label_smoothing=0.1))
    found, logits = made.evaluate((X, Y)), np.asarray(mlp()(X))
    widths = logits.max(-1) - logits.min(-1)
    assert found["margin0.5"] == pytest.approx((widths >= 0.5).mean())
    assert found["margin2.0"] == pytest.approx((widths >= 2.0).mean())
    assert found["loss"] == pytest.approx(float(losses.cross_entropy(logits, Y, label_smoothing=0.1)), rel=1e-6)


def test_a_loss_that_gives_its_mean() -> None:
    """It will do where every batch is whole, in training and in evaluation, and is refused elsewhere."""

    def mean(prediction: Any, target: Any) -> Any:
        return ops.mean(losses.cross_entropy(prediction, target, reduction="none"))

    made = trainer(loss=mean, metrics={})
    whole = X[: 2 * BATCH], Y[: 2 * BATCH]
    made.fit(whole, 1, validation=whole, verbose=False)
    assert made.evaluate(whole)["loss"] == pytest.approx(measured(made.model, *whole)["loss"], rel=1e-6)
    with pytest.raises(ag.ShapeError, match="evaluate: the loss 'mean' gives one scalar"):
        made.evaluate((X, Y))


def test_ignored_labels_count_nothing() -> None:
    labels = np.where(np.arange(len(Y)) % 3 == 0, -1, Y)
    made = trainer(loss=partial(losses.cross_entropy, ignore_index=-1), metrics={})
    kept = labels >= 0
    assert made.evaluate((X, labels))["loss"] == pytest.approx(measured(mlp(), X[kept], Y[kept])["loss"], rel=1e-6)
    assert made.evaluate((X[:3], labels[:3] * 0 - 1))["loss"] == 0


def test_data_that_do_not_fit_are_streamed_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A validation set of 728 bytes where 1,000 are free: the same numbers, and a line in the first epoch alone."""
    expected = trainer(stream=False)
    whole = expected.fit((X[:BATCH], Y[:BATCH]), 3, validation=(X, Y), verbose=False)
    monkeypatch.setattr(placement, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(evaluation, "CHUNK", 1)
    made = trainer()
    history = made.fit((X[:BATCH], Y[:BATCH]), 3, validation=(X, Y), verbose=False)
    for name in ("loss", "val_loss", "val_accuracy", "val_top2"):
        assert history[name] == whole[name], name
    assert [record.getMessage() for record in caplog.records] == [
        "the data set (728 bytes) does not fit into half of what is free on cpu (1,000 bytes): it is streamed"
    ]
    monkeypatch.setattr(placement, "free_bytes", lambda device: 700)
    with pytest.raises(data.DataError, match=r"728 bytes, and 700 are free on cpu.*stream=True"):
        trainer(stream=False).evaluate((X, Y))


def test_what_was_placed_is_not_streamed_for_the_room_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second epoch finds less memory free, because the first one put the data there."""
    free = iter([10_000, 10_000, 1000, 1000, 1000])
    monkeypatch.setattr(placement, "free_bytes", lambda device: next(free))
    made, held = trainer(), data.Dataset(X, Y)
    first = made.fit(held, 2, validation=held, verbose=False)
    made.fit(held, 4, validation=held, verbose=False)
    assert made.engine is not None
    assert not made.engine.streamed
    assert made.executables == 1
    assert next(free) == 1000, "it was asked only for what was not there yet"
    assert len(first) == 2


def test_memory_that_the_file_cache_uses_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every data set would be streamed on a machine that has been up for a day."""
    cpu = trainer().device
    text = "MemTotal: 24000 kB\nMemFree: 100 kB\nMemAvailable: 20000 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda path, **keywords: text)
    assert memory.free_bytes(cpu) == 20000 * 1024
    monkeypatch.setattr(Path, "read_text", lambda path, **keywords: "MemFree: 100 kB\n")
    assert (memory.free_bytes(cpu) or 0) > 2**20


@pytest.mark.parametrize("work", ["evaluate", "fit"])
def test_only_two_parts_are_on_the_device_at_a_time(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA returns before it has computed, and keeps the memory till then: a copy waits for the part before the last."""
    x, y = np.tile(X, (40, 1)), np.tile(Y, 40)
    made = trainer(stream=True, metrics={}, steps_per_dispatch=1000)
    copied, waited, most = 0, 0, 0

    def put(arrays: Any, device: Any) -> Any:
        nonlocal copied, most
        copied += any(leaf.ndim >= 2 and leaf.shape[-1] == 6 for leaf in tree.leaves(arrays))
        most = max(most, copied - waited)
        return memory.put(arrays, device)

    def ready(arrays: Any) -> None:
        nonlocal waited
        waited += 1
        memory.ready(arrays)

    read = engine.Engine._read

    def reading(self: engine.Engine, arrays: Any) -> Any:
        nonlocal waited
        waited += len(arrays) == 1  # the losses of the dispatch before
        return read(self, arrays)

    monkeypatch.setattr(placement, "put", put)
    monkeypatch.setattr(evaluation, "ready", ready)
    monkeypatch.setattr(engine.Engine, "_read", reading)
    if work == "evaluate":
        made.evaluate((x, y))
    else:
        made.fit((x, y), 1, verbose=False)
    assert copied > 10
    assert most <= 2


def test_all_programs_get_the_options_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """`deterministic=True` would be worth little if the validation loss, which is in checkpoints, did not repeat."""
    given: list[Any] = []
    for module in (trainer_module, placement):
        real = module.compile_program

        def recorded(program: Any, real: Any = real, **settings: Any) -> Any:
            given.append(settings["compiler_options"])
            return real(program, **settings)

        monkeypatch.setattr(module, "compile_program", recorded)
    made = trainer(device="host")
    made.place.options = {"some": "option"}
    made.fit((X, Y), 1, validation=(X, Y), verbose=False)
    made.predict(X)
    assert given == [{"some": "option"}] * 3


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (lambda t: t.evaluate((X[:, :5], Y)), ag.ShapeError, r"evaluate: Dense\(6 -> 16\).*found f32\[8,5\]"),
    "labels": (lambda t: t.evaluate((X, Y + 1)), losses.LabelError, r"evaluate: labels\[\d+\] is 3"),
    "rank": (lambda t: t.evaluate((X, Y[:, None])), ag.ShapeError, "evaluate: cross_entropy: integer labels"),
    "targets": (lambda t: t.evaluate(X), data.DataError, "evaluate: the data set has no targets"),
    "empty": (lambda t: t.evaluate((X[:0], Y[:0])), data.DataError, "evaluate: inputs is empty"),
    "width": (lambda t: t.evaluate((X.astype(np.float64), Y)), ag.DTypeError, r"evaluate: inputs are f64\[26,6\]"),
    "predict nothing": (lambda t: t.predict(X[:0]), ag.ShapeError, r"at least one sample .*found f32\[0,6\]"),
    "predict one": (lambda t: t.predict(X[0, 0]), ag.ShapeError, r"at least one sample .*found f32\[\]"),
    "predict shape": (lambda t: t.predict(X[:, :5]), ag.ShapeError, r"Dense\(6 -> 16\).*found f32\[8,5\]"),
    "lengths": (lambda t: t.predict((X, X[:3])), ag.ShapeError, r"one row for each .*f32\[3,6\] with 26 and 3 rows"),
    "predict width": (lambda t: t.predict(X.astype(np.float64)), ag.DTypeError, r"predict: inputs are f64\[26,6\]"),
    "width of one": (lambda t: t.predict((X, X.astype(np.float64))), ag.DTypeError, "predict: inputs1 are f64"),
}


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_data_are_refused(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong(trainer(device="host"))


def test_a_result_without_an_axis_of_samples_is_refused() -> None:
    model = nn.Sequential(nn.Dense(6, 3, key=random.key(0)), ops.mean)
    with pytest.raises(ag.ShapeError, match=r"predict: for a batch of 8 the model gives f32\[\], not one result"):
        trainer(model, metrics={}, device="host").predict(X)
