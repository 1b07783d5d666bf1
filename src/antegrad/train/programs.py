"""The training step as a Program over the whole state: gradient, optimizer, averaged weights, and what stops it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antegrad import flow, ops, random, tree
from antegrad.autodiff.reverse import reverse
from antegrad.capture import capture
from antegrad.errors import ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import spec
from antegrad.ops.dispatch import apply, part
from antegrad.optim import Optimizer, apply_updates
from antegrad.passes.simplify import simplify
from antegrad.train.objective import KEY, Objective, batch_size, batch_type

State = dict[str, Any]
"""What a step changes: ``param``, ``state``, ``opt``, ``step`` (i32), ``failed`` (i32, -1 or the step that failed)."""


class StepPrograms:
    """The programs of one training step on batches of the types `x` and `y`.

    - `forward`: model, batch and key to the loss and what is reported (see `Objective.training`).
    - `gradient`: the same, and ``d_<parameter>`` for each parameter.
    - `step`: the state and the batch to the sums that are reported and the new state.

    A step whose loss is NaN or infinite changes nothing but ``failed``, and so do all after it.
    With `accumulate` above 1 the batch is worked off in so many parts of equal size, one after the other; their
    gradients are added and divided by the sum of all weights, so that every sample counts the same.

    Arguments:
      transform: a pass over the forward program, such as `passes.autocast`.
      loops: whether parts are worked off in a loop; else their equations are repeated.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        x: Any,
        y: Any,
        *,
        weighted: bool = False,
        accumulate: int = 1,
        transform: Callable[[Program], Program] = lambda program: program,
        loops: bool = True,
    ) -> None:
        self.objective, self.optimizer, self.x, self.y = objective, optimizer, x, y
        self.weighted, self.accumulate, self.loops = weighted, accumulate, loops
        size = batch_size(x)
        if accumulate < 1 or size % accumulate:
            raise ShapeError(f"accumulate={accumulate}: a batch of {size} has no so many parts of equal size")
        part_x, part_y = (batch_type(batch, size // accumulate) for batch in (x, y))
        self.forward = transform(objective.training(part_x, part_y, weighted=weighted, mean=accumulate == 1))
        inputs = dict(zip(tree.named_leaves(objective.model), self.forward.input_names, strict=False))
        self.gradient = reverse(self.forward, [inputs[path] for path in objective.parameter_names])
        self.step = self._captured_step()

    @property
    def reported(self) -> int:
        """How many sums a step reports: losses, weights, and one for each metric."""
        return 2 + len(self.objective.metrics)

    def init(self) -> State:
        """The state before the first step, as NumPy arrays."""
        named = tree.named_leaves(self.objective.model)
        parameters = {name: np.array(named[name]) for name in self.objective.parameter_names}
        state = {name: np.array(named[name]) for name in self.objective.state_names}
        opt = tree.map(np.array, self.optimizer.init(parameters))
        return {"param": parameters, "state": state, "opt": opt, "step": np.int32(0), "failed": np.int32(-1)}

    def _captured_step(self) -> Program:
        def step(state: State, x: Any, y: Any, key: Any, weights: Any = None) -> tuple[Any, State]:
            gradients, sums, layers = self._gradients(state, x, y, key, weights)
            with part("update"):
                return sums, self._updated(state, gradients, sums[0], layers)

        weights = [spec((batch_size(self.x),))] if self.weighted else []
        program = capture(step, self.init(), self.x, self.y, KEY, *weights, name=f"{self.objective.name}_step")
        return simplify(program)

    def _gradients(self, state: State, x: Any, y: Any, key: Any, weights: Any) -> tuple[State, list[Any], State]:
        """The gradient by parameter, the reported sums, and the arrays of the layers' state."""
        if self.accumulate == 1:
            return self._part(state["param"], state["state"], x, y, key, weights)
        parts = (x, y, *(() if weights is None else (weights,)))
        stacked = tree.map(lambda leaf: ops.reshape(leaf, (self.accumulate, -1, *leaf.shape[1:])), parts)
        zeros = {name: ops.zeros_like(value) for name, value in state["param"].items()}

        def one(carry: Any, own: Any) -> Any:
            total, layers, number = carry
            gradients, sums, layers = self._part(
                state["param"], layers, own[0], own[1], random.fold_in(key, number), own[2] if len(own) > 2 else None
            )
            added = {name: total[name] + gradients[name] for name in total}
            return (added, layers, number + 1), sums

        start = zeros, state["state"], ops.zeros((), "i32")
        (total, layers, _), sums = self._each_part(one, start, stacked)
        sums = [ops.sum(each) for each in sums]
        count = ops.where(sums[1] == 0, 1, sums[1])
        return {name: value / ops.convert(count, value.dtype) for name, value in total.items()}, sums, layers

    def _each_part(self, one: Callable[[Any, Any], Any], start: Any, stacked: Any) -> Any:
        if self.loops:
            return flow.scan(one, start, stacked)
        carry, rows = start, []
        for number in range(self.accumulate):
            carry, row = one(carry, tree.map(lambda leaf, i=number: leaf[i], stacked))
            rows.append(row)
        return carry, [ops.stack(each) for each in zip(*rows, strict=True)]

    def _part(
        self, parameters: State, layers: State, x: Any, y: Any, key: Any, weights: Any
    ) -> tuple[State, list[Any], State]:
        """`gradient` on one batch."""
        leaves = self.objective.leaves(parameters, layers)
        batch = [*tree.leaves((x, y)), key, *([] if weights is None else [weights])]
        _, *found = apply(self.gradient, [*leaves, *batch])
        names, states = self.objective.parameter_names, self.objective.state_names
        count = len(found) - len(names) - len(states)
        sums, changed, gradients = found[:count], found[count : count + len(states)], found[count + len(states) :]
        return dict(zip(names, gradients, strict=True)), sums, dict(zip(states, changed, strict=True))

    def _updated(self, state: State, gradients: State, total: Any, layers: State) -> State:
        fine = ops.name(ops.logical_and(ops.isfinite(total), state["failed"] < 0), "fine")
        updates, opt = self.optimizer.update(gradients, state["opt"], state["param"])
        parameters = apply_updates(state["param"], updates)
        new = {"param": parameters, "state": layers, "opt": opt, "step": state["step"] + 1}
        kept = tree.map(lambda after, before: ops.where(fine, after, before), new, {k: state[k] for k in new})
        failed = ops.where(ops.logical_or(fine, state["failed"] >= 0), state["failed"], state["step"])
        return {**kept, "failed": failed}


def model_of(objective: Objective, state: State) -> Any:
    """The model with the parameters and the layers' state of `state`."""
    return tree.unflatten(tree.structure(objective.model), objective.leaves(state["param"], state["state"]))


def has_convolutions(program: Program) -> bool:
    """Whether a loop around `program` is slow on XLA:CPU, which runs a convolution in a loop on one core."""
    return any(equation.primitive.name == "conv_general" for equation in program.all_equations())
