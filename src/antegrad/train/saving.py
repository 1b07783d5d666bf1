"""Training state to and from one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from antegrad import checkpoint, tree
from antegrad.ir.types import type_of

if TYPE_CHECKING:
    from antegrad.train.step import TrainState, TrainStep


def save_state(
    path: str | os.PathLike[str],
    step: TrainStep,
    state: TrainState,
    seed: int | None = None,
    user: Mapping[str, str] | None = None,
) -> None:
    """Write parameters, optimizer state and step count, atomically.

    Raises `CheckpointError` when the directory cannot be written to; a file that was there before is then untouched.
    """
    parameters, optimizer = (
        {name: np.asarray(leaf) for name, leaf in tree.named_leaves(node).items()}
        for node in (state.model, state.optimizer_state)
    )
    tensors, metadata = checkpoint.pack(
        parameters,
        optimizer,
        step=_steps_done(optimizer),
        optimizer_kind=step.optimizer.kind,
        seed=seed,
        user=user,
    )
    checkpoint.save(path, tensors, metadata)


def _steps_done(optimizer: Mapping[str, np.ndarray]) -> int:
    """The count of the optimizer, or of the first part of a chain that counts; 0 where none does."""
    counts = [array for name, array in optimizer.items() if name.rsplit(".", 1)[-1] == "count"]
    return int(counts[0]) if counts else 0


def load_state(path: str | os.PathLike[str], step: TrainStep) -> TrainState:
    """The state in the file at `path`, restored into the structure of `step`.

    Raises `CheckpointError`, with every missing, extra and misfitting entry in one message, when it does not fit.
    """
    fresh = step.init()
    saved = checkpoint.load(path)
    model, optimizer = (
        {name: type_of(leaf) for name, leaf in tree.named_leaves(node).items()}
        for node in (fresh.model, fresh.optimizer_state)
    )
    parameters = checkpoint.restore_parameters(saved, model)
    moments = checkpoint.restore_optimizer(saved, optimizer, kind=step.optimizer.kind)
    return fresh.with_arrays([*parameters.values(), *moments.values()])
