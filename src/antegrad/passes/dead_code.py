"""Dead code elimination, down into the sub-programs of control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from antegrad.ir.program import Equation, Program, Value

T = TypeVar("T")


def eliminate_dead_code(program: Program) -> Program:
    """`program` without equations whose results reach no output. Inputs stay, used or not.

    A `scan` also loses the outputs and carries that nobody reads, a `cond` the results, and both of them the operands.
    """
    live, kept = set(program.outputs), []
    for equation in reversed(program.equations):
        flags = [value in live for value in equation.outputs]
        if not any(flags):
            continue
        if equation.primitive.name in PRUNE:
            equation = PRUNE[equation.primitive.name](equation, flags)
        kept.append(equation)
        live.update(equation.inputs)
    return replace(program, equations=tuple(reversed(kept)))


def _chosen(items: Sequence[T], flags: Sequence[bool]) -> tuple[T, ...]:
    return tuple(item for item, flag in zip(items, flags, strict=True) if flag)


def _with_outputs(program: Program, flags: Sequence[bool]) -> Program:
    names = _chosen(program.output_names, flags)
    return eliminate_dead_code(
        replace(program, outputs=_chosen(program.outputs, flags), output_names=names, structure=None)
    )


def _with_inputs(program: Program, flags: Sequence[bool]) -> Program:
    return replace(
        program, inputs=_chosen(program.inputs, flags), input_names=_chosen(program.input_names, flags)
    )


def _read(program: Program) -> set[Value]:
    return {value for equation in program.equations for value in equation.inputs} | set(program.outputs)


def _prune_cond(equation: Equation, live: Sequence[bool]) -> Equation:
    branches = [_with_outputs(branch, live) for branch in equation.params["branches"]]
    read = set[Value]().union(*map(_read, branches))
    kept = [not read.isdisjoint(operand) for operand in zip(*(branch.inputs for branch in branches), strict=True)]
    return replace(
        equation,
        inputs=(equation.inputs[0], *_chosen(equation.inputs[1:], kept)),
        outputs=_chosen(equation.outputs, live),
        params={"branches": tuple(_with_inputs(branch, kept) for branch in branches)},
    )


def _prune_scan(equation: Equation, live: Sequence[bool]) -> Equation:
    """Keep the live outputs, and the carries that are live or that a kept result depends on."""
    body: Program = equation.params["body"]
    constants, carries = equation.params["counts"]
    flags = list(live)
    while True:
        pruned = _with_outputs(body, flags)
        read = _read(pruned)
        needed = [flags[i] or body.inputs[constants + i] in read for i in range(carries)]
        if needed == flags[:carries]:
            break
        flags[:carries] = needed
    kept = [value in read for value in body.inputs]
    kept[constants : constants + carries] = flags[:carries]
    return replace(
        equation,
        inputs=_chosen(equation.inputs, kept),
        outputs=_chosen(equation.outputs, flags),
        params={
            **equation.params,
            "body": _with_inputs(pruned, kept),
            "counts": (sum(kept[:constants]), sum(flags[:carries])),
        },
    )


def _prune_barrier(equation: Equation, live: Sequence[bool]) -> Equation:
    return replace(equation, inputs=_chosen(equation.inputs, live), outputs=_chosen(equation.outputs, live))


PRUNE: dict[str, Callable[[Equation, Sequence[bool]], Equation]] = {
    "cond": _prune_cond,
    "scan": _prune_scan,
    "optimization_barrier": _prune_barrier,
}
