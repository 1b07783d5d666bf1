"""What a call of a Program must match: count, shapes and element types, checked without a silent cast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from antegrad import tree
from antegrad.errors import DTypeError, NameMissing, ShapeError, TraceError
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType, type_of
from antegrad.ops.dispatch import as_array
from antegrad.ops.promotion import number


@dataclass(frozen=True, eq=False)
class Signature:
    """The inputs that a caller supplies and the outputs, without an equation.

    A cache keyed weakly by Programs can hold it, because it keeps no Program alive.
    """

    name: str
    input_names: tuple[str, ...]
    input_types: tuple[TensorType, ...]
    output_types: tuple[TensorType, ...]
    structure: Any

    @classmethod
    def of(cls, program: Program) -> Signature:
        count = program.argument_count
        names, types = program.input_names[:count], program.input_types[:count]
        return cls(program.name, names, types, program.output_types, program.structure)

    def result(self, outputs: Sequence[Any]) -> Any:
        """The outputs as a caller gets them: in the captured structure, else a tuple, or the only one."""
        if self.structure is not None:
            return tree.unflatten(self.structure, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def positions(self, names: Iterable[str]) -> tuple[int, ...]:
        """Where the inputs stand that `names` lists, by name or by prefix (``"0"`` for ``0.w`` and ``0.b``)."""
        chosen: list[int] = []
        for name in [names] if isinstance(names, str) else names:
            found = [i for i, full in enumerate(self.input_names) if full == name or full.startswith(f"{name}.")]
            if not found:
                listed = ", ".join(self.input_names) or "none"
                raise NameMissing(f"program {self.name} has no input {name!r} that a caller supplies; it has {listed}")
            chosen += found
        return tuple(sorted(set(chosen)))

    def check_donation(self, positions: Sequence[int]) -> None:
        """Raise `ShapeError` for a donated input when no output of its type is left to take its memory."""
        free = list(self.output_types)
        for position in positions:
            type = self.input_types[position]
            if type not in free:
                raise ShapeError(
                    f"program {self.name}: input {self.input_names[position]} ({type}) cannot be donated, because no "
                    "output of that type is left to take its memory"
                )
            free.remove(type)

    def checked(self, leaves: Sequence[Any], traced: bool = False) -> list[Any]:
        """`leaves` as arrays of exactly the input types; Python numbers become scalars of the type that is expected.

        Arrays of JAX stay what they are, and so does what JAX traces, if `traced` allows that. Raises `ShapeError`,
        `DTypeError` or `TraceError`, naming the input.
        """
        self.check_count(leaves)
        return [self.checked_leaf(position, leaf, traced) for position, leaf in enumerate(leaves)]

    def check_count(self, leaves: Sequence[Any]) -> None:
        """Raise `ShapeError` unless there is one leaf for each input."""
        if len(leaves) != len(self.input_types):
            noun = "array" if len(self.input_types) == 1 else "arrays"
            raise ShapeError(
                f"program {self.name} takes {len(self.input_types)} {noun} ({self}), found {len(leaves)}"
            )

    def checked_leaf(self, position: int, leaf: Any, traced: bool = False) -> Any:
        """The leaf at `position`, as `checked` gives it."""
        expected = self.input_types[position]
        where = f"program {self.name}: input {self.input_names[position]}"
        if isinstance(leaf, Tracer) and not traced:
            raise TraceError(f"{where} is traced by JAX: call ag.as_jax(program) inside a function that JAX traces")
        try:
            array = leaf if isinstance(leaf, jax.Array) else _as_array(leaf, expected)
            found = type_of(array)
        except (DTypeError, TraceError) as error:
            raise type(error)(f"{where} must be {expected}: {error}") from None
        if found.shape != expected.shape:
            raise ShapeError(f"{where} must be {expected}, found {found}")
        if found.dtype != expected.dtype:
            advice = f'no type is changed silently, convert it with .astype("{expected.dtype.name}")'
            raise DTypeError(f"{where} must be {expected}, found {found}: {advice}")
        return array

    def __str__(self) -> str:
        """``x: f32[4,2], y: f32[4]``."""
        return ", ".join(f"{n}: {t}" for n, t in zip(self.input_names, self.input_types, strict=True)) or "none"


def _as_array(leaf: Any, expected: TensorType) -> np.ndarray:
    """A leaf that is no array of JAX, as one of NumPy."""
    if isinstance(leaf, (bool, int, float)) and not isinstance(leaf, np.generic):
        return number(leaf, expected.dtype) if not expected.shape else as_array(leaf)
    return as_array(leaf)

