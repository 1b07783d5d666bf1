"""Forward mode, derived from the reverse rules.

The pullback of a program is linear in its cotangents. The transpose of that linear map is the pushforward of tangents
(Radul et al., "You only linearize once", 2023, read in the other direction), so reverse mode applied to the pullback,
with respect to the cotangents, gives forward mode, and no second table of rules is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from antegrad import ops
from antegrad.autodiff.reverse import Transform, select_inputs, vjp_program
from antegrad.errors import ProgramError
from antegrad.ir.names import Namer
from antegrad.ir.program import Program, Source
from antegrad.ir.types import is_float
from antegrad.ops.dispatch import lift, tracing
from antegrad.passes.dead_code import eliminate_dead_code
from antegrad.passes.simplify import simplify


def jvp_program(program: Program, wrt: Iterable[str] | None = None) -> Program:
    """The pushforward: inputs plus a tangent ``t_<input>`` for each in `wrt`; outputs plus ``t_<output>`` for each.

    The tangent of an output that is not float is zero. Captured inputs come last.
    """
    wanted = select_inputs(program, wrt)
    names = [program.input_names[program.inputs.index(value)] for value in wanted]
    pullback = vjp_program(program, names)
    count, supplied = len(program.outputs), program.argument_count
    cotangents = pullback.inputs[supplied : pullback.argument_count]
    transform = Transform(pullback, cotangents)
    with tracing(transform.builder):
        transform.forward()
        transform.builder.source = Source(part="backward")
        gradients = pullback.outputs[count:]
        given = [transform.extra_input(v.type, f"t_{name}") for v, name in zip(wanted, names, strict=True)]
        seeds = {}
        for value, tangent in zip(gradients, given, strict=True):
            seeds[value] = seeds[value] + tangent if value in seeds else tangent
        found = iter(transform.backward(seeds))
        types = program.output_types
        tangents = [next(found) if is_float(type.dtype) else ops.zeros(type.shape, type.dtype) for type in types]
        primals = [transform.primals[value] for value in pullback.outputs[:count]]
        results = [lift(transform.builder, result) for result in (*primals, *tangents)]
    builder, first = transform.builder, len(pullback.inputs)
    namer = Namer(program.output_names)
    captured = len(program.captured)
    order = [*range(supplied), *range(first, len(builder.inputs)), *range(first - captured, first)]
    whole = Program(
        name=f"{program.name}_jvp",
        inputs=tuple(builder.inputs),
        input_names=tuple(builder.input_names),
        outputs=tuple(results),
        output_names=(*program.output_names, *(namer.name(f"t_{name}") for name in program.output_names)),
        equations=tuple(builder.equations),
    )
    return _without_cotangents(eliminate_dead_code(simplify(whole)), order, program)


def _without_cotangents(whole: Program, order: list[int], program: Program) -> Program:
    """`whole` with the inputs in `order` only: the cotangents are left out, on which no linear rule depends."""
    inputs = tuple(whole.inputs[i] for i in order)
    used = {value for equation in whole.equations for value in equation.inputs} | set(whole.outputs)
    left_out = [value for value in whole.inputs if value in used and value not in inputs]
    if left_out:
        raise ProgramError(
            f"jvp of {program.name}: a derivative rule is not linear in its cotangent, so it has no transpose"
        )
    names = tuple(whole.input_names[i] for i in order)
    return replace(whole, inputs=inputs, input_names=names, captured=program.captured)
