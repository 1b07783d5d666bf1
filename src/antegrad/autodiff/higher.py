"""Derivatives of Python functions: `grad`, `value_and_grad`, `vjp`, `jvp`, on pytrees, nested in any order.

Each captures the function, transforms the Program, and applies it: at once on arrays, on the host device, or into the
program being traced when called inside another capture. To run on an accelerator, compile what calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from antegrad import tree
from antegrad.autodiff.forward import jvp_program
from antegrad.autodiff.reverse import refuse_while, reverse, vjp_program
from antegrad.capture import Traced, argument_names, positional, trace
from antegrad.errors import DTypeError, NameMissing, ShapeError
from antegrad.ir.program import Program, Value
from antegrad.ir.types import TensorType, is_float, type_of
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import apply, as_tensor, current_builder, here
from antegrad.ops.promotion import number

Argnums = int | str | Sequence[int | str]


def _run(program: Program, operands: Sequence[Any]) -> Sequence[Any]:
    """The outputs of `program`: traced inside a capture, else at once on the host device, as all ops on arrays."""
    if current_builder() is not None:
        return apply(program, operands)
    return tree.leaves(program.run(*(as_tensor(operand) for operand in operands), device="host"))


def argument_positions(function: Callable[..., Any], argnums: Argnums, count: int) -> list[int]:
    """Argument positions, from positions or parameter names."""
    names = argument_names(function, count)
    for choice in argnums if isinstance(argnums, Sequence) and not isinstance(argnums, str) else [argnums]:
        if isinstance(choice, bool) or not isinstance(choice, (int, str)):
            raise NameMissing(f"argnums: a position or the name of a parameter is needed, found {choice!r}")
    chosen = [argnums] if isinstance(argnums, (int, str)) else list(argnums)
    positions = []
    for choice in chosen:
        if isinstance(choice, str) and choice not in names:
            raise NameMissing(f"argnums: no argument {choice!r}; the function has {', '.join(names)}")
        position = names.index(choice) if isinstance(choice, str) else choice
        if not -count <= position < count:
            raise ShapeError(f"argnums: no argument {choice}; the function was called with {count}")
        positions.append(position % count)
    return positions


def _wrt(traced: Traced, positions: Sequence[int]) -> list[str]:
    """The names of the inputs that belong to the arguments at `positions`; all of them must be float."""
    names = []
    for position in positions:
        for index in traced.argument_inputs[position]:
            value, name = traced.program.inputs[index], traced.program.input_names[index]
            if not is_float(value.type.dtype):
                raise DTypeError(
                    f"grad of {traced.program.name} with respect to argument {name}: it is {value.type}, not a float. "
                    f"Pass a float, such as 3.0 or x.astype('f32'), or leave it out of argnums."
                )
            names.append(name)
    return names


def value_and_grad(
    function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that gives ``(function(*args), gradient)``.

    The gradient has the structure of the argument at `argnums` (a position or name; several give a tuple). With
    `has_aux` the function returns ``(loss, aux)`` and the first part of the result is that pair. Keyword arguments are
    traced as the others are: what is no data goes through `functools.partial`. Raises `ShapeError`
    when the loss is not a float scalar, `DTypeError` for an argument that is not float.
    """

    def differentiated(*args: Any, **keywords: Any) -> tuple[Any, Any]:
        target, args = positional(function, args, keywords)
        traced = trace(target, *args)
        _check_loss(traced.program, has_aux)
        positions = argument_positions(function, argnums, len(args))
        names = _wrt(traced, positions)
        results = _run(reverse(traced.program, names), traced.operands(args))
        count = len(traced.program.outputs)
        value = tree.unflatten(traced.program.structure, results[:count])
        found = dict(zip(dict.fromkeys(names), results[count:], strict=True))
        gradients = []
        for position in positions:
            own = [found[traced.program.input_names[i]] for i in traced.argument_inputs[position]]
            gradients.append(tree.unflatten(tree.structure(args[position]), own))
        single = isinstance(argnums, (int, str))
        return value, gradients[0] if single else tuple(gradients)

    return _named(differentiated, function, "value_and_grad")


def _check_loss(program: Program, has_aux: bool) -> None:
    """The function must have returned one loss, or a pair of one loss and something else."""
    result = tree.unflatten(program.structure, program.outputs)
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Value)
    if not (pair if has_aux else len(program.outputs) == 1):
        expected = "a pair (loss, aux), because has_aux is set" if has_aux else "one scalar loss"
        advice = "" if has_aux else "; return (loss, aux) and pass has_aux=True"
        raise ShapeError(
            f"grad of {program.name}: {expected}, is needed, "
            f"found {len(program.outputs)} outputs in {program.structure}{advice}"
        )


def grad(function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar function, or ``(gradient, aux)`` with `has_aux`.

    See `value_and_grad` for `argnums` and errors.
    """
    both = value_and_grad(function, argnums, has_aux)

    def differentiated(*args: Any, **keywords: Any) -> Any:
        value, gradient = both(*args, **keywords)
        return (gradient, value[1]) if has_aux else gradient

    return _named(differentiated, function, "grad")


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """``(function(*primals), pullback)``; the pullback takes the cotangent of the result, of its structure.

    It gives one cotangent for each primal, with None for leaves that are not float.
    """
    traced = trace(function, *primals)
    program, operands = traced.program, traced.operands(primals)
    inputs = [i for r in traced.argument_inputs for i in r if is_float(program.inputs[i].type.dtype)]
    transformed = refuse_while(vjp_program(program, [program.input_names[i] for i in inputs]))
    value = tree.unflatten(program.structure, _run(program, operands))

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        results = _run(transformed, [*operands, *_float_cotangents(program, cotangent)])[len(program.outputs) :]
        by_input = dict(zip(inputs, results, strict=True))
        return tuple(
            tree.unflatten(tree.structure(primal), [by_input.get(i) for i in own])
            for primal, own in zip(primals, traced.argument_inputs, strict=True)
        )

    return value, pullback


def _float_cotangents(program: Program, cotangent: Any) -> list[Any]:
    """The leaves of `cotangent` for the float outputs of `program`; refused where it is not like its result."""
    given, structure = tree.flatten(cotangent)
    if len(given) != len(program.outputs):
        raise misfit(f"vjp of {program.name}: {len(program.outputs)} cotangents are needed, found {len(given)}")
    if structure != program.structure:
        raise misfit(f"vjp of {program.name}: a cotangent like {program.structure} is needed, found {structure}")
    return [
        _matching(f"vjp of {program.name}: the cotangent of {name}", one, value.type)
        for one, value, name in zip(given, program.outputs, program.output_names, strict=True)
        if is_float(value.type.dtype)
    ]


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """``(function(*primals), tangent of the result)`` for tangents of the structure of the primals.

    Derived from the reverse rules: the pullback is linear in its cotangent, and its transpose is the forward mode.
    """
    traced = trace(function, *primals)
    program, operands = traced.program, traced.operands(primals)
    given, own = tree.leaves(list(tangents)), sum(len(inputs) for inputs in traced.argument_inputs)
    if len(given) != own:
        raise misfit(f"jvp of {program.name}: {own} tangents are needed, found {len(given)}")
    names, chosen = [], []
    for value, name, tangent in zip(program.inputs, program.input_names, given, strict=False):
        if is_float(value.type.dtype):
            names.append(name)
            chosen.append(_matching(f"jvp of {program.name}: the tangent of {name}", tangent, value.type))
    results = _run(jvp_program(program, names), [*operands, *chosen])
    count = len(program.outputs)
    return tree.unflatten(program.structure, results[:count]), tree.unflatten(program.structure, results[count:])


def _matching(what: str, given: Any, expected: TensorType) -> Any:
    """A tangent or cotangent, which has the type of its primal; a Python number becomes a scalar of that type."""
    if isinstance(given, (int, float)) and not isinstance(given, (bool, np.generic)) and not expected.shape:
        return number(given, expected.dtype)
    tensor = as_tensor(given)
    found = type_of(tensor)
    if found != expected:
        kind = ShapeError if found.shape != expected.shape else DTypeError
        place = str(here())
        raise kind(f"{what} must be {expected}, found {found}" + (f"\n  at {place}" if place else ""))
    return tensor


def _named(wrapper: Callable[..., Any], function: Callable[..., Any], prefix: str) -> Callable[..., Any]:
    wrapper.__name__ = f"{prefix}_{getattr(function, '__name__', 'function')}"
    wrapper.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (inspect.signature follows it)
    return wrapper
