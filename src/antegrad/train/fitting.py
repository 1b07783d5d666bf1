"""One call of `Trainer.fit`: epochs, checkpoints, resumption, interruption."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from antegrad import checkpoint, tree
from antegrad.data import Dataset
from antegrad.errors import CheckpointError, SettingError
from antegrad.ir.types import type_of
from antegrad.train.callbacks import Callback
from antegrad.train.evaluation import evaluate_dataset
from antegrad.train.history import History
from antegrad.train.interrupt import Interrupts
from antegrad.train.programs import State
from antegrad.train.progress import Progress
from antegrad.train.run import Run
from antegrad.train.writer import CheckpointWriter, checkpoint_name, latest

if TYPE_CHECKING:
    from antegrad.train.trainer import Trainer

POSITION = "trainer"
"""The user entry of a checkpoint that says where in the training it was written."""


class Fit:
    """The loop. Where it stands (`epoch`, `step`, the sums of the epoch so far, the history) goes into checkpoints.

    Nothing that depends on the clock does, so that a resumed run writes the same bytes.
    """

    def __init__(
        self,
        trainer: Trainer,
        dataset: Any,
        validation: Dataset | None,
        epochs: int,
        *,
        limit: int | None = None,
        run: str | Path | None = None,
        resume: Literal["latest"] | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_every: int | None = None,
        keep: int = 3,
        verbose: bool = True,
    ) -> None:
        if resume not in (None, "latest"):
            raise SettingError(f'fit: resume must be None or "latest", found {resume!r}')
        if resume is not None and run is None:
            raise SettingError('fit: resume="latest" needs run=..., the directory of the run')
        if checkpoint_every is not None and checkpoint_every < 1:
            raise SettingError(f"fit: checkpoint_every must be at least 1 step, found {checkpoint_every}")
        self.trainer, self.dataset, self.validation, self.epochs = trainer, dataset, validation, epochs
        self.directory = None if run is None else Path(run)
        self.resume, self.callbacks, self.verbose = resume == "latest", list(callbacks), verbose
        self.checkpoint_every, self.keep, self.limit = checkpoint_every, keep, limit
        self.epoch, self.step = trainer.epoch, 0
        self.sums: list[float] = []
        self.history = History()
        self.log: Run | None = None
        self.writer: CheckpointWriter | None = None
        self._seconds_a_step: float | None = None

    def run(self) -> History:
        self.trainer.fitting, self.trainer.stop_reason = self, None
        with contextlib.ExitStack() as stack:
            if self.directory is not None:
                self.log = stack.enter_context(self._opened_run(self.directory))
            saved = self._saved() if self.resume else None
            self.engine = self.trainer.ready(self.dataset)
            if saved is not None:
                self._restore(saved)
            if self.directory is not None:
                self.writer = stack.enter_context(CheckpointWriter(self.directory, keep=self.keep))
            self.interrupts = stack.enter_context(Interrupts())
            self.progress = stack.enter_context(self._shown())
            self._each("on_fit_start")
            while self.epoch < self.epochs and self.trainer.stop_reason is None:
                self._epoch()
            self._each("on_fit_end", self.history)
        if self.log is not None:
            last = self.history[-1] if len(self.history) else {}
            self.log.summary({"epochs": self.epoch, "stopped": self.trainer.stop_reason, **last})
        return self.history

    def _shown(self) -> Progress:
        feed = self.engine.feed
        return Progress(self.epochs, feed.steps, self.verbose, batch_size=feed.samples // feed.steps)

    def _epoch(self) -> None:
        """One epoch, or the rest of it: steps, validation, record, checkpoint."""
        self._each("on_epoch_start", self.epoch)
        started = self.trainer.clock()
        self._steps()
        record = self._record(self.trainer.clock() - started)
        self.history.append(record)
        self._each("on_epoch_end", self.epoch, record)
        self.epoch, self.step, self.sums = self.epoch + 1, 0, []
        self.trainer.epoch = self.epoch
        self.progress.epoch(record)
        if self.log is not None:
            self.log.log(record)  # before the checkpoint: a resumed run can cut a record off, but not make it up
        self._save(best=any(callback.improved for callback in self.callbacks))
        self._leave_if_asked()

    def _steps(self) -> None:
        steps = self.engine.feed.steps
        if self.limit is not None:
            steps = min(steps, self.limit - self.epoch * steps)
        while self.step < steps:
            count = self.trainer.steps_at_once(self._seconds_a_step, self._until_checkpoint(steps - self.step))
            started = self.trainer.clock()
            rows = self.engine.dispatch(self.epoch, self.step, count)
            taken = (self.trainer.clock() - started) / count
            self._seconds_a_step = taken if self._seconds_a_step is None else min(taken, 2 * self._seconds_a_step)
            self._check_finite(rows)
            self._add(rows)
            self.step += count
            values = {"loss": float(rows[0][-1]) / float(rows[1][-1] or 1)}
            self.progress.update(self.epoch, self.step, values)
            self._each("on_dispatch", self._steps_done(), values)
            if self.step < steps:
                due = self.checkpoint_every is not None and self._steps_done() % self.checkpoint_every == 0
                if due or self.interrupts.requested:
                    self._save()
                self._leave_if_asked()

    def _until_checkpoint(self, left: int) -> int:
        """Steps to the next checkpoint or the end of the epoch."""
        if self.checkpoint_every is None:
            return left
        return min(left, self.checkpoint_every - self._steps_done() % self.checkpoint_every)

    def _steps_done(self) -> int:
        return self.epoch * self.engine.feed.steps + self.step

    def _add(self, rows: Sequence[np.ndarray]) -> None:
        """Add what the steps reported, one after the other, so that the number of dispatches makes no difference."""
        sums = self.sums or [0.0] * len(rows)
        for column in zip(*rows, strict=True):
            sums = [total + float(value) for total, value in zip(sums, column, strict=True)]
        self.sums = sums
        self.history.add_steps([float(t) / float(c or 1) for t, c in zip(rows[0], rows[1], strict=True)])

    def _check_finite(self, rows: Sequence[np.ndarray]) -> None:
        failed = self.engine.failed
        if failed is not None:
            step = failed - self.epoch * self.engine.feed.steps
            before = [float(t / c) for t, c in zip(rows[0][: step - self.step], rows[1], strict=False)]
            raise self.trainer.non_finite(self.epoch, step, [*self.history.steps, *before])

    def _record(self, seconds: float) -> dict[str, Any]:
        total, count, *metrics = self.sums
        record: dict[str, Any] = {"epoch": self.epoch + 1, "step": self._steps_done(), "loss": total / (count or 1.0)}
        record |= {n: m / (count or 1.0) for n, m in zip(self.trainer.objective.metrics, metrics, strict=True)}
        if self.validation is not None:
            found = evaluate_dataset(self.trainer, self.validation)
            record |= {f"val_{name}": value for name, value in found.items()}
        record["learning_rate"] = self.trainer.learning_rate()
        return record | {"seconds": seconds, "samples_per_second": self.engine.feed.samples / max(seconds, 1e-9)}

    # checkpoints

    def _save(self, best: bool = False) -> None:
        if self.writer is None:
            return
        state = self.engine.state
        tensors, metadata = checkpoint.pack(
            {**state["param"], **state["state"]},
            {name: np.asarray(leaf) for name, leaf in tree.named_leaves(state["opt"]).items()},
            step=int(state["step"]),
            optimizer_kind=self.trainer.optimizer.kind,
            seed=self.trainer.seed,
            user={POSITION: json.dumps(self._position())},
        )
        path = self.writer.save(int(state["step"]), tensors, metadata, best=best)
        self._each("on_checkpoint", int(state["step"]), path)

    def _position(self) -> dict[str, Any]:
        clocked = {"seconds", "samples_per_second"}
        records = [{k: v for k, v in record.items() if k not in clocked} for record in self.history]
        return {
            "epoch": self.epoch,
            "step": self.step,
            "sums": self.sums,
            "history": records,
            "callbacks": [callback.state() for callback in self.callbacks],
        }

    def _opened_run(self, directory: Path) -> Run:
        trainer = self.trainer
        model = {name: str(type_of(leaf)) for name, leaf in tree.named_leaves(trainer.objective.model).items()}
        identity = {
            "model": model,
            "optimizer": trainer.optimizer.kind,
            "batch_size": trainer.batch_size,
            "seed": trainer.seed,
            "precision": trainer.precision,
            "samples": len(self.dataset),
        }
        config = {"epochs": self.epochs, "device": trainer.device.name, "accumulate": trainer.accumulate}
        return Run(directory, config, identity=identity, resume=self.resume)

    def _saved(self) -> checkpoint.Checkpoint | None:
        path = None if self.directory is None else latest(self.directory)
        return None if path is None else checkpoint.load(path)

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        """Put training back to where `saved` was written."""
        info = checkpoint.training_info(saved)
        if POSITION not in info.user:
            raise CheckpointError(f"{saved.path} was not written by a Trainer: it does not say where training stood")
        position = json.loads(info.user[POSITION])
        if len(position["callbacks"]) != len(self.callbacks):
            raise CheckpointError(
                f"{saved.path} was written with {len(position['callbacks'])} callbacks, now there are "
                f"{len(self.callbacks)}: pass the same ones, in the same order"
            )
        self.engine.load(self._state_in(saved))
        self.epoch, self.step, self.sums = position["epoch"], position["step"], position["sums"]
        self.trainer.epoch = self.epoch
        self.history = History(position["history"])
        for callback, kept in zip(self.callbacks, position["callbacks"], strict=True):
            callback.restore(kept)
        if self.log is not None:
            self.log.rewind(self._steps_done())

    def _state_in(self, saved: checkpoint.Checkpoint) -> State:
        """The state in a checkpoint; a `CheckpointError` with all that does not fit."""
        fresh = self.engine.programs.init()
        model = {name: type_of(leaf) for name, leaf in {**fresh["param"], **fresh["state"]}.items()}
        opt = {name: type_of(leaf) for name, leaf in tree.named_leaves(fresh["opt"]).items()}
        arrays = checkpoint.restore_parameters(saved, model)
        moments = checkpoint.restore_optimizer(saved, opt, kind=self.trainer.optimizer.kind)
        return {
            **fresh,
            "param": {name: arrays[name] for name in fresh["param"]},
            "state": {name: arrays[name] for name in fresh["state"]},
            "opt": tree.unflatten(tree.structure(fresh["opt"]), list(moments.values())),
            "step": np.int32(checkpoint.training_info(saved).step),
        }

    def saved_state(self, step: int) -> State | None:
        """The state in the checkpoint of `step` in the directory of this run, where there is one."""
        if self.directory is None or self.writer is None:
            return None
        self.writer.wait()
        path = self.directory / checkpoint_name(step)
        return self._state_in(checkpoint.load(path)) if path.exists() else None

    # people and callbacks

    def _leave_if_asked(self) -> None:
        """After Ctrl-C or SIGTERM, when the state has just been saved: wait until that is durable, and leave."""
        if self.interrupts.requested:
            if self.writer is not None:
                self.writer.wait()
            self.interrupts.raise_if_requested()

    def _each(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self.trainer, *arguments)
