"""What misuse of traced tensors and operands that do not fit are told: what was asked, where, and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ops.dispatch import current_builder
from tests.support import run

V, M = ag.spec((3,)), ag.spec((3, 4))
ONES = np.ones(3, np.float32)

leaked: list[Any] = []


def keep(x: Any) -> Any:
    leaked.append(x)
    return x * 2


def use_tracer_of_another_capture(x: Any) -> Any:
    inner: list[Any] = []
    ag.capture(lambda y: inner.append(y) or y, V)
    return x + inner[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 1 if x.sum() > 0 else 2, r"\(bool\[\]\) is traced.*used as bool\(\).*ops.where or ag.cond"),
        (lambda x: x.sum() and x, r"used as bool\(\)"),
        (lambda x: x in [ops.exp(x)], r"used as bool\(\)"),
        (lambda x: float(x.sum()), r"used as float\(\).*closure"),
        (lambda x: math.sqrt(x.sum()), r"used as float\(\)"),
        (lambda x: int(x.sum()), r"used as int\(\)"),
        (lambda x: [1, 2][x.sum().astype("i32")], "used as an index or a size.*fixed at capture"),
        (lambda x: range(x.sum().astype("i32")), "used as an index or a size"),
        (lambda x: np.asarray(x), "used as a NumPy array.*antegrad.ops"),
        (lambda x: np.array([x, x]), "used as a NumPy array"),
        (lambda x: x.sum().item(), r"used as \.item\(\)"),
        (lambda x: x.tolist(), r"used as \.item\(\)"),
        (lambda x: len(x.sum()), "used as a sequence.*no elements to count"),
        (lambda x: list(x.sum()), "used as a sequence.*no elements to go through"),
        (lambda x: x.__setitem__(0, 1.0), r"in-place assignment.*t.at\[index\].set\(value\)"),
        (lambda x: np.add(x, 1, out=np.zeros(3)), "np.add with out"),
        (lambda x: np.add.reduce(x), "np.add.reduce"),
        (lambda x: np.linalg.svd(x), r"np\.linalg\.svd on.*no counterpart"),
        (lambda x: np.cumsum(x, dtype=np.float64, out=np.zeros(3)), "np.cumsum"),
        (lambda x: np.sum(x, where=np.array([True])), "np.sum with where"),
        (lambda x: "text", "program must return tensors or numbers, found 'text'"),
        (lambda x: {"a": x, "b": object()}, "must return tensors or numbers"),
        (lambda x: 2**40, "must return tensors or numbers, found 1099511627776"),
        (use_tracer_of_another_capture, "outside the capture that made it.*Return it"),
    ],
)  # fmt: skip
def test_misuse_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ag.TraceError, match=f"(?s){message}") as error:
        ag.capture(function, V)
    assert re.search(rf"at {re.escape(__file__)}:\d+", str(error.value)), error.value
    assert current_builder() is None


def test_the_name_of_the_variable_is_in_the_message() -> None:
    def function(x: Any) -> Any:
        total = x.sum()
        return 1.0 if total > 0 else float(total)

    with pytest.raises(ag.TraceError, match="was used as bool"):
        ag.capture(function, V)
    with pytest.raises(ag.TraceError, match=r"x \(f32\[3\]\) is traced: it has a type but no value"):
        ag.capture(lambda x: float(x), V)


@pytest.mark.parametrize("use", [lambda t: t + 1, lambda t: ops.exp(t), lambda t: np.tanh(t), lambda t: t.sum()])
def test_a_tracer_that_got_away(use: Callable[..., Any]) -> None:
    leaked.clear()
    ag.capture(keep, V)
    for call in (lambda: use(leaked[0]), lambda: ag.capture(lambda x: x + use(leaked[0]), V)):
        with pytest.raises(ag.TraceError, match=r"x \(f32\[3\]\) is a traced tensor used outside the capture"):
            call()


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x, n: x + n, ag.DTypeError, r"add of .*: f32 and i32.*keeps every bit.*\.astype"),
        (lambda x, n: n + 0.5, ag.DTypeError, r"0.5 would lose its value in i32"),
        (lambda x, n: n * 2**40, ag.DTypeError, "does not fit in i32"),
        (lambda x, n: x.astype("f16") + 1e6, ag.DTypeError, "1000000.0 is too large for f16"),
        (lambda x, n: ops.exp(n), ag.DTypeError, "exp is for float tensors, found i32"),
        (lambda x, n: ops.where(x, x, x), ag.DTypeError, "the condition must be bool, found f32"),
        (lambda x, n: x @ n, ag.DTypeError, "f32 and i32"),
        (lambda x, n: x.astype("f99"), ag.DTypeError, "no element type 'f99'"),
        (lambda x, n: x + ops.zeros((4,)), ag.ShapeError, r"add: f32\[3\] and f32\[4\] do not broadcast"),
        (lambda x, n: x @ ops.zeros((4, 2)), ag.ShapeError, r"matmul of f32\[3\] and f32\[4,2\].*sizes 3 and 4"),
        (lambda x, n: x.sum(axis=1), ag.ShapeError, "axis 1"),
        (lambda x, n: x.reshape(2, 2), ag.ShapeError, "3 elements"),
        (lambda x, n: x.transpose(0, 1), ag.ShapeError, "axis 1|does not permute"),
        (lambda x, n: x[5], ag.ShapeError, "5 is out of range for axis 0"),
        (lambda x, n: x[0, 0], ag.ShapeError, "2 indices"),
        (lambda x, n: x[x > 0], ag.ShapeError, "ops.where"),
        (lambda x, n: ops.concatenate([x, ops.zeros((3, 1))]), ag.ShapeError, "do not fit along axis 0"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit(function: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}") as raised:
        ag.capture(function, V, ag.spec((3,), "i32"))
    if "no element type" not in message:
        assert re.search(rf"at {re.escape(__file__)}:\d+", str(raised.value)), raised.value


@pytest.mark.parametrize("example", ["text", object(), [1, "a"], {"a": {1}}])
def test_what_is_no_example(example: Any) -> None:
    with pytest.raises(ag.DTypeError, match=r"capture: input [xa].*functools\.partial or a closure"):
        ag.capture(lambda x: x, example)


def test_in_place_operators_make_new_values() -> None:
    def function(x: Any) -> Any:
        before = x
        x += 1
        x *= 2
        return before, x

    np.testing.assert_array_equal(run(ag.capture(function, V), [ONES], "host"), [ONES, 4 * ONES])


def test_iteration_and_unpacking() -> None:
    def function(m: Any) -> Any:
        a, b, c = m
        return a + b * c, len(m)

    m = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = run(ag.capture(function, M), [m], "host")
    np.testing.assert_array_equal(found[0], m[0] + m[1] * m[2])
    assert found[1] == 3
