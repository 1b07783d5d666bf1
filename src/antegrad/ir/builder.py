"""Builder: collects equations while a Python function is traced or a pass rewrites a Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation, Program, Source, Value
from antegrad.ir.types import TensorType

EMBED_LIMIT = 64
"""Constants of at most this many elements are embedded in the program; larger ones become captured inputs."""


class Builder:
    """The growing list of equations of one Program.

    `parent` is the builder of the enclosing trace, for a sub-program or a function differentiated inside another.
    What is used inside but comes from outside becomes a trailing input, and `captures` remembers what stands behind
    it: an array in an outermost trace, a traced tensor of the parent in an inner one (whose caller passes it on).
    `source`, when set, is given to every equation instead of the caller's line.
    """

    def __init__(self, parent: Builder | None = None, source: Source | None = None) -> None:
        self.parent = parent
        self.source = source
        self.finished = False
        self.inputs: list[Value] = []
        self.input_names: list[str] = []
        self._taken: set[str] = set()
        self.equations: list[Equation] = []
        self.captures: dict[int, tuple[Value, Any]] = {}
        self.frames: dict[int, tuple[Any, set[Value]]] = {}

    def input(self, type: TensorType, name: str) -> Value:
        """A new input, called `name`, or ``name_1`` and so on where that is taken."""
        name = self._free(name)
        value = Value(type, name, declared=True)
        self.inputs.append(value)
        self.input_names.append(name)
        return value

    def capture(self, identity: Any, outer: Any, type: TensorType, name: str) -> Value:
        """The value that stands for `outer`, something from outside this trace; one for each `identity`."""
        if id(identity) not in self.captures:
            self.captures[id(identity)] = (Value(type, name, declared=True), outer)
        return self.captures[id(identity)][0]

    def add(
        self, primitive: Primitive, inputs: Sequence[Value], params: Mapping[str, Any], source: Source
    ) -> tuple[Value, ...]:
        """Append one equation; its results, unnamed."""
        types = primitive.result_types([value.type for value in inputs], params)
        outputs = tuple(Value(type) for type in types)
        self.equations.append(Equation(primitive, tuple(inputs), outputs, params, source))
        return outputs

    def finish(
        self, name: str, outputs: Sequence[Value], output_names: Sequence[str], structure: Any = None
    ) -> Program:
        """The Program of what was collected; what it captured comes last among its inputs."""
        self.finished = True
        self.frames.clear()
        names = [*self.input_names, *(self._free(value.name or "constant") for value, _ in self.captures.values())]
        outer = self.captured_tensors
        return Program(
            name=name,
            inputs=(*self.inputs, *(value for value, _ in self.captures.values())),
            input_names=tuple(names),
            outputs=tuple(outputs),
            output_names=tuple(output_names),
            equations=tuple(self.equations),
            captured=tuple(map(frozen, outer)) if self.parent is None else (),
            structure=structure,
        )

    @property
    def captured_tensors(self) -> list[Any]:
        """What stands behind the trailing inputs, in their order."""
        return [outer for _, outer in self.captures.values()]

    def _free(self, name: str) -> str:
        candidate, number = name, 0
        while candidate in self._taken:
            number += 1
            candidate = f"{name}_{number}"
        self._taken.add(candidate)
        return candidate


def frozen(array: np.ndarray) -> np.ndarray:
    """A private copy of `array` in C order that nobody can write to, or `array` itself if it is such a copy."""
    flags = array.flags
    if isinstance(array, np.ndarray) and flags.owndata and flags.c_contiguous and not flags.writeable:
        return array
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy
