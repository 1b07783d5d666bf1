"""One call of `Trainer.fit`: epochs, checkpoints, resumption, interruption."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from antegrad import checkpoint, tree
from antegrad.data import Dataset
from antegrad.errors import NonFiniteError
from antegrad.train.alike import check_alike, data_digest, described_samples, digest, program_digest, same_data
from antegrad.train.callbacks import Callback
from antegrad.train.checks import check_fit, check_monitors
from antegrad.train.evaluation import EvaluationStopped, evaluate_dataset
from antegrad.train.history import History
from antegrad.train.interrupt import Interrupts, ending
from antegrad.train.programs import State
from antegrad.train.progress import Progress
from antegrad.train.resuming import POSITION, latest_checkpoint, opened_run, position_in, state_in
from antegrad.train.run import Run, locked
from antegrad.train.values import to_json
from antegrad.train.writer import CheckpointWriter, checkpoint_at

if TYPE_CHECKING:
    from antegrad.train.trainer import Trainer

logger = logging.getLogger("antegrad")


class Fit:
    """The loop. Where it stands (`epoch`, `step`, the sums of the epoch so far, the history) goes into checkpoints.

    Nothing that depends on the clock does, so that a resumed run writes the same bytes.

    An epoch is a walk through the data, until `epochs` of them are done. With `every` it is what ends at the next
    multiple of so many steps, until `epochs` steps are done.
    """

    def __init__(
        self,
        trainer: Trainer,
        dataset: Any,
        validation: Dataset | None,
        epochs: int,
        *,
        every: int | None = None,
        run: str | Path | None = None,
        resume: Literal["latest"] | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_every: int | None = None,
        keep: int = 3,
        verbose: bool = True,
    ) -> None:
        check_fit(epochs, every, run, resume, callbacks, checkpoint_every, keep, verbose)
        self.trainer, self.dataset, self.validation, self.epochs = trainer, dataset, validation, int(epochs)
        self.place = trainer.place
        self.directory = None if run is None else Path(run)
        self.resume, self.callbacks, self.verbose = resume == "latest", list(callbacks), verbose and self.place.leader
        self.keep = int(keep)
        self.checkpoint_every, self.every = (None if n is None else int(n) for n in (checkpoint_every, every))
        self.epoch, self.step, self.done = trainer.epoch, 0, 0
        self.sums: list[float] = []
        self.history = History()
        self.best_steps: list[int | None] = [None] * len(self.callbacks)
        """For each callback the step of the checkpoint that was the best one to it."""
        self.log: Run | None = None
        self.writer: CheckpointWriter | None = None
        self.leaving: int | None = None
        """The signal after which all processes end."""
        self._seconds_a_step: float | None = None

    def run(self) -> History:
        """All that can be wrong is found first, then the directory is written to, and then there is work."""
        self.trainer.fitting, self.trainer.stop_reason = self, None
        check_monitors(self.callbacks, self._names())
        self._compare_settings()
        self.engine = self.trainer.captured(self.dataset)
        self._compare_work()
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._each("on_fit_start")
            self._note_end()
            while not self._over() and self._stop_reason() is None:
                self._epoch()
            self._each("on_fit_end", self.history)
        if self.log is not None:
            last = self.history[-1] if len(self.history) else {}
            self.log.summary({"epochs": self.epoch, "stopped": self.trainer.stop_reason, **last})
        return self.history

    def _open(self, stack: contextlib.ExitStack) -> None:
        """Begin, or go on: the records, the state on the device, the checkpoints, and what is shown."""
        log = None if self.directory is None or not self.place.leader else self._opened(self.directory)
        if log is not None:
            stack.enter_context(locked(log.directory))
        self.place.agreed("checked", None)  # before any process writes, the first has found nothing wrong
        saved = self._saved() if self.resume else None
        if log is not None:
            self.log = stack.enter_context(log)
        self.trainer.start(self.engine, self.dataset)
        self._begin(saved)
        if self.directory is not None:
            self.writer = stack.enter_context(CheckpointWriter(self.directory, keep=self.keep, group=self.place.group))
            if saved is not None:
                self.writer.resume(self.done, saved[1]["best"])
        self.interrupts = stack.enter_context(Interrupts())
        self.progress = stack.enter_context(self._shown())

    def _note_end(self) -> None:
        if self._over():
            what = "epochs" if self.every is None else "steps"
            logger.warning("fit: all of the %s %s are done already, and nothing is left to do", self.epochs, what)
        elif (reason := self._stop_reason()) is not None:
            logger.warning("fit: nothing is left to do, as the run was stopped: %s", reason)

    def _compare_settings(self) -> None:
        """Refuse processes that would part, or wait for each other for ever, because their settings differ."""
        if self.place.group is None:
            return
        trainer = self.trainer
        settings = {**trainer.identity(), **self._length(), "samples": len(self.dataset), "epochs done": trainer.epoch}
        settings |= {f"model.{name}": type for name, type in settings.pop("model").items()}
        settings["validation"] = None if self.validation is None else f"{len(self.validation)} samples"
        settings["run"] = "no directory" if self.directory is None else "a directory"
        settings["callbacks"] = [type(callback).__name__ for callback in self.callbacks]
        settings["metrics"] = list(trainer.objective.metrics)
        for name in ("resume", "checkpoint_every", "keep"):
            settings[name] = getattr(self, name)
        for name in ("accumulate", "stream", "steps_per_dispatch"):
            settings[name] = getattr(trainer, name)
        check_alike(self.place, "settings", settings)

    def _compare_work(self) -> None:
        """Refuse processes with other programs, weights or data, which would train something that nobody meant."""
        if self.place.group is None:
            return
        work: dict[str, Any] = {"the training step (as a digest)": program_digest(self.engine.programs.step)}
        if self.trainer.engine is None:
            work["the initial weights (as a digest)"] = digest(tree.leaves(self.trainer.device_model))
        work["the restored state (as a digest)"] = self.trainer.restored
        work |= described_samples("the data", self.engine.data)
        if self.validation is not None:
            work |= described_samples("the validation data", self.validation.arrays)
        check_alike(self.place, "work", work)
        self.trainer.restored = None

    def _length(self) -> dict[str, int]:
        return {"epochs": self.epochs} if self.every is None else {"steps": self.epochs, "eval_every": self.every}

    def _stop_reason(self) -> str | None:
        """Why training ends early, on whichever process that was said."""
        self.trainer.stop_reason = self.place.any_of("stop", self.trainer.stop_reason)
        return self.trainer.stop_reason

    def _over(self) -> bool:
        if self.every is None:
            return self.epoch >= self.epochs
        return self.done >= self.epochs and not self.step

    def _left(self) -> int:
        """Steps to the end of the epoch; 0 where only its record was still to be made."""
        if self.every is None:
            return self.engine.feed.steps - self.step
        if self.step and self.done % self.every == 0:
            return 0
        return min(self.every - self.done % self.every, max(0, self.epochs - self.done))

    def _shown(self) -> Progress:
        feed, epochs, steps = self.engine.feed, self.epochs, self.engine.feed.steps
        if self.every is not None:
            epochs, steps = self.epoch + -(-self.epochs // self.every) - self.done // self.every, self.every
        return Progress(epochs, steps, self.verbose, batch_size=round(feed.samples_a_step))

    def _epoch(self) -> None:
        """One epoch, or the rest of it: steps, validation, record, checkpoint."""
        self._each("on_epoch_start", self.epoch)
        started, before = self.trainer.clock(), self.done
        self._steps(self.step + self._left())
        record = self._record(self.trainer.clock() - started, self.done - before)
        self.history.append(record)
        best = self._judged(record)
        self.epoch, self.step, self.sums = self.epoch + 1, 0, []
        self._keep_place()
        self.progress.epoch(record)
        if self.log is not None:
            self.log.log(record)  # before the checkpoint: a resumed run can cut a record off, but not make it up
        self._save(best)
        self._leave_if_asked()

    def _judged(self, record: dict[str, Any]) -> bool:
        """Whether the epoch of `record` is the best so far to one of the callbacks, which all see it."""
        for callback in self.callbacks:
            callback.improved = False
        self._each("on_epoch_end", self.epoch, record)
        for number, callback in enumerate(self.callbacks):
            if callback.improved:
                self.best_steps[number] = self.done
        return self.done in self.best_steps

    def _steps(self, steps: int) -> None:
        """The steps of the epoch up to `steps` of it."""
        while self.step < steps:
            count = self.trainer.steps_at_once(self._seconds_a_step, self._until_checkpoint(steps - self.step))
            started = self.trainer.clock()
            rows = self.engine.dispatch(*self.engine.feed.place(self.epoch, self.step, self.done), count)
            taken = self.place.agreed("seconds", (self.trainer.clock() - started) / count)
            self._seconds_a_step = taken if self._seconds_a_step is None else min(taken, 2 * self._seconds_a_step)
            self._take(rows)
            values = {"loss": float(rows[0][-1]) / float(rows[1][-1] or 1)}
            self.progress.update(self.epoch, self.step, values)
            self._each("on_dispatch", self.done, values)
            if self.step < steps:
                due = self.checkpoint_every is not None and self.done % self.checkpoint_every == 0
                if due or self._asked():
                    self._save()
                self._leave_if_asked()

    def _until_checkpoint(self, left: int) -> int:
        """Steps to the next checkpoint or the end of the epoch."""
        if self.checkpoint_every is None:
            return left
        return min(left, self.checkpoint_every - self.done % self.checkpoint_every)

    def _take(self, rows: Sequence[np.ndarray]) -> None:
        """Count the steps that were done; a `NonFiniteError` where one failed."""
        failed = self.engine.failed
        good = len(rows[0]) if failed is None else failed - self.done
        self._add([row[:good] for row in rows])
        self.step, self.done = self.step + good, self.done + good
        self._keep_place()
        if failed is not None:
            raise self._non_finite(failed)

    def _non_finite(self, failed: int) -> NonFiniteError:
        """The error for the step `failed`, with the last finite loss and the equation to blame."""
        finite = [value for value in self.history.steps.tolist() if math.isfinite(value)]
        last = f"the last finite loss was {finite[-1]:.6g}" if finite else "no step before it had a finite one"
        where = f" (step {self.step} of epoch {self.epoch + 1})" if self.every is None else ""
        found = self.engine.blame(*self.engine.feed.place(self.epoch, self.step, failed), self.engine.state)
        cause = str(found) if found is not None else "on the host all values of this step are finite"
        return NonFiniteError(
            f"the loss of step {failed}{where} is NaN or infinite; {last}. {cause}. "
            "The weights are those from before that step"
        )

    def _keep_place(self) -> None:
        trainer = self.trainer
        trainer.epoch, trainer.begun, trainer.begun_on = self.epoch, (self.step, self.sums), self.engine.data

    def _add(self, rows: Sequence[np.ndarray]) -> None:
        """Add what the steps reported, one after the other, so that the number of dispatches makes no difference."""
        sums = self.sums or [0.0] * len(rows)
        for column in zip(*rows, strict=True):
            sums = [total + float(value) for total, value in zip(sums, column, strict=True)]
        self.sums = sums
        self.history.add_steps([float(t) / float(c or 1) for t, c in zip(rows[0], rows[1], strict=True)])

    def _names(self) -> list[str]:
        """What the record of an epoch will have, if no callback adds to it."""
        metrics = list(self.trainer.objective.metrics)
        validated = [] if self.validation is None else [f"val_{name}" for name in ("loss", *metrics)]
        return ["epoch", "step", "loss", *metrics, *validated, "learning_rate", "seconds", "samples_per_second"]

    def _record(self, seconds: float, steps: int) -> dict[str, Any]:
        """The record of an epoch, of which `steps` steps took `seconds` here (others before a resume)."""
        record: dict[str, Any] = {"epoch": self.epoch + 1, "step": self.done}
        record |= self.trainer.objective.means(self.sums)
        if self.validation is not None:
            record |= {f"val_{name}": value for name, value in self._validated(self.validation).items()}
        record["learning_rate"] = self.trainer.learning_rate()
        speed = steps * self.engine.feed.samples_a_step / max(seconds, 1e-9)
        return record | {"seconds": seconds, "samples_per_second": speed}

    def _validated(self, validation: Dataset) -> dict[str, float]:
        """Loss and metrics; after Ctrl-C or SIGTERM they are left for the run that goes on."""
        try:
            return evaluate_dataset(self.trainer, validation, stop=lambda: self._asked() is not None)
        except EvaluationStopped:
            self._save()
            self._leave_if_asked()
            raise

    # checkpoints

    def _save(self, best: bool = False) -> None:
        if self.writer is None:
            return
        state, sharded = self.place.saved(self.engine.programs, self.engine.device_state)
        assert int(state["step"]) == self.done
        tensors, metadata = checkpoint.pack(
            {**state["param"], **state["state"]},
            {name: np.asarray(leaf) for name, leaf in tree.named_leaves(state["opt"]).items()},
            step=self.done,
            optimizer_kind=self.trainer.optimizer.kind,
            seed=self.trainer.seed,
            user={POSITION: to_json({**self._position(), "best": best}, "the position")},
        )
        held = [step for step in self.best_steps if step is not None]
        path = self.writer.save(self.done, tensors, metadata, best=best, sharded=sharded, held=held)
        self._each("on_checkpoint", self.done, path)

    def _position(self) -> dict[str, Any]:
        clocked = {"seconds", "samples_per_second"}
        records = [{k: v for k, v in record.items() if k not in clocked} for record in self.history]
        return {
            "epoch": self.epoch,
            "step": self.step,
            "sums": self.sums,
            "history": records,
            "callbacks": [callback.state() for callback in self.callbacks],
            "best_steps": self.best_steps,
        }

    def _opened(self, directory: Path) -> Run:
        trainer = self.trainer
        config = {"device": trainer.device.name, "parallel": self.place.description}
        config |= {"accumulate": trainer.accumulate, **self._length()}
        config["step_program"] = program_digest(self.engine.programs.step)
        config["data"] = data_digest(self.engine.data)
        return opened_run(directory, config, {**trainer.identity(), "samples": len(self.dataset)}, self.resume)

    def _saved(self) -> tuple[State, dict[str, Any]] | None:
        """The state in the latest checkpoint and where training stood, if there is one; refused if it does not fit."""
        saved = latest_checkpoint(self.directory, self.place)
        if saved is None:
            return None
        position = position_in(saved, len(self.callbacks))
        return self._state_in(saved), position

    def _begin(self, saved: tuple[State, dict[str, Any]] | None) -> None:
        """Go on from where `saved` was written, or from where the trainer stands."""
        if saved is None:
            self.engine.forgive()
            self._take_up()
        else:
            state, position = saved
            self.engine.load(state)
            self.epoch, self.step, self.sums = position["epoch"], position["step"], position["sums"]
            self.history, self.best_steps = History(position["history"]), position["best_steps"]
            for callback, kept in zip(self.callbacks, position["callbacks"], strict=True):
                callback.restore(kept)
        self.done = self.engine.done
        self._keep_place()
        if self.log is not None and self.log.resumed:
            self.log.rewind(self.done)

    def _take_up(self) -> None:
        """Go on in the epoch that the trainer has begun, if it was on these data."""
        step, sums = self.trainer.begun
        if step and not same_data(self.trainer.begun_on, self.engine.data):
            logger.warning("fit: the epoch that was begun was on other data; it is left at its step %s", step)
            step, sums = 0 if self.every is None else step, []
        if self.every is not None or step <= self.engine.feed.steps:
            self.step, self.sums = step, sums

    def _state_in(self, saved: checkpoint.Checkpoint) -> State:
        return state_in(saved, self.engine.programs.init(), self.trainer.optimizer.kind)

    def saved_state(self, step: int) -> State | None:
        """The state in the checkpoint of `step` in the directory of this run, where there is one."""
        if self.directory is None or self.writer is None:
            return None
        self.writer.wait()
        path = checkpoint_at(self.directory, step)
        return None if path is None else self._state_in(checkpoint.load(path))

    # people and callbacks

    def _asked(self) -> int | None:
        """The signal by which one of the processes was asked to end; all learn of it at the same step."""
        if self.leaving is None:
            self.leaving = self.place.any_of("asked", self.interrupts.requested)
        return self.leaving

    def _leave_if_asked(self) -> None:
        """After Ctrl-C or SIGTERM, when the state has just been saved: wait until that is durable, and leave."""
        asked = self._asked()
        if asked is not None:
            if self.writer is not None:
                self.writer.wait()
            raise ending(asked)

    def _each(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self.trainer, *arguments)
