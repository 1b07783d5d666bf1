"""Programs of functions written with `ops`: bodies of loops, and what a primitive without an operation emits."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from antegrad.ir.builder import Builder
from antegrad.ir.program import Program, Source
from antegrad.ir.types import TensorType
from antegrad.ops.dispatch import lift, tracing
from antegrad.ops.tensor import Tensor

__all__: list[str] = []


@lru_cache(maxsize=1024)
def composed(
    function: Callable[..., Any], *types: TensorType, names: tuple[str, ...] = (), **params: Any
) -> Program:
    """The Program of ``function(*tensors, **params)`` on tensors of `types`; it uses nothing from outside.

    The inputs have the given `names`, or those of the parameters of `function`. Results are one tensor or a tuple.
    """
    code = getattr(function, "__func__", function).__code__
    called = names or code.co_varnames[: code.co_argcount][-len(types) :]
    builder = Builder(source=Source())
    with tracing(builder):
        found = function(*(Tensor(builder.input(t, n), builder) for t, n in zip(types, called, strict=True)), **params)
        results = found if isinstance(found, tuple) else (found,)
        values = [lift(builder, result) for result in results]
    outputs = [f"y{i}" for i in range(len(values))]
    return builder.finish(function.__name__.strip("_"), values, outputs)
