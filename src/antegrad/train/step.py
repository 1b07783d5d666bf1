"""`train_step`: the forward, gradient, update and fused step Programs of a model, a loss and an optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antegrad import ops, tree
from antegrad.autodiff.reverse import reverse
from antegrad.capture import capture
from antegrad.errors import DTypeError, ShapeError, TraceError
from antegrad.ir.names import identifier
from antegrad.ir.program import Program
from antegrad.ir.types import SHORT_NAMES, is_float, type_of
from antegrad.nn.module import Module
from antegrad.ops.dispatch import apply, part
from antegrad.optim import Optimizer, apply_updates
from antegrad.passes.simplify import simplify
from antegrad.train.saving import load_state, save_state


@dataclass(frozen=True)
class TrainState:
    """What a step changes: parameters and optimizer state, as flat arrays in the order of the step program's inputs."""

    arrays: tuple[Any, ...]
    model_structure: tree.Structure
    optimizer_structure: tree.Structure

    @property
    def model(self) -> Any:
        """The model with the current parameters."""
        return tree.unflatten(self.model_structure, self.arrays[: self.model_structure.num_leaves])

    @property
    def optimizer_state(self) -> Any:
        """The optimizer's state, a pytree."""
        return tree.unflatten(self.optimizer_structure, self.arrays[self.model_structure.num_leaves :])

    def with_arrays(self, arrays: Sequence[Any]) -> TrainState:
        return replace(self, arrays=tuple(arrays))

    @property
    def named_arrays(self) -> dict[str, Any]:
        """Every array by name: ``param.0.w``, ``opt.m.0.w``, ``opt.count``."""
        return tree.named_leaves({"param": self.model, "opt": self.optimizer_state})


class TrainStep:
    """The programs of one training step. Each is an ordinary `Program`: print it, cost it, run it anywhere.

    - `forward`: parameters and batch to the loss.
    - `gradient`: the same to the loss and ``d_<parameter>`` for each parameter.
    - `update`: parameters, gradients and optimizer state to new parameters and state.
    - `step`: parameters, optimizer state and batch to the loss, new parameters and new state. The first
      `state_count` inputs are replaced by as many outputs after the loss, so they can be donated.
    """

    def __init__(self, model: Any, loss: Callable[..., Any], optimizer: Optimizer, batch: Sequence[Any]) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.batch = tuple(tree.map(type_of, example) for example in batch)
        _check_parameters(model, self.batch)
        self.forward = _forward(model, loss, self.batch)
        self.gradient = reverse(self.forward, self.forward.input_names[: len(tree.leaves(model))])
        state = optimizer.init(model)
        self.update = _update(optimizer, model, state)
        self.state_count = len(tree.leaves(model)) + len(tree.leaves(state))
        self.step = _step(self, state)

    def init(self) -> TrainState:
        """The state before the first step."""
        state = self.optimizer.init(self.model)
        arrays = [np.asarray(leaf) for leaf in (*tree.leaves(self.model), *tree.leaves(state))]
        return TrainState(tuple(arrays), tree.structure(self.model), tree.structure(state))

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the donated inputs of `step`."""
        return self.step.input_names[: self.state_count]

    def save(
        self,
        path: str | os.PathLike[str],
        state: TrainState,
        seed: int | None = None,
        user: Mapping[str, str] | None = None,
    ) -> None:
        """Write `state` to one safetensors file, atomically (see `train.saving.save_state`)."""
        save_state(path, self, state, seed, user)

    def load(self, path: str | os.PathLike[str]) -> TrainState:
        """The state in the file at `path`; a `CheckpointError` when it does not fit (see `train.saving`)."""
        return load_state(path, self)


def train_step(model: Any, loss: Callable[..., Any], optimizer: Optimizer, *batch: Any) -> TrainStep:
    """The programs that train `model`, a callable pytree, on batches such as `batch` ``(x, y)``.

    `batch` holds arrays or `spec` types; `loss` takes ``(model(x), y)`` and gives a float scalar. Raises `ShapeError`
    when shapes do not fit or the loss is no scalar, with the layer path.

        step = ag.train_step(model, losses.mean_squared_error, optim.adam(0.02), ag.spec((512, 2)), ag.spec((512, 1)))
        print(step.gradient.python())
    """
    if not callable(model) or not callable(loss) or not isinstance(optimizer, Optimizer):
        found = ", ".join(type(argument).__name__ for argument in (model, loss, optimizer))
        raise TraceError(f"train_step needs a callable model, a callable loss and an Optimizer, found {found}")
    if len(tree.leaves(model)) == 0 or tree.leaves(model)[0] is model:
        raise TraceError(
            f"train_step: {type(model).__name__} has no parameters to train: make it an nn.Module with float arrays in "
            "its fields"
        )
    if len(batch) != 2:
        raise TraceError(
            f"train_step needs examples of a batch (x, y) after the optimizer, found {len(batch)}: "
            "arrays, or ag.spec(shape, dtype)"
        )
    return TrainStep(model, loss, optimizer, batch)


def _check_parameters(model: Any, batch: Sequence[Any]) -> None:
    """Every leaf of the model must be a float array, and the batch no wider than the widest of them."""
    parameters = tree.named_leaves(model)
    for name, leaf in parameters.items():
        if not hasattr(leaf, "dtype"):
            raise TraceError(
                f"train_step: {name} of {type(model).__name__} is {leaf!r}, not an array: declare the field with "
                "nn.static() if it belongs to the structure, or make it a float array if it is to be trained"
            )
        if not is_float(leaf.dtype):
            raise DTypeError(
                f"train_step: {name} of {type(model).__name__} is {type_of(leaf)}, and only floats can be trained: "
                "keep constant arrays in a field declared with nn.static(), or in a closure"
            )
    widest = max((leaf.dtype.itemsize for leaf in parameters.values()), default=8)
    for name, example in zip(("x", "y"), batch, strict=True):
        for leaf in tree.leaves(example):
            if is_float(leaf.dtype) and leaf.dtype.itemsize > max(widest, 4):
                raise DTypeError(
                    f"train_step: the batch's {name} is {leaf}, wider than every parameter, and would make all of the "
                    f"training run in {SHORT_NAMES[leaf.dtype]}: convert it with .astype(np.float32)"
                )


def _forward(model: Any, loss: Callable[..., Any], batch: Sequence[Any]) -> Program:
    def forward(model: Any, x: Any, y: Any) -> Any:
        prediction = ops.name(model(x), "prediction")
        return ops.name(loss(prediction, y), "loss")

    name = identifier(type(model).__name__.lower() if isinstance(model, Module) else "model")
    program = capture(forward, model, *batch, name=name)
    if len(program.outputs) != 1 or program.output_types[0].shape != ():
        found = ", ".join(map(str, program.output_types))
        raise ShapeError(f"the loss {getattr(loss, '__name__', loss)!r} must give one float scalar, found {found}")
    return _with_input_names(simplify(program), list(tree.named_leaves(model)))


def _with_input_names(program: Program, state: Sequence[str]) -> Program:
    """The first inputs called by their leaf paths; a batch input that has the name of one of them gets a number."""
    names: list[str] = []
    for name in (*state, *program.input_names[len(state) :]):
        stem, number = name or "value", 0
        while (candidate := f"{stem}_{number}" if number else stem) in names:
            number += 1
        names.append(candidate)
    return replace(program, input_names=tuple(names))


def _update(optimizer: Optimizer, model: Any, state: Any) -> Program:
    """Parameters, gradients and state to new parameters and state."""

    def update(model: Any, d: Any, opt: Any) -> Any:
        with part("update"):
            updates, new_state = optimizer.update(d, opt, model)
            return apply_updates(model, updates), new_state

    return _named_outputs(simplify(capture(update, model, model, state, name="update")), model, state)


def _named_outputs(program: Program, model: Any, state: Any) -> Program:
    names = [*tree.named_leaves(model), *(f"opt.{name}" for name in tree.named_leaves(state))]
    prefix = program.output_names[: len(program.outputs) - len(names)]
    return replace(program, output_names=(*prefix, *(f"new.{name}" for name in names)), structure=None)


def _step(parts: TrainStep, state: Any) -> Program:
    """Gradient and update in one program: the state goes in first, and comes out after the loss."""

    def step(model: Any, opt: Any, x: Any, y: Any) -> Any:
        loss, *gradients = apply(parts.gradient, tree.leaves((model, x, y)))
        d = tree.unflatten(tree.structure(model), gradients)
        with part("update"):
            updates, new_state = parts.optimizer.update(d, opt, model)
            return loss, apply_updates(model, updates), new_state

    program = capture(step, parts.model, state, *parts.batch, name=f"{parts.forward.name}_step")
    names = [*tree.named_leaves(parts.model), *(f"opt.{name}" for name in tree.named_leaves(state))]
    return _named_outputs(simplify(_with_input_names(program, names)), parts.model, state)
