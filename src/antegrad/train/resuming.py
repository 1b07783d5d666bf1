"""What a run that goes on finds in its directory: its settings, the latest checkpoint, and where it stood."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from antegrad import checkpoint, tree
from antegrad.errors import CheckpointError
from antegrad.ir.types import type_of
from antegrad.train.placement import OnDevice
from antegrad.train.programs import State
from antegrad.train.run import Run
from antegrad.train.values import from_json
from antegrad.train.writer import latest

logger = logging.getLogger("antegrad")

POSITION = "trainer"
"""The user entry of a checkpoint that says where in the training it was written."""


def opened_run(directory: Path, config: Mapping[str, Any], identity: Mapping[str, Any], resume: bool) -> Run:
    """The run in `directory`, begun or resumed; it is said when that was with another training step, or other data."""
    run = Run(directory, config, identity=identity, resume=resume)
    names = ("parallel", "step_program")
    same_place, same_step = (run.earlier.get(name, config[name]) == config[name] for name in names)
    if same_place and not same_step:
        logger.warning(
            "%s was begun with another training step: a setting of the optimizer, the loss, the model, or "
            "the version of antegrad is another one. It goes on with the new one", directory,
        )  # fmt: skip
    if run.earlier.get("data", config["data"]) != config["data"]:
        logger.warning("%s was begun on other data. It goes on with the new ones", directory)
    return run


def latest_checkpoint(directory: Path | None, place: OnDevice) -> checkpoint.Checkpoint | None:
    """The checkpoint from which to go on, the same in all processes; None where there is none."""
    path = None if directory is None else latest(directory)
    if place.any_of("resuming", path is not None) and path is None:
        raise CheckpointError(f"{directory} has no checkpoint for this process, but has one for another")
    if path is None:
        return None
    if place.agreed("resumed", path.name) != path.name:
        raise CheckpointError(
            f"{path} is the latest checkpoint for this process, and another one for process 0: all processes need "
            "the same directory, on a file system that they share"
        )
    return checkpoint.load(path)


def position_in(saved: checkpoint.Checkpoint, callbacks: int) -> dict[str, Any]:
    """Where training stood when `saved` was written, with so many callbacks."""
    info = checkpoint.training_info(saved)
    if POSITION not in info.user:
        raise CheckpointError(f"{saved.path} was not written by a Trainer: it does not say where training stood")
    try:
        position = from_json(info.user[POSITION])
        _check_position(position)
    except (ValueError, TypeError, KeyError) as error:
        found = info.user[POSITION][:80]
        raise CheckpointError(f"{saved.path} does not say where training stood: {error!r} in {found!r}") from None
    if len(position["callbacks"]) != callbacks:
        raise CheckpointError(
            f"{saved.path} was written with {len(position['callbacks'])} callbacks, now there are "
            f"{callbacks}: pass the same ones, in the same order"
        )
    return position


def _check_position(position: Any) -> None:
    """Raise ValueError, TypeError or KeyError for what is none."""
    counts = position["epoch"], position["step"]
    if any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(f"epoch and step {counts}")
    for name, kind in (("sums", float), ("history", dict), ("callbacks", dict), ("best_steps", int | None)):
        if not isinstance(position[name], list) or not all(isinstance(item, kind) for item in position[name]):
            raise ValueError(f"{name}: {position[name]!r}")
    if len(position["best_steps"]) != len(position["callbacks"]) or type(position["best"]) is not bool:
        raise ValueError(f"best_steps {position['best_steps']!r} and best {position['best']!r}")


def state_in(saved: checkpoint.Checkpoint, fresh: State, optimizer_kind: str) -> State:
    """The state in a checkpoint, of the arrays that `fresh` has; a `CheckpointError` with all that does not fit."""
    model = {name: type_of(leaf) for name, leaf in {**fresh["param"], **fresh["state"]}.items()}
    opt = {name: type_of(leaf) for name, leaf in tree.named_leaves(fresh["opt"]).items()}
    arrays = checkpoint.restore_parameters(saved, model)
    moments = checkpoint.restore_optimizer(saved, opt, kind=optimizer_kind)
    return {
        **fresh,
        "param": {name: arrays[name] for name in fresh["param"]},
        "state": {name: arrays[name] for name in fresh["state"]},
        "opt": tree.unflatten(tree.structure(fresh["opt"]), list(moments.values())),
        "step": np.int32(checkpoint.training_info(saved).step),
    }
