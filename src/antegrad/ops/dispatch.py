"""`bind`: the one door through which every operation goes, into the program being traced or to the host at once."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np

from antegrad import tree
from antegrad.errors import DTypeError, ShapeError, TraceError
from antegrad.ir.builder import EMBED_LIMIT, Builder, frozen
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Program, Source, Value
from antegrad.ir.types import as_dtype, type_of
from antegrad.ops.constant import constant
from antegrad.ops.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
Evaluator = Callable[[Primitive, Sequence[np.ndarray], dict[str, Any]], tuple[np.ndarray, ...]]


class _Tracing(threading.local):
    builder: Builder | None = None
    layers: tuple[str, ...] = ()
    part: str = "forward"


_tracing = _Tracing()
_evaluator: list[Evaluator] = []
_PACKAGE = Path(__file__).resolve().parent.parent
_INTERNAL = (f"{_PACKAGE}{os.sep}", f"{tree.LIBRARY}{os.sep}", contextlib.__file__, functools.__file__, "<frozen")
"""How the file names begin of antegrad itself and of the libraries through which it calls back."""
_entries: set[CodeType] = set()


def mark_entry(function: F) -> F:
    """Decorates the function that calls what is traced: the stack above it is not part of the trace."""
    _entries.add(function.__code__)
    return function


def set_evaluator(evaluate: Evaluator) -> None:
    """Called once by the host device: how to run one primitive on arrays at once."""
    _evaluator[:] = [evaluate]


def current_builder() -> Builder | None:
    """The builder of the innermost trace on this thread, or None outside of any."""
    return _tracing.builder


@contextlib.contextmanager
def tracing(builder: Builder) -> Iterator[Builder]:
    """Within the block, operations go into `builder`."""
    outer, _tracing.builder = _tracing.builder, builder
    try:
        yield builder
    finally:
        _tracing.builder = outer


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Within the block, operations run at once even while a program is traced."""
    outer, _tracing.builder = _tracing.builder, None
    try:
        yield
    finally:
        _tracing.builder = outer


@contextlib.contextmanager
def layer(path: str) -> Iterator[None]:
    """Within the block, equations belong to the layer `path`."""
    outer = _tracing.layers
    _tracing.layers = (*outer, path)
    try:
        yield
    finally:
        _tracing.layers = outer


def current_layer() -> str:
    """The path of the innermost layer that is being called."""
    return _tracing.layers[-1] if _tracing.layers else ""


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Within the block, equations belong to a part of the training step, such as ``update``."""
    outer, _tracing.part = _tracing.part, name
    try:
        yield
    finally:
        _tracing.part = outer


def bind(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Apply `primitive`: an equation of the current trace, or its value at once when nothing is traced.

    Operands are traced tensors, arrays or numbers whose types already fit; conversion and broadcasting happen in the
    public functions. Raises the type rule's error with the layer path and the user's line.
    """
    builder = _tracing.builder
    if builder is None:
        return _evaluate(primitive, operands, params)
    source = builder.source or _locate(builder)
    values = [lift(builder, operand) for operand in operands]
    try:
        outputs = builder.add(primitive, values, params, source)
    except (ShapeError, DTypeError) as error:
        raise type(error)(_with_place(error, source)) from None
    tensors = tuple(Tensor(value, builder) for value in outputs)
    return tensors if primitive.multiple_results else tensors[0]


def _evaluate(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    arrays = [as_array(operand) for operand in operands]
    try:
        primitive.result_types([type_of(array) for array in arrays], params)
    except (ShapeError, DTypeError) as error:
        raise type(error)(_with_place(error, here())) from None
    if not _evaluator:
        raise TraceError("the host device is not loaded: import antegrad, not its parts")
    results = _evaluator[0](primitive, arrays, params)
    return results if primitive.multiple_results else results[0]


def as_array(operand: Any) -> np.ndarray:
    """A concrete operand as a NumPy array of one of antegrad's element types."""
    if isinstance(operand, Tensor):
        raise TraceError(_leaked(operand))
    if isinstance(operand, (bool, int, float)) and not isinstance(operand, np.generic):
        try:
            return np.asarray(operand, type_of(operand).dtype)
        except OverflowError:
            raise DTypeError(f"{operand} does not fit in i32, the type of a Python integer") from None
    if isinstance(operand, np.ma.MaskedArray):
        raise DTypeError("a masked array would lose its mask: use .filled(...), or ops.where with the mask")
    try:
        array = np.asarray(operand)
    except ValueError:
        raise DTypeError(f"rows of different lengths are no array: {operand!r}") from None
    as_dtype(array.dtype.newbyteorder("="))
    return array if array.dtype.isnative else array.astype(as_dtype(array.dtype.newbyteorder("=")))


def as_tensor(operand: Any) -> Any:
    """`operand` as something with `shape` and `dtype`: a traced tensor as it is, all else as an array."""
    return operand if isinstance(operand, Tensor) else as_array(operand)


def lift(builder: Builder, operand: Any) -> Value:
    """The value that stands for `operand` in the trace of `builder`."""
    if not isinstance(operand, Tensor):
        return _lift_array(builder, as_array(operand) if not isinstance(operand, np.ndarray) else operand)
    if operand.builder is builder:
        return operand.value
    if builder.parent is None or operand.builder.finished:
        raise TraceError(_leaked(operand))
    outer = operand if operand.builder is builder.parent else Tensor(lift(builder.parent, operand), builder.parent)
    return builder.capture(outer.value, outer, operand.value.type, operand.value.name or "captured")


def _lift_array(builder: Builder, array: np.ndarray) -> Value:
    if array.size <= EMBED_LIMIT:
        return builder.add(constant, (), {"value": frozen(array)}, builder.source or Source())[0]
    if builder.parent is None:
        return builder.capture(array, array, type_of(array), _name_of(array))
    outer = Tensor(_lift_array(builder.parent, array), builder.parent)
    return builder.capture(outer.value, outer, type_of(array), outer.value.name or "constant")


def apply(program: Program, operands: Sequence[Any]) -> tuple[Tensor, ...]:
    """Copy the equations of `program` into the current trace, with `operands` in place of the inputs it asks for."""
    builder = _tracing.builder
    assert builder is not None, "apply needs a trace"
    outer = builder.source or _locate(builder)
    given = [*operands, *program.captured]
    env = {value: lift(builder, operand) for value, operand in zip(program.inputs, given, strict=True)}
    for equation in program.equations:
        source = equation.source if equation.source.file else outer
        outputs = builder.add(equation.primitive, [env[v] for v in equation.inputs], equation.params, source)
        for old, new in zip(equation.outputs, outputs, strict=True):
            new.name, new.declared = old.name, old.declared
            env[old] = new
    return tuple(Tensor(env[value], builder) for value in program.outputs)


def here() -> Source:
    """The user's line and layer path from which the current call came."""
    return _source_at(_user_frame())


def _source_at(frame: FrameType | None) -> Source:
    layer = _tracing.layers[-1] if _tracing.layers else ""
    if frame is None:
        return Source("", 0, layer, _tracing.part)
    return Source(frame.f_code.co_filename, frame.f_lineno, layer, _tracing.part)


def _locate(builder: Builder) -> Source:
    """The user's line, after the variables of every function of the user on the way to it have named what they hold.

    Where the library traces a function of its own, it is the line from which that was asked for.
    """
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _entries:
        if not frame.f_code.co_filename.startswith(_INTERNAL):
            frames.append(frame)
        frame = frame.f_back
    for outer in reversed(frames):
        if id(outer) not in builder.frames:
            builder.frames[id(outer)] = outer, _passed(outer)
        _note_names(builder, *builder.frames[id(outer)])
    return _source_at(frames[0] if frames else _user_frame())


def _passed(frame: FrameType) -> set[Value]:
    """What the parameters of a function hold when it starts; the caller's variables are better names for that."""
    code = frame.f_code
    held = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return {tensor.value for tensor in held if type(tensor) is Tensor}


def _note_names(builder: Builder, frame: FrameType, passed: set[Value]) -> None:
    """Give traced tensors the names of the variables that hold them."""
    for name, local in frame.f_locals.items():
        if type(local) is not Tensor or local.value.declared or local.builder is not builder:
            continue
        if name[0] != "_" and local.value not in passed:
            local.value.name, local.value.declared = name, True


def name_values(builder: Builder) -> None:
    """Give the tensors of a trace the names that variables have at its end."""
    for frame, passed in builder.frames.values():
        _note_names(builder, frame, passed)


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_INTERNAL):
        frame = frame.f_back
    return frame


def _name_of(array: np.ndarray) -> str:
    """What the user calls `array` where it is used, for the name of a captured input."""
    frame = _user_frame()
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            for name, local in scope.items():
                if local is array:
                    return name
        frame = frame.f_back
    return "constant"


def _with_place(error: Exception | str, source: Source) -> str:
    place = str(source)
    return f"{error}\n  at {place}" if place and "\n  at " not in str(error) else str(error)


def _leaked(operand: Tensor) -> str:
    name = operand.value.name or "a tensor"
    message = (
        f"{name} ({operand.value.type}) is a traced tensor used outside the capture that made it. "
        "Return it from the captured function instead of storing it."
    )
    return _with_place(message, here())
