"""Evaluation and prediction: whole data sets through a model, every sample once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from antegrad import tree
from antegrad.data import Dataset
from antegrad.errors import ShapeError
from antegrad.ir.types import type_of
from antegrad.runtime.compile import compile as compile_program
from antegrad.runtime.memory import fetch, put
from antegrad.train.loop import evaluation_program
from antegrad.train.objective import Objective, batch_type

if TYPE_CHECKING:
    from antegrad.train.trainer import Trainer

Metrics = Mapping[str, Callable[[Any, Any], Any]]

CHUNK = 64
"""Batches of evaluation in one dispatch, so that Ctrl-C is answered soon."""


def evaluate_dataset(trainer: Trainer, dataset: Dataset, metrics: Metrics | None = None) -> dict[str, float]:
    """The weighted means of the loss and of each metric (those of the trainer if None) over `dataset`."""
    arrays = (dataset.inputs, dataset.targets)
    objective = trainer.objective if metrics is None else replace(trainer.objective, metrics=metrics)
    batch = min(trainer.batch_size, len(dataset))
    steps = -(-len(dataset) // batch)
    types = tuple(map(type_of, tree.leaves(arrays)))
    key = "evaluate", types, *objective.metrics.items()
    compiled = trainer.cached(key, lambda: _compiled_evaluation(trainer, objective, batch, arrays))
    data = trainer.placed(arrays)
    sums = put([np.float32(0)] * (2 + len(objective.metrics)), trainer.device)
    model = trainer.device_model
    step = CHUNK if compiled.loops else 1
    for first in range(0, steps, step):
        count = min(step, steps - first)
        leaves = [*tree.leaves(model), *sums, *tree.leaves(data), np.int32(first), np.int32(count)]
        sums = tree.leaves(compiled.run(*leaves))
    total, whole, *others = (float(value) for value in fetch(sums))
    whole = whole or 1.0
    return {"loss": total / whole, **{n: m / whole for n, m in zip(objective.metrics, others, strict=True)}}


class _Evaluation:
    def __init__(self, run: Any, loops: bool) -> None:
        self.run, self.loops = run, loops


def _compiled_evaluation(trainer: Trainer, objective: Objective, batch: int, arrays: Any) -> _Evaluation:
    loops = trainer.loops(objective.prediction(batch_type(arrays[0], batch)))
    program = trainer.transformed(evaluation_program(objective, batch, arrays, loops))
    return _Evaluation(compile_program(program, device=trainer.device), loops)


def predict_batches(trainer: Trainer, inputs: np.ndarray) -> Any:
    """The model's results for `inputs`, batch by batch, put together; the last batch is filled up and cut off."""
    if inputs.ndim == 0 or len(inputs) == 0:
        raise ShapeError(f"predict needs at least one sample along the first axis, found {type_of(inputs)}")
    size = min(trainer.batch_size, len(inputs))
    type = batch_type(inputs, size)

    def compiled() -> Any:
        return compile_program(trainer.transformed(trainer.objective.prediction(type)), device=trainer.device)

    run = trainer.cached(("predict", type), compiled)
    model = trainer.device_model
    parts = []
    for first in range(0, len(inputs), size):
        rows = inputs[first : first + size]
        filled = np.concatenate([rows, np.repeat(rows[:1], size - len(rows), 0)]) if len(rows) < size else rows
        found = fetch(run(*tree.leaves(model), filled))
        count = len(rows)
        parts.append(tree.map(lambda leaf, count=count: leaf[:count], found))
    return tree.map(lambda *leaves: np.concatenate(leaves), *parts)
