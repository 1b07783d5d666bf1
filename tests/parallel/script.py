"""Trains a small model on handwritten digits; the tests start it as several processes: ``script.py DIRECTORY PLAN``.

PLAN is JSON: a list of runs, one after the other. Each has the settings of `Plan`, and a fault may come in it: one rank
is killed, stopped or asked to end at a certain moment, or its disk is full, or its code raises, or its settings are
other ones. What comes of a run goes to ``DIRECTORY/NAME.npz``: the losses, the state and the loss of the validation.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from antegrad import losses, nn, ops, optim, parallel, random, train, tree
from benchmarks.twins.batches import digits

SAMPLES, STEPS = 250, 8
"""Of an epoch, with 32 samples a batch: the last one is short."""
CALLS = ("write", "fsync", "replace", "unlink")


@dataclass
class Plan:
    """One run."""

    name: str
    strategy: str | None = None
    """ddp, zero1, zero2 or zero3; None for a training on one device."""
    ranks: int | None = None
    epochs: int = 2
    batch_size: int = 32
    stream: bool = False
    every: int | None = None
    saves: bool = False
    """Whether there is a directory for the run, ``DIRECTORY/NAME``. If it holds this run already, that goes on."""
    verbose: bool = False
    patience: int | None = None
    """That of early stopping, on a validation that gets worse."""
    fault: dict[str, Any] = field(default_factory=dict)
    """``rank``, ``moment``, ``number`` and ``action`` of `Fault`."""
    other: dict[str, Any] = field(default_factory=dict)
    """Settings of rank ``rank`` alone."""


class Fault(train.Callback):
    """On one rank, at the `number`-th of the `moment`s, something happens."""

    def __init__(self, rank: int = -1, moment: str = "", number: float = 0, action: str = "kill") -> None:
        self.moment, self.number, self.action = moment, number, action
        self.seen, self.here = 0, rank == parallel.index()
        if self.here and moment in CALLS:
            self.counted(moment)
        if self.here and moment == "start":
            self.happen()

    def counted(self, name: str) -> None:
        """Each call of a function of the operating system has a moment before and one after it."""
        call: Callable[..., Any] = getattr(os, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            self.passes(name)
            result = call(*arguments, **options)
            self.passes(name)
            return result

        setattr(os, name, counting)

    def passes(self, moment: str) -> None:
        if not self.here or moment != self.moment:
            return
        self.seen += 1
        if self.seen == self.number:
            self.happen()

    def happen(self) -> None:
        print(f"fault {self.action}", flush=True)
        match self.action:
            case "raise":
                raise ValueError("the callback is broken")
            case "full":
                os.write = full
            case "error in another thread":
                pass
            case name:
                os.kill(os.getpid(), getattr(signal, name))

    def on_fit_start(self, trainer: Any) -> None:
        if self.here and self.moment == "time":
            timer = threading.Timer(self.number, self.happen)
            timer.daemon = True
            timer.start()

    def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
        self.passes("dispatch")

    def on_epoch_end(self, trainer: Any, epoch: int, record: dict[str, Any]) -> None:
        self.passes("epoch")


def full(descriptor: int, data: Any) -> int:
    """As `os.write` on a disk that has no space left, but for what is said on stdout and stderr."""
    if descriptor <= 2:
        return sys.__stdout__ is not None and len(data)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def trainer(plan: Plan) -> train.Trainer:
    where = None
    if plan.strategy:
        where = parallel.strategy(plan.strategy, parallel.mesh(plan.ranks, device="cpu"))
    keys = random.split(random.key(0), 2)
    model = nn.Sequential(nn.Dense(784, 33, key=keys[0]), ops.tanh, nn.Dense(33, 10, key=keys[1]))
    return train.Trainer(
        model, losses.cross_entropy, optim.adam(1e-3), batch_size=plan.batch_size, parallel=where,
        device=None if where else "cpu", steps_per_dispatch=1, stream=plan.stream, seed=3,
    )  # fmt: skip


def run(directory: Path, plan: Plan) -> None:
    made = trainer(plan)
    (x, y), (u, v) = digits(1, SAMPLES), digits(1, 61, seed=1)
    history = made.fit(
        (x[0], y[0]), plan.epochs, validation=(u[0], v[0]), callbacks=[Fault(**plan.fault)], verbose=plan.verbose,
        run=directory / plan.name if plan.saves else None, resume="latest" if plan.saves else None,
        checkpoint_every=plan.every,
    )  # fmt: skip
    state = {f"state.{name}": leaf for name, leaf in tree.named_leaves(made.state).items()}
    if parallel.leader():
        values = [record["val_loss"] for record in history]
        np.savez(directory / f"{plan.name}.npz", losses=history.steps, values=values, **state)


def main(directory: Path, plans: list[dict[str, Any]]) -> None:
    for settings in plans:
        plan = Plan(**settings)
        run(directory, plan)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
