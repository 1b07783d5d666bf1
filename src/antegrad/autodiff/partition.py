"""Cutting a pullback in two: what runs forward and is kept, and what runs when the cotangents have come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from antegrad import ops
from antegrad.ir.names import Namer, identifier
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import is_float
from antegrad.passes.dead_code import eliminate_dead_code

Named = tuple[Value, str]
"""A value with its name as an input or an output."""


def partition(
    joint: Program, inputs: int, results: int, given: int, keep: Callable[[Value], bool]
) -> tuple[Program, Program]:
    """The forward and the backward half of `joint`, the pullback of a program with `inputs` and `results`.

    The forward half takes the inputs and gives the results, then the residuals: what the backward half needs and
    `keep` accepts. The backward half takes the first `given` inputs, the residuals and the cotangents, and gives the
    gradients. What it needs and is not kept, it computes again; other inputs than the first count as residuals.
    """
    backward = dependents(joint, joint.inputs[inputs:])
    late, residuals = _late(joint, set(joint.inputs[:given]), backward, results, keep)
    namer = Namer((*joint.input_names, *joint.output_names, *(f"sum_{name}" for name in joint.input_names)))
    kept = [(value, namer.name(identifier(value.name or "residual"))) for value in residuals]
    taken = list(zip(joint.inputs, joint.input_names, strict=True))
    made = list(zip(joint.outputs, joint.output_names, strict=True))
    first = [equation for equation in joint.equations if not backward.intersection(equation.outputs)]
    second = [equation for equation in joint.equations if late.issuperset(equation.outputs)]
    return (
        _half(joint, "forward", taken[:inputs], [*made[:results], *kept], first),
        _half(joint, "backward", [*taken[:given], *kept, *taken[inputs:]], made[results:], second),
    )


def _half(
    joint: Program, name: str, inputs: Sequence[Named], outputs: Sequence[Named], equations: Sequence[Equation]
) -> Program:
    half = replace(
        joint,
        name=f"{joint.name.removesuffix('_vjp')}_{name}",
        inputs=tuple(value for value, _ in inputs),
        input_names=tuple(name for _, name in inputs),
        outputs=tuple(value for value, _ in outputs),
        output_names=tuple(name for _, name in outputs),
        equations=tuple(equations),
    )
    return eliminate_dead_code(half)


def _late(
    joint: Program, given: set[Value], backward: set[Value], results: int, keep: Callable[[Value], bool]
) -> tuple[set[Value], tuple[Value, ...]]:
    """The values that the backward half computes, and the ones that are handed to it, found from the end."""
    needed = set(joint.outputs[results:])
    late: set[Value] = set()
    residuals: dict[Value, None] = {}
    for equation in reversed(joint.equations):
        if not needed.intersection(equation.outputs):
            continue
        if not equation.inputs or all(v in backward or not keep(v) for v in equation.outputs if v in needed):
            late.update(equation.outputs)
            needed.update(equation.inputs)
        else:
            residuals.update(dict.fromkeys(v for v in equation.outputs if v in needed))
    outside = (v for v in joint.inputs if v in needed and v not in given and v not in backward)
    return late, (*reversed(residuals), *outside)


def dependents(program: Program, roots: Sequence[Value]) -> set[Value]:
    """`roots` and every value computed from one of them."""
    found = set(roots)
    for equation in program.equations:
        if found.intersection(equation.inputs):
            found.update(equation.outputs)
    return found


def ancestors(program: Program, results: Sequence[Value]) -> set[Value]:
    """`results` and every value that one of them is computed from."""
    found = set(results)
    for equation in reversed(program.equations):
        if found.intersection(equation.outputs):
            found.update(equation.inputs)
    return found


def determined(program: Program, roots: Sequence[Value]) -> set[Value]:
    """`roots` and every value computed from nothing else."""
    found = set(roots)
    for equation in program.equations:
        if found.issuperset(equation.inputs):
            found.update(equation.outputs)
    return found


def filled(cotangents: Sequence[Any], values: Sequence[Value]) -> list[Any]:
    """The cotangents of the float ones among `values`, zeros where there is none."""
    pairs = [(c, value) for c, value in zip(cotangents, values, strict=True) if is_float(value.type.dtype)]
    return [ops.zeros(value.type.shape, value.type.dtype) if c is None else c for c, value in pairs]
