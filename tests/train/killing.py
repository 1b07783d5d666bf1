"""Trains in processes that are killed with SIGKILL; test_killed runs it with a directory, a kind, a count and a seed.

This process imports everything and starts no XLA client, so that it can fork. Each child trains on in the directory of
its run, and is killed there: by this process after a while, or by itself at a call of the operating system (halfway
through a file, before or after a rename, ...) or at a dispatch. A line of JSON on stdout tells how each child ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from antegrad import checkpoint, data, losses, nn, optim, random, train, tree

EPOCHS, COUNT, BATCH = 4, 50, 8
STEPS, EVAL_EVERY, CONTEXT = 25, 6, 8
LAST = {"images": EPOCHS * -(-COUNT // BATCH), "text": STEPS}
"""The last step of a run."""
CALLS = ("write", "fsync", "replace", "unlink")
MOMENTS = ("start", "time", "dispatch", CALLS)
"""What decides when kills of a run come: calls before the first step, the clock, dispatches, calls at any time."""
FIRST_SAVE = 7
"""The moments of renaming before it are those of the settings and the records."""

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (COUNT, 4, 4, 1)).astype(np.uint8)
OTHER = RNG.integers(0, 256, (20, 4, 4, 1)).astype(np.uint8)
"""These images have labels by chance: the first epoch has the best validation loss."""
LABELS = RNG.integers(0, 3, COUNT).astype(np.int32)
TOKENS = RNG.integers(0, 11, 200).astype(np.uint16)


def write_weights(directory: Path, trainer: train.Trainer) -> None:
    """What a user of the trainer finds in it afterwards."""
    digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in tree.leaves(trainer.model)))
    (directory / "weights.txt").write_text(digest.hexdigest())


def train_images(directory: Path, callback: train.Callback, every: int | None, settings: dict[str, Any]) -> None:
    first, second = random.split(random.key(0))
    model = nn.Sequential(
        nn.Flatten(), nn.Dense(16, 64, key=first), nn.BatchNorm(64), nn.relu, nn.Dropout(0.3),
        nn.Dense(64, 3, key=second),
    )  # fmt: skip
    trainer = train.Trainer(
        model, losses.cross_entropy, optim.adam(0.01), batch_size=BATCH, device="cpu", ema=0.9,
        augment=data.Augment([data.RandomCrop(1), data.HorizontalFlip()]),
        metrics={"accuracy": train.metrics.accuracy}, **settings,
    )  # fmt: skip
    trainer.fit(
        (IMAGES, LABELS), EPOCHS, validation=(OTHER, LABELS[:20]), run=directory, resume="latest",
        checkpoint_every=every, keep=2, callbacks=[train.EarlyStopping(patience=50), callback], verbose=False,
    )  # fmt: skip
    write_weights(directory, trainer)


def train_text(directory: Path, callback: train.Callback, every: int | None, settings: dict[str, Any]) -> None:
    config = nn.models.GPTConfig(vocabulary=11, context=CONTEXT, layers=1, heads=2, features=8, dropout=0.1)
    model = nn.models.GPT(config, key=random.key(0))
    streamed = settings.pop("stream", False)
    trainer = train.AutoregressiveTrainer(
        model, optim.adamw(0.01), context=CONTEXT, batch_size=4, device="cpu", device_batches=not streamed, **settings
    )
    trainer.fit(
        TOKENS, STEPS, eval_every=EVAL_EVERY, validation=TOKENS[:50], run=directory, resume="latest",
        checkpoint_every=every, keep=2, callbacks=[callback], verbose=False,
    )  # fmt: skip
    write_weights(directory, trainer)


TRAINERS: dict[str, Callable[..., None]] = {"images": train_images, "text": train_text}
SETTINGS: list[dict[str, Any]] = [{}, {"steps_per_dispatch": 1}, {"stream": True}]
EVERY = (2, 3, None)
"""Steps between checkpoints. Every child has one of each: none may change a bit."""


class Counter(train.Callback):
    """Counts dispatches and calls of the operating system, and kills the process at one of them."""

    def __init__(self, moment: str, number: int) -> None:
        self.moment, self.number, self.started = moment, number, False
        self.seen = dict.fromkeys(("start", "dispatch", *CALLS), 0)
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))

    def on_fit_start(self, trainer: Any) -> None:
        self.started = True

    def on_dispatch(self, trainer: Any, step: int, values: Any) -> None:
        self._passes("dispatch")

    def _passes(self, moment: str) -> None:
        self.seen[moment] += 1
        if moment == self.moment and self.seen[moment] == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with a moment before and one after it; much that is to be written is written in parts."""

        def counted(*arguments: Any, **options: Any) -> Any:
            self._calls(call.__name__)
            if call.__name__ == "write" and len(arguments[1]) > 1000:
                arguments = (arguments[0], arguments[1][: len(arguments[1]) // 2])
            result = call(*arguments, **options)
            self._calls(call.__name__)
            return result

        return counted

    def _calls(self, name: str) -> None:
        self._passes(name)
        if not self.started:
            self._passes("start")


def in_child(work: Callable[[], None]) -> int:
    """The number of a process that does `work`."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended(child: int, within: float) -> int:
    """How a child ended that is killed after `within` seconds: 0, its exit code, or minus the number of the signal."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def reference(kind: str, directory: Path) -> tuple[dict[Any, dict[str, int]], float]:
    """A run that nobody kills, in `directory`, and what there is to count in such runs by `EVERY`; their duration.

    All that the children need is compiled here.
    """
    counts, seconds = {}, 0.0
    for number, (every, settings) in enumerate([*zip(EVERY, SETTINGS, strict=True), (EVERY[0], SETTINGS[0])]):
        place = directory.with_name(f"{directory.name}{number or ''}")
        began = time.monotonic()

        def work(place: Path = place, every: int | None = every, settings: dict[str, Any] = settings) -> None:
            counter = Counter("", 0)
            TRAINERS[kind](place, counter, every, dict(settings))
            place.with_suffix(".json").write_text(json.dumps(counter.seen))

        assert ended(in_child(work), 120) == 0
        seconds = time.monotonic() - began
        counts[every] = json.loads(place.with_suffix(".json").read_text())
    return counts, seconds


class Warnings(logging.Handler):
    """Keeps what the library logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def found(directory: Path) -> dict[str, Any]:
    """The step of `latest` (0 without a checkpoint), its whole file read, and what was warned of."""
    handler = Warnings()
    logging.getLogger("antegrad").addHandler(handler)
    try:
        path = train.latest(directory)
        step = 0 if path is None else checkpoint.training_info(checkpoint.load(path)).step
        return {"latest": step, "warnings": handler.lines}
    except Exception as error:
        return {"latest": None, "error": repr(error), "warnings": handler.lines}
    finally:
        logging.getLogger("antegrad").removeHandler(handler)


def killed_run(kind: str, directory: Path, counts: Any, seconds: float, rng: np.random.Generator) -> int:
    """One run with its kills, to its end; how many kills there were."""
    kills, left = 0, 1.0
    for turn in ["first", *rng.permutation(len(MOMENTS)), "never"]:
        moment = turn if isinstance(turn, str) else MOMENTS[turn]
        moment = moment if isinstance(moment, str) else str(rng.choice(moment))
        every, settings = EVERY[rng.integers(len(EVERY))], dict(SETTINGS[rng.integers(len(SETTINGS))])
        number = 1 + int(rng.random() * counts[every].get(moment, 0) * (1.0 if moment == "start" else left))
        if moment == "first":  # each run in another moment of the first save, which comes at the end of an epoch
            moment, every, number = "replace", None, FIRST_SAVE + int(directory.name[6:]) % 6
        within = rng.random() * seconds if moment == "time" else 120.0

        def work(moment: str = moment, number: int = number, every: Any = every, settings: Any = settings) -> None:
            TRAINERS[kind](directory, Counter(moment, number), every, settings)

        code = ended(in_child(work), within)
        state = found(directory)
        how = {"run": directory.name, "moment": moment, "number": number, "every": every, "settings": settings}
        print(json.dumps({**how, "code": code, **state}), flush=True)
        if code == 0:
            break
        kills += code == -signal.SIGKILL
        left = 1 - (state["latest"] or 0) / LAST[kind]
    return kills


def main(root: Path, kind: str, kills: int, seed: int) -> None:
    jax.config.update("jax_compilation_cache_dir", str(root / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with contextlib.suppress(ImportError):
        import tensorboardX  # noqa: F401  (here, or every child would take a second for it)
    counts, seconds = reference(kind, root / "whole")
    rng, done, number = np.random.default_rng(seed), 0, 0
    while done < kills and number < 2 * kills:
        done += killed_run(kind, root / f"killed{number}", counts, seconds, rng)
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
