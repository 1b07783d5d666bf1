"""The derivatives of control flow. They need reverse mode itself, so they stand here and not with the primitives.

The forward step of a `scan` also stacks what the backward steps will read (the residuals), and a second scan in the
opposite direction consumes them. The pullback of `cond` runs the chosen branch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from antegrad import flow, ops
from antegrad.autodiff.forward import jvp_program
from antegrad.autodiff.partition import ancestors, determined, filled, partition
from antegrad.autodiff.reverse import LINEARIZE, Pullback, vjp_program
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import is_float
from antegrad.ops.control import cond_p, scan_p, while_p, while_transpose_p
from antegrad.ops.dispatch import apply, bind, part
from antegrad.ops.tensor import Tensor
from antegrad.passes.dead_code import eliminate_dead_code
from antegrad.passes.simplify import simplify


def linearize_cond(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """The pullback is a `cond` over the pullbacks of the branches, each of which runs its branch again."""
    branches: tuple[Program, ...] = equation.params["branches"]
    results = bind(cond_p, *operands, branches=branches)
    wanted = [i for i, flag in enumerate(active[1:]) if flag and is_float(operands[i + 1].dtype)]

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        backward = tuple(_only_gradients(branch, [branch.input_names[i] for i in wanted]) for branch in branches)
        given = filled(cotangents, equation.outputs)
        found = bind(cond_p, *operands, *given, branches=backward)
        by_operand = dict(zip(wanted, found, strict=True))
        return [None, *(by_operand.get(i) for i in range(len(operands) - 1))]

    return results, pullback


def _only_gradients(program: Program, wrt: Sequence[str]) -> Program:
    """The pullback of `program` without the results of the forward pass."""
    pullback = vjp_program(program, wrt)
    count = len(program.outputs)
    kept = replace(pullback, outputs=pullback.outputs[count:], output_names=pullback.output_names[count:])
    return eliminate_dead_code(kept)


def linearize_while(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """A loop whose pullback can only be transposed: that gives forward mode, and `reverse` refuses it by name."""
    first, second = equation.params["constants"]
    both = first + second
    floats = [i for i, operand in enumerate(operands) if is_float(operand.dtype)]
    wanted = tuple(i for i in floats if i >= both or (i >= first and active[i]))

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        given = filled(cotangents, equation.outputs)
        found = bind(while_transpose_p, *operands, *given, **equation.params, wanted=wanted)
        by_operand = dict(zip(wanted, found, strict=True))
        return [by_operand.get(i) for i in range(len(operands))]

    return bind(while_p, *operands, **equation.params), pullback


def linearize_while_transpose(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """The transpose of the pullback of a loop: the loop once more, with the tangents beside the carry."""
    condition, body, wanted = (equation.params[key] for key in ("condition", "body", "wanted"))
    first, both = equation.params["constants"][0], sum(equation.params["constants"])
    count = both + len(body.outputs)
    pushforward = jvp_program(body, [body.input_names[i - first] for i in wanted])
    constant = [i for i in wanted if i < both]

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        given = filled(cotangents, equation.outputs)
        t_constants, t_carry = given[: len(constant)], given[len(constant) :]

        def goes_on(state: Any) -> Any:
            return apply(condition, [*operands[:first], *state[0]])[0]

        def step(state: Any) -> Any:
            carry, tangents = state
            found = apply(pushforward, [*operands[first:both], *carry, *t_constants, *tangents])
            own, pushed = found[: len(carry)], found[len(carry) :]
            return own, tuple(t for t, primal in zip(pushed, own, strict=True) if is_float(primal.dtype))

        _, final = flow.while_loop(goes_on, step, (tuple(operands[both:count]), tuple(t_carry)))
        return [*[None] * count, *final]

    return bind(while_transpose_p, *operands, **equation.params), pullback


def linearize_scan(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """A scan that also stacks residuals, and a pullback that scans over them in the opposite direction."""
    body: Program = equation.params["body"]
    constants = equation.params["counts"][0]
    wanted = _wanted_inputs(equation, active)
    joint = simplify(vjp_program(body, [body.input_names[i] for i in wanted]))
    remade = determined(joint, joint.inputs[:constants])
    sizes = len(body.inputs), len(body.outputs), constants
    kept = _worth_keeping(joint, len(body.outputs)).difference(remade)
    forward, backward = partition(joint, *sizes, keep=kept.__contains__)
    forward, places = _stacked_once(forward, equation.params["counts"][1], len(body.outputs))
    results = bind(scan_p, *operands, **{**equation.params, "body": forward})
    own, residuals = results[: len(equation.outputs)], [results[place] for place in places]

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        by_operand = _backward_scan(equation, operands, wanted, backward, residuals, cotangents)
        return [by_operand.get(i) for i in range(len(operands))]

    return own, pullback


def _stacked_once(forward: Program, carries: int, results: int) -> tuple[Program, list[int]]:
    """`forward` without the residuals that it stacks as results already, and where each residual is found."""
    places = {value: place for place, value in enumerate(forward.outputs[:results]) if place >= carries}
    fresh = [place for place, value in enumerate(forward.outputs) if place >= results and value not in places]
    places |= {forward.outputs[place]: results + position for position, place in enumerate(fresh)}
    kept = [*range(results), *fresh]
    shorter = replace(
        forward,
        outputs=tuple(forward.outputs[place] for place in kept),
        output_names=tuple(forward.output_names[place] for place in kept),
    )
    return shorter, [places[value] for value in forward.outputs[results:]]


def _worth_keeping(joint: Program, results: int) -> set[Value]:
    """What the forward pass computes anyway, and what is smaller than the operands that it is computed from.

    The rest, such as a residual in a wider type, is computed by the backward pass when it is needed.
    """
    kept = ancestors(joint, joint.outputs[:results])
    for equation in joint.equations:
        largest = max((type.nbytes for type in equation.input_types), default=0)
        kept.update(value for value in equation.outputs if value.type.nbytes < largest)
    return kept


def _backward_inputs(
    equation: Equation,
    operands: Sequence[Tensor],
    backward: Program,
    residuals: Sequence[Tensor],
    cotangents: Sequence[Any],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What goes into the backward step, by name: the constants, the residuals, and the cotangents of the results."""
    constants, names = equation.params["counts"][0], backward.input_names
    known = dict(zip(names[:constants], operands[:constants], strict=True))
    saved = dict(zip(names[constants:], residuals, strict=False))
    arrived = filled(cotangents, equation.outputs)
    return known, saved, dict(zip(names[constants + len(saved) :], arrived, strict=True))


def _kinds(
    equation: Equation, wanted: Sequence[int], given: Iterable[str]
) -> tuple[dict[int, str], dict[int, str], list[int]]:
    """The `wanted` operands whose cotangents are carried, summed over the steps, and stacked; the first two by name.

    `given` are the names of the cotangents that come, those of the carry first.
    """
    constants, both = equation.params["counts"][0], sum(equation.params["counts"])
    carried = dict(zip([i for i in wanted if constants <= i < both], given, strict=False))
    sums = {i: f"sum_{equation.params['body'].input_names[i]}" for i in wanted if i < constants}
    return carried, sums, [i for i in wanted if i >= both]


def _backward_scan(
    equation: Equation,
    operands: Sequence[Tensor],
    wanted: Sequence[int],
    backward: Program,
    residuals: Sequence[Tensor],
    cotangents: Sequence[Any],
) -> dict[int, Any]:
    """The cotangents of the `wanted` operands: a scan in the opposite direction, carrying those of the carry.

    The cotangents of constants are summed over the steps. Everything goes by name, so that the step prints well.
    """
    known, saved, given = _backward_inputs(equation, operands, backward, residuals, cotangents)
    carried, sums, stacked = _kinds(equation, wanted, given)
    initial = {name: given.pop(name) for name in carried.values()}
    initial |= {name: ops.zeros_like(operands[i]) for i, name in sums.items()}

    def step(carry: Any, slices: Any) -> Any:
        values = {**known, **carry, **slices}
        found = dict(zip(wanted, apply(backward, [values[name] for name in backward.input_names]), strict=True))
        after = {name: found[i] for i, name in carried.items()}
        after |= {name: carry[name] + found[i] for i, name in sums.items()}
        return after, [found[i] for i in stacked]

    step.__name__ = backward.name
    order = {"length": equation.params["length"], "reverse": not equation.params["reverse"]}
    with part("backward"):
        final, d_xs = flow.scan(step, initial, {**given, **saved}, **order)
    return {i: final[name] for i, name in {**carried, **sums}.items()} | dict(zip(stacked, d_xs, strict=True))


def _wanted_inputs(equation: Equation, active: Sequence[bool]) -> list[int]:
    """The inputs of the body that need a cotangent: active operands, and every float carry.

    All carries count, because after the first step any of them may depend on an active operand.
    """
    constants, carries = equation.params["counts"]
    inputs = enumerate(equation.params["body"].inputs)
    wanted = [i for i, value in inputs if is_float(value.type.dtype)]
    return [i for i in wanted if active[i] or constants <= i < constants + carries]


LINEARIZE.update(
    {
        cond_p.name: linearize_cond,
        scan_p.name: linearize_scan,
        while_p.name: linearize_while,
        while_transpose_p.name: linearize_while_transpose,
    }
)
