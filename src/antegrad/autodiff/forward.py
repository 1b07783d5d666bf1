"""Forward mode, derived from the reverse rules.

The pullback of a program is linear in its cotangents. The transpose of that linear map is the pushforward of tangents
(Radul et al., "You only linearize once", 2023, read in the other direction), so reverse mode applied to the pullback,
with respect to the cotangents, gives forward mode, and no second table of rules is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from antegrad import ops
from antegrad.autodiff.reverse import Transform, select_inputs, vjp_program
from antegrad.errors import ProgramError
from antegrad.ir.names import Namer
from antegrad.ir.program import Program, Source, Value
from antegrad.ir.types import is_float
from antegrad.ops.dispatch import lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.passes.dead_code import eliminate_dead_code
from antegrad.passes.simplify import simplify


def jvp_program(program: Program, wrt: Iterable[str] | None = None) -> Program:
    """The pushforward: inputs plus a tangent ``t_<input>`` for each in `wrt`; outputs plus ``t_<output>`` for each.

    The tangent of an output that is not float is zero. Captured inputs come last.
    """
    names = [program.input_names[program.inputs.index(value)] for value in select_inputs(program, wrt)]
    pullback = vjp_program(program, names)
    supplied, first = program.argument_count, len(pullback.inputs)
    transform = Transform(pullback, pullback.inputs[supplied : pullback.argument_count])
    builder = transform.builder
    with tracing(builder):
        transform.forward()
        builder.source = Source(part="backward")
        tangents = _tangents(program, pullback, transform, names)
        primals = [transform.primals[value] for value in pullback.outputs[: len(program.outputs)]]
        results = [lift(builder, result) for result in (*primals, *tangents)]
    namer = Namer(program.output_names)
    order = [*range(supplied), *range(first, len(builder.inputs)), *range(first - len(program.captured), first)]
    whole = Program(
        name=f"{program.name}_jvp",
        inputs=tuple(builder.inputs),
        input_names=tuple(builder.input_names),
        outputs=tuple(results),
        output_names=(*program.output_names, *(namer.name(f"t_{name}") for name in program.output_names)),
        equations=tuple(builder.equations),
    )
    return _without_cotangents(eliminate_dead_code(simplify(whole)), order, program)


def _tangents(program: Program, pullback: Program, transform: Transform, names: Sequence[str]) -> list[Tensor]:
    """The tangents of the outputs: what `transform` gives for those of the inputs in the place of the gradients."""
    seeds: dict[Value, Tensor] = {}
    for value, name in zip(pullback.outputs[len(program.outputs) :], names, strict=True):
        tangent = transform.extra_input(value.type, f"t_{name}")
        seeds[value] = seeds[value] + tangent if value in seeds else tangent
    found = iter(transform.backward(seeds))
    types = program.output_types
    return [next(found) if is_float(type.dtype) else ops.zeros(type.shape, type.dtype) for type in types]


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
