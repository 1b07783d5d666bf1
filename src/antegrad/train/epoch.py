"""Many steps in one dispatch: a Program that scans the step Program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antegrad import flow
from antegrad.capture import capture
from antegrad.errors import ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType
from antegrad.ops.dispatch import apply
from antegrad.passes.simplify import simplify
from antegrad.train.step import TrainStep


def repeat(step: TrainStep, steps: int, stacked: bool = False) -> Program:
    """`steps` training steps as one Program: state and batch in, all losses f32[steps] and the last state out.

    Every step sees the same batch, or with `stacked` its own slice of batches with a leading axis of size `steps`.
    The results are those of `steps` dispatches of ``step.step``, bit for bit on the host device.
    """
    if steps < 1:
        raise ShapeError(f"repeat needs at least one step, found {steps}")
    program, count = step.step, step.state_count
    types = list(program.input_types)
    batch = [_stacked(type, steps) if stacked else type for type in types[count:]]

    def epoch(state: Any, batch: Any) -> Any:
        def one(carry: Any, own: Any) -> Any:
            loss, *after = apply(program, [*carry, *(own if stacked else batch)])
            return tuple(after), loss

        final, losses = flow.scan(one, tuple(state), tuple(batch) if stacked else None, length=steps)
        return losses, final

    captured = capture(epoch, tuple(types[:count]), tuple(batch), name=f"{program.name}s")
    return simplify(_named(captured, program))


def _stacked(type: TensorType, steps: int) -> TensorType:
    return type.with_shape((steps, *type.shape))


def _named(epoch: Program, step: Program) -> Program:

    return replace(
        epoch,
        input_names=(*step.input_names, *epoch.input_names[len(step.input_names) :]),
        output_names=("losses", *step.output_names[1:]),
        structure=None,
    )
