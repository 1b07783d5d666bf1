"""check_gradient, certify, blame and diff."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.passes.autocast import autocast
from antegrad.tools import GradientMismatch

THIS = Path(__file__).name
W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


def smooth(w, x):
    h = ops.tanh(x @ w)
    return ops.sum(ops.softmax(h) * ops.sin(h))


def test_check_gradient_accepts_a_right_one():
    report = ag.check_gradient(smooth, W, X)
    assert report.entries == 2 * (W.size + X.size) + 2
    assert set(report.worst) == {f"{mode}, order {n}" for mode in ("reverse", "forward") for n in (1, 2)}
    assert max(report.worst.values()) < 1e-8
    assert "largest relative error" in str(report)


def test_check_gradient_names_input_entry_and_values():
    @ag.custom_vjp
    def wrong(x):
        return x * x

    wrong.defvjp(lambda x: (x * x, x), lambda x, d: (d * x,))
    message = r"reverse, order 1: input w at \[0\].*derivative is .*finite differences"
    with pytest.raises(GradientMismatch, match=message):
        ag.check_gradient(lambda w: wrong(w), np.array([1.0, 2.0]))


def test_check_gradient_sees_a_wrong_second_derivative():
    @ag.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, d: (2 * d * ops.stop_gradient(x),))
    ag.check_gradient(lambda x: square(x), np.array([1.0, 2.0]), order=1)
    with pytest.raises(GradientMismatch, match="order 2"):
        ag.check_gradient(lambda x: square(x), np.array([1.0, 2.0]))


def test_check_gradient_needs_floats():
    with pytest.raises(ag.DTypeError, match="no float argument"):
        ag.check_gradient(lambda n: n * 2, np.arange(3))


def test_certify_compares_every_equation():
    program = ag.reverse(ag.capture(smooth, W, X))
    certificate = ag.certify(program, W, X, device="cpu")
    floats = [v for eq in program.equations for v in eq.outputs if v.type.dtype == np.float32]
    assert len(certificate.rows) == len(floats)
    assert certificate.outputs_relative < 1e-5
    assert 0 < certificate.worst.device_ulps < 100
    assert THIS in certificate.table(3)
    assert len(certificate.table(3).splitlines()) == 4
    assert "relative" in str(certificate)


def test_certify_of_the_host_against_itself_differs_nowhere():
    certificate = ag.certify(ag.capture(smooth, W, X), W, X, device="host")
    assert certificate.outputs_relative == 0
    assert all(row.difference == 0 for row in certificate.rows)


def test_certify_measures_cancellation():
    """1e4 + x - 1e4 loses the low bits of x: the reference in f64 shows it, in ulps of the result."""
    program = ag.capture(lambda x: (x + 1e4) - 1e4, ag.spec((3,)))
    certificate = ag.certify(program, np.float32([0.1, 0.2, 0.3]), device="cpu")
    assert certificate.rows[-1].host_ulps > 1000


def test_certify_measures_a_sum_by_its_terms():
    """Terms that cancel leave nothing, and the rest of their roundings is no error of the sum."""
    program = ag.capture(lambda x: ops.sum(ops.sin(x)), ag.spec((4,)))
    certificate = ag.certify(program, np.float32([1, 2, -1, -2.0000002]), device="cpu")
    assert certificate.worst.device_ulps < 4
    assert certificate.outputs_relative < 1e-6


def test_certify_of_a_bf16_program():
    """Against f64 throughout: within a few units of bf16, and the devices as near to each other."""
    program = autocast(ag.capture(lambda x, w: ops.relu(x @ w) @ w, ag.spec((8, 16)), ag.spec((16, 16))))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 16)))
    certificate = ag.certify(program, x, w, device="cpu")
    rounded = [row for row in certificate.rows if "bf16" in row.equation]
    assert len(rounded) >= 4
    assert 0.1 < max(row.device_ulps for row in rounded) < 8
    assert certificate.outputs_relative < 0.02


def test_certify_of_a_program_that_looks_at_bits():
    program = ag.capture(lambda x, y: ops.where(ops.signbit(x), ops.copysign(y, x), y * x), W[0], W[1])
    certificate = ag.certify(program, W[0], W[1], device="cpu")
    assert certificate.worst.device_ulps < 2


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_of" not in line)


def test_case_nan_blame():
    def loss(x):
        root = ops.sqrt(x)  # the culprit
        return ops.sum(root)

    found = ag.blame(ag.reverse(ag.capture(loss, ag.spec((3,)))), np.float32([0, 1, 2]))
    assert found is not None
    assert found.kind == "infinity"
    assert found.source.part == "backward"
    assert found.source.line == line_of("# the culprit")
    assert found.entry == (0,)
    assert THIS in str(found)
    assert "backward" in str(found)


def test_blame_has_no_false_alarm_for_what_a_select_discards():
    program = ag.reverse(ag.capture(lambda x: ops.sum(ops.where(x > 0, ops.log(x), 0)), ag.spec((3,))))
    assert ag.blame(program, np.float32([0, 1, -2])) is None


def test_blame_finds_the_first_of_several():
    def loss(x):
        y = ops.log(x)  # first
        return ops.sum(ops.exp(y - y))

    found = ag.blame(ag.capture(loss, ag.spec((2,))), np.float32([0, 1]))
    assert found is not None
    assert (found.kind, found.source.part, found.source.line) == ("infinity", "forward", line_of("# first"))


def test_blame_names_a_bad_input():
    program = ag.capture(lambda x, y: ops.sum(x * y), ag.spec((2,)), ag.spec((2,)))
    found = ag.blame(program, X[0, :2], np.float32([1, np.nan]))
    assert found is not None
    assert "input y" in str(found)
    assert (found.kind, found.entry) == ("NaN", (1,))


def test_blame_of_a_finite_program_is_none():
    assert ag.blame(ag.capture(smooth, W, X), W, X) is None


def test_diff_marks_what_changed_and_nothing_else():
    before = ag.capture(lambda x: ops.sum(ops.tanh(x) * 2), ag.spec((3,)), name="f")
    after = ag.capture(lambda x: ops.sum(ops.sin(x) * 2), ag.spec((3,)), name="f")
    text = ag.diff(before, after)
    assert "-    out = (np.tanh(x) * 2).sum()" in text
    assert "+    out = (np.sin(x) * 2).sum()" in text
    assert ag.diff(before, ag.capture(lambda x: ops.sum(ops.tanh(x) * 2), ag.spec((3,)), name="f")) == ""
