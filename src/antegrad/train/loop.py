"""Many steps as one Program: batches, steps, and what each reports, over data that lie on the device.

The number of steps of one dispatch is an input, so one executable serves any number, and results cannot depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import flow, ops, random, tree
from antegrad.capture import capture
from antegrad.ir.program import Program
from antegrad.ir.types import spec, type_of
from antegrad.ops.dispatch import apply
from antegrad.ops.index import dynamic_slice_p, dynamic_update_slice_p
from antegrad.passes.simplify import simplify
from antegrad.train.feeds import Feed, Rows, current, sample_weights, streams
from antegrad.train.objective import KEY
from antegrad.train.programs import State, StepPrograms

SCALAR, FLAG = spec((), "i32"), spec((), "bool")


def training_program(programs: StepPrograms, feed: Feed, data: Any) -> Program:
    """Up to `count` steps of an epoch, on data that lie on the device.

    Inputs: the state, what the feed carries, the data, the run's key, and the scalars epoch, first step of the epoch,
    number of steps, and whether what is carried is to be made anew (bool). Outputs: what each step reports,
    f32[steps of an epoch] each (f32[1] where there is no loop), the new state, what is carried.
    """

    def train(state: State, carried: Any, data: Any, seed: Any, epoch: Any, first: Any, count: Any, fresh: Any) -> Any:
        carried = current(feed, carried, seed, epoch, fresh)

        def one(state: State, done: Any) -> tuple[Any, State]:
            rows = feed.rows(data, carried, seed, epoch, first + done)
            return stepped(programs, feed, state, rows, seed, epoch)

        sums, after = repeated(one, programs, state, count, feed.steps)
        return sums, after, carried

    scalars = [SCALAR, SCALAR, SCALAR, FLAG]
    name = f"{programs.objective.name}_training"
    return simplify(capture(train, programs.state_types, feed.carried, types(data), KEY, *scalars, name=name))


def streaming_program(programs: StepPrograms, feed: Feed, rows: Rows, capacity: int) -> Program:
    """Up to `count` steps on `capacity` batches that came from the host, stacked along a first axis.

    Inputs: the state, the parts of the batches, the run's key, epoch, number of steps. Outputs as `training_program`
    without what is carried.
    """
    stacked = [type_of(part).with_shape((capacity, *type_of(part).shape)) for part in rows.parts]

    def train(state: State, parts: Any, seed: Any, epoch: Any, count: Any) -> Any:
        def one(state: State, done: Any) -> tuple[Any, State]:
            own = rows.with_parts([_row(part, done) for part in parts])
            return stepped(programs, feed, state, own, seed, epoch)

        return repeated(one, programs, state, count, capacity)

    name = f"{programs.objective.name}_streaming"
    return simplify(capture(train, programs.state_types, stacked, KEY, SCALAR, SCALAR, name=name))


def _row(part: Any, number: Any) -> Any:
    starts = (number, *[ops.zeros((), "i32")] * (part.ndim - 1))
    return ops.reshape(dynamic_slice_p(part, starts, (1, *part.shape[1:])), part.shape[1:])


def stepped(programs: StepPrograms, feed: Feed, state: State, rows: Rows, seed: Any, epoch: Any) -> tuple[Any, State]:
    """One step on a batch; its key depends on the seed and the number of steps done."""
    x, y = feed.augmented(rows, seed, epoch)
    weights = [] if rows.weights is None else [rows.weights]
    key = programs.step_key(random.fold_in(streams(seed)[1], state["step"]))
    return tree.unflatten(programs.step.structure, apply(programs.step, tree.leaves((state, x, y, key, *weights))))


def repeated(
    one: Callable[[State, Any], tuple[Any, State]], programs: StepPrograms, state: State, count: Any, capacity: int
) -> tuple[Any, State]:
    """`count` times `one`, until a step fails; what each reports is written down. Once only where loops are slow."""
    if not programs.loops:
        sums, after = one(state, ops.zeros((), "i32"))
        return [ops.reshape(ops.convert(each, "f32"), (1,)) for each in sums], after
    buffers = [ops.zeros((capacity,)) for _ in range(programs.reported)]

    def goes_on(carry: Any) -> Any:
        done, state, _ = carry
        return ops.logical_and(done < count, state["failed"] < 0)

    def step(carry: Any) -> Any:
        done, state, buffers = carry
        sums, after = one(state, done)
        written = [
            dynamic_update_slice_p(buffer, ops.reshape(ops.convert(each, "f32"), (1,)), (done,))
            for buffer, each in zip(buffers, sums, strict=True)
        ]
        return done + 1, after, written

    _, after, buffers = flow.while_loop(goes_on, step, (ops.zeros((), "i32"), state, buffers))
    return buffers, after


def evaluation_program(program: Program, model: int, batch: int, data: Any, loops: bool, weighted: bool) -> Program:
    """Up to `count` batches of the data in order, from batch `first` on, added to the sums that go in.

    `program` evaluates one batch (see `Objective.evaluation`); its first `model` inputs are the model's arrays.
    Inputs: these, the sums so far (f32 each: losses, weights, metrics), the data, how many of their rows are samples,
    first, count. It is `weighted` where the last batch may be short.
    """
    zeros, size = [spec(())] * len(program.outputs), type_of(tree.leaves(data)[0]).shape[0]

    def evaluate(model: Any, sums: Any, data: Any, samples: Any, first: Any, count: Any) -> Any:
        def one(sums: Any, step: Any) -> Any:
            places = ops.clip(step * batch + ops.arange(batch), 0, size - 1)
            own = tree.map(lambda leaf: ops.take_p(leaf, places, 0), data)
            weights = [sample_weights(step, batch, samples)] if weighted else []
            found = apply(program, [*tree.leaves(model), *tree.leaves(own), *weights])
            return [total + ops.convert(each, "f32") for total, each in zip(sums, found, strict=True)]

        if not loops:
            return one(sums, first)
        return flow.while_loop(
            lambda carry: carry[0] < count,
            lambda carry: (carry[0] + 1, one(carry[1], first + carry[0])),
            (ops.zeros((), "i32"), list(sums)),
        )[1]

    arrays = list(program.input_types[:model])
    return simplify(capture(evaluate, arrays, zeros, types(data), *[SCALAR] * 3, name=program.name))


def types(data: Any) -> Any:
    """The types of a pytree of arrays, or of their types."""
    return tree.map(type_of, data)
