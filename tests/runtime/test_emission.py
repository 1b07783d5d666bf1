"""The StableHLO of every primitive runs on XLA:CPU and agrees with the host: one program each, with the awkward inputs.

The exact values of each operation are certified in tests/ops; here the question is whether the text is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops, tree
from antegrad.ir.primitive import REGISTRY
from antegrad.ir.program import Program
from antegrad.ir.types import is_float
from antegrad.ops.call import optimization_barrier
from tests.support import assert_same_bits, assert_within

X = np.array([[0.5, -1.5, 2.5], [-0.0, 0.25, -3.0]], np.float32)
Y = np.array([[2.0, 0.5, -0.75], [1.0, -2.0, 4.0]], np.float32)
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5, -2.5], np.float32)
GAMMA = np.array([-1, -1.75, 0.125, 3, 20], np.float32)
INTS = np.array([7, -7, 0, 3, -(2**31), 1], np.int32)
DIVISORS = np.array([2, 3, 5, 0, -1, 33], np.int32)
U = np.array([0, 1, 200, 255], np.uint8)
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PLACES = np.array([0, 2, 2, 9, -4], np.int32)
ROWS = np.arange(10, dtype=np.float32).reshape(5, 2) + 0.5
TIES = np.array([[1, 3, 3, 2], [np.nan, 9, np.nan, 1], [-np.inf] * 4, [0.0, -0.0, 0.0, -1]], np.float32)
BF16_ONES = np.ones(1024, ml_dtypes.bfloat16)
KEY, COUNTERS = np.array([3, 7], np.uint32), np.arange(6, dtype=np.uint32)
MATRIX = np.array([[0.5, 2, 1], [3, -1, 0], [1, 1, 4]], np.float32)
OUTER = np.arange(100, dtype=np.float32)
"""More elements than are embedded, so that a loop body takes it from outside."""


def index(number: int) -> np.ndarray:
    return np.asarray(number, np.int32)


def loop(count: Any, x: Any, y: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, ops.maximum(state[1] + y, OUTER[:3] - 2)

    return ag.while_loop(lambda state: state[0] < count, body, (ops.zeros((), "i32"), x))


def steps(reverse: bool) -> Callable[..., Any]:
    def step(carry: Any, x: Any) -> Any:
        return ops.minimum(carry + x, OUTER[10:12]), (carry, x > 1)

    return lambda carry, xs: ag.scan(step, carry, xs, reverse=reverse)


def nested(x: Any, rows: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return ag.cond(row[0] > 2, lambda c: loop(index(2), c, X[1])[1], lambda c: c - 1, carry), row

    return ag.scan(step, x, rows)


UNARY = ["abs", "negative", "sign", "relu", "exp", "expm1", "sqrt", "log", "log1p", "rsqrt", "cbrt", "sin", "cos"]
UNARY += ["tan", "tanh", "sigmoid", "floor", "ceil", "round", "isfinite", "erf", "erfinv", "erfc", "ndtr", "softplus"]
UNARY += ["exp2", "log2", "log10", "arcsin", "arccos", "arctan", "sinh", "cosh", "arcsinh", "arccosh", "arctanh"]
UNARY += ["i0e", "i1e"]
BINARY = ["add", "subtract", "multiply", "mul_no_nan", "divide", "truncated_remainder", "maximum", "minimum", "power"]
BINARY += ["arctan2", "hypot", "logaddexp", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
INTEGER = ["truncated_divide", "truncated_remainder", "bitwise_and", "bitwise_or", "bitwise_xor"]

Row = tuple[str, Callable[..., Any], tuple[Any, ...]]

TABLE: list[Row] = [
    *((name, getattr(ops, name), (SPECIAL,)) for name in UNARY),
    *((name, getattr(ops, name), (SPECIAL, SPECIAL[::-1].copy())) for name in BINARY),
    *((f"{name} i32", getattr(ops, name), (INTS, DIVISORS)) for name in INTEGER),
    ("shifts", lambda x, y: (x << y, x >> y), (INTS, np.abs(DIVISORS))),
    ("right_shift u8", lambda x: (x >> np.uint8(3), x << np.uint8(9)), (U,)),
    ("invert", lambda x, b: (~x, ~b), (INTS, INTS > 0)),
    ("sign u8", ops.sign, (U,)),
    ("gamma", lambda x: (ops.lgamma(x), ops.digamma(x), ops.polygamma(2, x)), (np.append(np.abs(SPECIAL), GAMMA),)),
    ("clip", lambda x: ops.clip(x, -1, 2), (SPECIAL,)),
    ("fma", ops.fma, (X, Y, X)),
    ("softmax", lambda x: (ops.softmax(x, 1), ops.log_softmax(x, (0, 2))), (CUBE,)),
    ("gelu", lambda x: (ops.gelu(x), ops.gelu(x, approximate=True)), (SPECIAL,)),
    ("standardize", lambda x: (*ops.standardize_p(x, (0, 2), 1e-5), *ops.standardize_p(x, (1,), 0.5, False)), (CUBE,)),
    ("dot_general over the first axes", lambda x: ops.dot_general(x, x, ((0, 1), (0, 1))), (CUBE,)),
    ("dot_general over the last axes", lambda x: ops.dot_general(x, x[:1], ((1, 2), (1, 2))), (CUBE,)),
    ("dot_general over last and first", lambda x: ops.dot_general(x, x[0].T, ((2,), (0,))), (CUBE,)),
    ("dot_general over a middle axis", lambda x: ops.dot_general(x, x, ((1,), (1,))), (CUBE,)),
    ("where", ops.where, (X > 0, X, Y)),
    ("convert", lambda x: (x.astype("i32"), x.astype("u8"), x.astype("bool"), x.astype("bf16")), (SPECIAL,)),
    ("bitcast", lambda x: ops.bitcast(x, "u32"), (X,)),
    ("stop_gradient", ops.stop_gradient, (X,)),
    ("constant", lambda x: x + np.array([[1, np.nan, -0.0]], np.float32), (X,)),
    ("broadcast_in_dim", lambda x: ops.broadcast_to(x[:, :1], (3, 2, 4)), (X,)),
    ("reshape", lambda x: x.reshape(3, 2), (X,)),
    ("transpose", lambda x: x.transpose(2, 0, 1), (CUBE,)),
    ("slice", lambda x: x[1:, ::2, 1:4:2], (CUBE,)),
    ("pad", lambda x: ops.pad_p(x, np.float32(7), (1, -1, 0), (0, 2, -2), (0, 1, 2)), (CUBE,)),
    ("pad, negative and interior", lambda x: ops.pad_p(x, np.float32(7), (-1, -2, -3), (0, -1, 1), (2, 1, 3)), (CUBE,)),
    ("concatenate", lambda x, y: ops.concatenate([x, y, x], 1), (X, Y)),
    ("iota", lambda: ops.iota((3, 4), np.dtype(np.uint8), 1), ()),
    ("flip", lambda x: ops.flip(x, (0, 2)), (CUBE,)),
    ("reductions", lambda x: (ops.sum(x, (0, 2)), ops.prod(x, 1), ops.max(x, 2), ops.min(x)), (CUBE / 8,)),
    ("reductions of NaN", lambda x: (ops.max(x, 1), ops.min(x, 1)), (TIES,)),
    ("reductions of nothing", lambda x: (ops.sum(x, 0), ops.prod(x, 0)), (np.zeros((0, 3), np.float32),)),
    ("reductions of bool", lambda x: (ops.any(x, 0), ops.all(x, 1)), (X > 0,)),
    ("integer sum wraps", lambda x: ops.sum(x), (U,)),
    ("argmax, argmin", lambda x: (ops.argmax(x, 1), ops.argmin(x, 1), ops.argmax(x, 0)), (TIES,)),
    ("dot_general", lambda x, y: ops.dot_general(x, y, ((2,), (1,)), ((0,), (2,))), (CUBE, CUBE.reshape(3, 4, 2))),
    ("dot of nothing", lambda x, y: x @ y, (np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32))),
    ("cholesky", lambda x: ops.cholesky(x @ x.T), (MATRIX,)),
    ("triangular_solve", lambda a, b: ops.triangular_solve(a, b, lower=False), (MATRIX, MATRIX[:, :2].copy())),
    ("lu, solve, inverse", lambda x, b: (ops.lu(x), ops.solve(x, b), ops.inverse(x)), (MATRIX, MATRIX[0])),
    ("slogdet", lambda x: ops.slogdet(ops.stack([x, x * 0])), (MATRIX,)),
    ("conv_general", lambda x, y: ops.conv(x[None], y, (1, 2), "SAME", groups=2), (CUBE, CUBE.reshape(3, 2, 2, 2))),
    ("conv_general of nothing", lambda x, y: ops.conv(x[None][:0], y), (CUBE, CUBE.reshape(1, 3, 4, 2))),
    ("reduce_window_max", lambda x: ops.max_pool(x, 2, 1, 1), (TIES[None],)),
    ("take", lambda x, i: (ops.take_p(x, i, 1), ops.take_p(x, i.reshape(5, 1), 2)), (CUBE, PLACES)),
    ("take u8", lambda x, i: ops.take_p(x, i, 0), (CUBE, U)),
    ("scatter add", lambda x, i, u: ops.scatter_p(x, i, u, 0, "add"), (np.zeros((4, 2), np.float32), PLACES, ROWS)),
    ("scatter set", lambda x, i, u: ops.scatter_p(x, i, u, 1, "set"), (CUBE[:, 0], PLACES, ROWS.reshape(2, 5))),
    *(
        (f"scatter {mode}", lambda x, i, u, mode=mode: ops.scatter_p(x, i, u, 0, mode), (CUBE[0, :, :2], PLACES, ROWS))
        for mode in ("multiply", "min", "max")
    ),
    ("dynamic_slice", lambda x, i, j: ops.dynamic_slice_p(x, (i, j), (1, 2)), (X, index(9), index(-3))),
    ("dynamic_update_slice", lambda x, i: ops.dynamic_update_slice_p(x, x[:1, :2] * 0, (i, i)), (X, index(2))),
    ("cumulative", lambda x: (ops.cumsum(x, 1), ops.cumprod(x, 0), ops.cummax(x, 1), ops.cummin(x, 1)), (TIES,)),
    ("cumulative, reversed", lambda x: (ops.cumsum(x, 1, True), ops.cummax(x, 2, True)), (CUBE,)),
    ("cumulative of nothing", lambda x: (ops.cumsum(x, 0), ops.cummax(x, 1)), (np.zeros((0, 3), np.float32),)),
    ("linear_recurrence", lambda x: ops.linear_recurrence_p(x, x + 1, 1, True), (TIES,)),
    ("linear_recurrence by rows", lambda x: ops.linear_recurrence_p(x / 100, x, 0), (OUTER,)),
    ("sort", lambda x: (ops.sort(x, 1), ops.argsort(x, 1)), (TIES,)),
    ("sort of several", lambda x, i: ops.sort_p((x, i, i > 1), 0), (TIES, np.arange(16, dtype=np.int32).reshape(4, 4))),
    ("threefry2x32", lambda k, c: (ops.threefry2x32(k, c, c), ops.threefry2x32(k, c[:1], c[1:2])), (KEY, COUNTERS)),
    ("threefry2x32 of scalars", ops.threefry2x32, (KEY, np.uint32(1), np.uint32(2))),
    ("cond", lambda b, x, y: ag.cond(b, lambda v: v * y, lambda v: v + OUTER[:2, None], x), (np.bool_(True), X, Y)),
    ("switch", lambda i, x: ag.switch(i, [ops.exp, ops.sin, ops.negative], x), (index(9), X)),
    ("while", loop, (index(4), X, Y)),
    ("while, no step", loop, (index(0), X, Y)),
    *((f"scan of {n}", steps(False), (X[0, :2], ROWS[:n])) for n in (5, 1, 0)),
    *((f"scan of {n}, reversed", steps(True), (X[0, :2], ROWS[:n])) for n in (5, 1, 0)),
    ("loop in a branch in a loop", nested, (X[1], ROWS)),
    ("call", lambda x: ag.remat(lambda v: ops.exp(v) + OUTER[:3])(x), (X,)),
    ("optimization_barrier", lambda x, i: (optimization_barrier(x, i), optimization_barrier(x)), (X, INTS)),
]


def captured(row: Row) -> Program:
    _, function, arrays = row
    return ag.capture(function, *arrays, name="smoke")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_host_and_cpu_agree(row: Row) -> None:
    program = captured(row)
    found = tree.leaves(program.run(*row[2], device="cpu"))
    expected = tree.leaves(program.run(*row[2], device="host"))
    assert found
    for position, (result, truth) in enumerate(zip(found, expected, strict=True)):
        assert (result.dtype, result.shape) == (truth.dtype, truth.shape)
        if is_float(truth.dtype):
            assert_within(result, truth.astype(np.float64), 4, f"output {position}")
        else:
            assert_same_bits(result, truth, f"output {position}")


def test_every_primitive_is_in_the_table() -> None:
    used = {equation.primitive.name for row in TABLE for equation in captured(row).all_equations()}
    several_ranks = {name for name, primitive in REGISTRY.items() if primitive.communicates}  # ops/test_collective.py
    assert used >= set(REGISTRY) - several_ranks - {"while_transpose"}  # it runs nowhere


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_case_bf16_sum(device: str) -> None:
    program = ag.capture(lambda x, y: (ops.sum(x), ops.mean(y), x @ x), BF16_ONES, np.ones(70000, ml_dtypes.bfloat16))
    total, mean, product = program.run(BF16_ONES, np.ones(70000, ml_dtypes.bfloat16), device=device)
    assert (float(total), float(mean), float(product)) == (1024, 1, 1024)


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_case_gather_out_of_bounds(device: str) -> None:
    x = np.array([10, 20, 30], np.float32)
    program = ag.capture(lambda x, i: ops.take_p(x, i, 0), x, np.array([3, 99, 1], np.int32))
    assert program.run(x, np.array([3, 99, 1], np.int32), device=device).tolist() == [30, 30, 20]
