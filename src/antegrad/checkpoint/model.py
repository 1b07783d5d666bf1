"""A model with the weights of a checkpoint, for use without a trainer."""

from __future__ import annotations

import os
from typing import TypeVar

from antegrad.checkpoint.directory import chosen
from antegrad.checkpoint.state import restore_parameters
from antegrad.checkpoint.store import load
from antegrad.ir.types import type_of
from antegrad.nn.module import Module

M = TypeVar("M", bound=Module)


def load_model(source: str | os.PathLike[str], model: M) -> M:
    """`model` with the parameters and the layers' state of a checkpoint; it only tells their names and types.

    Weights that a trainer averaged (``ema=``) are not those of the checkpoint but of its optimizer: `Trainer.model`
    has them.

    Arguments:
      source: a file, an index of several (``*.index.json``), or the directory of a run, of which the latest checkpoint
        is taken; ``train.best(directory)`` is the path of the best one.
    Raises one `CheckpointError` with all that is missing, too many or of another type, and for a directory without a
    checkpoint.
    """
    expected = {name: type_of(array) for name, array in model.named_parameters().items()}
    return model.with_parameters(restore_parameters(load(chosen(source)), expected))
