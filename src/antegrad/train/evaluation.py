"""Evaluation and prediction: whole data sets through a model, every sample once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from antegrad import tree
from antegrad.data import Dataset
from antegrad.errors import ShapeError
from antegrad.ir.types import type_of
from antegrad.runtime.memory import fetch, ready
from antegrad.train.checks import check_widths, named
from antegrad.train.engine import CHUNK
from antegrad.train.objective import Objective, batch_size, batch_type
from antegrad.train.shares import Shares, filled

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
    arrays, place = (dataset.inputs, dataset.targets), trainer.place
    objective = trainer.objective if metrics is None else replace(trainer.objective, metrics=metrics)
    batch = min(trainer.batch_size, len(dataset))
    batch += -batch % place.ranks  # every rank has an equal part; what fills it up has the weight 0
    streamed = not trainer.residence.holds(arrays) and trainer.streams(dataset)
    share, own_batch = -(-len(dataset) // place.ranks), batch // place.ranks
    rows = min(own_batch * CHUNK, share) if streamed else share
    example, weighted = batch_type(arrays, rows * place.ranks), has_short_batches(len(dataset), batch, place.ranks)
    sharded = trainer.engine is not None and place.holds_shards(trainer.averaged)
    key = "evaluate", example, batch, weighted, sharded, *objective.metrics.items()
    compiled = trainer.cached(key, lambda: _Evaluation(trainer, objective, batch, example, weighted, sharded))
    model, sums = trainer.evaluated(), place.put_sums(objective.reported)
    for start in range(0, share, rows):
        own = _shares(arrays, share, place.ranks, rows, start)
        data = tree.leaves(place.put_examples(own) if streamed else trainer.residence.placed(arrays, own))
        counts = [max(0, min(share, len(dataset) - rank * share) - start) for rank in range(place.ranks)]
        samples = place.put_samples([min(count, rows) for count in counts])
        before, sums = sums, compiled.added(model, sums, data, samples, min(max(counts), rows), stop)
        ready(before)  # or the copies would run ahead of the computation, and fill the device
    return objective.means(place.added(sums))


def has_short_batches(count: int, batch: int, ranks: int) -> bool:
    """Whether batches of an evaluation of `count` samples, `batch` at a time on all ranks, have to be filled up."""
    return count % ranks != 0 or count // ranks % (batch // ranks) != 0


def _shares(arrays: Any, share: int, ranks: int, rows: int, start: int) -> Any:
    """`arrays` by the shares of the ranks; as they are where they are one."""
    if ranks == 1 and rows == share:
        return arrays
    return tree.map(lambda array: Shares(array, share, ranks, rows=rows, start=start), arrays)


class _Evaluation:
    """The executable for data of one type, and how long it takes for a batch."""

    def __init__(
        self, trainer: Trainer, objective: Objective, batch: int, arrays: Any, weighted: bool, sharded: bool
    ) -> None:
        self.place = trainer.place
        self.loops = trainer.loops(objective.prediction(batch_type(arrays[0], batch)))
        self.run = self.place.evaluation(
            objective, batch, arrays, self.loops, weighted, trainer.transformed, sharded
        )
        self.batch = batch // self.place.ranks
        self.seconds: float | None = None

    def added(
        self, model: list[Any], sums: Any, data: list[Any], samples: Any, most: int, stop: Callable[[], bool]
    ) -> Any:
        """`sums` with those of all batches of `data`, of which a rank has at most `most` samples."""
        steps, first = -(-most // self.batch), 0
        while first < steps:
            if stop():
                raise EvaluationStopped
            count, started = min(self._at_once(), steps - first), time.perf_counter()
            sums = tree.leaves(self.run(*model, *sums, *data, samples, np.int32(first), np.int32(count)))
            first += count
            if first < steps or self.seconds is None:
                ready(sums)
                taken = (time.perf_counter() - started) / count
                self.seconds = self.place.agreed("evaluation", taken)
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
        yield tree.map(lambda leaf: filled(leaf, rows, leaf[:1]), part), samples


def predict_batches(trainer: Trainer, inputs: Any) -> Any:
    """The model's results for `inputs`, batch by batch, put together; the last batch is filled up and cut off.

    Raises `ShapeError` for inputs without samples or of unequal length, `DTypeError` for wider floats than the model's.
    """
    size = min(trainer.batch_size, _sample_count(trainer, tree.leaves(inputs)))
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


def _sample_count(trainer: Trainer, leaves: Sequence[np.ndarray]) -> int:
    """How many samples the inputs of a prediction have; inputs that do not fit each other or the model are refused."""
    found = ", ".join(str(type_of(leaf)) for leaf in leaves) or "nothing"
    if not leaves or any(leaf.ndim == 0 or not len(leaf) for leaf in leaves):
        raise ShapeError(f"predict needs at least one sample along the first axis, found {found}")
    counts = [len(leaf) for leaf in leaves]
    if len(set(counts)) > 1:
        lengths = " and ".join(map(str, counts))
        raise ShapeError(f"predict: inputs must have one row for each sample, found {found} with {lengths} rows")
    names = ["inputs"] if len(leaves) == 1 else [f"inputs{number}" for number in range(len(leaves))]
    fields: dict[str, Any] = dict(zip(names, leaves, strict=True))
    with named("predict"):
        check_widths(trainer.objective.model, Dataset(finite=False, **fields))
    return counts[0]
