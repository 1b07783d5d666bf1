"""Callbacks, with a trainer whose weights are one number."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from antegrad.errors import NameMissing
from antegrad.optim import schedules
from antegrad.train.callbacks import BestCheckpoint, Callback, EarlyStopping, LearningRateLog
from antegrad.train.history import History


class FakeTrainer:
    """Its weights are the number of epochs done; it saves the epochs that callbacks call the best."""

    def __init__(self) -> None:
        self.weights = 0
        self.reason: str | None = None
        self.saved: dict[int, int] = {}

    def snapshot(self) -> int:
        return self.weights

    def restore(self, snapshot: int) -> None:
        self.weights = snapshot

    def saved_snapshot(self, step: int) -> int | None:
        return self.saved.get(step)

    def stop(self, reason: str) -> None:
        self.reason = reason

    def fit(self, values: Sequence[Any], *callbacks: Callback, kill_after: int | None = None) -> list[str]:
        """Epochs with these values of val_loss, from the one after the present weights; the states that were saved."""
        history = History()
        for callback in callbacks:
            callback.on_fit_start(self)
        states: list[str] = []
        for epoch in range(self.weights, len(values)):
            self.weights = epoch + 1
            record = {"epoch": epoch + 1, "step": 10 * (epoch + 1), "val_loss": values[epoch]}
            history.append(record)
            for callback in callbacks:
                callback.on_epoch_end(self, epoch, record)
            if any(callback.improved for callback in callbacks):
                self.saved[10 * (epoch + 1)] = self.weights
            states = [json.dumps(callback.state()) for callback in callbacks]
            if self.weights == kill_after:
                return states
            if self.reason is not None:
                break
        for callback in callbacks:
            callback.on_fit_end(self, history)
        return states


def resumed(trainer: FakeTrainer, values: Sequence[Any], callback: Callback, state: str) -> FakeTrainer:
    """Another process that goes on where `trainer` was killed."""
    after = FakeTrainer()
    after.weights, after.saved = trainer.weights, trainer.saved
    callback.restore(json.loads(state))
    after.fit(values, callback)
    return after


@pytest.mark.parametrize(
    ("values", "options", "epochs", "best"),
    [
        ([3, 2, 1], {}, 3, 3),
        ([3, 1, 2, 2, 0], {"patience": 2}, 4, 2),
        ([3, 1, 2, 0.5, 2, 2, 0], {"patience": 2}, 6, 4),
        ([3, 1, 1, 1], {"patience": 2}, 4, 2),  # equal is no improvement
        ([3, 2.9375, 2.875, 2.8125, 1], {"patience": 3, "minimum_change": 0.125}, 5, 5),  # slow, but far from the best
        ([3, 2.9375, 2.875, 1], {"patience": 2, "minimum_change": 0.125}, 3, 1),
        ([1, 2, 3, 2, 1, 9], {"patience": 2, "mode": "max"}, 5, 3),
        ([3, math.nan, 2, math.nan, math.inf, 1], {"patience": 2}, 5, 3),
        ([math.nan, 2, 3, 3], {"patience": 2}, 4, 2),
        ([3, 2, 4], {"patience": 5}, 3, 2),  # the end of the training, not of the patience
        ([np.float32(3), np.float32(2), np.float32(4)], {"patience": 1}, 3, 2),
    ],
)
def test_early_stopping(values: list[float], options: dict[str, Any], epochs: int, best: int) -> None:
    trainer, history = FakeTrainer(), []
    counted = EarlyStopping(**{"patience": 2} | options)

    class Count(Callback):
        def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
            history.append(epoch + 1)

    trainer.fit(values, counted, Count())
    assert history[-1] == epochs
    assert trainer.weights == best
    assert (trainer.reason is not None) == (epochs < len(values) or counted.waited >= counted.patience)


def test_the_reason_says_what_was_best() -> None:
    trainer = FakeTrainer()
    trainer.fit([3, 1.23456, 2, 2], EarlyStopping(patience=2))
    assert trainer.reason == "val_loss has not improved for 2 epochs; the best was 1.235 at step 20"
    trainer = FakeTrainer()
    trainer.fit([math.nan] * 4, EarlyStopping(patience=2))
    assert trainer.reason == "val_loss has not improved for 2 epochs; the best was never finite"
    assert trainer.weights == 2


def test_without_restore_best() -> None:
    trainer = FakeTrainer()
    trainer.fit([3, 1, 2, 2], EarlyStopping(patience=2, restore_best=False))
    assert trainer.weights == 4


@pytest.mark.parametrize("kill_after", [1, 2, 3, 4, 5])
def test_counters_survive_a_kill(kill_after: int) -> None:
    """Wherever it is killed, a resumed run stops at the same epoch, with the same weights and the same reason."""
    values = [3, 1, 2, 2, 2, 2, 0]
    whole = FakeTrainer()
    whole.fit(values, EarlyStopping(patience=4))
    killed = FakeTrainer()
    (state,) = killed.fit(values, EarlyStopping(patience=4), kill_after=kill_after)
    after = resumed(killed, values, EarlyStopping(patience=4), state)
    assert (after.weights, after.reason) == (whole.weights, whole.reason) == (2, whole.reason)


def test_best_weights_that_are_in_no_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    killed = FakeTrainer()
    (state,) = killed.fit([3, 1, 2, 2], EarlyStopping(patience=2), kill_after=3)
    killed.saved.clear()
    after = resumed(killed, [3, 1, 2, 2], EarlyStopping(patience=2), state)
    assert after.weights == 4
    assert "the best weights, of step 20, are in no checkpoint" in caplog.text


def test_another_fit_starts_from_nothing() -> None:
    stopping = EarlyStopping(patience=2)
    FakeTrainer().fit([1, 2, 2], stopping)
    trainer = FakeTrainer()
    trainer.fit([5, 4, 3], stopping)
    assert trainer.reason is None
    assert trainer.weights == 3


def test_a_monitored_name_that_is_not_there() -> None:
    with pytest.raises(NameMissing, match=r"EarlyStopping monitors 'val_los', and the epoch's record has epoch, step"):
        FakeTrainer().fit([1], EarlyStopping("val_los"))


@pytest.mark.parametrize(
    "options", [{"patience": 0}, {"mode": "least"}, {"minimum_change": -1}, {"minimum_change": math.nan}]
)
def test_settings_without_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|at least one"):
        EarlyStopping(**options)


def test_best_checkpoint() -> None:
    trainer = FakeTrainer()
    trainer.fit([3, 1, 2, 0.5, math.nan], BestCheckpoint())
    assert trainer.saved == {10: 1, 20: 2, 40: 4}
    assert trainer.weights == 5


def test_learning_rate_log() -> None:
    record: dict[str, Any] = {"epoch": 1, "step": 5}
    LearningRateLog(schedules.linear(1.0, 0.0, 10)).on_epoch_end(None, 0, record)
    assert record["learning_rate"] == 0.5
    assert type(record["learning_rate"]) is float
    LearningRateLog(0.1).on_epoch_end(None, 0, record)
    assert record["learning_rate"] == 0.1


def test_a_callback_needs_no_method() -> None:
    trainer = FakeTrainer()
    callback = Callback()
    callback.on_epoch_start(trainer, 0)
    callback.on_dispatch(trainer, 10, {"loss": 0.5})
    assert trainer.fit([1, 2], callback) == ["{}"]
    callback.restore({})
    assert trainer.weights == 2
