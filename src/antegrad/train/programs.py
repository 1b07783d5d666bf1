"""The training step as a Program over the whole state: gradient, optimizer, averaged weights, and what stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from antegrad import flow, ops, random, tree
from antegrad.autodiff.reverse import reverse
from antegrad.capture import capture
from antegrad.errors import ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType, accumulation_dtype, spec, type_of
from antegrad.ops.dispatch import apply, part
from antegrad.optim import Optimizer, apply_updates, averaged
from antegrad.passes.simplify import simplify
from antegrad.train.objective import KEY, Objective, batch_size, batch_type, exact_scale

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
        self.part_size = size // accumulate
        part_x, part_y = (batch_type(batch, self.part_size) for batch in (x, y))
        forward = objective.training(
            part_x, part_y, weighted=weighted, mean=self._takes_mean(), ranks=self._statistics_ranks()
        )
        self.forward = transform(forward)
        inputs = dict(zip(tree.named_leaves(objective.model), self.forward.input_names, strict=False))
        self.gradient = reverse(self.forward, [inputs[path] for path in objective.parameter_names])
        self.state_types = self._state_types()
        """The types of the state as the step has it."""
        self.step = self._captured_step()

    def _takes_mean(self) -> bool:
        """Whether the gradient is that of the mean loss, and not of the sum, which is divided later."""
        return self.accumulate == 1

    @property
    def reported(self) -> int:
        """How many sums a step reports (see `Objective.sums`)."""
        return self.objective.reported

    def init(self) -> State:
        """The state before the first step, as NumPy arrays."""
        return initial_state(self.objective, self.optimizer)

    def _state_types(self) -> State:
        return tree.map(type_of, self.init())

    def _statistics_ranks(self) -> int:
        """How many ranks share the statistics of a batch."""
        return 1

    @cached_property
    def whole_types(self) -> State:
        """The types of the whole state."""
        return self.state_types

    @cached_property
    def sharded(self) -> State:
        """Of each array of the state, whether it is divided among ranks."""
        return tree.map(lambda _: False, self.state_types)

    def step_key(self, key: Any) -> Any:
        """The key from which a step draws, made of the one that all who work on the batch have."""
        return key

    def _captured_step(self) -> Program:
        def step(state: State, x: Any, y: Any, key: Any, weights: Any = None) -> tuple[Any, State]:
            gradients, sums, layers = self._gradients(state, x, y, key, weights)
            with part("update"):
                return sums, self._updated(state, gradients, sums, layers)

        weights = [spec((batch_size(self.x),))] if self.weighted else []
        program = capture(step, self.state_types, self.x, self.y, KEY, *weights, name=f"{self.objective.name}_step")
        return simplify(program)

    def _gradients(self, state: State, x: Any, y: Any, key: Any, weights: Any) -> tuple[State, list[Any], State]:
        """The gradient by parameter, the reported sums, and the arrays of the layers' state."""
        if self.accumulate == 1:
            return self._part(state["param"], state["state"], x, y, key, weights)
        total, sums, layers = self._accumulated(state, x, y, key, weights)
        return mean_gradients(total, exact_scale(self.part_size), sums[1]), sums, layers

    def _accumulated(
        self, state: State, x: Any, y: Any, key: Any, weights: Any
    ) -> tuple[State, list[Any], State]:
        """The sum of the gradients over all parts, the reported sums, and the arrays of the layers' state."""
        parts = (x, y, *(() if weights is None else (weights,)))
        stacked = tree.map(lambda leaf: ops.reshape(leaf, (self.accumulate, -1, *leaf.shape[1:])), parts)
        zeros = {name: ops.zeros(type.shape, type.dtype) for name, type in self._gradient_types().items()}

        def one(carry: Any, own: Any) -> Any:
            total, layers, number = carry
            gradients, sums, layers = self._part(
                state["param"], layers, own[0], own[1], random.fold_in(key, number), own[2] if len(own) > 2 else None
            )
            added = {name: total[name] + gradients[name] for name in total}
            return (added, layers, number + 1), sums

        start = zeros, state["state"], ops.zeros((), "i32")
        (total, layers, _), sums = self._each_part(one, start, stacked)
        return total, [ops.sum(each) for each in sums], layers

    def _gradient_types(self) -> dict[str, TensorType]:
        """The types of what `_part` gives as gradients."""
        return self.state_types["param"]

    def _each_part(self, one: Callable[[Any, Any], Any], start: Any, stacked: Any) -> Any:
        if self.loops:
            return flow.scan(one, start, stacked)
        carry, rows = start, []
        for number in range(self.accumulate):
            carry, row = one(carry, tree.map(lambda leaf, i=number: leaf[i], stacked))
            rows.append(row)
        return carry, [ops.stack(each) for each in zip(*rows, strict=True)]

    @property
    def part_program(self) -> Program:
        """What is run on each part of a batch."""
        return self.gradient

    def _part(
        self, parameters: State, layers: State, x: Any, y: Any, key: Any, weights: Any
    ) -> tuple[State, list[Any], State]:
        """The gradient program on one batch."""
        leaves = self.objective.leaves(parameters, layers)
        batch = [*tree.leaves((x, y)), key, *([] if weights is None else [weights])]
        _, *found = apply(self.part_program, [*leaves, *batch])
        names, states = self.objective.parameter_names, self.objective.state_names
        count = len(found) - len(names) - len(states)
        sums, changed, gradients = found[:count], found[count : count + len(states)], found[count + len(states) :]
        return dict(zip(names, gradients, strict=True)), sums, dict(zip(states, changed, strict=True))

    def _updated(self, state: State, gradients: State, sums: Sequence[Any], layers: State) -> State:
        fine = ops.name(ops.logical_and(ops.isfinite(sums[0]), state["failed"] < 0), "fine")
        updates, opt = self.optimizer.update(gradients, state["opt"], state["param"])
        parameters = apply_updates(state["param"], updates)
        new = {"param": parameters, "state": layers, "opt": opt, "step": state["step"] + 1}
        kept = tree.map(lambda after, before: ops.where(fine, after, before), new, {k: state[k] for k in new})
        failed = ops.where(ops.logical_or(fine, state["failed"] >= 0), state["failed"], state["step"])
        return {**kept, "failed": failed}


def initial_state(objective: Objective, optimizer: Optimizer) -> State:
    """The state before the first step, as NumPy arrays."""
    named = tree.named_leaves(objective.model)
    parameters = {name: np.array(named[name]) for name in objective.parameter_names}
    state = {name: np.array(named[name]) for name in objective.state_names}
    opt = tree.map(np.array, optimizer.init(parameters))
    return {"param": parameters, "state": state, "opt": opt, "step": np.int32(0), "failed": np.int32(-1)}


def mean_gradients(total: State, scale: int, count: Any) -> State:
    """Gradients of the mean loss by parameter, from those of the sum of the losses divided by `scale`.

    `count` is the sum of all weights. 16-bit gradients are divided in f32.
    """
    count = ops.where(count == 0, 1, count)

    def mean(value: Any) -> Any:
        wide = ops.convert(value, accumulation_dtype(value.dtype))
        return ops.convert(wide * scale / ops.convert(count, wide.dtype), value.dtype)

    return {name: mean(value) for name, value in total.items()}


def averaged_state(state: State) -> State:
    """`state` with the average that `optim.ema` keeps in place of the parameters."""
    return {**state, "param": averaged(state["opt"], state["param"])}


def model_of(objective: Objective, state: State) -> Any:
    """The model with the parameters and the layers' state of `state`."""
    return tree.unflatten(tree.structure(objective.model), objective.leaves(state["param"], state["state"]))


def has_convolutions(program: Program) -> bool:
    """Whether a loop around `program` is slow on XLA:CPU, which runs a convolution in a loop on one core."""
    return any(equation.primitive.name == "conv_general" for equation in program.all_equations())
