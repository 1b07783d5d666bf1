"""Dead code: what reaches no output goes, down into sub-programs; inputs stay."""

from __future__ import annotations

from typing import Any

import numpy as np

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Equation, Program
from antegrad.passes.dead_code import eliminate_dead_code
from tests.support import assert_same_bits, run

XS = np.linspace(-1, 2, 5).astype(np.float32)


def control(program: Program) -> Equation:
    """The one equation with sub-programs."""
    (equation,) = (eq for eq in program.equations if eq.programs)
    return equation


def without_dead_code(function: Any, *given: np.ndarray) -> Program:
    """`function` without dead code, which must give the same bits as with it."""
    program = ag.capture(function, *given)
    clean = eliminate_dead_code(program)
    for name, expected, found in zip(
        program.output_names, run(program, given, "host"), run(clean, given, "host"), strict=True
    ):
        assert_same_bits(found, expected, name)
    return clean


def test_unread_equations_go_and_inputs_stay() -> None:
    def function(x: Any, unread: Any) -> Any:
        ops.exp(ops.tanh(unread))
        return x * 2

    clean = without_dead_code(function, XS, XS)
    assert [eq.primitive.name for eq in clean.equations] == ["constant", "broadcast_in_dim", "multiply"]
    assert clean.input_names == ("x", "unread")


def test_an_unread_output_of_a_scan_goes() -> None:
    def step(c: Any, x: Any) -> Any:
        return c + x, (ops.exp(x), ops.tanh(c))

    scan = control(without_dead_code(lambda xs: ag.scan(step, 0.0, xs)[1][1], XS))
    assert len(scan.outputs) == 2, "the carry feeds the output that is read"
    assert "exp" not in [eq.primitive.name for eq in scan.params["body"].equations]


def test_an_unread_carry_goes_with_what_only_it_read() -> None:
    def step(carry: Any, x: Any) -> Any:
        a, b = carry
        return (a + x, b * ops.exp(a)), None

    scan = control(without_dead_code(lambda xs, w: ag.scan(step, (0.0, w), xs)[0][0], XS, np.float32(3)))
    assert len(scan.inputs) == 2
    assert len(scan.outputs) == 1
    assert [eq.primitive.name for eq in scan.params["body"].equations] == ["add"]


def test_a_carry_that_a_read_carry_needs_stays() -> None:
    """a reads b, b reads c: only d goes."""

    def step(carry: Any, _: Any) -> Any:
        a, b, c, d = carry
        return (a + b, b + c, c * 2, d + a), None

    start = (np.float32(1), np.float32(2), np.float32(3), np.float32(4))
    scan = control(without_dead_code(lambda *start: ag.scan(step, start, None, length=3)[0][0], *start))
    assert scan.params["counts"] == (0, 3)


def test_an_unread_constant_and_slice_go() -> None:
    def function(xs: Any, ys: Any, w: Any) -> Any:
        return ag.scan(lambda c, xy: (c + xy[0], xy[1] * w), 0.0, (xs, ys))[0]

    scan = control(without_dead_code(function, XS, XS, np.float32(2)))
    assert [v.name for v in scan.inputs if v.name] == ["xs"]


def test_an_unread_result_of_a_cond_goes() -> None:
    def function(x: Any) -> Any:
        return ag.cond(x.sum() > 0, lambda x: (x * 2, ops.exp(x)), lambda x: (x * 3, ops.tanh(x)), x)[0]

    cond = control(without_dead_code(function, XS))
    for branch in cond.programs:
        assert [eq.primitive.name for eq in branch.equations] == ["constant", "broadcast_in_dim", "multiply"]


def test_a_scan_that_nobody_reads_goes_as_a_whole() -> None:
    def function(x: Any) -> Any:
        ag.scan(lambda c, x: (c + x, c), 0.0, x)
        return x + 1

    assert not any(eq.programs for eq in without_dead_code(function, XS).equations)


def test_scans_within_scans() -> None:
    """The inner scan loses its output because the outer one lost its own."""

    def outer(c: Any, x: Any) -> Any:
        c, ys = ag.scan(lambda c, _: (c * 0.5 + x, ops.exp(c)), c, None, length=2)
        return c, ys.sum()

    scan = control(without_dead_code(lambda xs: ag.scan(outer, 0.0, xs)[0], XS))
    inner = control(scan.params["body"])
    assert len(inner.outputs) == 1
    assert "exp" not in [eq.primitive.name for eq in inner.params["body"].equations]


def test_an_operand_that_no_branch_reads_goes() -> None:
    def function(x: Any, y: Any, unread: Any) -> Any:
        return ag.cond(x.sum() > 0, lambda x, y, z: x * 2, lambda x, y, z: y * 3, x, y, ops.exp(unread))

    clean = without_dead_code(function, XS, XS, XS)
    assert len(control(clean).inputs) == 3
    assert "exp" not in [eq.primitive.name for eq in clean.equations]


def test_what_nobody_reads_goes_out_of_a_barrier() -> None:
    def function(x: Any, y: Any) -> Any:
        return ops.optimization_barrier(x * 2, ops.exp(y))[0]

    clean = without_dead_code(function, XS, XS)
    assert "exp" not in [eq.primitive.name for eq in clean.equations]
    assert len(clean.equations[-1].outputs) == 1
