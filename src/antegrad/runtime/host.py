"""The host device: compiles and runs the printed NumPy text of a Program."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np

from antegrad.ir.builder import Builder
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Program, Source, params_key, provide
from antegrad.ir.types import TensorType, type_of
from antegrad.ops.dispatch import set_evaluator
from antegrad.render.python import python

_functions: WeakKeyDictionary[Program, Callable] = WeakKeyDictionary()
_numbers = count()


def function(program: Program) -> Callable[..., Any]:
    """The Python function that the text of `program` defines.

    The text is registered with `linecache`, so tracebacks and `pdb` show its lines.
    """
    if program not in _functions:
        _functions[program] = load(python(program), f"<antegrad {program.name} {next(_numbers)}>", program.name)
    return _functions[program]


def load(source: str, filename: str, name: str) -> Callable[..., Any]:
    """Execute a printed module and give its last function, whose text `linecache` keeps for as long as it lives."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, filename, "exec"), namespace)  # the text is our own rendering, or the user's edit of it
    function = [item for item in namespace.values() if callable(item) and hasattr(item, "__code__")][-1]
    finalize(function, linecache.cache.pop, filename, None)
    return function


def run(program: Program, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The outputs of `program` for arrays of its input types, captured ones included.

    The results are fresh C-ordered arrays. Floating-point warnings are off, as on the other devices.
    """
    with np.errstate(all="ignore"):
        results = function(program)(*arrays)
    results = results if len(program.outputs) != 1 else (results,)
    seen = {id(array) for array in arrays}
    return tuple(_owned(result, seen) for result in results)


def _owned(result: Any, seen: set[int]) -> np.ndarray:
    """`result` as a C-ordered array of its own: a copy where it is a view, or one of the arrays in `seen`."""
    array = np.asarray(result)
    shared = array.base is not None or id(array) in seen
    if shared or not (array.flags.c_contiguous and array.flags.writeable):
        array = np.array(array, order="C")
    seen.add(id(array))
    return array


def evaluate(primitive: Primitive, arrays: Sequence[np.ndarray], params: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """One primitive on arrays at once, by the same text that a Program of this one equation has."""
    types = tuple(type_of(array) for array in arrays)
    key = params_key(params)
    return run(_single(primitive, types, _Params(key, params)), list(arrays))


class _Params:
    """Params that hash by their key, so that they can be part of a cache key."""

    def __init__(self, key: tuple, params: dict[str, Any]) -> None:
        self.key, self.params = key, params

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Params) and self.key == other.key


@lru_cache(maxsize=4096)
def _single(primitive: Primitive, types: tuple[TensorType, ...], params: _Params) -> Program:
    builder = Builder()
    inputs = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
    outputs = builder.add(primitive, inputs, params.params, Source())
    return builder.finish(primitive.name, outputs, [f"y{i}" for i in range(len(outputs))])


set_evaluator(evaluate)
provide("function", function)
