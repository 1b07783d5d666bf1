"""Control flow: primitives whose params are Programs. Reverse mode of `scan` and `cond` is in `autodiff.control`."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad.errors import DTypeError, RuleMissing, ShapeError
from antegrad.ir.code import Code, dtype_code
from antegrad.ir.mlir import Emitter, ints, signature, tensor
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation, Program
from antegrad.ir.types import BOOL, DTYPES, TensorType

__all__ = ["cond_p", "scan_p", "while_p", "while_transpose_p"]

I32 = DTYPES["i32"]


def _tuple(codes: tuple[Code, ...]) -> str:
    inner = ", ".join(code.text for code in codes)
    return f"({inner},)" if len(codes) == 1 else f"({inner})"


def _need(what: str, expected: tuple[TensorType, ...], found: tuple[TensorType, ...]) -> None:
    if expected != found:
        listed = ", ".join(map(str, expected)), ", ".join(map(str, found))
        raise ShapeError(f"{what}: expected ({listed[0]}), found ({listed[1]})")


def cond_helper(index: Any, branches: Any, operands: Any) -> Any:
    """The results of the branch number index (clamped; False is 0) on the operands."""
    return branches[min(max(int(index), 0), len(branches) - 1)](*operands)


class Cond(Primitive):
    """The results of one of the `branches`, chosen by an i32 index (clamped) or a bool (False is branch 0)."""

    helpers = (cond_helper,)
    multiple_results = True

    def result(self, index: TensorType, *operands: TensorType, branches: tuple[Program, ...]) -> tuple[TensorType, ...]:
        if index not in (TensorType((), BOOL), TensorType((), I32)):
            raise DTypeError(f"cond: the choice must be a scalar of bool or i32, found {index}")
        for branch in branches:
            _need("cond: operands of a branch", branch.input_types, operands)
            _need("cond: results of the branches", branches[0].output_types, branch.output_types)
        return branches[0].output_types

    def render(self, equation: Equation, *operands: Code) -> Code:
        count = len(equation.params["branches"])
        branches, (index, *rest) = operands[:count], operands[count:]
        return Code(f"cond_helper({index.text}, {_tuple(branches)}, {_tuple(tuple(rest))})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        index = emitter.convert(operands[0], equation.input_types[0], TensorType((), I32))
        if equation.input_types[0].dtype == I32:  # StableHLO takes the last branch for any index outside
            index = emitter.op(f"stablehlo.maximum {index}, {emitter.splat(0, TensorType((), I32))} : tensor<i32>")
        regions = ", ".join(
            "{ " + "\n".join(emitter.region(branch, operands[1:])) + " }" for branch in equation.params["branches"]
        )
        count = len(equation.outputs)
        results = ", ".join(map(tensor, equation.output_types))
        types = f"({tensor(TensorType((), I32))}) -> ({results})"
        return _results(emitter.op(f'"stablehlo.case"({index}) ({regions}) : {types}', results=count), count)


def _results(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}#{i}" for i in range(count))


def while_loop_helper(condition: Any, body: Any, condition_constants: Any, body_constants: Any, carry: Any) -> Any:
    """carry after body has been applied to it for as long as condition holds."""
    while condition(*condition_constants, *carry)[0]:
        carry = body(*body_constants, *carry)
    return carry


class While(Primitive):
    """``while condition(carry): carry = body(carry)``. Operands: constants of condition and body, then the carry."""

    name = "while"
    helpers = (while_loop_helper,)
    multiple_results = True

    def result(
        self, *operands: TensorType, condition: Program, body: Program, constants: tuple[int, int]
    ) -> tuple[TensorType, ...]:
        first, both = constants[0], sum(constants)
        carry = operands[both:]
        _need("while_loop: inputs of the condition", condition.input_types, (*operands[:first], *carry))
        _need("while_loop: inputs of the body", body.input_types, (*operands[first:both], *carry))
        _need("while_loop: result of the condition", (TensorType((), BOOL),), condition.output_types)
        _need("while_loop: the body must keep the types of the carry", carry, body.output_types)
        return carry

    def render(self, equation: Equation, *operands: Code) -> Code:
        condition, body, *rest = operands
        first, both = equation.params["constants"][0], sum(equation.params["constants"])
        parts = (tuple(rest[:first]), tuple(rest[first:both]), tuple(rest[both:]))
        return Code(f"while_loop_helper({condition.text}, {body.text}, {', '.join(map(_tuple, parts))})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        first, both = equation.params["constants"][0], sum(equation.params["constants"])
        carry = [emitter.fresh() for _ in operands[both:]]
        condition = emitter.region(equation.params["condition"], [*operands[:first], *carry])
        body = emitter.region(equation.params["body"], [*operands[first:both], *carry])
        return _loop(emitter, operands[both:], carry, equation.output_types, condition, body)


def _loop(
    emitter: Emitter,
    initial: Any,
    carry: list[str],
    types: tuple[TensorType, ...],
    condition: list[str],
    body: list[str],
) -> tuple[str, ...]:
    """A ``stablehlo.while`` over values of `types`, known as `carry` in both regions."""
    arguments = ", ".join(f"{name}: {tensor(type)}" for name, type in zip(carry, types, strict=True))
    listed = ", ".join(map(tensor, types))
    regions = ", ".join(f"{{\n^bb0({arguments}):\n" + "\n".join(region) + "\n}" for region in (condition, body))
    name = emitter.op(
        f'"stablehlo.while"({", ".join(initial)}) ({regions}) : ({listed}) -> ({listed})', results=len(types)
    )
    return _results(name, len(types))


class WhileTranspose(Primitive):
    """What the cotangents of the operands of a `while` would be, from those of its float results, which come last.

    Reverse mode would have to keep every step of a loop whose number of steps is not known, so this runs nowhere. It
    stands in a pullback because forward mode transposes that, and its transpose is a loop that carries tangents.
    `wanted` are the positions of the operands of the loop that get a cotangent.
    """

    multiple_results = True

    def result(
        self,
        *operands: TensorType,
        condition: Program,
        body: Program,
        constants: tuple[int, int],
        wanted: tuple[int, ...],
    ) -> tuple[TensorType, ...]:
        return tuple(operands[position] for position in wanted)

    def render(self, equation: Equation, *operands: Code) -> Code:
        raise no_reverse_mode(equation)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        raise no_reverse_mode(equation)


def no_reverse_mode(equation: Equation) -> RuleMissing:
    """The error for a pullback that needs the transpose of a `while`, with the user's line."""
    place = f"\n  at {equation.source}" if str(equation.source) else ""
    return RuleMissing(
        "while_loop has no reverse mode, because the number of its steps is not known: give it a bound with "
        "max_steps=..., use ag.scan or ag.fori_loop with a fixed number of steps, use forward mode (ag.jvp, "
        f'ag.jacobian(mode="forward")), or ag.stop_gradient on what goes in.{place}'
    )


def scan_helper(body: Any, constants: Any, carry: Any, xs: Any, length: Any, reverse: Any) -> Any:
    """The last carry, then every output of body stacked, for body called length times on slices of xs."""
    steps = range(length)
    outputs = []
    for step in reversed(steps) if reverse else steps:
        results = body(*constants, *carry, *(x[step] for x in xs))
        carry, ys = results[: len(carry)], results[len(carry) :]
        outputs.append(ys)
    if reverse:
        outputs.reverse()
    return (*carry, *(np.stack(ys) for ys in zip(*outputs, strict=True)))


class Scan(Primitive):
    """`body` applied `length` times: constants and carry in, carry and one slice of every output out.

    Operands: ``counts = (constants, carries)``, then the stacked inputs. Results: the last carry, then the stacked
    outputs. With `reverse` the steps run from the last slice to the first.
    """

    helpers = (scan_helper,)
    multiple_results = True

    def result(
        self, *operands: TensorType, body: Program, counts: tuple[int, int], length: int, reverse: bool
    ) -> tuple[TensorType, ...]:
        constants, both = counts[0], sum(counts)
        slices = tuple(x.with_shape(x.shape[1:]) for x in operands[both:])
        if any(x.ndim == 0 or x.shape[0] != length for x in operands[both:]):
            raise ShapeError(f"scan: every stacked input must have {length} slices, found {operands[both:]}")
        _need("scan: inputs of the body", body.input_types, (*operands[:both], *slices))
        carry = operands[constants:both]
        _need("scan: the body must keep the types of the carry", carry, body.output_types[: len(carry)])
        return (*carry, *(y.with_shape((length, *y.shape)) for y in body.output_types[len(carry) :]))

    def render(self, equation: Equation, *operands: Code) -> Code:
        body, *rest = operands
        constants, both = equation.params["counts"][0], sum(equation.params["counts"])
        length, reverse = equation.params["length"], equation.params["reverse"]
        carry = tuple(rest[constants:both])
        if length == 0:
            empty = [f"np.zeros({t.shape}, {dtype_code(t.dtype)})" for t in equation.output_types[len(carry) :]]
            return Code(_tuple((*carry, *map(Code, empty))))
        parts = ", ".join(map(_tuple, (tuple(rest[:constants]), carry, tuple(rest[both:]))))
        return Code(f"scan_helper({body.text}, {parts}, length={length}, reverse={reverse})")

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> tuple[str, ...]:
        constants, both = equation.params["counts"][0], sum(equation.params["counts"])
        count = TensorType((), I32)
        buffers = [emitter.splat(0, type) for type in equation.output_types[both - constants :]]
        if equation.params["length"] == 0:  # the loop body would slice inputs that have no slice
            return (*operands[constants:both], *buffers)
        initial = [emitter.splat(0, count), *operands[constants:both], *buffers]
        state = [emitter.fresh() for _ in initial]
        condition = _below(emitter, state[0], equation.params["length"])
        outer, emitter.lines = emitter.lines, []
        _scan_step(emitter, equation, operands, state)
        body, emitter.lines = emitter.lines, outer
        return _loop(emitter, initial, state, (count, *equation.output_types), condition, body)[1:]


def _below(emitter: Emitter, counter: str, length: int) -> list[str]:
    """The region of a loop condition ``counter < length``."""
    outer, emitter.lines = emitter.lines, []
    count = TensorType((), I32)
    limit = emitter.constant(np.asarray(length, I32))
    types = signature([count, count], [TensorType((), BOOL)])
    test = emitter.op(f"stablehlo.compare LT, {counter}, {limit} : {types}")
    emitter.lines.append(f"stablehlo.return {test} : {tensor(TensorType((), BOOL))}")
    region, emitter.lines = emitter.lines, outer
    return region


def _scan_step(emitter: Emitter, equation: Equation, operands: tuple[str, ...], state: list[str]) -> None:
    """One step: slice the inputs, run the body, write the outputs, count on."""
    counts, length = equation.params["counts"], equation.params["length"]
    body, (constants, both) = equation.params["body"], (counts[0], sum(counts))
    counter, carry, buffers = state[0], state[1 : 1 + counts[1]], state[1 + counts[1] :]
    place = counter
    if equation.params["reverse"]:
        last = emitter.constant(np.asarray(length - 1, I32))
        place = emitter.op(f"stablehlo.subtract {last}, {counter} : tensor<i32>")
    zero = emitter.constant(np.asarray(0, I32))
    xs = zip(operands[both:], equation.input_types[both:], strict=True)
    slices = [_read_slice(emitter, x, type, place, zero) for x, type in xs]
    results = emitter.body(body, [*operands[:constants], *carry, *slices])
    ys = zip(buffers, results[counts[1] :], equation.output_types[counts[1] :], strict=True)
    written = [_write_slice(emitter, buffer, y, type, place, zero) for buffer, y, type in ys]
    one = emitter.constant(np.asarray(1, I32))
    following = emitter.op(f"stablehlo.add {counter}, {one} : tensor<i32>")
    types = ", ".join(map(tensor, (TensorType((), I32), *equation.output_types)))
    emitter.lines.append(f"stablehlo.return {', '.join([following, *results[: counts[1]], *written])} : {types}")


def _read_slice(emitter: Emitter, x: str, type: TensorType, place: str, zero: str) -> str:
    row, starts = type.with_shape((1, *type.shape[1:])), [place, *[zero] * (type.ndim - 1)]
    index = TensorType((), I32)
    block = emitter.op(
        f"stablehlo.dynamic_slice {', '.join([x, *starts])}, sizes = {ints(row.shape)} : "
        f"{signature([type, *[index] * type.ndim], [row])}"
    )
    return emitter.op(f"stablehlo.reshape {block} : {signature([row], [type.with_shape(type.shape[1:])])}")


def _write_slice(emitter: Emitter, buffer: str, y: str, type: TensorType, place: str, zero: str) -> str:
    row, starts = type.with_shape((1, *type.shape[1:])), [place, *[zero] * (type.ndim - 1)]
    index = TensorType((), I32)
    block = emitter.op(f"stablehlo.reshape {y} : {signature([type.with_shape(type.shape[1:])], [row])}")
    return emitter.op(
        f"stablehlo.dynamic_update_slice {', '.join([buffer, block, *starts])} : "
        f"{signature([type, row, *[index] * type.ndim], [type])}"
    )


cond_p = Cond()
while_p = While()
while_transpose_p = WhileTranspose()
scan_p = Scan()
