"""Pieces of StableHLO text: types, attributes, constants, and the emitter that primitives append to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from antegrad.ir.types import SHORT_NAMES, TensorType

if TYPE_CHECKING:
    from antegrad.ir.program import Program

_UNSIGNED = {"u8": "ui8", "u16": "ui16", "u32": "ui32", "u64": "ui64", "bool": "i1"}


def element(dtype: np.dtype) -> str:
    """``f32``, ``ui8``, ``i1``."""
    name = SHORT_NAMES[dtype]
    return _UNSIGNED.get(name, name)


def tensor(type: TensorType) -> str:
    """``tensor<512x2xf32>``."""
    return f"tensor<{''.join(f'{dim}x' for dim in type.shape)}{element(type.dtype)}>"


def signature(inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> str:
    """``(tensor<...>, ...) -> tensor<...>``."""
    results = ", ".join(map(tensor, outputs))
    return f"({', '.join(map(tensor, inputs))}) -> {results if len(outputs) == 1 else f'({results})'}"


def array(values: Sequence[int]) -> str:
    """``array<i64: 0, 1>``."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def ints(values: Sequence[int]) -> str:
    """``[0, 1]``."""
    return f"[{', '.join(map(str, values))}]"


def dense(value: np.ndarray) -> str:
    """The attribute ``dense<...> : tensor<...>`` with the exact bits of `value`."""
    type = tensor(TensorType(value.shape, value.dtype))
    if value.size == 0:
        return f"dense<> : {type}"
    if SHORT_NAMES[value.dtype] == "bool":
        if value.ndim == 0:
            return f"dense<{str(bool(value)).lower()}> : {type}"
        return f"dense<{_nested(np.where(value, 'true', 'false'))}> : {type}"
    bits = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
    if value.ndim == 0 and value.dtype.kind in "iu":
        return f"dense<{int(value)}> : {type}"
    return f'dense<"0x{bits.tobytes().hex().upper()}"> : {type}'


def _nested(strings: np.ndarray) -> str:
    return f"[{', '.join(_nested(row) if row.ndim else str(row) for row in strings)}]"


class Emitter:
    """Collects the operations of one function body, and the private functions that the bodies share."""

    def __init__(self, functions: dict[str, str] | None = None, prefix: str = "%") -> None:
        self.lines: list[str] = []
        self.functions: dict[str, str] = {} if functions is None else functions
        self.prefix = prefix
        self._count = 0
        self._channels = 0

    def fresh(self) -> str:
        """A new SSA name."""
        self._count += 1
        return f"{self.prefix}{self._count - 1}"

    def channel(self) -> int:
        """The number of a new collective; XLA takes those of one number for one."""
        self._channels += 1
        return self._channels

    def op(self, text: str, results: int = 1) -> str:
        """Append one operation; its SSA name (``%7#0``-style access is up to the caller when results > 1)."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}" if results == 1 else f"{name}:{results} = {text}")
        return name

    def constant(self, value: np.ndarray) -> str:
        return self.op(f"stablehlo.constant {dense(value)}")

    def broadcast(self, operand: str, source: TensorType, target: TensorType, dims: Sequence[int] = ()) -> str:
        types = signature([source], [target])
        return self.op(f"stablehlo.broadcast_in_dim {operand}, dims = {ints(dims)} : {types}")

    def convert(self, operand: str, source: TensorType, target: TensorType) -> str:
        if source == target:
            return operand
        return self.op(f"stablehlo.convert {operand} : {signature([source], [target])}")

    def reshape(self, operand: str, source: TensorType, shape: tuple[int, ...]) -> str:
        if source.shape == shape:
            return operand
        return self.op(f"stablehlo.reshape {operand} : {signature([source], [source.with_shape(shape)])}")

    def splat(self, number: float, type: TensorType) -> str:
        """A tensor of `type` filled with one number."""
        scalar = self.constant(np.asarray(number, type.dtype))
        return scalar if type.shape == () else self.broadcast(scalar, type.with_shape(()), type)

    def body(self, program: Program, arguments: Sequence[str]) -> list[str]:
        """Emit the equations of a sub-program in place; the SSA names of its outputs."""
        names = dict(zip(program.inputs, arguments, strict=True))
        for equation in program.equations:
            results = equation.primitive.emit(self, equation, *(names[value] for value in equation.inputs))
            results = (results,) if isinstance(results, str) else results
            names.update(zip(equation.outputs, results, strict=True))
        return [names[value] for value in program.outputs]

    def region(self, program: Program, arguments: Sequence[str], terminator: str = "stablehlo.return") -> list[str]:
        """The lines of a region that runs `program`; the caller writes the braces."""
        outer, self.lines = self.lines, []
        results = self.body(program, arguments)
        types = ", ".join(map(tensor, program.output_types))
        self.lines.append(f"{terminator} {', '.join(results)} : {types}" if results else terminator)
        inner, self.lines = self.lines, outer
        return inner

    def function(self, name: str, text: str) -> str:
        """Keep one private function under `name` (once); the name to call."""
        self.functions.setdefault(name, text)
        return name
