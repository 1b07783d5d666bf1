"""Evaluation and prediction: whole data sets through a model, every sample once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from antegrad import tree
from antegrad.data import Dataset
from antegrad.errors import ShapeError
from antegrad.ir.types import type_of
from antegrad.runtime.memory import fetch, put
from antegrad.train.engine import CHUNK
from antegrad.train.loop import evaluation_program
from antegrad.train.objective import Objective, batch_size, batch_type

if TYPE_CHECKING:
    from antegrad.train.trainer import Trainer

Metrics = Mapping[str, Callable[[Any, Any], Any]]

PATIENCE = 0.5
"""Seconds that one dispatch should take at most, so that Ctrl-C is answered soon."""


class EvaluationStopped(Exception):
    """What `evaluate_dataset` raises when it is asked to stop."""


def evaluate_dataset(
    trainer: Trainer, dataset: Dataset, metrics: Metrics | None = None, stop: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """The weighted means of the loss and of each metric (those of the trainer if None) over `dataset`.

    Data that do not fit on the device are copied in parts, with the same result. Raises `EvaluationStopped` soon after
    `stop` gives True.
    """
    arrays = (dataset.inputs, dataset.targets)
    objective = trainer.objective if metrics is None else replace(trainer.objective, metrics=metrics)
    batch = min(trainer.batch_size, len(dataset))
    streamed = not trainer.holds(arrays) and trainer.streams(dataset)
    rows = min(batch * CHUNK, len(dataset)) if streamed else len(dataset)
    example, weighted = batch_type(arrays, rows), len(dataset) % batch != 0
    key = "evaluate", example, batch, weighted, *objective.metrics.items()
    compiled = trainer.cached(key, lambda: _Evaluation(trainer, objective, batch, example, weighted))
    model = tree.leaves(trainer.device_model)
    sums = put([np.float32(0)] * (2 + len(objective.metrics)), trainer.device)
    for own, samples in _parts(arrays, rows) if streamed else [(arrays, len(dataset))]:
        data = tree.leaves(put(own, trainer.device) if streamed else trainer.placed(own))
        before, sums = sums, compiled.added(model, sums, data, samples, stop)
        fetch(before)  # or the copies would run ahead of the computation, and fill the device
    total, whole, *others = (float(value) for value in fetch(sums))
    whole = whole or 1.0
    return {"loss": total / whole, **{n: m / whole for n, m in zip(objective.metrics, others, strict=True)}}


class _Evaluation:
    """The executable for data of one type, and how long it takes for a batch."""

    def __init__(self, trainer: Trainer, objective: Objective, batch: int, arrays: Any, weighted: bool) -> None:
        self.loops = trainer.loops(objective.prediction(batch_type(arrays[0], batch)))
        self.run = trainer.compiled(evaluation_program(objective, batch, arrays, self.loops, weighted))
        self.batch = batch
        self.seconds: float | None = None

    def added(self, model: list[Any], sums: Any, data: list[Any], samples: int, stop: Callable[[], bool]) -> Any:
        """`sums` with those of all batches of `data`."""
        steps, first = -(-samples // self.batch), 0
        while first < steps:
            if stop():
                raise EvaluationStopped
            count, started = min(self._at_once(), steps - first), time.perf_counter()
            scalars = np.int32(samples), np.int32(first), np.int32(count)
            sums = tree.leaves(self.run(*model, *sums, *data, *scalars))
            first += count
            if first < steps or self.seconds is None:
                fetch(sums[:1])
                self.seconds = (time.perf_counter() - started) / count
        return sums

    def _at_once(self) -> int:
        """Batches of the next dispatch; results do not depend on it."""
        if not self.loops or self.seconds is None:
            return 1
        return max(1, int(PATIENCE / max(self.seconds, 1e-9)))


def _parts(arrays: Any, rows: int) -> Iterator[tuple[Any, int]]:
    """`arrays` in parts of `rows` rows, and how many of these are samples; the last part is filled up."""
    count = batch_size(arrays)
    for start in range(0, count, rows):
        samples = min(rows, count - start)
        part = tree.map(lambda leaf, start=start: leaf[start : start + rows], arrays)
        yield tree.map(lambda leaf: _filled(leaf, rows), part), samples


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    """`rows` and as many of its first row as make `size` together."""
    missing = size - len(rows)
    return np.concatenate([rows, np.repeat(rows[:1], missing, 0)]) if missing else rows


def predict_batches(trainer: Trainer, inputs: Any) -> Any:
    """The model's results for `inputs`, batch by batch, put together; the last batch is filled up and cut off."""
    leaves = tree.leaves(inputs)
    if not leaves or any(leaf.ndim == 0 or len(leaf) != len(leaves[0]) or not len(leaf) for leaf in leaves):
        found = ", ".join(str(type_of(leaf)) for leaf in leaves) or "nothing"
        raise ShapeError(f"predict needs at least one sample along the first axis, found {found}")
    size = min(trainer.batch_size, len(leaves[0]))
    type = batch_type(inputs, size)
    run = trainer.cached(("predict", type), lambda: trainer.compiled(trainer.objective.prediction(type)))
    for output in run.program.output_types:
        if output.shape[:1] != (size,):
            raise ShapeError(f"predict: for a batch of {size} the model gives {output}, not one result a sample")
    model = tree.leaves(trainer.device_model)
    found = []
    for own, count in _parts(inputs, size):
        made = fetch(run(*model, *tree.leaves(own)))
        found.append(tree.map(lambda leaf, count=count: leaf[:count], made))
    return tree.map(lambda *leaves: np.concatenate(leaves), *found)
