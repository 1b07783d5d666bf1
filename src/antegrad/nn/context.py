"""What layers need in training beyond their input: random keys, sample weights, and a place for changed state.

``model(x)`` evaluates: dropout does nothing, and batch normalization uses its running statistics. `training_call`
trains: what is random comes from the key it is given, and what changes comes back with the result, so a model stays a
value and a training step stays a pure function.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from antegrad import ops, random, tree
from antegrad.errors import NameMissing, ShapeError, TraceError
from antegrad.ir.types import type_of
from antegrad.nn.module import Module
from antegrad.ops.dispatch import current_layer, here

M = TypeVar("M", bound=Module)


@dataclass
class Training:
    """One call of a model in training."""

    key: Any = None
    sample_weights: Any = None
    ranks: int = 1
    updates: dict[str, Any] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)


class _Current(threading.local):
    training: Training | None = None


_current = _Current()


def training() -> Training | None:
    """The call in training that is going on, or None: the model is evaluated."""
    return _current.training


@contextmanager
def entered(call: Training | None) -> Iterator[None]:
    """Within the block `call` is what `training` gives."""
    outer, _current.training = _current.training, call
    try:
        yield
    finally:
        _current.training = outer


def training_call(
    model: M, *arguments: Any, key: Any = None, sample_weights: Any = None, ranks: int = 1, **keywords: Any
) -> tuple[Any, M]:
    """``(model(*arguments, **keywords), changed model)`` with all layers in training.

    Arguments:
      key: u32[2], from which each layer that needs randomness makes its own by its path: the masks of dropout are a
        function of key and path. Fold the step into it, and where devices hold parts of a batch their rank:
        ``random.fold_in(key, step)``.
      sample_weights: float[batch], 0 for a sample that only fills the batch up: batch statistics leave it out.
      ranks: how many ranks (see `ops.all_reduce`) share the statistics of a batch of which each has a part.
    Returns the result, and the model with its state fields as the call left them; parameters are the same arrays.
    Raises `TraceError` when a layer needs a key and there is none.
    """
    call = Training(key, sample_weights, ranks)
    with entered(call):
        result = model(*arguments, **keywords)
    return result, with_leaves(model, call.updates)


def with_leaves(model: M, leaves: dict[str, Any]) -> M:
    """`model` with other arrays of the same types at some paths.

    Raises `NameMissing` when it has no such path, and `ShapeError` for another type.
    """
    named = tree.named_leaves(model)
    missing = sorted(set(leaves) - set(named))
    if missing:
        raise NameMissing(f"{type(model).__name__} has no array at {', '.join(missing)}; it has {', '.join(named)}")
    for path, leaf in leaves.items():
        if type_of(leaf) != type_of(named[path]):
            raise ShapeError(f"{path} of {type(model).__name__} is {type_of(named[path])}, its update {type_of(leaf)}")
    return tree.unflatten(tree.structure(model), [leaves.get(path, leaf) for path, leaf in named.items()])


def layer_key(purpose: str) -> Any:
    """The key of the layer that is being called: a function of the call's key, the layer's path, and how often before.

    `purpose` is what the error says when the call has no key.
    """
    call = training()
    path = current_layer()
    if call is None or call.key is None:
        raise TraceError(
            f"{purpose} needs a random key in training: call nn.training_call(model, x, key=random.key(seed)) instead "
            f"of the model itself\n  at {here()}"
        )
    call.calls[path] += 1
    key = random.fold_in(call.key, zlib.crc32(path.encode()))
    return key if call.calls[path] == 1 else random.fold_in(key, call.calls[path])


def update(name: str, value: Any) -> None:
    """Give the state field `name` of the layer that is being called its new `value`; nothing in evaluation.

    The value takes no part in derivatives.
    """
    call = training()
    if call is not None:
        call.updates[below(current_layer(), name)] = ops.stop_gradient(value)


def current(module: M) -> M:
    """`module`, the layer that is being called, with its state as earlier calls of it in this one have left it."""
    call, path = training(), current_layer()
    if call is None:
        return module
    changed = {name: call.updates.get(below(path, name)) for name in tree.named_leaves(module)}
    return with_leaves(module, {name: value for name, value in changed.items() if value is not None})


def below(path: str, name: str) -> str:
    """The path of `name` in the module at `path`."""
    return ".".join(filter(None, (path, name)))
