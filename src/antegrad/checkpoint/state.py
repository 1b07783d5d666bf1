"""How training state is named in a file, and how it comes back into a model that was built again.

| what | where |
| --- | --- |
| parameter ``0.w`` | tensor ``param.0.w`` |
| optimizer state ``m.0.w`` | tensor ``opt.m.0.w`` |
| version of this convention | metadata ``antegrad.version`` |
| kind of optimizer, steps done, seed | metadata ``antegrad.optimizer``, ``antegrad.step``, ``antegrad.seed`` |
| tied parameters | metadata ``antegrad.alias``, see `antegrad.checkpoint.alias` |
| the user's own entry ``note`` | metadata ``user.note`` |

A file without optimizer state has neither ``opt.`` entries nor ``antegrad.optimizer``. An optimizer without state of
its own (SGD without momentum) has the latter alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from antegrad.checkpoint.alias import fold, write_aliases
from antegrad.checkpoint.fit import check_fit
from antegrad.checkpoint.store import Checkpoint
from antegrad.errors import CheckpointError
from antegrad.ir.types import TensorType

FORMAT_VERSION = 1
PARAMETER, OPTIMIZER, USER = "param.", "opt.", "user."
VERSION_KEY, STEP_KEY, SEED_KEY = "antegrad.version", "antegrad.step", "antegrad.seed"
OPTIMIZER_KEY = "antegrad.optimizer"


@dataclass(frozen=True, slots=True)
class TrainingInfo:
    """What a file says of the run beside its arrays; `optimizer` is None for a file without optimizer state."""

    version: int
    step: int
    seed: int | None
    optimizer: str | None
    user: dict[str, str]


def pack(
    parameters: Mapping[str, np.ndarray],
    optimizer: Mapping[str, np.ndarray] | None = None,
    *,
    step: int,
    optimizer_kind: str | None = None,
    seed: int | None = None,
    user: Mapping[str, str] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata for `save`. Nothing is copied.

    Arguments:
      parameters: by name, any shape and element type. An array under two names is stored once and tied when loaded.
      optimizer: optimizer state by name (``m.0.w``), or None to leave it out; then `optimizer_kind` is None too.
        Arrays that it shares, such as one array of zeros for all moments, are stored separately: no tie is meant.
      step: steps done, at least 0.
    Raises `CheckpointError` for a step or seed that is no whole number and for state without kind or the reverse.
    """
    if (optimizer is None) != (optimizer_kind is None):
        found = f"optimizer {'None' if optimizer is None else 'given'}, optimizer_kind {optimizer_kind!r}"
        raise CheckpointError(f"cannot pack {found}: pass both, or neither to leave optimizer state out")
    kept, aliases = fold({f"{PARAMETER}{name}": array for name, array in parameters.items()})
    metadata = {VERSION_KEY: str(FORMAT_VERSION), STEP_KEY: _whole("step", step, minimum=0)}
    if seed is not None:
        metadata[SEED_KEY] = _whole("seed", seed)
    if optimizer_kind is not None:
        metadata[OPTIMIZER_KEY] = optimizer_kind
    metadata |= write_aliases(aliases) | {f"{USER}{key}": value for key, value in (user or {}).items()}
    return kept | {f"{OPTIMIZER}{name}": array for name, array in (optimizer or {}).items()}, metadata


def training_info(checkpoint: Checkpoint) -> TrainingInfo:
    """Step count, seed, kind of optimizer and user entries of a file that `pack` described.

    Raises `CheckpointError` when the version or the step count is missing, malformed, or of a newer antegrad.
    """
    version, step = _version(checkpoint), _number(checkpoint, STEP_KEY)
    if version is None or step is None or step < 0:
        key = VERSION_KEY if version is None else STEP_KEY
        found = checkpoint.metadata.get(key)
        raise CheckpointError(
            f"{checkpoint.path} does not say where training stood: metadata {key!r} is {found!r}, expected a number. "
            "Files from other programs can give their parameters, but cannot be resumed."
        )
    user = {key.removeprefix(USER): text for key, text in checkpoint.metadata.items() if key.startswith(USER)}
    return TrainingInfo(version, step, _number(checkpoint, SEED_KEY), checkpoint.metadata.get(OPTIMIZER_KEY), user)


def restore_parameters(
    checkpoint: Checkpoint, expected: Mapping[str, TensorType], *, strict: bool = True
) -> dict[str, np.ndarray]:
    """The parameters named by `expected`, in that order; names that the file ties give one array object.

    The arrays are copies, so that training does not change the checkpoint. Optimizer state is not looked at; any
    other entry that no parameter name explains counts as an extra one. A file without metadata is judged by its
    names and types alone.

    Arguments:
      expected: every parameter of the model with its type.
      strict: refuse missing and extra entries. Without it only what both sides have is returned.
    Raises one `CheckpointError` that lists all missing, extra and mis-shaped entries.
    """
    _version(checkpoint)
    found = {name: array for name, array in checkpoint.tensors.items() if not name.startswith(OPTIMIZER)}
    return _take(checkpoint, found, expected, PARAMETER, strict=strict)


def restore_optimizer(
    checkpoint: Checkpoint, expected: Mapping[str, TensorType], *, kind: str
) -> dict[str, np.ndarray]:
    """The optimizer state named by `expected` (``m.0.w``), in that order, as copies; always strict.

    Arguments:
      expected: every array of the optimizer's state with its type.
      kind: the kind of optimizer that asks, as it was given to `pack`.
    Raises `CheckpointError` when the file has no optimizer state, has that of another kind, or does not fit.
    """
    _version(checkpoint)
    saved_kind = checkpoint.metadata.get(OPTIMIZER_KEY)
    found = {name: array for name, array in checkpoint.tensors.items() if name.startswith(OPTIMIZER)}
    if saved_kind is None:
        held = f"it does not name the optimizer of its {len(found)} entries" if found else "it holds none"
        raise CheckpointError(
            f"{checkpoint.path} cannot give the state of optimizer {kind!r}: {held} (metadata {OPTIMIZER_KEY!r}). "
            "Restore the parameters alone and start the optimizer anew, or load a file saved with its optimizer."
        )
    if saved_kind != kind:
        raise CheckpointError(
            f"{checkpoint.path} holds the state of optimizer {saved_kind!r}, and that of {kind!r} was asked for. "
            f"Train on with {saved_kind!r}, or restore the parameters alone and start {kind!r} anew."
        )
    return _take(checkpoint, found, expected, OPTIMIZER)


def _take(
    checkpoint: Checkpoint,
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, TensorType],
    prefix: str,
    *,
    strict: bool = True,
) -> dict[str, np.ndarray]:
    """Copies of the arrays of `found` that `expected` names without `prefix`; names of one array share its copy."""
    saved = {name: _type(array) for name, array in found.items()}
    model = {f"{prefix}{name}": kind for name, kind in expected.items()}
    what = "parameters" if prefix == PARAMETER else "optimizer state entries"
    names = check_fit(str(checkpoint.path), saved, model, what=what, strict=strict)
    distinct = {id(found[name]): found[name] for name in names}
    copies = {key: array.copy() for key, array in distinct.items()}
    return {name.removeprefix(prefix): copies[id(found[name])] for name in names}


def _type(array: np.ndarray) -> TensorType:
    return TensorType(array.shape, array.dtype)


def _version(checkpoint: Checkpoint) -> int | None:
    """The file's version of this convention, None where it says none; a newer one is refused."""
    version = _number(checkpoint, VERSION_KEY)
    if version is not None and not 1 <= version <= FORMAT_VERSION:
        raise CheckpointError(
            f"{checkpoint.path} has checkpoint version {version}, and this antegrad reads 1 to {FORMAT_VERSION}. "
            "Update antegrad to the one that wrote the file, or a later one."
        )
    return version


def _number(checkpoint: Checkpoint, key: str) -> int | None:
    """The whole number under `key` of the metadata, exactly; None where there is no such key."""
    text = checkpoint.metadata.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,40}", text):
        raise CheckpointError(f"{checkpoint.path}: metadata {key!r} is {text[:80]!r}, expected a whole number")
    return int(text)


def _whole(name: str, value: int, minimum: int | None = None) -> str:
    """`value` as decimal text; refused unless it is a whole number, and at least `minimum`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or (minimum is not None and value < minimum):
        bound = "" if minimum is None else f" of at least {minimum}"
        raise CheckpointError(f"cannot pack {name} {value!r}: expected a whole number{bound}")
    return str(int(value))
