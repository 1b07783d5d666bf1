"""Programs that hypothesis draws: both devices agree, and no transformation changes what is computed.

That gradients agree with finite differences, and that `simplify` and printing keep every bit of such programs, is in
tests/passes/test_simplify.py and tests/render/test_edited.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings

import antegrad as ag
from antegrad import tree
from antegrad.ir.program import Program
from antegrad.tools.expose import exposed
from tests.passes.programs import arrays, programs, whole_arrays, whole_programs
from tests.support import assert_same_bits, run

TOLERANCE = 1e-9
"""Of f64, relative to the largest value on the way."""


def assert_near(found: list[np.ndarray], expected: list[np.ndarray], scale: float, what: str) -> None:
    for position, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
        assert actual.shape == wanted.shape
        largest = max(scale, np.max(np.abs(wanted), initial=1))
        error = np.max(np.abs(actual - wanted), initial=0)
        assert error <= TOLERANCE * largest, f"{what}, output {position}: off by {error}, of {largest}"


def largest_value(program: Program, given_arrays: list[np.ndarray]) -> float:
    """The largest of all values of `program`; examples in which one is too large to compare are thrown away."""
    values = tree.leaves(exposed(program).run(*given_arrays, device="host"))
    sizes = [float(np.max(np.abs(value), initial=1)) for value in values]
    assume(all(np.isfinite(size) and size < 1e6 for size in sizes))
    return max(sizes)


@settings(max_examples=60)
@given(whole_programs())
def test_whole_numbers_have_the_same_bits_on_both_devices(program: Program) -> None:
    given_arrays = whole_arrays(program)
    host, xla = (run(program, given_arrays, device) for device in ("host", "cpu"))
    for name, expected, found in zip(program.output_names, host, xla, strict=True):
        assert_same_bits(found + np.zeros((), found.dtype), expected + np.zeros((), expected.dtype), name)


@settings(max_examples=30)
@given(programs(["f64"], smooth=True, most=40))
def test_gradients_agree_on_both_devices(program: Program) -> None:
    given_arrays = arrays(program)
    gradient = ag.reverse(program)
    scale = largest_value(gradient, given_arrays)
    assert_near(run(gradient, given_arrays, "cpu"), run(gradient, given_arrays, "host"), scale, "cpu")


@settings(max_examples=25)
@given(programs(["f64"], smooth=True, most=30))
def test_remat_changes_nothing(program: Program) -> None:
    """The value keeps its bits; gradients differ at most in the order of additions, on both devices."""

    def rematerialised(*xs: Any) -> Any:
        return ag.remat(lambda *xs: program(*xs))(*xs)

    given_arrays = arrays(program)
    plain, again = ag.reverse(program), ag.reverse(ag.capture(rematerialised, *program.input_types))
    scale = largest_value(plain, given_arrays)
    expected = run(plain, given_arrays, "host")
    found = run(again, given_arrays, "host")
    assert_same_bits(found[0], expected[0], "value")
    assert_near(found, expected, scale, "host")
    assert_near(run(again, given_arrays, "cpu"), expected, scale, "cpu")


@settings(max_examples=25)
@given(programs(["f64"], smooth=True, most=20))
def test_gradients_come_back_from_their_text(program: Program) -> None:
    given_arrays = arrays(program)
    gradient = ag.reverse(program)
    again = ag.from_python(gradient.python())
    pairs = zip(run(gradient, given_arrays, "host"), run(again, given_arrays, "host"), strict=True)
    for position, (expected, found) in enumerate(pairs):
        assert_same_bits(found, expected, f"output {position}")
