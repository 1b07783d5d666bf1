"""The precision of products on accelerators: set in every dot, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from tests.support import assert_same_bits, run


def recurrent(w: Any, xs: Any) -> Any:
    h, _ = ag.scan(lambda h, x: (ops.tanh(h @ w + x), None), xs[0], xs)
    return ag.cond(h.sum() > 0, lambda: ops.sum(h @ w), lambda: ops.sum(w @ h))


PROGRAM = ag.reverse(ag.capture(recurrent, ag.spec((3, 3)), ag.spec((4, 3))))


def precisions(program: ag.Program) -> set[str]:
    return {eq.params["precision"] for eq in program.all_equations() if eq.primitive.name == "dot_general"}


def test_every_product_is_set_in_sub_programs_as_well() -> None:
    assert precisions(PROGRAM) == {"default"}
    highest = ag.with_precision(PROGRAM, "highest")
    assert precisions(highest) == {"highest"}
    assert precisions(PROGRAM) == {"default"}
    assert precisions(ag.with_precision(highest, "default")) == {"default"}


def test_derivatives_of_a_precise_program_are_precise() -> None:
    forward = ag.with_precision(ag.capture(recurrent, ag.spec((3, 3)), ag.spec((4, 3))), "highest")
    assert precisions(ag.reverse(forward)) == {"highest"}


def test_the_text_for_xla_says_so_and_the_host_gives_the_same_bits() -> None:
    highest = ag.with_precision(PROGRAM, "highest")
    count = PROGRAM.stablehlo().count("dot_general")
    assert highest.stablehlo().count("precision = [HIGHEST, HIGHEST]") == count > 4
    assert "precision" not in PROGRAM.stablehlo()
    given = [
        np.linspace(-1, 1, 9).reshape(3, 3).astype(np.float32),
        np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32),
    ]
    for a, b in zip(run(highest, given, "host"), run(PROGRAM, given, "host"), strict=True):
        assert_same_bits(a, b, "host")
    for a, b in zip(run(highest, given, "cpu"), run(PROGRAM, given, "cpu"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_an_unknown_precision_is_refused() -> None:
    wrong: Any = "best"
    with pytest.raises(ag.NameMissing, match="no precision 'best'; expected default or highest"):
        ag.with_precision(PROGRAM, wrong)
