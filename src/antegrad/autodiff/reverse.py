"""Reverse mode: from a Program to the Program of its gradient.

The pass copies the forward equations, then walks them backwards. Each equation that depends on a differentiated
input asks its primitive for the cotangents of its operands (`Primitive.vjp`); cotangents of a value that is used
several times are added. The rules are written with the public ops, so the result is a Program like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError, NameMissing, ProgramError, ShapeError
from antegrad.ir.builder import Builder
from antegrad.ir.collection import collection_paused
from antegrad.ir.names import Namer
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation, Program, Source, Value
from antegrad.ir.types import TensorType, is_float
from antegrad.ops.control import no_reverse_mode, while_transpose_p
from antegrad.ops.dispatch import bind, lift, tracing
from antegrad.ops.tensor import Tensor
from antegrad.passes.dead_code import eliminate_dead_code
from antegrad.passes.simplify import simplify

Pullback = Callable[[Sequence[Any]], Sequence[Any]]
"""From the cotangents of an equation's results (None where there is none) to those of its operands."""

LINEARIZE: dict[str, Callable[[Equation, Sequence[Tensor], Sequence[bool]], tuple[Sequence[Tensor], Pullback]]] = {}
"""Primitives whose derivative needs more of the forward pass than results: control flow (`autodiff.control`)."""


@collection_paused()
def reverse(program: Program, wrt: Iterable[str] | None = None) -> Program:
    """The gradient of `program`: its outputs, then ``d_<input>`` for every input in `wrt`.

    The first output must be a scalar float, the loss. `wrt` lists input names, or prefixes such as ``"0"`` for
    ``0.w`` and ``0.b``; by default it is every float input that the caller supplies. An input that the loss does not
    reach gets zeros. Raises `ShapeError` for a loss that is not scalar, `DTypeError` for an input that is not float,
    `NameMissing` for a name that is none.
    """
    loss = program.output_types[0] if program.outputs else None
    if loss is None or loss.shape != () or not is_float(loss.dtype):
        raise ShapeError(
            f"reverse needs a scalar float as the first output of {program.name}, found {loss}: "
            "take its mean or sum, or use ag.vjp with a cotangent"
        )
    wanted = select_inputs(program, wrt)
    transform = Transform(program, wanted)
    with tracing(transform.builder):
        transform.forward()
        transform.builder.source = Source(part="backward")
        seed = ops.ones_like(transform.primals[program.outputs[0]])
        gradients = transform.backward({program.outputs[0]: seed})
        results = [transform.primals[value] for value in program.outputs]
    return refuse_while(transform.finish(f"{program.name}_gradient", [*results, *gradients]))


@collection_paused()
def vjp_program(program: Program, wrt: Iterable[str] | None = None) -> Program:
    """The pullback of `program`: inputs plus one cotangent ``d_<output>`` for each float output; results as `reverse`.

    Captured inputs of `program` come last.
    """
    transform = Transform(program, select_inputs(program, wrt))
    with tracing(transform.builder):
        transform.forward()
        cotangents = {}
        for value, name in zip(program.outputs, program.output_names, strict=True):
            if is_float(value.type.dtype):
                cotangent = transform.extra_input(value.type, f"d_{name}")
                cotangents[value] = cotangents[value] + cotangent if value in cotangents else cotangent
        gradients = transform.backward(cotangents)
        results = [transform.primals[value] for value in program.outputs]
    return transform.finish(f"{program.name}_vjp", [*results, *gradients])


def refuse_while(pullback: Program) -> Program:
    """`pullback` itself; a `RuleMissing` with the user's line when it would have to run a `while` loop backwards."""
    for equation in pullback.all_equations():
        if equation.primitive is while_transpose_p:
            raise no_reverse_mode(equation)
    return pullback


def select_inputs(program: Program, wrt: Iterable[str] | None) -> list[Value]:
    """The inputs that `wrt` names; by default all float ones that the caller supplies."""
    supplied = program.inputs[: program.argument_count]
    if wrt is None:
        chosen = [value for value in supplied if is_float(value.type.dtype)]
        if not supplied:
            raise NameMissing(f"{program.name} has no inputs, so there is nothing to differentiate with respect to")
        if not chosen:
            raise DTypeError(_not_float(program, program.input_names[0], supplied[0].type))
        return chosen
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    chosen = []
    for name in names:
        below = [] if name in program.input_names else [n for n in program.input_names if n.startswith(f"{name}.")]
        for full in below or [name]:
            value = program.inputs[program.input_index(full)]
            if not is_float(value.type.dtype):
                raise DTypeError(_not_float(program, full, value.type))
            chosen.append(value)
    return list(dict.fromkeys(chosen))


def _not_float(program: Program, name: str, type: TensorType) -> str:
    return (
        f"{program.name} cannot be differentiated with respect to {name}: it is {type}, not a float. "
        "Pass a float, such as 3.0 or x.astype('f32'), or leave it out of wrt."
    )


class Transform:
    """One application of reverse mode to one Program."""

    def __init__(self, program: Program, wanted: Sequence[Value]) -> None:
        self.program, self.wanted = eliminate_dead_code(program), wanted
        self.builder = Builder()
        self.primals: dict[Value, Tensor] = {}
        self.active: set[Value] = set(wanted)
        self.pullbacks: list[tuple[Equation, Pullback]] = []
        self.labels: dict[Value, str] = {}
        self.inherited: set[Value] = set()
        for value, name in zip(program.inputs, program.input_names, strict=True):
            self.primals[value] = Tensor(self.builder.input(value.type, name), self.builder)
            self.labels[value] = name

    def extra_input(self, type: TensorType, name: str) -> Tensor:
        return Tensor(self.builder.input(type, name), self.builder)

    def forward(self) -> None:
        """Copy the equations, and keep a pullback for each that depends on a wanted input."""
        for equation in self.program.equations:
            self.builder.source = equation.source
            operands = [self.primals[value] for value in equation.inputs]
            flags = [value in self.active for value in equation.inputs]
            if any(flags) and equation.primitive.differentiable:
                results, pullback = linearize(equation, operands, flags)
                self.pullbacks.append((equation, pullback))
                self.active.update(value for value in equation.outputs if is_float(value.type.dtype))
            else:
                results = _results(equation, operands)
            for value, result in zip(equation.outputs, results, strict=True):
                primal = self.primals[value] = Tensor(lift(self.builder, result), self.builder)
                if value.name and not primal.value.declared:
                    primal.value.name, primal.value.declared = value.name, value.declared
                self.labels[value] = value.name or ""

    def backward(self, cotangents: dict[Value, Tensor]) -> list[Tensor]:
        """Propagate `cotangents` of outputs to the wanted inputs."""
        for equation, pullback in reversed(self.pullbacks):
            incoming = [cotangents.pop(value, None) for value in equation.outputs]
            if all(cotangent is None for cotangent in incoming):
                continue
            source = equation.source
            self.builder.source = Source(source.file, source.line, source.layer, "backward")
            for value, cotangent in zip(equation.outputs, incoming, strict=True):
                self._label(cotangent, self.labels[value], own=bool(value.name))
            self._accumulate(equation, pullback(incoming), cotangents)
        for value in self.wanted:
            self._label(cotangents.get(value), self.labels[value], own=True)
        return [cotangents[v] if v in cotangents else ops.zeros(v.type.shape, v.type.dtype) for v in self.wanted]

    def _accumulate(self, equation: Equation, results: Sequence[Any], cotangents: dict[Value, Tensor]) -> None:
        if len(results) != len(equation.inputs):
            raise ProgramError(
                f"the derivative of {equation.primitive.name} gives {len(results)} cotangents "
                f"for {len(equation.inputs)} operands"
            )
        for value, cotangent in zip(equation.inputs, results, strict=True):
            if cotangent is None or value not in self.active:
                continue
            if cotangent.shape != value.type.shape or cotangent.dtype != value.type.dtype:
                raise ProgramError(
                    f"the derivative of {equation.primitive.name} gives the cotangent {cotangent} for {value.type}"
                )
            cotangents[value] = cotangents[value] + cotangent if value in cotangents else cotangent
            if equation.primitive.broadcasts and len(equation.inputs) == 1:
                self.labels[value] = self.labels[value] or self.labels[equation.outputs[0]]

    def _label(self, cotangent: Any, label: str, own: bool) -> None:
        """Call the cotangent of `h` ``d_h``, unless the tensor has a name already.

        A value without a name of its `own`, such as what goes into an activation, has the label of what comes out. If
        its cotangent is that of a named value as well, the proper name replaces the inherited one.
        """
        if not label or not isinstance(cotangent, Tensor):
            return
        value = cotangent.value
        if value.name is None or (own and value in self.inherited):
            value.name = f"d_{label}"
            (self.inherited.discard if own else self.inherited.add)(value)

    def finish(self, name: str, results: Sequence[Any]) -> Program:
        """The simplified Program, with the captured arrays of the original at the end of its inputs."""
        program, builder = self.program, self.builder
        self.builder.source = Source()
        values = [lift(builder, result) for result in results]
        names = dict(zip(program.inputs, program.input_names, strict=True))
        namer = Namer(program.output_names)
        gradients = [namer.name(f"d_{names[value]}") for value in self.wanted]
        count, captured = program.argument_count, len(program.captured)
        order = [*range(count), *range(count + captured, len(builder.inputs)), *range(count, count + captured)]
        return simplify(
            Program(
                name=name,
                inputs=tuple(builder.inputs[i] for i in order),
                input_names=tuple(builder.input_names[i] for i in order),
                outputs=tuple(values),
                output_names=(*program.output_names, *gradients),
                equations=tuple(builder.equations),
                captured=program.captured,
            )
        )


def _results(equation: Equation, operands: Sequence[Tensor]) -> Sequence[Tensor]:
    results = bind(equation.primitive, *operands, **equation.params)
    return results if equation.primitive.multiple_results else (results,)


def linearize(
    equation: Equation, operands: Sequence[Tensor], active: Sequence[bool]
) -> tuple[Sequence[Tensor], Pullback]:
    """The results of `equation` on `operands`, and the pullback of their cotangents."""
    primitive = equation.primitive
    if primitive.name in LINEARIZE:
        return LINEARIZE[primitive.name](equation, operands, active)
    if type(primitive).vjp is Primitive.vjp:
        raise primitive.missing("vjp` or `differentiable = False", "differentiated", equation.source)
    results = _results(equation, operands)

    def pullback(cotangents: Sequence[Any]) -> Sequence[Any]:
        many = primitive.multiple_results
        dy, y = (tuple(cotangents), tuple(results)) if many else (cotangents[0], results[0])
        found = primitive.vjp(dy, y, *operands, **equation.params)
        return found if isinstance(found, tuple) else (found,)

    return results, pullback
