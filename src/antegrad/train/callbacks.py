"""What a user adds to the training loop: classes whose methods it calls, in the order in which they are listed.

    class Spectrum(Callback):
        def on_epoch_end(self, trainer, epoch, record):
            record["largest"] = largest_singular_value(trainer.model)

    trainer.fit(train_set, epochs=10, callbacks=[Spectrum(), EarlyStopping(patience=3)])

The trainer that they get has ``snapshot()``, ``restore(snapshot)`` and ``stop(reason)``, and ``saved_snapshot(step)``,
which is None where there is no checkpoint of that step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from antegrad.errors import NameMissing, SettingError
from antegrad.train.history import History

__all__ = ["BestCheckpoint", "Callback", "EarlyStopping", "LearningRateLog"]

logger = logging.getLogger("antegrad")

Mode = Literal["min", "max"]


class Callback:
    """The hooks, none of which does anything. `epoch` counts from 0; `step` counts the steps done in all epochs.

    What a callback has to remember when a killed run is resumed goes through `state` and `restore`: JSON values, which
    are saved in every checkpoint.
    """

    improved: bool = False
    """Set it in `on_epoch_end` where the model is the best so far: the checkpoint of that epoch becomes the best."""

    def on_fit_start(self, trainer: Any) -> None:
        """Before the first epoch, and after `restore` in a fit that resumes."""

    def on_epoch_start(self, trainer: Any, epoch: int) -> None:
        """Before the first step of an epoch; in a fit that resumes also in the middle of one."""

    def on_dispatch(self, trainer: Any, step: int, values: Mapping[str, float]) -> None:
        """After each dispatch, of one or of many steps, with the values of its last step."""

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        """After the validation, before the record is logged and the epoch saved. What is added to it is logged too."""

    def on_checkpoint(self, trainer: Any, step: int, path: Path) -> None:
        """After a checkpoint has been handed to the writer; the file may not be there yet."""

    def on_fit_end(self, trainer: Any, history: History) -> None:
        """After the last epoch, or the one in which somebody called ``trainer.stop``; not after an error."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a `state` of the run that is resumed."""


class BestCheckpoint(Callback):
    """Has the checkpoint of the best epoch kept (see `train.writer.best`).

    An epoch is the best so far when its value is better than that of the best one by more than `minimum_change`. A
    value that is not finite is never the best.

    Arguments:
      monitor: an entry of the epoch's record. Raises `NameMissing` where the record has none.
      mode: whether less of it is better, or more.
    """

    def __init__(self, monitor: str = "val_loss", minimum_change: float = 0.0, mode: Mode = "min") -> None:
        if mode not in ("min", "max") or not minimum_change >= 0:
            found = f"mode={mode!r} and minimum_change={minimum_change!r}"
            raise SettingError(f"mode must be 'min' or 'max', and minimum_change at least 0, found {found}")
        self.monitor, self.minimum_change, self.mode = monitor, minimum_change, mode
        self._forget()
        self._restored = False

    def _forget(self) -> None:
        self.improved = False
        self.best: float | None = None
        self.best_step: int | None = None

    def on_fit_start(self, trainer: Any) -> None:
        """Another fit with the same callback starts from nothing."""
        if not self._restored:
            self._forget()
        self._restored = False

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        if self.monitor not in record:
            found = ", ".join(record)
            raise NameMissing(f"{type(self).__name__} monitors {self.monitor!r}, and the epoch's record has {found}")
        value = float(record[self.monitor])
        self.improved = math.isfinite(value) and self._beats(value)
        if self.improved:
            self.best, self.best_step = value, int(record["step"])

    def _beats(self, value: float) -> bool:
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.minimum_change

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_step = state["best"], state["best_step"]
        self._restored = True


class EarlyStopping(BestCheckpoint):
    """Stops the training when `patience` epochs in a row were not the best so far, as `BestCheckpoint` has it.

    Arguments:
      restore_best: whether the trainer ends with the weights of the best epoch, whatever ends the training but an error
        or an interrupt. A resumed run whose best epoch came before takes them from the checkpoint of that epoch; one
        that was stopped stays so, unless it is resumed with more patience.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        minimum_change: float = 0.0,
        mode: Mode = "min",
        restore_best: bool = True,
    ) -> None:
        super().__init__(monitor, minimum_change, mode)
        if patience < 1:
            raise SettingError(f"EarlyStopping needs a patience of at least one epoch, found {patience!r}")
        self.patience, self.restore_best = patience, restore_best

    def _forget(self) -> None:
        super()._forget()
        self.waited = 0
        self._snapshot: Any = None

    def on_fit_start(self, trainer: Any) -> None:
        super().on_fit_start(trainer)
        self._stop_if_due(trainer)

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        super().on_epoch_end(trainer, epoch, record)
        self.waited = 0 if self.improved else self.waited + 1
        if self.improved and self.restore_best:
            self._snapshot = trainer.snapshot()
        self._stop_if_due(trainer)

    def _stop_if_due(self, trainer: Any) -> None:
        if self.waited >= self.patience:
            best = "never finite" if self.best is None else f"{self.best:.4g} at step {self.best_step}"
            trainer.stop(f"{self.monitor} has not improved for {self.waited} epochs; the best was {best}")

    def on_fit_end(self, trainer: Any, history: History) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if not self.restore_best or self.best_step is None:
            return
        if snapshot is None:
            snapshot = trainer.saved_snapshot(self.best_step)
        if snapshot is None:
            logger.warning(
                "EarlyStopping: the best weights, of step %s, are in no checkpoint; those of the last epoch stay",
                self.best_step,
            )
        else:
            trainer.restore(snapshot)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.waited, self._snapshot = state["waited"], None


class LearningRateLog(Callback):
    """Adds ``learning_rate``, the rate of the update that comes next, to the record of each epoch.

    For optimizers that do not tell it by themselves (see `optim.Optimizer.readings`).

    Arguments:
      learning_rate: a number, or a schedule as in `optim.schedules`.
    """

    def __init__(self, learning_rate: float | Callable[[Any], Any]) -> None:
        self.learning_rate = learning_rate

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        rate = self.learning_rate(record["step"]) if callable(self.learning_rate) else self.learning_rate
        record["learning_rate"] = float(np.asarray(rate))
