"""`vmap`: a function of one example, made into a function of a batch, by a batching rule for every primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from antegrad import flow, ops, tree
from antegrad.capture import positional, trace
from antegrad.errors import ShapeError
from antegrad.ir.builder import Builder
from antegrad.ir.program import Equation, Program, Value
from antegrad.ir.types import type_of
from antegrad.ops.batching import leading
from antegrad.ops.control import cond_p, scan_p, while_p
from antegrad.ops.dispatch import apply, as_tensor, bind, current_builder, lift, tracing
from antegrad.ops.tensor import Tensor

Axes = int | None | Sequence[int | None]


def vmap(function: Callable[..., Any], in_axes: Axes = 0, out_axes: int = 0) -> Callable[..., Any]:
    """`function` over a batch: each argument is split along its axis in `in_axes`, and the results are stacked.

    `in_axes` is one axis for all arguments, or one for each; None hands an argument to every call as it is. Keyword
    arguments count in their places, and those without a place as one dict behind the others. Every
    array of a pytree is split along the same axis. The results get a new axis at `out_axes`. All batch axes must have
    one size; a `ShapeError` names the arguments where they have not.

        per_example = ag.vmap(ag.grad(loss), in_axes=(None, 0, 0))      # a gradient for each example
    """

    @wraps(function)
    def batched(*args: Any, **keywords: Any) -> Any:
        target, args = positional(function, args, keywords)
        axes = [in_axes] * len(args) if in_axes is None or isinstance(in_axes, int) else list(in_axes)
        if len(axes) != len(args):
            raise ShapeError(f"vmap: in_axes has {len(axes)} entries, the call {len(args)} arguments")
        leaves, flags, size = _moved(args, axes)
        types = [t.with_shape(t.shape[1:]) if f else t for t, f in zip(map(type_of, leaves), flags, strict=True)]
        traced = trace(target, *tree.unflatten(tree.structure(args), types))
        outer = list(traced.captured)
        flags += [False] * (len(traced.program.inputs) - len(flags))
        program = batch_program(traced.program, flags, size)
        if current_builder() is not None:
            results = apply(program, [*leaves, *outer])
        else:
            results = tree.leaves(program.run(*leaves, *outer, device="host"))
        moved = [ops.moveaxis(result, 0, out_axes) for result in results]
        return tree.unflatten(traced.program.structure, moved)

    return batched


def _moved(args: Sequence[Any], axes: Sequence[int | None]) -> tuple[list[Any], list[bool], int]:
    """The leaves with their batch axis in front, which of them have one, and the size of the batch."""
    leaves, flags, sizes = [], [], {}
    for position, (arg, axis) in enumerate(zip(args, axes, strict=True)):
        for leaf in map(as_tensor, tree.leaves(arg)):
            flags.append(axis is not None)
            leaves.append(leaf if axis is None else ops.moveaxis(leaf, axis, 0))
            if axis is not None:
                sizes.setdefault(leaves[-1].shape[0], position)
    if len(sizes) != 1:
        found = ", ".join(f"{size} (argument {position})" for size, position in sizes.items()) or "none"
        raise ShapeError(f"vmap: one size of the batch is needed, found {found}")
    return leaves, flags, next(iter(sizes))


def batch_program(program: Program, batched: Sequence[bool], size: int, every_output: bool = True) -> Program:
    """`program` over a batch of `size`: inputs flagged in `batched`, and all outputs, have it as their first axis.

    With ``every_output=False`` an output that does not depend on a batched input keeps its shape.
    """
    builder = Builder()
    env: dict[Value, tuple[Any, bool]] = {}
    for value, name, flag in zip(program.inputs, program.input_names, batched, strict=True):
        type = value.type.with_shape((size, *value.type.shape)) if flag else value.type
        env[value] = Tensor(builder.input(type, name), builder), flag
    with tracing(builder):
        for equation in program.equations:
            builder.source = equation.source
            operands, flags = [env[value][0] for value in equation.inputs], [env[value][1] for value in equation.inputs]
            for value, result, flag in zip(equation.outputs, *_batched(equation, operands, flags, size), strict=True):
                if value.name and isinstance(result, Tensor) and not result.value.declared:
                    result.value.name, result.value.declared = value.name, value.declared
                env[value] = result, flag
        outputs = [env[value] for value in program.outputs]
        values = [lift(builder, leading(x, flag, size) if every_output else x) for x, flag in outputs]
    result = builder.finish(f"{program.name}_batch", values, program.output_names)
    return replace(result, captured=program.captured)


def output_flags(program: Program, batched: Sequence[bool]) -> list[bool]:
    """Which outputs depend on a batched input."""
    found = {value for value, flag in zip(program.inputs, batched, strict=True) if flag}
    for equation in program.equations:
        if found.intersection(equation.inputs):
            found.update(equation.outputs)
    return [value in found for value in program.outputs]


def _batched(
    equation: Equation, operands: Sequence[Any], flags: Sequence[bool], size: int
) -> tuple[Sequence[Any], Sequence[bool]]:
    """The results of `equation` on a batch, and which of them have the batch axis."""
    primitive, count = equation.primitive, len(equation.outputs)
    if not any(flags):
        found = bind(primitive, *operands, **equation.params)
        return (found if primitive.multiple_results else (found,)), [False] * count
    if primitive.name in _CONTROL:
        return _CONTROL[primitive.name](equation, operands, flags, size), [True] * count
    found = primitive.batch(size, operands, flags, **equation.params)
    if found is NotImplemented:
        found = _one_by_one(equation, operands, flags)
    return (found if primitive.multiple_results else (found,)), [True] * count


def _one_by_one(equation: Equation, operands: Sequence[Any], flags: Sequence[bool]) -> Any:
    """The equation in a loop over the batch: right for every primitive, for those that declare no rule of their own."""
    split = [x for x, flag in zip(operands, flags, strict=True) if flag]

    def step(xs: Any) -> Any:
        own = iter(xs)
        given = [next(own) if flag else x for x, flag in zip(operands, flags, strict=True)]
        return bind(equation.primitive, *given, **equation.params)

    step.__name__ = equation.primitive.name
    return flow.map(step, tuple(split))


def _cond(equation: Equation, operands: Sequence[Any], flags: Sequence[bool], size: int) -> Sequence[Any]:
    """One choice for all: a `cond` of batched branches. A choice for each: every branch, and a selection."""
    (index, *rest), (chosen, *own) = operands, flags
    branches = [batch_program(branch, own, size) for branch in equation.params["branches"]]
    if not chosen:
        return bind(cond_p, index, *rest, branches=tuple(branches))
    results = [apply(branch, rest) for branch in branches]
    number = ops.clip(ops.convert(index, "i32"), 0, len(branches) - 1)
    selected = results[0]
    for position, candidate in enumerate(results[1:], start=1):
        takes = number == position
        pairs = zip(candidate, selected, strict=True)
        selected = [ops.where(_spread(takes, new), new, old) for new, old in pairs]
    return selected


def _spread(mask: Any, like: Any) -> Any:
    """A mask over the batch, shaped to select whole elements of `like`."""
    return ops.reshape(mask, (*mask.shape, *(1,) * (like.ndim - 1)))


def _carry_flags(body: Program, constants: Sequence[bool], carry: Sequence[bool], xs: Sequence[bool]) -> list[bool]:
    """Which carries get the batch axis: those that have it, and those that the body lets it reach."""
    flags = list(carry)
    while True:
        reached = output_flags(body, [*constants, *flags, *xs])[: len(flags)]
        grown = [a or b for a, b in zip(flags, reached, strict=True)]
        if grown == flags:
            return flags
        flags = grown


def _body(program: Program, flags: Sequence[bool], carry: Sequence[bool], size: int) -> Program:
    """The batched body of a loop, whose carries have the batch axis exactly where `carry` says."""
    outputs = output_flags(program, flags)
    builder = Builder()
    inner = batch_program(program, flags, size, every_output=False)
    given = [Tensor(builder.input(v.type, n), builder) for v, n in zip(inner.inputs, inner.input_names, strict=True)]
    wanted = [*carry, *[True] * (len(outputs) - len(carry))]
    with tracing(builder):
        results = apply(inner, given)
        triples = zip(results, outputs, wanted, strict=True)
        values = [lift(builder, leading(x, have, size) if want else x) for x, have, want in triples]
    return builder.finish(inner.name, values, inner.output_names)


def _scan(equation: Equation, operands: Sequence[Any], flags: Sequence[bool], size: int) -> Sequence[Any]:
    """A scan of the batched body. Stacked inputs have the steps in front of the batch, so their axes are exchanged."""
    constants, carries = equation.params["counts"]
    both, body = constants + carries, equation.params["body"]
    carry = _carry_flags(body, flags[:constants], flags[constants:both], flags[both:])
    batched = _body(body, [*flags[:constants], *carry, *flags[both:]], carry, size)
    triples = zip(operands[constants:both], flags[constants:both], carry, strict=True)
    start = [leading(x, have, size) if want else x for x, have, want in triples]
    xs = [ops.swapaxes(x, 0, 1) if flag else x for x, flag in zip(operands[both:], flags[both:], strict=True)]
    found = bind(scan_p, *operands[:constants], *start, *xs, **{**equation.params, "body": batched})
    final = [leading(x, flag, size) for x, flag in zip(found[:carries], carry, strict=True)]
    return [*final, *(ops.swapaxes(y, 0, 1) for y in found[carries:])]


def _while(equation: Equation, operands: Sequence[Any], flags: Sequence[bool], size: int) -> Sequence[Any]:
    """A loop that goes on while any example does, and leaves alone the carry of those that have finished."""
    first, second = equation.params["constants"]
    both = first + second
    test, body = equation.params["condition"], equation.params["body"]
    test_constants, body_constants = list(operands[:first]), list(operands[first:both])
    test_flags, body_flags = list(flags[:first]), list(flags[first:both])
    carry = [leading(x, flag, size) for x, flag in zip(operands[both:], flags[both:], strict=True)]
    everything = [True] * len(carry)
    batched_test = batch_program(test, [*test_flags, *everything], size)
    batched_body = batch_program(body, [*body_flags, *everything], size)

    def goes_on(state: Any) -> Any:
        return ops.any(apply(batched_test, [*test_constants, *state])[0])

    def step(state: Any) -> Any:
        active = apply(batched_test, [*test_constants, *state])[0]
        after = apply(batched_body, [*body_constants, *state])
        return tuple(ops.where(_spread(active, new), new, old) for new, old in zip(after, state, strict=True))

    return flow.while_loop(goes_on, step, tuple(carry))


_CONTROL: dict[str, Callable[[Equation, Sequence[Any], Sequence[bool], int], Sequence[Any]]] = {
    cond_p.name: _cond,
    scan_p.name: _scan,
    while_p.name: _while,
}
