"""The counter-based generator Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import Code
from antegrad.ir.mlir import Emitter, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import DTYPES, TensorType
from antegrad.ops.batching import stretched
from antegrad.ops.dispatch import bind

__all__ = ["threefry2x32"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32_helper(key: Any, high: Any, low: Any) -> Any:
    """Twenty rounds of Threefry-2x32 on the counters (high, low) under a key of two u32."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for rotation in rotations[group % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


class Threefry2x32(Primitive):
    """Twenty rounds of Threefry-2x32 on the counters (high, low) under a key: two random words for each counter.

    Shapes: key u32[2]; high and low u32 of one shape, which both results have.
    Edges: empty counters give empty results; the same key and counter give the same words on every device.
    Derivative: none.
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """

    name = "threefry2x32"
    helpers = (threefry2x32_helper,)
    multiple_results = True
    differentiable = False

    def __call__(self, key: Any, high: Any, low: Any) -> Any:
        return bind(self, key, high, low)

    def result(self, key: TensorType, high: TensorType, low: TensorType) -> tuple[TensorType, ...]:
        if key != TensorType((2,), DTYPES["u32"]):
            raise DTypeError(f"random: a key is u32[2], found {key}: make one with ag.random.key(seed)")
        if high != low or high.dtype != DTYPES["u32"]:
            raise ShapeError(f"random: counters u32 of one shape are needed, found {high} and {low}")
        return high, low

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        if batched[0]:
            return NotImplemented
        return self(operands[0], *stretched(operands[1:], batched[1:], size))

    def render(self, equation: Equation, *operands: Code) -> Code:
        return Code(f"threefry2x32_helper({', '.join(operand.text for operand in operands)})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        type = equation.output_types[0]
        name = "threefry2x32_" + "x".join(map(str, type.shape))
        if name not in emitter.functions:
            emitter.functions[name] = _function(name, type)
        types = signature(equation.input_types, equation.output_types)
        result = emitter.op(f"func.call @{name}({', '.join(operands)}) : {types}", results=2)
        return f"{result}#0", f"{result}#1"


def _function(name: str, type: TensorType) -> str:
    """The generator as a private StableHLO function for counters of one shape."""
    body = Emitter()
    keys = [_key_part(body, index, type) for index in (0, 1)]
    constant = body.splat(PARITY, type)
    mixed = body.op(f"stablehlo.xor {keys[0]}, {keys[1]} : {tensor(type)}")
    keys.append(body.op(f"stablehlo.xor {mixed}, {constant} : {tensor(type)}"))
    x, y = _binary(body, "add", "%high", keys[0], type), _binary(body, "add", "%low", keys[1], type)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = _binary(body, "add", x, y, type)
            left = _binary(body, "shift_left", y, body.splat(rotation, type), type)
            right = _binary(body, "shift_right_logical", y, body.splat(32 - rotation, type), type)
            y = _binary(body, "xor", _binary(body, "or", left, right, type), x, type)
        x = _binary(body, "add", x, keys[(group + 1) % 3], type)
        y = _binary(body, "add", y, keys[(group + 2) % 3], type)
        y = _binary(body, "add", y, body.splat(group + 1, type), type)
    text, lines = tensor(type), "\n    ".join(body.lines)
    return (
        f"func.func private @{name}(%key: tensor<2xui32>, %high: {text}, %low: {text}) -> ({text}, {text}) {{\n"
        f"    {lines}\n    return {x}, {y} : {text}, {text}\n  }}"
    )


def _key_part(body: Emitter, index: int, type: TensorType) -> str:
    part = body.op(f"stablehlo.slice %key [{index}:{index + 1}] : (tensor<2xui32>) -> tensor<1xui32>")
    scalar = body.op(f"stablehlo.reshape {part} : (tensor<1xui32>) -> tensor<ui32>")
    return scalar if not type.shape else body.broadcast(scalar, type.with_shape(()), type)


def _binary(body: Emitter, operation: str, x: str, y: str, type: TensorType) -> str:
    return body.op(f"stablehlo.{operation} {x}, {y} : {tensor(type)}")


threefry2x32 = Threefry2x32()
