"""Sorting: stable, ascending, NaN last, in every element type and along every axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import EXACT


def together(*operands: Any, axis: int) -> Any:
    return ops.sort_p(operands, axis)


def together_in_jax(*operands: jax.Array, axis: int) -> Any:
    return jax.lax.sort(operands, axis, is_stable=True, num_keys=1)


exact = partial(cases, bound=EXACT)
many = partial(exact, "sort_p", of=together, jax=together_in_jax, out="jax", wide=False)

CASES = [
    *exact("sort", "A[4,5]:0:3"),
    *exact("sort", "D[4,5]", axis=0),
    *exact("sort", "D[2,3,4]", axis=1),
    *exact("sort", "f32[7]", axis=-1),
    *exact("sort", "f32[1]"),
    *exact("sort", "f32[0,3]", axis=0),
    *exact("sort", "f32[0,3]", axis=1),
    *exact("sort", "I{min max 0 1 min}"),
    *exact("argsort", "A[4,5]:0:3", out="i32", jax=jnp.argsort),
    *exact("argsort", "f32[4,5]", out="i32", axis=0),
    *exact("argsort", "i32[12]:0:2", out="i32"),
    *exact("argsort", "f32[0]", out="i32"),
    *exact("sort", "A[4,5]:0:3", descending=True),
    *exact("sort", "D[4,5]", axis=0, descending=True),
    *exact("sort", "D[2,3]", axis=None),
    *exact("sort", "f32{nan 1 nan -inf inf 0 -0}", descending=True, derivative=False),
    *exact("argsort", "A[4,5]:0:3", out="i32", descending=True),
    *exact("argsort", "f32{nan 1 nan -inf inf 0 -0}", out="i32", descending=True),
    *exact("argsort", "f32[2,3]", out="i32", axis=None, descending=True),
    *many("D[4,5]", "D[4,5]", axis=1),
    *many("D[4,5]", "D[4,5]", axis=0),
    *many("i32[9]:0:2", "f32[9]", "f32[9]", axis=0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "axis": lambda x: ops.sort(x, axis=2),
    "scalar": lambda x: ops.sort(x[0, 0]),
    "shapes": lambda x: ops.sort_p((x, x[0]), 0),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(ShapeError, match=r"sort.*\n.*test_sort.py"):
        ag.capture(function, ag.spec((2, 3)))
