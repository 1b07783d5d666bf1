"""Trains a small model on handwritten digits; the tests start it as several processes: ``script.py DIRECTORY RUNS``.

RUNS is JSON: a list of runs, one after the other, each with the settings of `Plan`. A fault may come in it: one rank is
killed, stopped or asked to end at a certain moment, or its disk is full, or its code raises. What comes of a run goes
to ``DIRECTORY/NAME.npz``: the losses of the steps, the state before and after, and the losses of the validation.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from antegrad import SettingError, data, losses, nn, ops, optim, parallel, random, train, tree
from antegrad.train.programs import initial_state
from benchmarks.twins.batches import digits

SAMPLES, BATCH = 250, 32
OPTIMIZER = optim.adam(1e-3, eps=1e-5)
"""With eps 1e-8 the rounding of a gradient that is nearly 0, as at pixels that are mostly black, becomes a step."""
STEPS = -(-SAMPLES // BATCH)
"""Of an epoch. The last batch is short."""
SYSTEM = ("write", "fsync", "replace", "unlink")
"""Functions of `os`, each call of which has a moment before and one after it."""


@dataclass
class Plan:
    """One run."""

    name: str
    strategy: str | None = None
    """ddp, zero1, zero2 or zero3; None for a training on one device."""
    ranks: int | None = None
    epochs: int = 2
    batch_size: int = BATCH
    stream: bool = False
    every: int | None = None
    """Steps between checkpoints; without them there is no directory ``DIRECTORY/NAME`` for the run."""
    patience: int | None = None
    """That of early stopping, for a validation loss that must fall by 1."""
    model: int = 0
    """The seed of the model."""
    poison: int | None = None
    """A sample that is NaN."""
    validation: int = 1
    """The seed of the data for the validation."""
    evaluated: int | None = None
    """Of how many of these the loss is asked for before the training."""
    restored: int | None = None
    """The number of steps that a state has which is restored before the training."""
    absent: bool = False
    """The devices of all processes are joined, and nothing is done with them."""
    verbose: bool = False
    fault: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Fault`."""


class Fault(train.Callback):
    """On one rank, at the `number`-th `moment`, or so many seconds later, something happens.

    The moments: "start", the beginning of the run; "dispatch" and "epoch", the ends of those; and calls of `SYSTEM`.
    """

    def __init__(
        self, rank: int = -1, moment: str = "", number: int = 1, action: str = "SIGKILL", delay: float = 0.0
    ) -> None:
        here = rank == int(os.environ.get("ANTEGRAD_PROCESS_INDEX", 0))
        self.moment, self.number, self.action, self.delay = moment if here else "", number, action, delay
        self.trainer: Any = None
        self.seen = 0
        if self.moment in SYSTEM:
            setattr(os, self.moment, self.counted(getattr(os, self.moment)))
        self.passes("start")

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            self.passes(call.__name__)
            result = call(*arguments, **options)
            self.passes(call.__name__)
            return result

        return counting

    def passes(self, moment: str) -> None:
        if moment != self.moment:
            return
        self.seen += 1
        if self.seen == self.number and self.delay:
            threading.Thread(target=lambda: (time.sleep(self.delay), self.happen()), daemon=True).start()
        elif self.seen == self.number:
            self.happen()

    def happen(self) -> None:
        if self.action in ("SIGSTOP", "hang", "full", "limit"):
            self.trainer.fitting.writer.wait()  # so that it is known which checkpoint is the last
        match self.action:
            case "raise":
                raise ValueError("the callback is broken")
            case "exit":
                sys.exit()
            case "hang":
                time.sleep(1000)
            case "stop":
                self.trainer.stop("it is enough")
            case "full":
                os.write = full
            case "limit":  # the kernel refuses larger files
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            case "launcher SIGINT" | "launcher SIGTERM":
                os.kill(os.getppid(), getattr(signal, self.action.split()[1]))
                until = time.monotonic() + 30.0
                while self.trainer.fitting.interrupts.requested is None and time.monotonic() < until:
                    time.sleep(0.01)
            case name:
                os.kill(os.getpid(), getattr(signal, name))

    def on_fit_start(self, trainer: Any) -> None:
        self.trainer = trainer
        self.before = {f"before.{name}": leaf for name, leaf in tree.named_leaves(trainer.state).items()}

    def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
        self.passes("dispatch")

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        self.passes("epoch")


def full(descriptor: int, data: Any) -> int:
    """`os.write` on a disk without space; stdout and stderr are no files."""
    if descriptor <= 2:
        return sys.__stderr__.buffer.raw.write(data)  # pyright: ignore
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run(directory: Path, plan: Plan) -> None:
    fault = Fault(**plan.fault)
    where = None
    if plan.strategy:
        where = parallel.strategy(plan.strategy, parallel.mesh(plan.ranks, device="cpu"))
    keys = random.split(random.key(plan.model), 2)
    model = nn.Sequential(nn.Dense(784, 33, key=keys[0]), ops.tanh, nn.Dense(33, 10, key=keys[1]))
    trainer = train.Trainer(
        model, losses.cross_entropy, OPTIMIZER, batch_size=plan.batch_size, parallel=where, seed=3,
        device=None if where else "cpu", steps_per_dispatch=1, stream=plan.stream,
    )  # fmt: skip
    (x, y), (u, v) = digits(1, SAMPLES), digits(1, 61, seed=plan.validation)
    if plan.poison is not None:
        x[0, plan.poison] = np.nan
    if plan.evaluated is not None:
        trainer.evaluate((u[0, : plan.evaluated], v[0, : plan.evaluated]))
    if plan.restored is not None:
        trainer.restore({**initial_state(trainer.objective, trainer.optimizer), "step": np.int32(plan.restored)})
    stopping = [train.EarlyStopping(patience=plan.patience, minimum_change=1.0)] if plan.patience else []
    history = trainer.fit(
        data.Dataset(x[0], y[0], finite=plan.poison is None), plan.epochs, validation=(u[0], v[0]),
        callbacks=[fault, *stopping], run=directory / plan.name if plan.every else None,
        resume="latest" if plan.every else None, checkpoint_every=plan.every, verbose=plan.verbose,
    )  # fmt: skip
    after = {f"after.{name}": leaf for name, leaf in tree.named_leaves(trainer.state).items()}
    if parallel.leader():
        validated = [record["val_loss"] for record in history]
        np.savez(directory / f"{plan.name}.npz", losses=history.steps, validated=validated, **fault.before, **after)


def main(directory: Path, runs: list[dict[str, Any]]) -> None:
    rank = int(os.environ.get("ANTEGRAD_PROCESS_INDEX", 0))
    for settings in runs:
        own = settings.pop("own", {}).get(str(rank), {})  # settings of this rank alone
        plan = Plan(**{**settings, **own})
        try:
            if plan.absent:
                parallel.initialize()
            else:
                run(directory, plan)
        except SettingError as error:
            print(f"{plan.name} refused: {error}", flush=True)


if __name__ == "__main__":
    sys.modules["tensorboardX"] = None  # pyright: ignore  (it imports PyTorch, for seconds)
    try:
        main(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
