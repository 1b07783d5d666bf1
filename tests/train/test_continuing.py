"""A trainer that is used again: after other data, after something stopped it, and with weights that were put back."""

from __future__ import annotations

import gc
import json
import os
import signal
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import data, losses, nn, optim, random, train, tree
from antegrad.train import evaluation
from antegrad.train.engine import Engine
from antegrad.train.feeds import EpochFeed
from antegrad.train.writer import checkpoints

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 50).astype(np.int32)
STEPS = 7
"""Of an epoch, the last one short."""


def trainer(**settings: Any) -> train.Trainer:
    first, second = random.split(random.key(0))
    model = nn.Sequential(nn.Dense(6, 8, key=first), nn.relu, nn.Dropout(0.2), nn.Dense(8, 3, key=second))
    optimizer = settings.pop("optimizer", None) or optim.adam(0.01)
    settings = {"batch_size": 8, "device": "host", **settings}
    return train.Trainer(model, losses.cross_entropy, optimizer, **settings)


def fit(made: train.Trainer, epochs: int, given: Any = (X, Y), **keywords: Any) -> train.History:
    return made.fit(given, epochs, verbose=False, **keywords)


def whole(epochs: int, **settings: Any) -> list[Any]:
    made = trainer(**settings)
    fit(made, epochs)
    return tree.leaves(made.state)


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_types_need_no_other_executable(stream: bool) -> None:
    """Neither for the same tuple, of which each call makes a data set, nor for other arrays, which are then used."""
    made = trainer(device="cpu", stream=stream)
    for epoch in range(1, 4):
        fit(made, epoch)
    assert same(tree.leaves(made.state), whole(3, device="cpu"))
    made.train_epoch((-X, Y))
    assert made.executables == 1
    assert not same(tree.leaves(made.state), whole(4, device="cpu"))


def test_another_compilation_names_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    made = trainer()
    fit(made, 1)
    assert made.compilations == ["training is compiled for data 0 f32[50,6], data 1 i32[50], data on the device"]
    fit(made, 2, (X[:40], Y[:40].astype(np.int64)))
    assert made.executables == 2
    assert caplog.messages == made.compilations[1:]
    assert caplog.messages == [
        "training is compiled again: it was for data 0 f32[50,6] and is data 0 f32[40,6]; "
        "data 1 i32[50] and is data 1 i64[40]"
    ]
    assert int(made.state["step"]) == STEPS + 5
    assert made.evaluate((X, Y))["loss"] < 1.2


def test_the_memory_of_the_old_data_is_free_for_the_new(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer()
    fit(made, 1)
    old, start, alive = weakref.ref(made.engine), Engine.start, []

    def started(engine: Engine, state: Any = None) -> None:
        gc.collect()
        alive.append(old() is not None)
        start(engine, state)

    monkeypatch.setattr(Engine, "start", started)
    fit(made, 2, (X[:40], Y[:40]))
    assert alive == [False]


class Judge(train.Callback):
    """Adds values to the records; after the epoch `kill` something goes wrong."""

    def __init__(self, kill: int | None = None) -> None:
        self.kill = kill

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        record |= {"first": np.float32(epoch), "last": -epoch, "array": np.arange(2)}

    def on_checkpoint(self, trainer: Any, step: int, path: Path) -> None:
        if step == self.kill:
            raise ValueError("mine")

    def state(self) -> dict[str, Any]:
        return {"worst": np.float32(np.inf)}

    def restore(self, state: Mapping[str, Any]) -> None:
        assert state == {"worst": np.inf}


def test_what_is_best_to_each_of_several_callbacks_stays(tmp_path: Path) -> None:
    """The first epoch is the best to one, the last to another; a killed run ends with the weights of the first."""

    def callbacks(kill: int | None = None) -> list[train.Callback]:
        return [Judge(kill), train.EarlyStopping("first", patience=10), train.BestCheckpoint("last")]

    made, killed, resumed, run = trainer(), trainer(), trainer(), tmp_path / "run"
    history = fit(made, 5, callbacks=callbacks())
    with pytest.raises(ValueError, match="mine"):
        fit(killed, 5, callbacks=callbacks(4 * STEPS), run=run, keep=1)
    found = fit(resumed, 5, callbacks=callbacks(), run=run, keep=1, resume="latest")
    assert same(tree.leaves(resumed.state), tree.leaves(made.state))
    assert int(made.state["step"]) == STEPS
    assert [path.name[5:13] for path in checkpoints(run)] == [f"{STEPS:08d}", f"{5 * STEPS:08d}"]
    assert found["first"] == history["first"] == [0, 1, 2, 3, 4]
    assert [list(each) for each in found["array"]] == [[0, 1]] * 5


def test_a_run_that_was_stopped_stays_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where it was killed after its last checkpoint, before the best weights came back."""

    class Killed(train.Callback):
        def on_fit_end(self, trainer: Any, history: train.History) -> None:
            raise ValueError("mine")

    def stopping(patience: int = 2) -> train.EarlyStopping:
        return train.EarlyStopping("first", patience=patience)

    made, killed = trainer(), trainer()
    history = fit(made, 9, callbacks=[Judge(), train.Callback(), stopping()])
    with pytest.raises(ValueError, match="mine"):
        fit(killed, 9, callbacks=[Judge(), Killed(), stopping()], run=tmp_path / "run")
    assert len(history) == 3
    for _ in range(2):
        resumed = trainer()
        callbacks = [Judge(), train.Callback(), stopping()]
        found = fit(resumed, 9, callbacks=callbacks, run=tmp_path / "run", resume="latest")
        assert same(tree.leaves(resumed.state), tree.leaves(made.state))
        assert found["loss"] == history["loss"]
    reason = "first has not improved for 2 epochs; the best was 0 at step 7"
    assert caplog.messages == [f"fit: nothing is left to do, as the run was stopped: {reason}"] * 2
    more = fit(trainer(), 9, callbacks=[Judge(), train.Callback(), stopping(4)], run=tmp_path / "run", resume="latest")
    assert len(more) == 5


def test_the_best_epoch_is_said_anew_in_each(tmp_path: Path) -> None:
    """What a callback set in an earlier epoch does not count."""

    class First(train.Callback):
        def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
            if epoch == 0:
                self.improved = True

    fit(trainer(), 3, callbacks=[First()], run=tmp_path / "run", keep=1)
    best = train.best(tmp_path / "run")
    assert best is not None
    assert best.name == f"step-{STEPS:08d}.safetensors"


def test_an_epoch_that_was_begun_on_other_data_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """All of the new data are trained on, and the record is theirs alone."""
    made, expected = trainer(steps_per_dispatch=1), trainer(steps_per_dispatch=1)
    with pytest.raises(KeyboardInterrupt):
        fit(made, 1, callbacks=[Break(KeyboardInterrupt(), step=3)])
    expected.restore({**made.state, "step": np.int32(3)})
    history = fit(made, 1, (X + 5, Y))
    assert caplog.messages == ["fit: the epoch that was begun was on other data; it is left at its step 3"]
    assert history["step"] == [3 + STEPS]
    assert history["loss"] == fit(expected, 1, (X + 5, Y))["loss"]
    assert same(tree.leaves(made.state), tree.leaves(expected.state))


def test_other_text_counts_alone() -> None:
    made = text_trainer()
    made.steps_per_dispatch = 1
    with pytest.raises(KeyboardInterrupt):
        made.fit(TOKENS, 6, eval_every=6, verbose=False, callbacks=[Break(KeyboardInterrupt(), step=2)])
    history = made.fit((TOKENS + 1) % 5, 6, eval_every=6, verbose=False)
    assert history["step"] == [6]
    assert history["loss"] == [pytest.approx(np.mean(history.steps), rel=1e-6)]


class Break(train.Callback):
    """Raises at a step, or after an epoch; once."""

    def __init__(self, error: BaseException, step: int | None = None, epoch: int | None = None) -> None:
        self.error, self.step, self.epoch = error, step, epoch

    def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
        if step == self.step:
            raise self.error

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        if epoch == self.epoch:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("mine")], ids=["interrupt", "error"])
@pytest.mark.parametrize("place", [{"step": 3}, {"step": 7}, {"step": 9}, {"epoch": 0}, {"epoch": 1}], ids=str)
def test_it_goes_on_where_something_stopped_it(error: BaseException, place: dict[str, int]) -> None:
    """In a notebook, without a run: in the middle of an epoch, in its last step, and before its record."""
    made = trainer(steps_per_dispatch=1)
    with pytest.raises(type(error)):
        fit(made, 3, callbacks=[Break(error, **place)])
    history = fit(made, 3)
    assert same(tree.leaves(made.state), whole(3))
    first = place["epoch"] if "epoch" in place else (place["step"] - 1) // STEPS
    assert history["epoch"] == list(range(first + 1, 4))
    expected = fit(trainer(), 3)
    assert history["loss"] == expected["loss"][first:]
    assert history["step"] == expected["step"][first:]


def test_the_seed_counts() -> None:
    assert not same(whole(1), whole(1, seed=1))


def test_epochs_one_by_one() -> None:
    made = trainer()
    records = [made.train_epoch((X, Y)) for _ in range(3)]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert same(tree.leaves(made.state), whole(3))
    assert [record["loss"] for record in records] == fit(trainer(), 3)["loss"]


def test_nothing_left_to_do_is_said(caplog: pytest.LogCaptureFixture) -> None:
    made = trainer()
    fit(made, 2)
    assert len(fit(made, 2)) == 0
    assert caplog.messages == ["fit: all of the 2 epochs are done already, and nothing is left to do"]
    assert same(tree.leaves(made.state), whole(2))


def test_after_a_loss_that_was_not_finite(tmp_path: Path) -> None:
    """The steps before the bad one count, the error repeats while its cause is there, and then it goes on."""
    bad = X.copy()
    order = np.asarray(random.epoch_permutation(random.fold_in(random.key(0), 0), 1, len(X)))
    bad[order[3 * 8 + 2]] = np.inf  # in step 3 of the second epoch
    made = trainer(steps_per_dispatch=5)
    fit(made, 1)
    for _ in range(2):
        with pytest.raises(
            ag.NonFiniteError, match=r"the loss of step 10 \(step 3 of epoch 2\) .*(last finite|no step)"
        ):
            fit(made, 2, data.Dataset(bad, Y, finite=False))
        assert int(made.state["step"]) == int(made.state["failed"]) == STEPS + 3
    history = fit(made, 2)
    assert history["step"] == [2 * STEPS]
    assert same(tree.leaves(made.state), whole(2))
    assert history["loss"] == fit(trainer(), 2)["loss"][1:]


def test_restored_weights_are_gone_on_from() -> None:
    made = trainer()
    fit(made, 1)
    state = made.state
    with pytest.raises(ag.NonFiniteError):
        fit(made, 2, data.Dataset(X * np.inf, Y, finite=False))
    other = trainer()
    other.restore(made.state)
    other.epoch = 1
    fit(other, 2)
    assert same(tree.leaves(other.state), whole(2))
    made.restore(state)
    made.epoch = 1
    fit(made, 2)
    assert same(tree.leaves(made.state), whole(2))


def test_batches_that_were_copied_ahead_are_not_taken_for_others() -> None:
    """Stopped in the middle of a streamed epoch and put back to the start, it starts with the first batch."""
    made, held = trainer(stream=True, steps_per_dispatch=1), data.Dataset(X, Y)
    first = made.captured(held).programs.init()
    with pytest.raises(ValueError, match="mine"):
        fit(made, 2, held, callbacks=[Break(ValueError("mine"), step=3)])
    made.restore(first)
    made.epoch = 0
    fit(made, 2, held)
    assert same(tree.leaves(made.state), whole(2))


def test_after_early_stopping_put_the_best_weights_back(tmp_path: Path) -> None:
    """The steps of the weights are counted, not those of the epochs: checkpoints and records agree."""
    made = trainer(optimizer=optim.sgd(3.0))
    held_out = RNG.standard_normal((30, 6)).astype(np.float32), Y[:30]
    fit(made, 20, validation=held_out, callbacks=[train.EarlyStopping(patience=2)])
    best = int(made.state["step"])
    assert best < made.epoch * STEPS
    epoch = made.epoch
    history = fit(made, epoch + 1, run=tmp_path)
    assert history["step"] == [best + STEPS]
    latest = train.latest(tmp_path)
    assert latest is not None
    assert latest.name == f"step-{best + STEPS:08d}.safetensors"


def test_the_speed_is_that_of_the_steps_that_were_made_here(tmp_path: Path) -> None:
    """After a resume in the middle of an epoch too."""

    class Clock:
        now = 0.0

        def __call__(self) -> float:
            self.now += 1
            return self.now

    made = trainer(steps_per_dispatch=1)
    made.clock = Clock()
    with pytest.raises(ValueError, match="stop"):
        fit(made, 1, run=tmp_path, checkpoint_every=1, callbacks=[Break(ValueError("stop"), step=5)])
    again = trainer(steps_per_dispatch=1)
    again.clock = Clock()
    history = fit(again, 1, run=tmp_path, resume="latest", callbacks=[Break(ValueError(), step=99)])
    seconds = history[0]["seconds"]
    assert seconds == 2 * 3 + 1  # steps 5 to 7, of which each asks the clock twice
    assert history[0]["samples_per_second"] == pytest.approx(3 * 50 / 7 / seconds)


class Signal(train.Callback):
    """Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)
            while trainer.fitting.interrupts.requested is None:
                pass


def lines(directory: Path) -> list[dict[str, Any]]:
    clocked = ("seconds", "samples_per_second")
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in clocked} for line in text]


def last_file(directory: Path) -> bytes:
    path = train.latest(directory)
    assert path is not None
    return path.read_bytes()


def text_trainer() -> train.AutoregressiveTrainer:
    layers = nn.Embedding(5, 4, key=random.key(0)), nn.Dropout(0.1), nn.Dense(4, 5, key=random.key(1))
    return train.AutoregressiveTrainer(nn.Sequential(*layers), optim.adam(0.01), context=4, batch_size=3, device="host")


TOKENS = RNG.integers(0, 5, 60)


@pytest.mark.parametrize("kind", ["images", "text"])
@pytest.mark.parametrize("step", [7, 14])
def test_an_interrupt_does_not_wait_for_the_validation(kind: str, step: int, tmp_path: Path) -> None:
    """After the last step of an epoch: the state is saved, and the run that goes on makes the record."""

    def run(name: str, *callbacks: train.Callback, **keywords: Any) -> None:
        made: Any = trainer() if kind == "images" else text_trainer()
        given = ((X, Y), 2) if kind == "images" else (TOKENS, 14)
        more = {"validation": (X, Y)} if kind == "images" else {"validation": TOKENS, "eval_every": 7}
        callback = callbacks or [train.Callback()]
        made.fit(*given, run=tmp_path / name, callbacks=callback, verbose=False, **more, **keywords)

    run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("stopped", Signal(step))
    assert len(lines(tmp_path / "stopped")) == step // 7 - 1
    path = train.latest(tmp_path / "stopped")
    assert path is not None
    assert ag.checkpoint.training_info(ag.checkpoint.load(path)).step == step
    run("stopped", resume="latest")
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")
    assert last_file(tmp_path / "stopped") == last_file(tmp_path / "whole")


def test_an_interrupt_in_a_validation_ends_it_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs many dispatches where it takes long, and looks up after each of them."""
    monkeypatch.setattr(evaluation, "PATIENCE", 0.0)
    made, asked = trainer(), []

    def stop() -> bool:
        asked.append(len(asked))
        return len(asked) == 4

    made.fit((X, Y), 1, verbose=False)
    whole = evaluation.evaluate_dataset(made, data.as_dataset((X, Y)))
    monkeypatch.setattr(evaluation, "PATIENCE", 100.0)
    assert evaluation.evaluate_dataset(made, data.as_dataset((X, Y))) == whole
    monkeypatch.setattr(evaluation, "PATIENCE", 0.0)
    with pytest.raises(evaluation.EvaluationStopped):
        evaluation.evaluate_dataset(made, data.as_dataset((X, Y)), stop=stop)
    assert len(asked) == 4


def test_what_fills_the_last_batch_up_are_other_samples_of_the_epoch() -> None:
    """Mixtures take their partner from it."""
    for shuffle in (True, False):
        feed = EpochFeed(50, 8, shuffle)
        order = np.asarray(feed.started(np.asarray(random.key(0)), np.int32(3)))
        assert len(order) == 56
        assert sorted(order[:50]) == list(range(50))
        np.testing.assert_array_equal(order[50:], order[:6])
