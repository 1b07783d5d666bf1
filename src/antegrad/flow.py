"""Control flow that depends on data: `cond`, `switch`, `while_loop`, `fori_loop`, `scan` and `map`.

Each function argument is captured once into a sub-program. What it uses from outside becomes an operand, so gradients
reach it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antegrad import ops, tree
from antegrad.capture import trace
from antegrad.errors import DTypeError, ShapeError, TraceError
from antegrad.ir.names import Namer, identifier
from antegrad.ir.program import Program, Value
from antegrad.ir.types import TensorType, is_integer, type_of
from antegrad.ops.control import cond_p, scan_p, while_p
from antegrad.ops.dispatch import as_tensor, bind, here


def _place() -> str:
    place = str(here())
    return f"\n  at {place}" if place else ""


def _leaves(tree_: Any) -> tuple[list[Any], Any]:
    """The leaves as tensors or arrays, and the structure."""
    leaves, structure = tree.flatten(tree_)
    return [as_tensor(leaf) for leaf in leaves], structure


def _types(leaves: Sequence[Any]) -> list[TensorType]:
    return [type_of(leaf) for leaf in leaves]


def subprogram(function: Callable[..., Any], name: str, *examples: Any) -> tuple[Program, list[Any]]:
    """`function` captured on the types of `examples`, and what stands behind its trailing inputs."""
    traced = trace(function, *examples, name=name)
    outer = list(traced.captured or traced.program.captured)
    return replace(traced.program, captured=()), outer


def _name(function: Callable[..., Any], fallback: str) -> str:
    """What to call the sub-program of `function`; a lambda has no name of its own."""
    name = getattr(function, "__name__", fallback)
    return identifier(name) if name.isidentifier() else fallback


def _reordered(program: Program, order: Sequence[int]) -> Program:
    return replace(
        program,
        inputs=tuple(program.inputs[i] for i in order),
        input_names=tuple(program.input_names[i] for i in order),
    )


def _constants_first(program: Program, count: int) -> Program:
    """`program` with its last `count` inputs, the captured ones, in front."""
    size = len(program.inputs)
    return _reordered(program, [*range(size - count, size), *range(size - count)])


def _example(types: Sequence[TensorType], structure: Any) -> Any:
    return tree.unflatten(structure, types)


def cond(condition: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """``then(*operands)`` where the bool scalar `condition` is true, else ``otherwise(*operands)``.

    Both are captured; only the chosen one runs. Their results must have one structure and the same types.
    """
    test = as_tensor(condition)
    if test.dtype.kind != "b" or test.shape != ():
        raise DTypeError(f"cond: the condition must be a bool scalar, found {type_of(test)}{_place()}")
    return _choose("cond", test, (otherwise, then), operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """``branches[index](*operands)`` for an integer scalar `index`, which is clamped to what there is."""
    chosen = as_tensor(index)
    if not is_integer(chosen.dtype) or chosen.shape != ():
        raise DTypeError(f"switch: the index must be an integer scalar, found {type_of(chosen)}{_place()}")
    if not branches:
        raise ShapeError(f"switch: there is no branch to choose{_place()}")
    if chosen.dtype != np.int32:
        chosen = ops.convert(ops.clip(chosen, 0, len(branches) - 1), "i32")
    return _choose("switch", chosen, tuple(branches), operands)


def _choose(what: str, index: Any, branches: tuple[Callable[..., Any], ...], operands: tuple[Any, ...]) -> Any:
    leaves, structure = _leaves(operands)
    example = _example(_types(leaves), structure)
    captured = [subprogram(branch, _name(branch, f"branch_{i}"), *example) for i, branch in enumerate(branches)]
    _check_branches(what, [program for program, _ in captured])
    everything = [outer for _, outers in captured for outer in outers]
    programs, start = [], 0
    for program, outers in captured:
        programs.append(_with_unused(program, len(leaves), everything, start))
        start += len(outers)
    results = bind(cond_p, index, *leaves, *everything, branches=tuple(programs))
    return tree.unflatten(captured[0][0].structure, results)


def _check_branches(what: str, branches: Sequence[Program]) -> None:
    """All branches must return one structure, and the same types."""
    structures = {str(branch.structure) for branch in branches}
    if len(structures) > 1:
        listed = " and ".join(sorted(structures))
        raise ShapeError(f"{what}: the branches return different structures: {listed}{_place()}")
    for branch in branches:
        expected, found = (", ".join(str(type) for type in each.output_types) for each in (branches[0], branch))
        if expected != found:
            raise ShapeError(f"{what}: results of the branches: expected ({expected}), found ({found}){_place()}")


def _with_unused(program: Program, own: int, everything: Sequence[Any], start: int) -> Program:
    """A branch that takes what all branches captured, and uses its own part, which begins at `start`."""
    stop = start + len(program.inputs) - own
    namer = Namer(program.input_names)
    unused = [(Value(type_of(outer)), namer.name("unused", numbered=True)) for outer in everything]
    pairs = list(zip(program.inputs, program.input_names, strict=True))
    pairs[own:] = [*unused[:start], *pairs[own:], *unused[stop:]]
    return replace(program, inputs=tuple(value for value, _ in pairs), input_names=tuple(name for _, name in pairs))


def while_loop(
    condition: Callable[[Any], Any], body: Callable[[Any], Any], initial: Any, max_steps: int | None = None
) -> Any:
    """``while condition(carry): carry = body(carry)`` from `initial`, a pytree whose types the body must keep.

    It has forward mode, but no reverse mode, because the number of steps is not known. With `max_steps` it stops
    after that many steps at the latest, and has both: it is then a `scan` of so many steps, each of which runs the
    body or, once the condition has failed, nothing.
    """
    if max_steps is not None:
        return _bounded_loop(condition, body, initial, max_steps)
    leaves, structure = _leaves(initial)
    example = _example(_types(leaves), structure)
    test, test_outer = subprogram(condition, _name(condition, "condition"), example)
    step, step_outer = subprogram(body, _name(body, "body"), example)
    _check_carry("while_loop", structure, leaves, step.structure, step.output_types)
    results = bind(
        while_p,
        *test_outer,
        *step_outer,
        *leaves,
        condition=_constants_first(test, len(test_outer)),
        body=_constants_first(step, len(step_outer)),
        constants=(len(test_outer), len(step_outer)),
    )
    return tree.unflatten(structure, results)


def _bounded_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], initial: Any, max_steps: int) -> Any:
    if isinstance(max_steps, bool) or not isinstance(max_steps, (int, np.integer)) or max_steps < 0:
        raise ShapeError(f"while_loop: max_steps must be a whole number of at least 0, found {max_steps!r}{_place()}")

    def step(carry: Any, _: None) -> tuple[Any, None]:
        return cond(condition(carry), body, lambda same: same, carry), None

    step.__wrapped__ = body  # pyright: ignore[reportFunctionMemberAccess]  (its parameters name the inputs)
    return scan(step, initial, length=max_steps)[0]


def _check_carry(what: str, structure: Any, leaves: Sequence[Any], found: Any, types: Sequence[TensorType]) -> None:
    """The body must return the carry that it was given: the same structure and types."""
    if found != structure:
        raise ShapeError(f"{what}: the carry goes in as {structure} and comes out as {found}{_place()}")
    for position, (leaf, type) in enumerate(zip(leaves, types, strict=True)):
        if type_of(leaf) != type:
            raise ShapeError(
                f"{what}: leaf {position} of the carry goes in as {type_of(leaf)} and comes out as {type}{_place()}"
            )


def scan(
    function: Callable[[Any, Any], tuple[Any, Any]],
    initial: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """``carry, y = function(carry, x)`` for every slice of `xs` along its first axis; the last carry and all y stacked.

    `initial` and `xs` are pytrees; with ``xs=None`` the function runs `length` times on None. With `reverse` the
    slices are taken from the last to the first. The gradient stores what the backward steps need of each step.
    """
    carry, structure = _leaves(initial)
    stacked, xs_structure = _leaves(xs)
    count = _length(stacked, length)
    found: list[Any] = []

    def step(carry: Any, x: Any) -> Any:
        result = function(carry, x)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TraceError(f"scan: the function must return (carry, y), found {type(result).__name__}{_place()}")
        found.append(tree.structure(result[0]))
        return result

    step.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (its parameters name the inputs)
    slices = [x.with_shape(x.shape[1:]) for x in _types(stacked)]
    examples = _example(_types(carry), structure), _example(slices, xs_structure)
    body, outer = subprogram(step, _name(function, "step"), *examples)
    _check_carry("scan", structure, carry, found[0], body.output_types[: len(carry)])
    parameters = {"counts": (len(outer), len(carry)), "length": count, "reverse": reverse}
    results = bind(scan_p, *outer, *carry, *stacked, body=_constants_first(body, len(outer)), **parameters)
    return tree.unflatten(body.structure, results)


def _length(stacked: Sequence[Any], length: int | None) -> int:
    if length is not None and (isinstance(length, bool) or not isinstance(length, (int, np.integer))):
        raise ShapeError(f"scan: the length must be a whole number, found {length!r}{_place()}")
    sizes = {x.shape[0] if x.ndim else -1 for x in stacked} | ({length} if length is not None else set())
    if len(sizes) != 1 or min(sizes) < 0:
        listed = ", ".join(str(type) for type in _types(stacked))
        found = f"found {listed}, length={length}"
        raise ShapeError(f"scan: inputs with one number of slices are needed, {found}{_place()}")
    return int(sizes.pop())


def fori_loop(start: Any, stop: Any, body: Callable[[Any, Any], Any], initial: Any) -> Any:
    """``for i in range(start, stop): carry = body(i, carry)``, with `i` an i32 scalar.

    With Python integers as bounds the loop is a `scan` and has a reverse mode; with computed bounds it is a
    `while_loop` and has none.
    """
    if isinstance(start, int) and isinstance(stop, int):
        steps = ops.arange(start, max(start, stop))
        return scan(lambda carry, i: (body(i, carry), None), initial, steps)[0]
    for bound in (as_tensor(start), as_tensor(stop)):  # `map` is the one of this module
        if bound.dtype.itemsize > 4 or not is_integer(bound.dtype):
            found = f"found {type_of(bound)}: use .astype('i32')"
            raise DTypeError(f"fori_loop: computed bounds are i32, {found}{_place()}")
    first, last = ops.convert(as_tensor(start), "i32"), ops.convert(as_tensor(stop), "i32")
    _, result = while_loop(
        lambda state: state[0] < last, lambda state: (state[0] + 1, body(state[0], state[1])), (first, initial)
    )
    return result


def map(function: Callable[[Any], Any], xs: Any) -> Any:
    """`function` of every slice of the pytree `xs` along its first axis, one after the other; the results stacked."""
    return scan(lambda carry, x: (carry, function(x)), (), xs)[1]
