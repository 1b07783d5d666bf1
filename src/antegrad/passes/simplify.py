"""Simplify: constants folded, identities and repeated values removed, transposes and broadcasts folded, dead code cut.

The pass rebuilds the program equation by equation. Each one is first evaluated if it is constant, then given to the
rules of its primitive (`passes.rules`), then compared with all before it. Every rule keeps the bits of the result on
the host device, but for those that say otherwise in their docstring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antegrad.ir.builder import EMBED_LIMIT
from antegrad.ir.collection import collection_paused
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation, Program, Source, Value, params_key
from antegrad.ir.types import TensorType
from antegrad.ops.constant import constant
from antegrad.ops.dispatch import bind, frozen, untraced
from antegrad.ops.shape import broadcast_in_dim
from antegrad.passes.dead_code import eliminate_dead_code
from antegrad.passes.rules import RULES


@collection_paused()
def simplify(program: Program) -> Program:
    """`program` without redundant equations; sub-programs of control flow included."""
    return eliminate_dead_code(_Rewriter(program).run())


class _Rewriter:
    """Rebuilds one program; what the rules see and emit into."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations: list[Equation] = []
        self.producers: dict[Value, Equation] = {}
        self.known: dict[Any, tuple[Value, ...]] = {}
        self.source = Source()

    def run(self) -> Program:
        inputs = {value: Value(value.type, value.name, value.declared) for value in self.program.inputs}
        env = dict(inputs)
        for equation in self.program.equations:
            self.source = equation.source
            params = {key: _simplified(param) for key, param in equation.params.items()}
            results = self.emit_all(equation.primitive, [env[v] for v in equation.inputs], params)
            for old, new in zip(equation.outputs, results, strict=True):
                _carry_name(old, new)
                env[old] = new
        return replace(
            self.program,
            inputs=tuple(inputs[value] for value in self.program.inputs),
            outputs=tuple(env[value] for value in self.program.outputs),
            equations=tuple(self.equations),
        )

    def emit(self, primitive: Primitive, *inputs: Value, **params: Any) -> Value:
        """One result of a simplified equation; what rules call."""
        return self.emit_all(primitive, inputs, params)[0]

    def emit_all(self, primitive: Primitive, inputs: Sequence[Value], params: Mapping[str, Any]) -> tuple[Value, ...]:
        folded = self._folded(primitive, inputs, params)
        if folded is not None:
            return (folded,)
        for rule in RULES.get(primitive.name, ()):
            found = rule(self, *inputs, **params)
            if found is not None:
                return (found,)
        key = (primitive.name, tuple(map(id, inputs)), params_key(params))
        if key not in self.known:
            self.known[key] = self._append(primitive, inputs, params)
        return self.known[key]

    def _append(self, primitive: Primitive, inputs: Sequence[Value], params: Mapping[str, Any]) -> tuple[Value, ...]:
        types = primitive.result_types([value.type for value in inputs], params)
        outputs = tuple(Value(type) for type in types)
        equation = Equation(primitive, tuple(inputs), outputs, params, self.source)
        self.equations.append(equation)
        self.producers.update(dict.fromkeys(outputs, equation))
        return outputs

    def _folded(self, primitive: Primitive, inputs: Sequence[Value], params: Mapping[str, Any]) -> Value | None:
        """The value of an equation whose operands are all constant: computed now, by the host device."""
        if not inputs or primitive.multiple_results or primitive.communicates:
            return None
        numbers = [self.splat(value) for value in inputs]
        if primitive.broadcasts and all(number is not None for number in numbers):
            (type,) = primitive.result_types([value.type for value in inputs], params)
            return self.filled(self._evaluate(primitive, numbers, params), type)
        arrays = [self.array(value) for value in inputs]
        if primitive is broadcast_in_dim or any(array is None for array in arrays):
            return None
        (type,) = primitive.result_types([value.type for value in inputs], params)
        return self.constant(self._evaluate(primitive, arrays, params)) if type.size <= EMBED_LIMIT else None

    def _evaluate(self, primitive: Primitive, arrays: Sequence[Any], params: Mapping[str, Any]) -> np.ndarray:
        with untraced():
            return bind(primitive, *arrays, **params)

    def constant(self, array: np.ndarray) -> Value:
        """An embedded constant."""
        return self.emit(constant, value=frozen(array))

    def filled(self, number: np.ndarray, type: TensorType) -> Value:
        """A tensor of `type` in which every element is `number`."""
        scalar = self.constant(number)
        return scalar if type.shape == () else self.emit(broadcast_in_dim, scalar, shape=type.shape, dims=())

    def producer(self, value: Value, primitive: Primitive) -> Equation | None:
        """The equation that makes `value`, when it is one of `primitive`."""
        equation = self.producers.get(value)
        return equation if equation is not None and equation.primitive is primitive else None

    def array(self, value: Value) -> np.ndarray | None:
        """The array of an embedded constant."""
        equation = self.producer(value, constant)
        return None if equation is None else equation.params["value"]

    def splat(self, value: Value) -> np.ndarray | None:
        """The number that fills `value`, for a scalar constant and for a broadcast of one."""
        equation = self.producer(value, broadcast_in_dim)
        array = self.array(value if equation is None else equation.inputs[0])
        return array if array is not None and array.ndim == 0 else None


def _simplified(param: Any) -> Any:
    if isinstance(param, Program):
        return simplify(param)
    if isinstance(param, tuple) and any(isinstance(item, Program) for item in param):
        return tuple(_simplified(item) for item in param)
    return param


def _carry_name(old: Value, new: Value) -> None:
    """What replaces a named value takes over its name, unless it has a better one."""
    if old.name and (new.name is None or (old.declared and not new.declared)):
        new.name, new.declared = old.name, old.declared
