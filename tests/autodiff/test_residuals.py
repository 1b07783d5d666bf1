"""`ag.residuals`: what is kept for the backward pass, with and without rematerialisation, in bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import antegrad as ag
from antegrad import ops

X, WS = ag.spec((64, 32)), [ag.spec((32, 32))] * 3
ROW, SQUARE = 64 * 32 * 4, 32 * 32 * 4


def layer(x: Any, w: Any) -> Any:
    return ops.relu(ops.tanh(x @ w))


def network(x: Any, ws: Any, save: Any = None) -> Any:
    for w in ws:
        x = layer(x, w) if save is None else ag.remat(layer, save=save)(x, w)
    return ops.mean(x)


@pytest.mark.parametrize(
    ("save", "computed"),
    [
        (None, 6 * ROW),  # tanh and relu of every layer
        ("everything", 6 * ROW),
        ("nothing", 2 * ROW),  # what goes into the second and the third layer
        ("dots", 5 * ROW),  # the product of each layer too
    ],
)
def test_policies(save: str | None, computed: int) -> None:
    report = ag.residuals(partial(network, save=save), X, WS)
    assert report.computed_bytes == computed, f"\n{report}"
    assert report.total_bytes == computed + ROW + 3 * SQUARE


def test_named_values() -> None:
    def named(x: Any, w: Any) -> Any:
        hidden = ops.tanh(x @ w)
        return ops.relu(hidden * 2)

    report = ag.residuals(lambda x, w: ops.sum(ag.remat(named, save=["hidden"])(x, w)), X, WS[0])
    assert [row.name for row in report.rows] == ["x", "w", "hidden"]


@pytest.mark.parametrize(("body", "steps"), [(layer, 2 + 1 / 4), (ag.remat(layer), 1)])
def test_a_scan_keeps_its_steps(body: Any, steps: float) -> None:
    """Per step the carry, tanh and a mask of one byte an element; rematerialised, the carry alone."""

    def repeated(x: Any, w: Any) -> Any:
        return ops.sum(ag.scan(lambda c, _: (body(c, w), None), x, length=10)[0])

    assert ag.residuals(repeated, X, WS[0]).computed_bytes == 10 * steps * ROW


def test_the_table() -> None:
    text = str(ag.residuals(lambda x: ops.sum(ops.exp(x)), ag.spec((3,))))
    assert "kept by program" in text
    assert "f32[3]" in text
    assert "exp  test_residuals.py" in text
    assert text.splitlines()[-1].split() == ["total", "12", "12", "without", "the", "inputs"]


def test_a_loop_without_reverse_mode_is_refused() -> None:
    with pytest.raises(ag.RuleMissing, match="while_loop"):
        ag.residuals(lambda x: ag.while_loop(lambda c: c < 9, lambda c: c * 2, x), ag.spec(()))


def test_a_scan_stacks_a_result_once_that_its_backward_pass_reads() -> None:
    """tanh is a result of each step and what its gradient needs: 10 rows, and 10 of the carry before it."""

    def repeated(x: Any, w: Any) -> Any:
        def step(carry: Any, _: Any) -> tuple[Any, Any]:
            hidden = ops.tanh(carry @ w)
            return hidden, hidden

        return ops.sum(ag.scan(step, x, length=10)[1])

    assert ag.residuals(repeated, X, WS[0]).computed_bytes == 10 * 2 * ROW
    program = ag.reverse(ag.capture(repeated, X, WS[0]))
    forward = next(equation for equation in program.equations if equation.primitive.name == "scan")
    assert len(forward.outputs) == 3, "the carry, tanh and the carry before it"
