"""Random programs for the tests of passes: small graphs of every kind of operation, drawn by hypothesis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.vendor import pretty

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Program
from antegrad.ir.types import DTYPES, is_float, is_integer

# A failing example is shown as the program prints.
pretty.for_type_by_name(Program.__module__, Program.__name__, lambda program, printer, _: printer.text(str(program)))

Draw = Callable[[st.SearchStrategy], Any]

DTYPES_DRAWN = ("f32", "i32", "f32", "i32", "f64", "f16", "bf16")
NUMBERS = [1, 0, -1, 2, 0.5, -0.0, 0.1, 3, 1.5, 1024]
SIZES = st.sampled_from([1, 2, 3, 4, 5])
SMOOTH_UNARY = ["negative", "tanh", "sin", "cos", "sigmoid", "square", "exp"]
UNARY = [*SMOOTH_UNARY, "abs", "sign", "floor", "relu", "cbrt", "expm1", "round"]
SMOOTH_BINARY = ["add", "subtract", "multiply"]
BINARY = [*SMOOTH_BINARY, "maximum", "minimum", "divide", "mul_no_nan", "arctan2"]


class Grower:
    """Grows a program by one drawn operation at a time; `pool` holds the tensors to choose operands from.

    Variables that hold new tensors begin with an underscore, so that the tensors stay unnamed and may be inlined.
    """

    def __init__(self, draw: Draw, pool: Sequence[Any], smooth: bool) -> None:
        self.draw, self.pool, self.smooth = draw, list(pool), smooth

    def pick(self, items: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def operand(self) -> Any:
        """Any value, but often the last one, because rules look at what an equation reads."""
        return self.pool[-1] if self.draw(st.booleans()) else self.pick(self.pool)

    def grow(self) -> None:
        """Add one operation. What would be too large, or make no sense for the operand, is left out."""
        steps = [self.unary, self.binary, self.number, self.reduce, self.dot, self.move, self.reshape, self.index]
        steps += [self.join, self.repeat] if self.smooth else [self.join, self.repeat, self.convert, self.select]
        _made = self.pick([*steps, self.move, self.number, self.reduce])(self.operand())
        if _made is not None and _made.size <= 4096 and _made.ndim <= 5:
            self.pool.append(_made)

    def unary(self, x: Any) -> Any:
        if not is_float(x.dtype):
            return ops.negative(x) if is_integer(x.dtype) else ops.invert(x)
        return getattr(ops, self.pick(SMOOTH_UNARY if self.smooth else UNARY))(x)

    def binary(self, x: Any) -> Any:
        """With an operand of the same element type whose shape broadcasts, which may be `x` itself."""
        others = [y for y in self.pool if y.dtype == x.dtype and _broadcasts(x.shape, y.shape)]
        name = self.pick(SMOOTH_BINARY if self.smooth else BINARY if is_float(x.dtype) else SMOOTH_BINARY[:3])
        return None if x.dtype.kind == "b" else getattr(ops, name)(*self.draw(st.permutations([x, self.pick(others)])))

    def number(self, x: Any) -> Any:
        """With a Python number on one side, or raised to it."""
        if x.dtype.kind == "b":
            return ops.logical_or(x, self.pick([True, False]))
        number = self.pick(NUMBERS)
        if not is_float(x.dtype):
            number = abs(int(number)) % 100
        name = self.pick(["add", "subtract", "multiply", "power"])
        if name == "power":
            return x ** self.pick([0, 1, 2, 3] if is_integer(x.dtype) or self.smooth else [0, 1, 2, 3, -1, 1.0, 2.0])
        return getattr(ops, name)(*self.draw(st.permutations([x, number])))

    def summand(self, x: Any, largest: int = 8) -> Any:
        """`x` as small whole numbers, whose sums and products have the same bits in any order of addition."""
        if self.smooth or not is_float(x.dtype):
            return x
        return ops.clip(ops.round(ops.where(x == x, x, 0)), -largest, largest)

    def reduce(self, x: Any) -> Any:
        if x.ndim == 0 or x.dtype.kind == "b":
            return None
        name = self.pick(["sum", "mean"] if self.smooth else ["sum", "max", "min", "prod"])
        _x = self.summand(x, 1 if name == "prod" else 8)
        axes = tuple(self.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1)))
        return getattr(ops, name)(_x, axis=axes, keepdims=self.draw(st.booleans()))

    def dot(self, x: Any) -> Any:
        """A product with any operand, transposed so that it fits, or with itself."""
        if x.dtype.kind == "b" or x.ndim == 0:
            return None
        fitting = [
            (y, i, j)
            for y in self.pool
            for i in range(x.ndim)
            for j in range(y.ndim)
            if y.dtype == x.dtype and y.shape[j] == x.shape[i]
        ]
        y, i, j = self.pick(fitting)
        _x, _y = self.summand(x), self.summand(y)
        if x.ndim == y.ndim and x.ndim > 2 and x.shape[:-2] == y.shape[:-2] and x.shape[-1] == y.shape[-1]:
            return _x @ _y.mT
        if y.ndim == 2 and i == x.ndim - 1:
            return _x @ (_y if j == 0 else _y.T)
        return ops.tensordot(_x, _y, axes=((i,), (j,)))

    def move(self, x: Any) -> Any:
        if x.ndim == 0:
            return None
        if self.pick(["transpose", "transpose", "flip"]) == "transpose":
            return ops.transpose(x, self.draw(st.permutations(range(x.ndim))))
        return ops.flip(x, self.draw(st.integers(0, x.ndim - 1)))

    def reshape(self, x: Any) -> Any:
        factors = [n for n in range(1, x.size + 1) if x.size % n == 0] or [1]
        first = self.pick(factors)
        shapes = [
            (x.size,),
            (first, x.size // first),
            (1, *x.shape),
            (*x.shape, 1),
            tuple(n for n in x.shape if n != 1),
        ]
        return ops.reshape(x, self.pick(shapes))

    def index(self, x: Any) -> Any:
        if x.ndim == 0:
            return None
        axis = self.draw(st.integers(0, x.ndim - 1))
        size = x.shape[axis]
        before = (slice(None),) * axis
        if self.draw(st.booleans()):
            return ops.take(
                x, np.array(self.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4)), np.int32), axis
            )
        start = self.draw(st.integers(0, size - 1))
        return x[(*before, slice(start, self.draw(st.integers(start + 1, size)), self.pick([1, 1, 2])))]

    def join(self, x: Any) -> Any:
        if x.ndim == 0:
            return None
        axis = self.draw(st.integers(0, x.ndim - 1))
        others = [y for y in self.pool if y.dtype == x.dtype and _fits_beside(x.shape, y.shape, axis)]
        return ops.concatenate([x, self.pick(others)], axis)

    def repeat(self, x: Any) -> Any:
        """Stretched to a larger shape: new axes in front, and axes of size 1."""
        grown = tuple(self.draw(SIZES) if n == 1 else n for n in x.shape)
        return ops.broadcast_to(x, (*self.draw(st.lists(SIZES, max_size=1)), *grown))

    def convert(self, x: Any) -> Any:
        return x.astype(self.pick(["f64", "f32", "f16", "bf16", "i32"]))

    def select(self, x: Any) -> Any:
        others = [y for y in self.pool if y.dtype == x.dtype and _broadcasts(x.shape, y.shape)]
        y = self.pick(others)
        if x.dtype.kind == "b":
            return ops.logical_and(x, y)
        return ops.where(x > self.pick([0, 1]), *self.draw(st.permutations([x, y])))


class WholeNumbers(Grower):
    """Grows programs whose every value is a small whole number, so that every device gives the same bits.

    No rounding happens, so neither the order of a sum nor a fused multiply-add can show.
    """

    def __init__(self, draw: Draw, pool: Sequence[Any]) -> None:
        super().__init__(draw, pool, smooth=False)

    def operand(self) -> Any:
        return self.small(super().operand())

    def small(self, x: Any) -> Any:
        return ops.clip(x, -8, 8) if is_integer(x.dtype) else self.summand(x)

    def unary(self, x: Any) -> Any:
        names = ["negative", "abs", "sign", "square", "relu", "floor", "round"]
        return getattr(ops, self.pick(names))(x) if is_float(x.dtype) else super().unary(x)

    def binary(self, x: Any) -> Any:
        others = [y for y in self.pool if y.dtype == x.dtype and _broadcasts(x.shape, y.shape)]
        if x.dtype.kind == "b" or not others:
            return None
        name = self.pick(["add", "subtract", "multiply", "maximum", "minimum"])
        return getattr(ops, name)(x, self.small(self.pick(others)))

    def number(self, x: Any) -> Any:
        name = self.pick(["add", "subtract", "multiply"])
        return None if x.dtype.kind == "b" else getattr(ops, name)(x, self.pick([0, 1, -1, 2, 3]))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs) and math.prod(np.broadcast_shapes(a, b)) <= 4096


def _fits_beside(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> bool:
    return len(a) == len(b) and all(m == n or i == axis for i, (m, n) in enumerate(zip(a, b, strict=True)))


@st.composite
def types(draw: Draw, dtypes: Sequence[str]) -> ag.TensorType:
    shape = [draw(SIZES) for _ in range(draw(st.sampled_from([2, 3, 1, 0])))]
    return ag.spec(shape, draw(st.sampled_from(list(dtypes))))


@st.composite
def programs(draw: Draw, dtypes: Sequence[str] = DTYPES_DRAWN, smooth: bool = False, most: int = 30) -> Program:
    """A program of 1 to 3 inputs and 5 to `most` operations; with `smooth` every one of them can be differentiated."""

    def function(*inputs: Any) -> Any:
        grower = Grower(draw, inputs, smooth)
        for _ in range(draw(st.integers(5, most))):
            grower.grow()
        made = grower.pool[len(inputs) :] or grower.pool
        chosen = draw(st.lists(st.sampled_from(range(len(made))), min_size=1, max_size=3, unique=True))
        results = [made[-1], *(made[i] for i in chosen)]
        return sum((ops.mean(ops.sin(r)) for r in results), 0.0) if smooth else results

    examples = draw(st.lists(types(dtypes), min_size=1, max_size=3))
    return ag.capture(function, *examples, name="drawn")


@st.composite
def whole_programs(draw: Draw, most: int = 40) -> Program:
    """A program of 1 to 3 inputs and 5 to `most` operations on small whole numbers of any type."""

    def function(*inputs: Any) -> Any:
        grower = WholeNumbers(draw, inputs)
        for _ in range(draw(st.integers(5, most))):
            grower.grow()
        made = grower.pool[len(inputs) :] or grower.pool
        return [made[-1], *(made[i] for i in draw(st.lists(st.sampled_from(range(len(made))), max_size=3)))]

    examples = draw(st.lists(types([*DTYPES_DRAWN, "i64", "bool"]), min_size=1, max_size=3))
    return ag.capture(function, *examples, name="drawn")


def whole_arrays(program: Program, seed: int = 0) -> list[np.ndarray]:
    """Whole numbers from -8 to 8 for the inputs of `program`."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.integers(-8, 9, type.shape)).astype(type.dtype) for type in program.input_types]


def arrays(program: Program, seed: int = 0) -> list[np.ndarray]:
    """Values for the inputs of `program`: both signs, both zeros, and small whole numbers among them."""
    rng = np.random.default_rng(seed)
    made = []
    for type in program.input_types:
        values = rng.normal(size=type.shape)
        values = np.where(
            rng.random(type.shape) < 0.2, rng.integers(-2, 3, type.shape) * rng.choice([1.0, -1.0]), values
        )
        made.append(np.asarray(values, dtype=type.dtype) if type.dtype != DTYPES["bool"] else values > 0)
    return made
