"""`from_python`: a printed module, edited or not, traced back into a Program."""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from antegrad import flow, ops
from antegrad.capture import capture
from antegrad.errors import AntegradError, DTypeError, ProgramError, TraceError
from antegrad.ir.builder import frozen
from antegrad.ir.primitive import REGISTRY
from antegrad.ir.program import Program
from antegrad.ir.types import BF16, BOOL, TensorType, spec
from antegrad.ops.arrays import placed
from antegrad.ops.constant import constant
from antegrad.ops.dispatch import as_tensor
from antegrad.render.python import helper_name, printed_helper


def from_python(source: str | Path) -> Program:
    """The Program of the last function in a printed module, given as its path or its text.

    The types of the inputs and the names of the outputs are read from the docstring of that function, which
    `Program.python` writes; what was captured is an input like any other. NumPy calls in the text are traced; helpers
    that nobody edited become the primitives that they stand for. Raises `ProgramError` when the text has no such
    function or docstring, fails, or returns something else than the docstring says; `ShapeError`, `DTypeError` and
    `TraceError` with the line of the text for what cannot be traced.
    """
    text, filename = _read(source)
    functions = [node for node in ast.parse(text, filename).body if isinstance(node, ast.FunctionDef)]
    if not functions:
        raise ProgramError(f"{filename} defines no function: expected the text that program.python() gives")
    main = functions[-1]
    inputs = _inputs(main, filename)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": main.name}
    exec(compile(text, filename, "exec"), namespace)  # the user's own file, as an import would run it
    namespace |= {"np": _TracedNumPy(), "bfloat16": _TracedType(BF16)}
    namespace.update(_traced_helpers(functions))
    with _placed(filename):
        program = capture(namespace[main.name], *(type for _, type in inputs), name=main.name)
    outputs = _outputs(main)
    if outputs is not None:
        _check_outputs(program, outputs, f"{filename}:{main.lineno}")
    return replace(
        program,
        input_names=(*(name for name, _ in inputs), *program.input_names[len(inputs) :]),
        output_names=program.output_names if outputs is None else tuple(name for name, _ in outputs),
    )


def _read(source: str | Path) -> tuple[str, str]:
    if isinstance(source, Path) or "\n" not in source:
        path = Path(source)
        return path.read_text(encoding="utf-8"), str(path)
    return source, "<edited program>"


@contextmanager
def _placed(filename: str) -> Iterator[None]:
    """What goes wrong in the edited text says on which line."""
    try:
        yield
    except AntegradError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
        place = f"{filename}:{lines[-1]}" if lines else filename
        raise ProgramError(f"{type(error).__name__} in the edited text: {error}\n  at {place}") from error


def _inputs(main: ast.FunctionDef, filename: str) -> list[tuple[str, TensorType]]:
    """Name and type of every parameter, from lines such as ``w0: f32[2,16]  (0.w)`` in the docstring."""
    documented = {}
    for line in (ast.get_docstring(main) or "").splitlines():
        found = re.match(r'\s*(\w+): (\w+)\[([\d,]*)\](?:  \(("(?:[^"\\]|\\.)*"|[^,)]*))?', line)
        if found and found[1] not in documented:
            shape = tuple(int(size) for size in found[3].split(",") if size)
            name = _plain_name(found[4]) if found[4] and found[4] != "captured" else found[1]
            documented[found[1]] = (name, spec(shape, found[2]))
    missing = [argument.arg for argument in main.args.args if argument.arg not in documented]
    if missing:
        raise ProgramError(
            f"{filename}: the docstring of {main.name} gives no type for {', '.join(missing)}; "
            "expected lines such as 'x: f32[512,2]' under 'Inputs:'"
        )
    return [documented[argument.arg] for argument in main.args.args]


def _outputs(main: ast.FunctionDef) -> list[tuple[str, str]] | None:
    """Name and type of every output, from the lines below ``Returns:`` in the docstring: ``d_0.w: f32[2,16]``.

    None where there are no such lines.
    """
    _, said, below = (ast.get_docstring(main) or "").partition("Returns:\n")
    if not said:
        return None
    pairs = (line.strip().rpartition(": ") for line in below.splitlines())
    return [(_plain_name(name), type) for name, _, type in pairs]


def _check_outputs(program: Program, documented: list[tuple[str, str]], place: str) -> None:
    """Refuse a function that returns something else than its docstring says."""
    expected, found = [type for _, type in documented], [str(type) for type in program.output_types]
    if expected != found:
        raise ProgramError(
            f"{program.name} returns {', '.join(found) or 'nothing'}, and its docstring says "
            f"{', '.join(f'{name}: {type}' for name, type in documented) or 'nothing'}: if the new outputs are meant, "
            f"write them below 'Returns:'\n  at {place}"
        )


def _plain_name(documented: str) -> str:
    """A name read back from a docstring (see `render.python.documented_name`)."""
    return json.loads(documented) if documented.startswith('"') else documented


@dataclass(frozen=True)
class _TracedType:
    """``np.float32`` and its like: the name of an element type, and a constant when called."""

    dtype: np.dtype

    def __call__(self, number: Any) -> Any:
        return ops.bind(constant, value=frozen(np.asarray(number).astype(self.dtype)))


class _TracedNumPy:
    """NumPy, but numbers and arrays made from nothing are equations instead of data from outside.

    They need a type: NumPy alone would take one of 64 bits.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "random":
            raise placed(TraceError, "np.random would draw once, while the text is read: give the numbers as an input")
        found = getattr(np, name)
        is_type = isinstance(found, type) and issubclass(found, np.generic)
        return _TracedType(np.dtype(found)) if is_type else found

    def zeros(self, shape: Any, dtype: Any = None) -> Any:
        return ops.zeros(shape, _written_type("zeros", dtype))

    def ones(self, shape: Any, dtype: Any = None) -> Any:
        return ops.ones(shape, _written_type("ones", dtype))

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
        return ops.full(shape, fill_value, _written_type("full", dtype))

    def array(self, object: Any, dtype: Any = None) -> Any:
        return ops.bind(constant, value=frozen(np.array(object, _written_type("array", dtype))))

    def arange(self, *bounds: Any, dtype: Any = None) -> Any:
        if bounds and isinstance(bounds[-1], _TracedType):
            bounds, dtype = bounds[:-1], bounds[-1]
        return ops.arange(*bounds, dtype=_written_type("arange", dtype))


def _written_type(call: str, dtype: Any) -> np.dtype:
    """The element type that is written in a call of NumPy."""
    if dtype is None:
        raise placed(DTypeError, f"np.{call} without a type would have 64 bits for NumPy alone: add dtype=np.float32")
    return dtype.dtype if isinstance(dtype, _TracedType) else np.dtype(dtype)


def _traced_helpers(functions: list[ast.FunctionDef]) -> dict[str, Callable[..., Any]]:
    """The primitives behind the helpers in the text; an edited helper is left as it is, and traced."""
    written = {function.name: ast.unparse(function) for function in functions}
    traced: dict[str, Callable[..., Any]] = {}
    for primitive in REGISTRY.values():
        stand_ins = primitive.traced_helpers()
        for helper in primitive.helpers:
            name = helper_name(helper)
            if written.get(name) == ast.unparse(printed_helper(helper)):
                traced[name] = _CONTROL.get(name) or stand_ins[helper.__name__]
    return traced


def _named(function: Callable[..., Any], skipped: int, values: Any) -> OrderedDict[str, Any]:
    """`values` under the names of the parameters of `function` after the first `skipped`."""
    return OrderedDict(zip(list(inspect.signature(function).parameters)[skipped:], values, strict=False))


def _scan(body: Any, constants: Any, carry: Any, xs: Any, length: int, reverse: bool) -> tuple[Any, ...]:
    def step(state: Any, slices: Any) -> Any:
        results = body(*constants, *state.values(), *slices.values())
        return OrderedDict(zip(state, results, strict=False)), tuple(results[len(state) :])

    step.__name__ = body.__name__
    state, slices = _named(body, len(constants), carry), _named(body, len(constants) + len(carry), xs)
    final, stacked = flow.scan(step, state, slices, length=length, reverse=reverse)
    return (*final.values(), *stacked)


def _while_loop(condition: Any, body: Any, condition_constants: Any, body_constants: Any, carry: Any) -> tuple:
    def goes_on(state: Any) -> Any:
        return condition(*condition_constants, *state.values())[0]

    def step(state: Any) -> Any:
        return OrderedDict(zip(state, body(*body_constants, *state.values()), strict=True))

    goes_on.__name__, step.__name__ = condition.__name__, body.__name__
    return tuple(flow.while_loop(goes_on, step, _named(body, len(body_constants), carry)).values())


def _cond(index: Any, branches: Any, operands: Any) -> tuple[Any, ...]:
    if as_tensor(index).dtype == BOOL:
        return flow.cond(index, branches[1], branches[0], *operands)
    return flow.switch(index, branches, *operands)


_CONTROL: dict[str, Callable[..., Any]] = {"scan": _scan, "while_loop": _while_loop, "cond": _cond}
