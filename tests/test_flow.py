"""Control flow against plain Python: every loop and branch, nested, with captured values, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import flow, ops
from antegrad.ops.dispatch import current_builder
from tests.support import devices, run

V, S = ag.spec((4,)), ag.spec(())
XS = np.array([0.5, -1.0, 2.0, 1.5], np.float32)


def check(function: Callable[..., Any], expected: Any, *given: Any) -> None:
    """`function` at once on arrays and captured on every device gives `expected`, leaf by leaf."""
    leaves = [np.asarray(leaf) for leaf in ag.tree.leaves(expected)]
    program = ag.capture(function, *given)
    found = {"at once": [np.asarray(leaf) for leaf in ag.tree.leaves(function(*given))]}
    found |= {device: run(program, ag.tree.leaves(list(given)), device) for device in devices()}
    for where, outputs in found.items():
        assert len(outputs) == len(leaves), where
        for output, leaf in zip(outputs, leaves, strict=True):
            np.testing.assert_allclose(output, leaf, rtol=1e-6, atol=1e-6, err_msg=where)
            assert output.shape == leaf.shape, where
    assert ag.tree.structure(program.run(*given, device="host")) == ag.tree.structure(expected)


# scan


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    def step(carry: Any, x: Any) -> Any:
        return carry * 2 + x, carry - x

    carry, ys = np.float32(1), np.zeros(4, np.float32)
    for i in range(4)[::-1] if reverse else range(4):
        carry, ys[i] = carry * 2 + XS[i], carry - XS[i]
    check(lambda xs: ag.scan(step, 1.0, xs, reverse=reverse), (carry, ys), XS)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_scan_of_few_steps(length: int) -> None:
    xs = XS[:length]
    check(lambda xs: ag.scan(lambda c, x: (c + x, x * 2), 1.0, xs), (1 + xs.sum(dtype=np.float32), xs * 2), xs)


def test_scan_of_no_steps_keeps_types() -> None:
    def function(xs: Any) -> Any:
        return ag.scan(lambda c, x: (c, (x.astype("bf16"), x > 0, ops.stack([x, x]).astype("i8"))), (), xs)[1]

    for device in devices():
        found = run(ag.capture(function, XS[:0]), [XS[:0]], device)
        assert [str(ag.ir.types.type_of(output)) for output in found] == ["bf16[0]", "bool[0]", "i8[0,2]"]


def test_scan_without_inputs() -> None:
    check(lambda c: ag.scan(lambda c, x: (c * 2, c), c, None, length=3), (8.0, np.array([1, 2, 4])), np.float32(1))


def test_scan_without_carry() -> None:
    check(lambda xs: ag.scan(lambda c, x: (c, x * x), (), xs), ((), XS * XS), XS)


def test_scan_without_outputs() -> None:
    check(lambda xs: ag.scan(lambda c, x: (c + x, None), 0.0, xs), (np.float32(3), None), XS)


def test_scan_of_trees() -> None:
    def step(carry: Any, x: Any) -> Any:
        total = {"sum": carry["sum"] + x["a"], "count": carry["count"] + 1}
        return total, [x["b"], (x["a"] * ops.convert(total["count"], "f32"),)]

    b = np.arange(8, dtype=np.int32).reshape(4, 2)
    expected = ({"sum": np.float32(3), "count": np.int32(4)}, [b, (XS * np.arange(1, 5),)])
    check(lambda xs: ag.scan(step, {"sum": 0.0, "count": 0}, xs), expected, {"a": XS, "b": b})


def test_scan_that_swaps_its_carry() -> None:
    check(lambda a, b: ag.scan(lambda c, _: ((c[1], c[0]), None), (a, b), None, length=3)[0], (2.0, 1.0), 1.0, 2.0)


def test_the_one_result_of_a_scan_in_an_expression() -> None:
    check(lambda xs: ag.scan(lambda c, x: (c + x, None), 0.0, xs)[0] * 2 + 1, np.float32(7), XS)


# cond and switch


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign: int) -> None:
    def function(x: Any) -> Any:
        return ag.cond(x.sum() > 0, lambda x: {"y": x * 2}, lambda x: {"y": x - 1}, x)

    check(function, {"y": XS * 2 if sign > 0 else -XS - 1}, sign * XS)


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 9])
def test_switch_clamps_its_index(index: int) -> None:
    branches = [lambda x: x, lambda x: x * 10, lambda x: x * 100]
    factor = [1, 10, 100][min(max(index, 0), 2)]
    check(lambda i, x: flow.switch(i, branches, x), XS * factor, np.int32(index), XS)


def test_cond_with_a_python_bool() -> None:
    check(lambda x: ag.cond(True, lambda x: x, lambda x: x * 2, x), XS, XS)


def test_the_other_branch_does_not_run() -> None:
    """On the host, whose branches are Python functions: the other one would not end."""

    def forever(x: Any) -> Any:
        return ag.while_loop(lambda x: x < np.inf, lambda x: x, x)

    check(lambda x: ag.cond(x > 0, lambda x: x, forever, x), np.float32(1), np.float32(1))


def test_branches_that_capture_different_values() -> None:
    table = np.arange(100, dtype=np.float32)

    def function(x: Any, y: Any, z: Any) -> Any:
        w = x * y
        return ag.cond(x.sum() > 0, lambda: w + z, lambda: y * table[:4] + ops.sum(table))

    y, z = XS * 2, XS - 3
    check(function, XS * y + z, XS, y, z)
    check(function, y * table[:4] + table.sum(), -XS, y, z)


def test_a_branch_whose_parameter_has_the_name_of_a_captured_one() -> None:
    def function(x: Any, w: Any) -> Any:
        return ag.cond(w > 0, lambda captured_0, captured_1: captured_0 * w + captured_1, lambda a, b: a + b, x, x)

    check(function, XS * 2 + XS, XS, np.float32(2))


# while and fori


def test_while_loop() -> None:
    def function(x: Any) -> Any:
        return ag.while_loop(lambda s: s[0] < 100, lambda s: (s[0] * 2, s[1] + 1), (x, 0))

    check(function, (np.float32(128), np.int32(7)), np.float32(1))


def test_while_loop_that_does_not_start() -> None:
    check(lambda x: ag.while_loop(lambda x: x > 5, lambda x: x + 1, x), np.float32(1), np.float32(1))


def test_while_loop_with_captured_values_in_both_parts() -> None:
    def function(limit: Any, step: Any) -> Any:
        return ag.while_loop(lambda x: x < limit * 1.5, lambda x: x + step, limit * 0)

    check(function, np.float32(16), np.float32(10), np.float32(2))


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (2, 5), (3, 3), (5, 2)])
def test_fori_loop_with_fixed_and_computed_bounds(start: int, stop: int) -> None:
    total = sum(i * i for i in range(start, stop))

    def body(i: Any, total: Any) -> Any:
        return total + i * i

    check(lambda: ag.fori_loop(start, stop, body, 0), np.int32(total))
    check(lambda a, b: ag.fori_loop(a, b, body, 0), np.int32(total), np.int32(start), np.int32(stop))


def test_map() -> None:
    check(lambda xs: flow.map(lambda x: {"a": x["a"] * 2, "b": x["a"] > 0}, xs), {"a": XS * 2, "b": XS > 0}, {"a": XS})


# Nesting, with values captured from two levels up.


def test_values_from_two_levels_up() -> None:
    """The inner loop uses values of the outer loop, of the function around it and from outside the capture."""
    table = np.arange(70, dtype=np.float32)
    small = np.float32(0.5)

    def function(w: Any, xs: Any) -> Any:
        shift = w * 2

        def outer(carry: Any, x: Any) -> Any:
            scaled = x * shift

            def inner(total: Any, y: Any) -> Any:
                chosen = ag.cond(y > 0, lambda: y * scaled + w, lambda: carry - small)
                return total + chosen + table[3] + ops.sum(table) * 0, total

            total, _ = ag.scan(inner, carry, xs)
            return total, total

        return ag.scan(outer, 0.0, xs)

    w, carry, ys = 3.0, 0.0, []
    for x in XS:
        total = carry
        for y in XS:
            total += (y * (x * w * 2) + w if y > 0 else carry - 0.5) + 3
        carry = total
        ys.append(total)
    check(function, (np.float32(carry), np.array(ys, np.float32)), np.float32(w), XS)
    program = ag.capture(function, S, V)
    assert program.input_names == ("w", "xs", "table")


def test_a_while_loop_in_a_branch_in_a_scan() -> None:
    def function(xs: Any, limit: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            grown = ag.cond(
                x > 0,
                lambda x: ag.while_loop(lambda v: v < limit, lambda v: v * (c + 2), x),
                lambda x: x,
                x,
            )
            return c + 1, grown

        return ag.scan(step, 0.0, xs)

    c, ys = 0.0, []
    for x in XS:
        while 0 < x < 10:
            x = x * (c + 2)
        c, ys = c + 1, [*ys, x]
    check(function, (np.float32(c), np.array(ys, np.float32)), XS, np.float32(10))


def test_a_function_used_in_two_loops_is_captured_for_each() -> None:
    def step(c: Any, x: Any) -> Any:
        return c + x, c

    def function(xs: Any, ys: Any) -> Any:
        return ag.scan(step, 0.0, xs)[0] + ag.scan(step, ops.zeros((2,)), ys)[0].sum()

    check(function, np.float32(3 + 12), XS, np.full((3, 2), 2, np.float32))


def test_names_in_the_printed_loop() -> None:
    def decay(speed: Any, force: Any) -> Any:
        faster = speed * 0.5 + force
        return faster, faster

    def function(xs: Any) -> Any:
        final, path = ag.scan(decay, 0.0, xs)
        return final, path

    text = ag.capture(function, V).python()
    assert "def decay(speed, force):" in text
    assert "faster = speed * 0.5 + force" in text
    assert "final, path = scan(decay, (), (np.float32(0),), (xs,), length=4, reverse=False)" in text


# What is refused.


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: ag.scan(lambda c, v: (c.astype("f64"), v), 0.0, x), ag.ShapeError, r"and comes out as f64"),
        (lambda x: ag.scan(lambda c, v: (ops.stack([c, c]), v), 0.0, x), ag.ShapeError, r"comes out as f32\[2\]"),
        (lambda x: ag.scan(lambda c, v: ((c, c), v), 0.0, x), ag.ShapeError, "the carry goes in as"),
        (lambda x: ag.scan(lambda c, v: c, 0.0, x), ag.TraceError, r"must return \(carry, y\), found Tensor"),
        (lambda x: ag.scan(lambda c, v: (c, v, v), 0.0, x), ag.TraceError, r"must return \(carry, y\), found tuple"),
        (lambda x: ag.scan(lambda c, v: (c, v), 0.0, (x, x[:2])), ag.ShapeError, "slices.*f32.4., f32.2."),
        (lambda x: ag.scan(lambda c, v: (c, v), 0.0, x, length=3), ag.ShapeError, "one number of slices.*length=3"),
        (lambda x: ag.scan(lambda c, v: (c, v), 0.0, x.sum()), ag.ShapeError, "one number of slices"),
        (lambda x: ag.scan(lambda c, v: (c, v), 0.0), ag.ShapeError, "one number of slices.*length=None"),
        (lambda x: ag.scan(lambda c, v: (c, v), x, None, length=-1), ag.ShapeError, "length=-1"),
        (lambda x: ag.cond(x, lambda: x, lambda: x), ag.DTypeError, r"must be a bool scalar, found f32\[4\]"),
        (lambda x: ag.cond(1, lambda: x, lambda: x), ag.DTypeError, "must be a bool scalar, found i32"),
        (lambda x: ag.cond(True, lambda: x, lambda: x[:2]), ag.ShapeError, r"results of the branches.*f32\[2\]"),
        (lambda x: ag.cond(True, lambda: x, lambda: (x,)), ag.ShapeError, "different structures"),
        (lambda x: flow.switch(x.sum(), [lambda: x]), ag.DTypeError, r"index must be an integer scalar, found f32\[\]"),
        (lambda x: flow.switch(0, [lambda: x, lambda: x[:2]]), ag.ShapeError, r"switch: results .*f32\[4\].*f32\[2\]"),
        (lambda x: flow.switch(0, [lambda: x, lambda: ()]), ag.ShapeError, "switch: the branches return different"),
        (lambda x: flow.switch(0, []), ag.ShapeError, "no branch"),
        (lambda x: ag.while_loop(lambda c: c, lambda c: c, x), ag.ShapeError, r"\(bool\[\]\), found \(f32"),
        (lambda x: ag.while_loop(lambda c: (True, True), lambda c: c, x), ag.ShapeError, r"found \(bool\[\], bool"),
        (lambda x: ag.while_loop(lambda c: True, lambda c: c[:2], x), ag.ShapeError, r"comes out as f32\[2\]"),
        (lambda x: ag.while_loop(lambda c: True, lambda c: (c, c), x), ag.ShapeError, "the carry goes in as"),
        (lambda x: ag.fori_loop(0, 3, lambda i, c: c[:2], x), ag.ShapeError, r"comes out as f32\[2\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(function: Callable[..., Any], error: type[Exception], message: str) -> None:
    for call in (lambda: ag.capture(function, V), lambda: function(XS)):
        with pytest.raises(error, match=f"(?s){message}") as raised:
            call()
        assert f"{__file__}:" in str(raised.value)
        assert current_builder() is None


def test_a_tracer_of_a_loop_that_got_away() -> None:
    kept: list[Any] = []

    def step(c: Any, x: Any) -> Any:
        kept.append(c)
        return c + x, x

    def function(xs: Any) -> Any:
        ag.scan(step, 0.0, xs)
        return kept[0] + 1

    with pytest.raises(ag.TraceError, match="outside the capture that made it"):
        ag.capture(function, V)


def test_an_operation_that_python_chooses_in_a_body() -> None:
    """`bool()` is refused in a body, also when the loop runs at once on arrays, because bodies are captured."""

    def step(c: Any, x: Any) -> Any:
        return (c + x if x > 0 else c), x

    for call in (lambda: ag.capture(lambda xs: ag.scan(step, 0.0, xs), V), lambda: ag.scan(step, 0.0, XS)):
        with pytest.raises(ag.TraceError, match=r"used as bool\(\)"):
            call()


def test_bounds_of_loops_are_whole_numbers() -> None:
    for wrong in (
        lambda: ag.fori_loop(0, 2.9, lambda i, c: c * 2, np.float32(1)),
        lambda: ag.while_loop(lambda c: c < 5, lambda c: c * 2, np.float32(1), max_steps=1.5),
        lambda: ag.while_loop(lambda c: c < 5, lambda c: c * 2, np.float32(1), max_steps=True),
        lambda: ag.scan(lambda c, _: (c, None), np.float32(1), length=2.7),
    ):
        with pytest.raises((ag.ShapeError, ag.DTypeError)):
            wrong()
