"""`capture`: run a Python function once on traced tensors, and keep what it did as a Program."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np

from antegrad import tree
from antegrad.errors import DTypeError, TraceError
from antegrad.ir.builder import Builder
from antegrad.ir.names import identifier
from antegrad.ir.program import Program, Value
from antegrad.ir.types import TensorType, type_of
from antegrad.ops.dispatch import current_builder, lift, mark_entry, name_values, tracing
from antegrad.ops.tensor import Tensor


@dataclass(frozen=True)
class Traced:
    """A captured function: its Program, what it captured from an enclosing trace, and which inputs are whose.

    `captured` are tensors of the enclosing trace that stand behind the trailing inputs of `program`.
    `argument_inputs[i]` are the positions of the inputs that came from the i-th example.
    """

    program: Program
    captured: tuple[Any, ...]
    argument_inputs: tuple[range, ...]

    def operands(self, arguments: Sequence[Any]) -> list[Any]:
        """The leaves of `arguments`, then what was captured, in the order of the program's inputs."""
        return [*tree.leaves(list(arguments)), *self.captured]


def capture(function: Callable[..., Any], *examples: Any, name: str | None = None) -> Program:
    """The Program of `function` called on tensors with the types of `examples`.

    `examples` are pytrees of arrays, of `spec` types or of Python numbers (traced as f32, i32 or bool scalars). The
    function runs once, so Python control flow is part of the result only as far as it went. Arrays that it takes
    from outside are embedded when they have at most 64 elements, and become inputs of the program when larger.

    Raises `TraceError` for misuse of a traced tensor, `ShapeError` and `DTypeError` for operands that do not fit,
    each with the layer path and the user's line.
    """
    return trace(function, *examples, name=name).program


@mark_entry
def trace(function: Callable[..., Any], *examples: Any, name: str | None = None) -> Traced:
    """Like `capture`, and inside another capture too: says what the function took from the enclosing one."""
    builder = Builder(parent=current_builder())
    arguments, counts = _traced_arguments(builder, function, examples)
    with tracing(builder):
        results = function(*arguments)
        outputs, structure = tree.flatten(results)
        values = [_output_value(builder, output, function) for output in outputs]
    name_values(builder)
    names = _output_names(results, values)
    program = builder.finish(name or _function_name(function), values, names, structure)
    starts = np.cumsum([0, *counts]).tolist()
    ranges = tuple(range(a, b) for a, b in pairwise(starts))
    return Traced(program, tuple(builder.captured_tensors) if builder.parent else (), ranges)


def _function_name(function: Callable[..., Any]) -> str:
    named = getattr(function, "__name__", type(function).__name__)
    return "program" if named == "<lambda>" else identifier(named)


def _traced_arguments(
    builder: Builder, function: Callable[..., Any], examples: Sequence[Any]
) -> tuple[list[Any], list[int]]:
    """The examples with traced tensors as leaves, and how many leaves each has."""
    arguments, counts = [], []
    flat = [tree.flatten_with_names(example) for example in examples]
    names = input_names(argument_names(function, len(examples)), [[path for path, _ in pairs] for pairs, _ in flat])
    for (pairs, structure), own_names in zip(flat, names, strict=True):
        tensors = [
            Tensor(builder.input(_leaf_type(leaf, name), name), builder)
            for (_, leaf), name in zip(pairs, own_names, strict=True)
        ]
        counts.append(len(tensors))
        arguments.append(tree.unflatten(structure, tensors))
    return arguments, counts


def _leaf_type(leaf: Any, name: str) -> TensorType:
    if isinstance(leaf, TensorType):
        return leaf
    try:
        return type_of(leaf)
    except DTypeError as error:
        raise DTypeError(
            f"capture: input {name}: {error}. Pass what is not data through functools.partial or a closure."
        ) from None


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` positional parameters of `function`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    return [*names, *(f"{rest}{i}" for i in range(count - len(names)))]


def positional(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A call with keywords as one without: each in its place, or all that have none in one last dict."""
    if not keywords:
        return function, tuple(arguments)
    bound = inspect.signature(function).bind(*arguments, **keywords)
    if not bound.kwargs:
        return function, bound.args

    @wraps(function)
    def with_keywords(*args: Any) -> Any:
        return function(*args[:-1], **args[-1])

    return with_keywords, (*bound.args, bound.kwargs)


def input_names(arguments: Sequence[str], paths: Sequence[Sequence[str]]) -> list[list[str]]:
    """A name for every leaf: the argument's name, or the path inside it where that says enough and is unique.

    ``w`` of a params dict and ``0.w`` of a model keep their paths; ``batch.0`` needs its argument.
    """
    short = [path for own in paths for path in own if path]
    bare = {argument for argument, own in zip(arguments, paths, strict=True) if list(own) == [""]}
    names = []
    for argument, own in zip(arguments, paths, strict=True):
        clear = all(p and not p.rsplit(".", 1)[-1].isdigit() and short.count(p) == 1 and p not in bare for p in own)
        names.append([path if clear else ".".join(filter(None, (argument, path))) for path in own])
    return names


def _output_value(builder: Builder, output: Any, function: Callable[..., Any]) -> Value:
    try:
        return lift(builder, output)
    except DTypeError:
        code = getattr(inspect.unwrap(function), "__code__", None)
        raise TraceError(
            f"capture: {_function_name(function)} must return tensors or numbers, found {output!r} in what it returned"
            + (f"\n  at {code.co_filename}:{code.co_firstlineno}" if code else "")
        ) from None


def _output_names(results: Any, values: Sequence[Value]) -> list[str]:
    """The path of each output where it has one that is a name, else the value's own name, else ``out``."""
    paths = [path for path, _ in tree.flatten_with_names(results)[0]]
    names: list[str] = []
    for position, (path, value) in enumerate(zip(paths, values, strict=True)):
        spoken = re.sub(r"^(\d+\.)+", "", path)
        stem = spoken if spoken and not spoken.rsplit(".", 1)[-1].isdigit() else None
        stem = stem or value.name or (f"out{position}" if len(values) > 1 else "out")
        name, number = stem, 0
        while name in names:
            number += 1
            name = f"{stem}_{number}"
        names.append(name)
    return names
