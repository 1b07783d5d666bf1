"""`Trainer`: supervised training of a model on a data set that lies on the device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from antegrad import optim, tree
from antegrad.capture import capture
from antegrad.data import Dataset, as_dataset
from antegrad.errors import SettingError, ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import spec, type_of
from antegrad.ops.dispatch import as_array
from antegrad.passes.autocast import autocast
from antegrad.runtime.compile import Compiled
from antegrad.runtime.compile import compile as compile_program
from antegrad.train.alike import check_samples, digest
from antegrad.train.callbacks import Callback
from antegrad.train.checks import (
    check_choices,
    check_functions,
    check_state,
    check_targets,
    check_widths,
    checked_numbers,
    named,
)
from antegrad.train.engine import Engine, StreamingEngine
from antegrad.train.evaluation import PATIENCE, evaluate_dataset, has_short_batches, predict_batches
from antegrad.train.feeds import Augment, EpochFeed, Feed
from antegrad.train.fitting import Fit
from antegrad.train.history import History
from antegrad.train.loop import types
from antegrad.train.objective import KEY, Objective, as_input_type, batch_size, batch_type
from antegrad.train.placement import placement
from antegrad.train.programs import State, StepPrograms, averaged_state, has_convolutions, initial_state, model_of
from antegrad.train.residence import Residence

if TYPE_CHECKING:
    from antegrad.parallel.strategy import Strategy

logger = logging.getLogger("antegrad")


class Trainer:
    """Trains `model` to minimise `loss` with `optimizer`.

        trainer = train.Trainer(model, losses.cross_entropy, optim.adam(1e-3), batch_size=100)
        history = trainer.fit(data.mnist("train"), epochs=5, validation=data.mnist("test"))

    The data are copied to the device once. Shuffle, batches, augmentation, forward and backward pass and optimizer are
    one program, which runs many steps a dispatch. Where loops are slow (convolutions on XLA:CPU) it runs one.

    Arguments:
      model: a `nn.Module`; called in training by `nn.training_call`, with a key that depends on seed and step.
      loss: see `Objective`; those of `antegrad.losses`, also with keywords bound by `functools.partial`.
      batch_size: samples a step. The last batch of an epoch may be short: it is filled up, and what fills it has weight
        0 in loss, metrics and batch statistics, so every sample counts once and there is one executable.
      seed: the order of the samples is a function of (seed, epoch), dropout masks one of (seed, step, layer path),
        augmentation one of (seed, epoch, index of the sample).
      device: as for `ag.compile`.
      precision: "f32", or "bf16": f32 weights, activations and products in bf16 (see `passes.autocast`).
      metrics: functions by name that give one value a sample for ``(prediction, target)``.
      accumulate: work a batch off in so many parts, for the memory of one part.
      clip_norm: the largest global norm of a gradient.
      ema: decay of an average of the weights, which is then what `evaluate` and `predict` use.
      shuffle: False keeps the order of the data.
      steps_per_dispatch: how many steps at most run before the host looks up; results do not depend on it. "auto": as
        many as take about half a second.
      stream: True leaves the data on the host and copies batches while the device computes; False never does; None
        does where the data would take more than half of what is free on the device. Results are the same.
      graph_capture: NVIDIA GPUs: record the step as a CUDA graph. Elsewhere it changes nothing.
      deterministic: GPUs: forbid what makes two runs differ, at some cost in speed. A CPU always repeats itself.
      parallel: several devices, each with its part of every batch: ``parallel.ddp()`` or ``parallel.zero(level)``.
        `batch_size` stays that of the whole batch. In a run of several processes all of them make the same calls.

    u8 inputs are taken for images, and divided by 255 on the device. Raises `SettingError` for settings that make no
    sense, before any work.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: optim.Optimizer,
        *,
        batch_size: int = 32,
        seed: int = 0,
        device: str | None = None,
        precision: Literal["f32", "bf16"] = "f32",
        augment: Augment | None = None,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        ema: float | None = None,
        shuffle: bool = True,
        steps_per_dispatch: int | Literal["auto"] = "auto",
        stream: bool | None = None,
        graph_capture: bool = False,
        deterministic: bool = False,
        parallel: Strategy | None = None,
    ) -> None:
        owner = type(self).__name__
        numbers = checked_numbers(owner, batch_size=batch_size, accumulate=accumulate, seed=seed)
        flags = {"shuffle": shuffle, "graph_capture": graph_capture, "deterministic": deterministic}
        check_choices(owner, precision, steps_per_dispatch, stream, **flags)
        check_functions(owner, model, loss, optimizer, augment, metrics)
        self.objective = Objective(model, loss, dict(metrics or {}))
        self.optimizer = _optimizer(optimizer, clip_norm, ema)
        self.batch_size, self.accumulate, self.seed = numbers
        self.augment, self.precision, self.shuffle = augment, precision, shuffle
        self.steps_per_dispatch, self.stream, self.averaged = steps_per_dispatch, stream, ema is not None
        self.stop_reason: str | None = None
        self.fitting: Fit | None = None
        self.clock = time.perf_counter
        self.place = placement(parallel, device, graph_capture, deterministic)
        self.device, self.residence = self.place.device, Residence(self.place)
        self.epoch = 0
        """Epochs done."""
        self.begun: tuple[int, list[float]] = (0, [])
        """Steps of the next epoch that are done already, and what they reported together."""
        self.begun_on: Any = None
        """The data of these steps."""
        self.engine: Engine | None = None
        self.compilations: list[str] = []
        """A line for each executable that training needed; from the second on it says what changed."""
        self.restored: str | None = None
        """A digest of what was restored since the last fit, where several processes train together."""
        self._initial: State | None = None
        self._cache: dict[Any, Any] = {}

    # what is trained

    @property
    def model(self) -> Any:
        """The model with its present weights, as NumPy arrays (the averaged ones with `ema`)."""
        if self.engine is None:
            return tree.map(np.asarray, self.device_model)
        return self.place.host_model(self.engine.programs, self.engine.device_state, self.averaged)

    @property
    def state(self) -> State:
        """Everything that a step changes, as NumPy arrays: ``param``, ``state``, ``opt``, ``step``, ``failed``."""
        if self.engine is not None:
            return self.engine.state
        if self._initial is None:
            raise SettingError("Trainer: nothing has been trained or restored yet")
        return self._initial

    def restore(self, state: State) -> None:
        """Go on from `state`, as `state` gave it.

        Raises `ShapeError` or `DTypeError` for one that is not of this model and optimizer, with the name of an array.
        """
        if not isinstance(state, Mapping):
            raise SettingError(f"restore: expected what Trainer.state gives, found {state!r}")
        state = {**state, "failed": np.int32(-1)}
        if self.engine is not None:
            self.engine.load(state)
        else:
            check_state(state, tree.map(type_of, initial_state(self.objective, self.optimizer)))
        self._initial, self.begun = state, (0, [])
        self.restored = None if self.place.group is None else digest(tree.leaves(state))

    def snapshot(self) -> State:
        """`state`, under the name that callbacks use."""
        return self.state

    def saved_snapshot(self, step: int) -> State | None:
        """The state in the checkpoint of `step` of the run that is going on; None where there is none."""
        return None if self.fitting is None else self.fitting.saved_state(step)

    @property
    def executables(self) -> int:
        """How many executables training needed so far; 1 as long as the data keep their shapes."""
        return len(self.compilations)

    # training

    def fit(
        self,
        train: Any,
        epochs: int,
        *,
        validation: Any = None,
        run: str | Path | None = None,
        resume: Literal["latest"] | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_every: int | None = None,
        keep: int = 3,
        verbose: bool = True,
    ) -> History:
        """Train on `train` until `epochs` epochs are done, those of a resumed run included.

        Arguments:
          train, validation: a `data.Dataset`, or a pair of arrays ``(inputs, targets)``.
          run: a directory for the configuration, metrics, checkpoints and a summary of this run; it must not hold
            another one.
          resume: "latest" goes on from the latest checkpoint in `run`, if there is one: the rest of the training has
            the same bits as if it had never stopped, also from the middle of an epoch. The history then has the
            records of all epochs, and the losses of the steps since.
          checkpoint_every: steps between checkpoints, beside the one at the end of each epoch.
          keep: how many of the latest checkpoints stay.
        Raises `SettingError`, `DataError`, `LabelError`, `ShapeError` before any work; `NonFiniteError` at a step whose
        loss is NaN or infinite, with the weights as they were before it; `KeyboardInterrupt` (and `SystemExit` with
        143 for SIGTERM) after the state has been saved.
        """
        dataset = self._prepared(train)
        checked = None if validation is None else self._checked(validation, "validation")
        return Fit(
            self, dataset, checked, epochs, run=run, resume=resume, callbacks=callbacks,
            checkpoint_every=checkpoint_every, keep=keep, verbose=verbose,
        ).run()  # fmt: skip

    def train_epoch(self, train: Any) -> dict[str, Any]:
        """One epoch more on `train`; its record. Neither writes nor prints anything."""
        return Fit(self, self._prepared(train), None, self.epoch + 1, verbose=False).run()[-1]

    def evaluate(self, dataset: Any) -> dict[str, float]:
        """``loss`` and all metrics over `dataset`, every sample counted once."""
        checked = self._checked(dataset, "evaluate")
        check_samples(self.place, "evaluate", checked.arrays)
        return evaluate_dataset(self, checked)

    def predict(self, inputs: Any) -> Any:
        """The model's results for `inputs`, as NumPy arrays: an array whose first axis are the samples, or a tuple."""
        with named("predict"):
            arrays = tuple(map(as_array, inputs)) if isinstance(inputs, tuple) else as_array(inputs)
        return predict_batches(self, arrays)

    # preparation

    def captured(self, dataset: Any) -> Engine:
        """The engine for `dataset`: the present one where it serves, else one that `start` will compile."""
        arrays, feed = self._arrays(dataset), self._feed(dataset)
        if self.engine is not None and self.engine.serves(feed, arrays):
            return self.engine
        kind = StreamingEngine if self.streams(dataset) else Engine
        with named("train"):
            return kind(self._programs(arrays, feed), feed, arrays, self.place, self.seed)

    def start(self, engine: Engine, dataset: Any) -> None:
        """Go on from the present state with `engine`, which `captured` made for `dataset`."""
        if engine is self.engine:
            engine.replace(self._arrays(dataset))
            return
        self.compilations.append(engine.described(self.engine))
        if self.engine is not None:
            logger.warning("%s", self.compilations[-1])
            self._initial, self.engine = self.engine.state, None  # its memory is needed
        engine.start(self._initial)
        self.engine = engine

    def _arrays(self, dataset: Any) -> Any:
        """What batches are taken from."""
        return dataset.inputs, dataset.targets

    def _feed(self, dataset: Any) -> Feed:
        return self.place.feed(EpochFeed(len(dataset), self.batch_size, self.shuffle, self.augment), len(dataset))

    def _batch_types(self, arrays: Any) -> tuple[Any, Any]:
        """Inputs and targets of a batch as the step gets them."""
        augment, (x, y) = self.augment, batch_type(arrays, self.batch_size)
        if augment is None:
            return x, y
        examples = KEY, spec((self.batch_size,), "i32"), as_input_type(x), y
        made = self.cached(("augment", types((x, y))), lambda: capture(augment, *examples, name="augment").output_types)
        x, y = tree.unflatten(tree.structure((x, y)), made)
        return x, y

    def _predicted(self, x: Any) -> Any:
        """The types of what the model gives for a batch."""
        return self.cached(("predicted", types(x)), lambda: self.objective.prediction(x).output_types)

    def _programs(self, arrays: Any, feed: Feed) -> StepPrograms:
        x, y = self.place.part(self._batch_types(arrays), self.accumulate)
        return self.place.programs(
            self.objective, self.optimizer, x, y, weighted=feed.weighted, accumulate=self.accumulate,
            transform=self.transformed,
            loops=self.loops(self.objective.prediction(batch_type(x, batch_size(x) // self.accumulate))),
        )  # fmt: skip

    def loops(self, program: Program) -> bool:
        """Whether many steps go into one dispatch: not around convolutions on XLA:CPU, where that is slow."""
        return self.device.platform != "cpu" or not has_convolutions(program)

    def compiled(self, program: Program) -> Compiled:
        """`program` for the device, in the precision and with the options of the training."""
        return compile_program(self.transformed(program), device=self.device, compiler_options=self.place.options)

    def transformed(self, program: Program) -> Program:
        """`program` in the precision of the training."""
        return autocast(program) if self.precision == "bf16" else program

    def streams(self, dataset: Any) -> bool:
        """Whether the data stay on the host."""
        return self.residence.streams(dataset, self.stream)

    def _prepared(self, data: Any) -> Dataset:
        """`data` for training; what is wrong with it is found now."""
        with named("train"):
            dataset = as_dataset(data)
            if len(dataset) < self.batch_size:
                few = f"batch_size={self.batch_size} is more than the {len(dataset)} samples"
                raise ShapeError(f"{few}: choose a smaller one")
            check_widths(self.objective.model, dataset)
            predicted = self._predicted(self._batch_types(self._arrays(dataset))[0])
            check_targets(predicted, self.objective.loss, dataset.targets)
        return dataset

    def _checked(self, data: Any, split: str) -> Dataset:
        """`data` for evaluation; what is wrong with it is found now."""
        with named(split):
            dataset = as_dataset(data)
            check_widths(self.objective.model, dataset)
            size, ranks = min(self.batch_size, len(dataset)), self.place.ranks
            x, y = batch_type((dataset.inputs, dataset.targets), size)
            check_targets(self._predicted(x), self.objective.loss, dataset.targets)
            weighted = has_short_batches(len(dataset), size + -size % ranks, ranks)
            key = "checked", types((x, y)), weighted
            self.cached(key, lambda: self.objective.evaluation(x, y, weighted=weighted))
        return dataset

    def stop(self, reason: str) -> None:
        """End the training after this epoch; for callbacks."""
        self.stop_reason = reason

    def learning_rate(self) -> float | None:
        """The learning rate of the next update, where the optimizer says."""
        reading = self.optimizer.readings.get("learning_rate")
        if reading is None:
            return None
        state = self.state if self.engine is None else self.engine.device_state
        # Only numbers are read, and moments are too large to be copied for that.
        opt = tree.map(lambda leaf: np.asarray(leaf) if leaf.ndim == 0 else leaf, state["opt"])
        return float(np.asarray(reading(opt)))

    def cached(self, key: Any, made: Callable[[], Any]) -> Any:
        """What `made` gives, made once for `key`."""
        if key not in self._cache:
            self._cache[key] = made()
        return self._cache[key]

    @property
    def device_model(self) -> Any:
        """The model with its arrays on `device`, for predictions."""
        if self.engine is None:
            return self.objective.model if self._initial is None else self._model_of(self._initial, self.averaged)
        return self.place.model(self.engine.programs, self.engine.device_state, self.averaged)

    def evaluated(self) -> list[Any]:
        """The model's arrays, for the executables of `place.evaluation`."""
        if self.engine is None:
            return self.place.put_model(tree.leaves(self.device_model))
        return self.place.evaluated(self.engine.programs, self.engine.device_state, self.averaged)

    def _model_of(self, state: State, averaged: bool) -> Any:
        return model_of(self.objective, averaged_state(state) if averaged else state)

    def steps_at_once(self, seconds_a_step: float | None, left: int) -> int:
        """How many of the `left` steps of an epoch the next dispatch runs."""
        assert self.engine is not None
        auto = 1 if seconds_a_step is None else max(1, int(PATIENCE / max(seconds_a_step, 1e-9)))
        most = auto if isinstance(self.steps_per_dispatch, str) else int(self.steps_per_dispatch)
        return min(left, self.engine.feed.steps, most)

    def identity(self) -> dict[str, Any]:
        """What must be as it was when a run is resumed."""
        model = {name: str(type_of(leaf)) for name, leaf in tree.named_leaves(self.objective.model).items()}
        return {
            "model": model,
            "optimizer": self.optimizer.kind,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "precision": self.precision,
            "shuffle": self.shuffle,
        }


def _optimizer(optimizer: optim.Optimizer, clip_norm: float | None, ema: float | None) -> optim.Optimizer:
    if clip_norm is not None:
        optimizer = optim.chain(optim.clip_by_global_norm(clip_norm), optimizer)
    return optimizer if ema is None else optim.chain(optimizer, optim.ema(ema))
