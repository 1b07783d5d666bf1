"""What is refused before any work: settings, arguments and data that make no sense."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from antegrad import optim, tree
from antegrad.data import DataError, Dataset
from antegrad.errors import DTypeError, NameMissing, SettingError, ShapeError
from antegrad.ir.types import SHORT_NAMES, TensorType, is_float, type_of
from antegrad.losses import LabelError, check_labels, cross_entropy, sequence_cross_entropy
from antegrad.nn import Module
from antegrad.optim import settings
from antegrad.train.callbacks import BestCheckpoint, Callback, EarlyStopping, LearningRateLog


def checked_numbers(owner: str, **numbers: Any) -> list[int]:
    """``batch_size``, ``accumulate`` and ``seed`` as Python ints; a `SettingError` with the name and what was found."""
    lowest = {"batch_size": 1, "accumulate": 1, "seed": 0}
    found = {name: settings.whole(owner, name, numbers[name], least) for name, least in lowest.items()}
    if found["batch_size"] % found["accumulate"]:
        size, parts = found["batch_size"], found["accumulate"]
        raise SettingError(f"{owner}: batch_size={size} must be a multiple of accumulate={parts}")
    return list(found.values())


def check_choices(owner: str, precision: Any, steps_per_dispatch: Any, stream: Any, **flags: Any) -> None:
    """Settings that are one of a few values, each a `SettingError` with its name and what was found."""
    settings.choice(owner, "precision", precision, ("f32", "bf16"))
    steps = steps_per_dispatch
    if steps != "auto" and (not isinstance(steps, (int, np.integer)) or isinstance(steps, bool) or steps < 1):
        settings.refuse(owner, "steps_per_dispatch", '"auto" or at least 1', steps)
    if stream is not None and not isinstance(stream, bool):
        settings.refuse(owner, "stream", "None, True or False", stream)
    for name, value in flags.items():
        settings.flag(owner, name, value)


def check_functions(
    owner: str, model: Any, loss: Any, optimizer: Any, augment: Any = None, metrics: Any = None
) -> None:
    """What a trainer is made of, each a `SettingError` with its name and what was found."""
    if not isinstance(model, Module) or not callable(model):
        raise SettingError(f"{owner}: model must be an nn.Module that can be called, found {model!r}")
    if not tree.leaves(model):
        raise SettingError(f"{owner}: the model {type(model).__name__} has no parameters to train")
    settings.function(owner, "loss", loss)
    if not isinstance(optimizer, optim.Optimizer):
        settings.refuse(owner, "optimizer", "an optim.Optimizer, such as optim.adam(1e-3)", optimizer)
    if augment is not None:
        settings.function(owner, "augment", augment)
    if metrics is not None and not isinstance(metrics, Mapping):
        settings.refuse(owner, "metrics", "functions by name, such as {'accuracy': metrics.accuracy}", metrics)
    for name, metric in (metrics or {}).items():
        settings.function(owner, f"the metric {name!r}", metric)
        if name in RESERVED or name.startswith("val_"):
            raise SettingError(f"{owner}: a metric cannot be called {name!r}: records have an entry of that name")


def check_fit(
    epochs: int,
    every: int | None,
    run: str | Path | None,
    resume: str | None,
    callbacks: Sequence[Callback],
    checkpoint_every: int | None,
    keep: int,
    verbose: bool,
) -> None:
    """A `SettingError` for arguments of `fit` that make no sense."""
    settings.whole("fit", "epochs" if every is None else "steps", epochs, 1)
    settings.whole("fit", "keep", keep, 1)
    for name, value in (("eval_every", every), ("checkpoint_every", checkpoint_every)):
        if value is not None:
            settings.whole("fit", name, value, 1)
    settings.flag("fit", "verbose", verbose)
    if run is not None and (not isinstance(run, (str, os.PathLike)) or not os.fspath(run)):
        settings.refuse("fit", "run", "the path of a directory, or None", run)
    if resume not in (None, "latest"):
        raise SettingError(f'fit: resume must be None or "latest", found {resume!r}')
    if resume is not None and run is None:
        raise SettingError('fit: resume="latest" needs run=..., the directory of the run')
    if not isinstance(callbacks, Sequence) or not all(isinstance(callback, Callback) for callback in callbacks):
        settings.refuse("fit", "callbacks", "a list of train.Callback objects", callbacks)


RESERVED = ("epoch", "step", "loss", "learning_rate", "seconds", "samples_per_second")
"""Entries of a record that are not metrics."""
OWN = (Callback, BestCheckpoint, EarlyStopping, LearningRateLog)


def check_monitors(callbacks: Sequence[Callback], names: Sequence[str]) -> None:
    """A `NameMissing` for a callback that monitors what no record of an epoch will have."""
    for callback in callbacks:
        if type(callback) not in OWN:
            return  # it may add entries, and so may those after it
        if isinstance(callback, BestCheckpoint) and callback.monitor not in names:
            advice = ": pass validation=..." if callback.monitor.startswith("val_") else ""
            raise NameMissing(
                f"{type(callback).__name__} monitors {callback.monitor!r}, and an epoch's record will have "
                f"{', '.join(names)}{advice}"
            )


def check_widths(model: Any, dataset: Dataset) -> None:
    """A `DTypeError` for data that would make all of the training run in a wider float type than the model has."""
    floats = [leaf.dtype.itemsize for leaf in tree.leaves(model) if is_float(leaf.dtype)]
    widest = max(floats, default=8)
    for name, array in zip(dataset.names, dataset.arrays, strict=True):
        if is_float(array.dtype) and array.dtype.itemsize > max(widest, 4):
            raise DTypeError(
                f"{name} are {type_of(array)}, wider than every parameter, and would make all of the training run in "
                f"{SHORT_NAMES[array.dtype]}: convert them with .astype(np.float32)"
            )


def check_targets(predictions: Sequence[TensorType], loss: Callable[..., Any], targets: Any) -> None:
    """Refuse targets that are no class of the prediction, before anything is trained, with index and value.

    Integers that have the shape of the one prediction without the axis of the classes are taken for labels.
    """
    array, keywords = np.asarray(targets), getattr(loss, "keywords", {})
    axis = keywords.get("axis", -1)
    if len(predictions) != 1 or not -array.ndim - 1 <= axis <= array.ndim:
        return
    shape = list(predictions[0].shape)
    if len(shape) != array.ndim + 1 or not shape.pop(axis) or tuple(shape[1:]) != array.shape[1:]:
        return
    if array.dtype.kind in "iu":
        check_labels(array, predictions[0].shape[axis], keywords.get("ignore_index"))
    elif getattr(loss, "func", loss) in (cross_entropy, sequence_cross_entropy):
        raise DTypeError(
            f"targets are {type_of(array)}: labels of classes are integers, convert them with .astype(np.int32); "
            f"probabilities have one more axis, with {predictions[0].shape[axis]} classes"
        )


@contextmanager
def named(what: str) -> Iterator[None]:
    """An error of data says first of what it is."""
    try:
        yield
    except (ShapeError, DTypeError, LabelError, DataError) as error:
        raise type(error)(f"{what}: {error}") from None


def check_state(state: Any, expected: Any) -> None:
    """Raise unless `state` has the arrays of `expected`, a pytree of types, by name, shape and element type."""
    found, wanted = (tree.named_leaves(each) for each in (state, expected))
    for name in found | wanted:
        if name not in found or name not in wanted:
            where = "is missing" if name in wanted else "is none that it has"
            raise ShapeError(f"the state does not fit the training: {name} {where}")
        if type_of(found[name]).shape != wanted[name].shape:
            raise ShapeError(f"the state does not fit: {name} must be {wanted[name]}, found {type_of(found[name])}")
        if type_of(found[name]).dtype != wanted[name].dtype:
            raise DTypeError(f"the state does not fit: {name} must be {wanted[name]}, found {type_of(found[name])}")
