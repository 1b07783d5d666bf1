"""The Trainer: every sample once, the same bits however it is dispatched, and what stops it."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import data, losses, nn, ops, optim, random, train, tree
from antegrad.train import placement

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 50).astype(np.int32)


def mlp(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    first, second = random.split(random.key(seed))
    layers = [nn.Dense(6, 16, key=first), nn.relu, nn.Dense(16, 3, key=second)]
    return nn.Sequential(*layers[:2], nn.Dropout(dropout), *layers[2:])


def trainer(model: Any = None, **settings: Any) -> train.Trainer:
    defaults: dict[str, Any] = {"batch_size": 8, "device": "cpu", "metrics": {"accuracy": train.metrics.accuracy}}
    settings = {**defaults, **settings}
    optimizer = settings.pop("optimizer", None) or optim.adam(0.01)
    return train.Trainer(model or mlp(), settings.pop("loss", losses.cross_entropy), optimizer, **settings)


def fit(made: train.Trainer, epochs: int = 2, **keywords: Any) -> train.History:
    return made.fit((X, Y), epochs, verbose=False, **keywords)


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def plain_training(epochs: int, batch: int = 8) -> tuple[dict[str, np.ndarray], list[float]]:
    """The same training without the Trainer: NumPy batches, and the gradient of the mean over each of them."""
    model, optimizer = mlp(), optim.adam(0.01)
    state = optimizer.init(model)
    key = random.fold_in(random.key(0), 0)
    found = []
    step = ag.value_and_grad(lambda model, x, y: losses.cross_entropy(model(x), y))
    for epoch in range(epochs):
        order = random.epoch_permutation(key, epoch, len(X))
        for start in range(0, len(X), batch):
            places = order[start : start + batch]
            loss, gradient = step(model, X[places], Y[places])
            updates, state = optimizer.update(gradient, state, model)
            model = optim.apply_updates(model, updates)
            found.append(float(loss))
    return model.named_parameters(), found


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_it_is_what_a_plain_loop_does(device: str) -> None:
    """With a short last batch (50 samples, batches of 8)."""
    parameters, found = plain_training(2)
    made = trainer(device=device)
    history = fit(made)
    np.testing.assert_allclose(history.steps, found, rtol=2e-6)
    for name, value in parameters.items():
        np.testing.assert_allclose(made.model.named_parameters()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert made.executables == 1


def test_case_compile_once_over_epochs_with_a_remainder() -> None:
    made = trainer(optimizer=optim.sgd(0.1))
    fit(made, 3, validation=(X[:13], Y[:13]))
    assert made.executables == 1


def test_case_last_batch_weight() -> None:
    """Three samples in batches of two, with losses 10, 10 and 9: the mean is 29/3."""
    x, y = np.zeros((3, 1), np.float32), np.array([[10.0], [10.0], [9.0]], np.float32)

    def loss(prediction: Any, target: Any) -> Any:
        return (target + 0 * prediction)[:, 0]

    model = nn.Sequential(nn.Dense(1, 1, key=random.key(0)))
    made = train.Trainer(model, loss, optim.sgd(0.0), batch_size=2, device="cpu", shuffle=False)
    history = made.fit((x, y), 1, verbose=False)
    assert history[-1]["loss"] == pytest.approx(29 / 3, rel=1e-6)


def test_case_last_batch_dropped_eval() -> None:
    """All of 10 samples count once in an evaluation by batches of 4, with one executable."""
    made = trainer(batch_size=4)
    fit(made, 1)
    found = made.evaluate((X[:10], Y[:10]))
    logits = made.model(X[:10])
    assert found["loss"] == pytest.approx(float(losses.cross_entropy(logits, Y[:10])), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float(np.mean(np.argmax(logits, -1) == Y[:10])), rel=1e-6)
    assert made.predict(X[:10]).shape == (10, 3)
    np.testing.assert_allclose(made.predict(X[:10]), logits, rtol=1e-5, atol=1e-6)


def test_case_accum_token_weight() -> None:
    """Two micro-batches with sums of losses 6 over 2 tokens and 4 over 8: the objective is 10/10, not 1.75."""
    y = np.array([[3.0, 3.0, *[-1.0] * 6], [0.5] * 8], np.float32)

    def loss(prediction: Any, target: Any, sample_weights: Any = None, reduction: str = "mean") -> Any:
        there = target >= 0
        values = ops.where(there, target, 0) * prediction[..., :1]
        return ops.sum(values), ops.sum(ops.convert(there, "f32"))

    class Ones(nn.Module):
        w: Any

        def __call__(self, x: Any) -> Any:
            return x * self.w

    model = Ones(np.ones((), np.float32))
    made = train.Trainer(model, loss, optim.sgd(1.0), batch_size=2, accumulate=2, device="cpu", shuffle=False)
    history = made.fit((np.ones((2, 1), np.float32), y), 1, verbose=False)
    assert history[-1]["loss"] == pytest.approx(1.0)
    assert float(made.model.w) == pytest.approx(1 - 1.0)  # the gradient is 10/10 too


def test_accumulation_gives_the_same_training() -> None:
    whole, parts = trainer(), trainer(accumulate=4)
    fit(whole), fit(parts)
    for name, value in whole.model.named_parameters().items():
        np.testing.assert_allclose(parts.model.named_parameters()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_case_bf16_weight_update() -> None:
    """A hundred updates of w by a factor 1 - 6e-4, each below half a unit of bf16: f32 weights do not lose them."""

    class Scale(nn.Module):
        w: Any

        def __call__(self, x: Any) -> Any:
            return x @ self.w

    made = train.Trainer(
        Scale(np.ones((1, 1), np.float32)), lambda p, y: p[:, 0] * 6e-4, optim.sgd(1.0), batch_size=1, device="cpu",
        precision="bf16",
    )  # fmt: skip
    made.fit((np.ones((100, 1), np.float32), np.zeros(100, np.float32)), 1, verbose=False)
    assert float(made.model.w[0, 0]) == pytest.approx(1 - 100 * 6e-4, rel=2e-3)


# resume


def last_file(directory: Path) -> bytes:
    path = train.latest(directory)
    assert path is not None
    return path.read_bytes()


@pytest.mark.parametrize(
    ("settings", "stops"),
    [({}, (6, 14)), ({"ema": 0.9, "device": "host"}, (1, 6, 9, 14)), ({"stream": True, "device": "host"}, (1, 9, 14))],
    ids=["xla", "averaged", "streamed"],
)
def test_case_resume_mid_epoch(tmp_path: Path, settings: dict[str, Any], stops: tuple[int, ...]) -> None:
    """Stopped after any of several steps, in another process's place: the last checkpoint has the same bytes."""
    model = partial(mlp, dropout=0.3)
    fit(trainer(model(), **settings), 3, run=tmp_path / "whole", checkpoint_every=2, callbacks=[train.Callback()])
    expected = last_file(tmp_path / "whole")
    for stop in stops:
        directory = tmp_path / f"stopped{stop}"

        class Stop(train.Callback):
            def on_checkpoint(self, trainer: Any, step: int, path: Path, stop: int = stop) -> None:
                if step >= stop:
                    raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            fit(trainer(model(), **settings), 3, run=directory, checkpoint_every=1, callbacks=[Stop()])
        history = fit(trainer(model(), **settings), 3, run=directory, resume="latest", callbacks=[train.Callback()])
        assert len(history) == 3
        assert last_file(directory) == expected
        lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_case_resume_ema(tmp_path: Path) -> None:
    """Raw and averaged weights and the count of averages come back; evaluation does not leak into training."""
    made = trainer(ema=0.9)
    fit(made, 2, run=tmp_path)
    before = made.state
    evaluated = made.evaluate((X, Y))
    assert same(made.state, before)
    again = trainer(ema=0.9)
    fit(again, 2, run=tmp_path, resume="latest")
    assert same(again.state, before)
    assert again.evaluate((X, Y)) == evaluated
    raw = {name: before["param"][name] for name in before["param"]}
    assert any(not np.array_equal(raw[name], value) for name, value in made.model.named_parameters().items())


def test_a_directory_with_another_run_is_refused(tmp_path: Path) -> None:
    fit(trainer(), 1, run=tmp_path)
    with pytest.raises(ag.CheckpointError, match="run"):
        fit(trainer(), 1, run=tmp_path)
    with pytest.raises(ag.CheckpointError, match="optimizer"):
        fit(trainer(optimizer=optim.sgd(0.1)), 2, run=tmp_path, resume="latest")
    other = trainer(nn.Sequential(nn.Dense(6, 3, key=random.key(0))))
    with pytest.raises(ag.CheckpointError, match="model"):
        fit(other, 2, run=tmp_path, resume="latest")


# what stops it


def test_case_nan_loss_stops(tmp_path: Path) -> None:
    made = trainer(optimizer=optim.sgd(1e30))
    with pytest.raises(ag.NonFiniteError, match=r"loss of step \d+ .*last finite loss was .*pass") as error:
        fit(made, 3)
    state = made.state
    assert all(np.isfinite(value).all() for value in state["param"].values())
    assert int(state["step"]) == int(state["failed"]) > 0
    assert f"step {int(state['failed'])}" in str(error.value)


def test_case_dataset_too_large(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(placement, "free_bytes", lambda device: 1000)
    with pytest.raises(data.DataError, match=r"1,400 bytes, and 1,000 are free on cpu.*stream=True"):
        fit(trainer(stream=False))
    fit(trainer(), 1)
    assert "it is streamed" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_case_interrupt(tmp_path: Path, number: int) -> None:
    """In a process of its own: the state is saved once, the exit code is that of the signal, a resume goes on."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np\n"
        "from antegrad import losses, nn, optim, random, train\n"
        "x = np.random.default_rng(0).standard_normal((4000, 6)).astype(np.float32)\n"
        "y = (x[:, 0] > 0).astype(np.int32)\n"
        "model = nn.Sequential(nn.Dense(6, 2, key=random.key(0)))\n"
        "t = train.Trainer(model, losses.cross_entropy, optim.adam(0.01), batch_size=2, device='cpu')\n"
        "class Say(train.Callback):\n"
        "    def on_epoch_start(self, trainer, epoch):\n"
        "        if epoch == 1: print('second epoch', flush=True)\n"
        "try:\n"
        f"    t.fit((x, y), 100000, run={str(tmp_path / 'run')!r}, verbose=False, callbacks=[Say()])\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "second epoch" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    saved = ag.checkpoint.load(train.latest(tmp_path / "run"))
    assert ag.checkpoint.training_info(saved).step >= 2000


WRONG = {
    "labels": (lambda: trainer().fit((X, Y + 1), 1), losses.LabelError, r"train: labels\[\d+\] is 3.*0 to 2"),
    "shape": (lambda: trainer().fit((X[:, :5], Y), 1), ag.ShapeError, r"Dense\(6 -> 16\).*found f32\[8,5\]"),
    "batch": (lambda: trainer(batch_size=64).fit((X, Y), 1), ag.ShapeError, "batch_size=64 is more than the 50"),
    "lengths": (lambda: trainer().fit((X, Y[:40]), 1), data.DataError, "50.*40"),
    "nan": (lambda: trainer().fit((X * np.nan, Y), 1), data.DataError, "nan|NaN"),
    "resume": (lambda: trainer().fit((X, Y), 1, resume="latest"), ag.SettingError, "run="),
    "accumulate": (lambda: trainer(accumulate=3), ag.SettingError, "multiple of accumulate=3"),
    "precision": (lambda: trainer(precision="f16"), ag.SettingError, "precision"),
}


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused_before_any_work(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()


def test_early_stopping_restores_the_best_weights() -> None:
    made = trainer(optimizer=optim.sgd(0.5))
    stopping = train.EarlyStopping(monitor="val_loss", patience=2)
    history = fit(made, 50, validation=(X[:20], Y[:20]), callbacks=[stopping])
    best = min(history["val_loss"])
    assert made.evaluate((X[:20], Y[:20]))["loss"] == pytest.approx(best, rel=1e-6)


def test_the_host_needs_no_thread() -> None:
    """Training from another thread than the main one works, without handlers for signals."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(fit(trainer(), 1)))
    thread.start()
    thread.join()
    assert math.isfinite(results[0][-1]["loss"])
