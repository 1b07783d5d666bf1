"""Contractions: matmul, dot, outer, tensordot, dot_general and einsum, with every arrangement of axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import SUM


def general(x: jax.Array, y: jax.Array, contract: Any, batch: Any) -> jax.Array:
    return jax.lax.dot_general(x, y, (contract, batch))


def einsum(*operands: Any, subscripts: str) -> Any:
    return ops.einsum(subscripts, *operands)


def einsum_by_jax(*operands: Any, subscripts: str) -> Any:
    return jnp.einsum(subscripts, *operands, precision="highest")


sums = partial(cases, bound=SUM)
dots = partial(sums, "dot_general", jax=general)
sums_of = partial(sums, "einsum", of=einsum, jax=einsum_by_jax)

CASES = [
    *sums("matmul", "N[3,4]", "N[4,5]"),
    *sums("matmul", "D[4]", "D[4]"),
    *sums("matmul", "D[4]", "D[4,3]"),
    *sums("matmul", "D[3,4]", "D[4]"),
    *sums("matmul", "D[2,3,4]", "D[4,5]"),
    *sums("matmul", "D[2,3,4]", "D[4]"),
    *sums("matmul", "D[4]", "D[2,4,3]"),
    *sums("matmul", "D[3,4]", "D[2,4,5]"),
    *sums("matmul", "F[2,3,4]", "F[2,4,5]"),
    *sums("matmul", "D[2,1,3,4]", "D[5,4,2]"),
    *sums("matmul", "f32[1,1]", "f32[1,1]"),
    *sums("matmul", "f32[0,4]", "f32[4,3]"),
    *sums("matmul", "f32[3,0]", "f32[0,4]"),
    *sums("matmul", "f32[0,3,4]", "f32[0,4,2]"),
    *sums("matmul", "f32[7,17]", "f32[17,9]"),
    *sums("dot", "N[3,4]", "N[4,5]"),
    *sums("dot", "D[]", "D[3]"),
    *sums("dot", "D[4]", "D[4]"),
    *sums("dot", "D[2,3,4]", "D[5,4,2]"),
    *sums("dot", "f32[3,4]", "f32[4]"),
    *sums("outer", "F[3]", "F[4]"),
    *sums("outer", "f32[2,2]", "f32[]"),
    *sums("tensordot", "D[3,4,5]", "D[4,5,2]"),
    *sums("tensordot", "D[3,4]", "D[2,3]", axes=0),
    *sums("tensordot", "f32[3,4]", "f32[4,2]", axes=1),
    *sums("tensordot", "D[3,4,5]", "D[5,2,3]", axes=((0, 2), (2, 0))),
    *sums("tensordot", "f32[3,4]", "f32[5,3]", axes=((0,), (-1,))),
    *dots("N[3,4]", "N[4,5]", contract=((1,), (0,)), batch=((), ())),
    *dots("F[3,4]", "F[3,5]", contract=((0,), (0,)), batch=((), ())),
    *dots("D[3,4]", "D[5,4]", contract=((1,), (1,)), batch=((), ())),
    *dots("D[4,3]", "D[5,4]", contract=((0,), (1,)), batch=((), ())),
    *dots("D[3]", "D[4]", contract=((), ()), batch=((), ())),
    *dots("D[]", "D[2,3]", contract=((), ()), batch=((), ())),
    *dots("D[3,4]", "D[4,3]", contract=((0, 1), (1, 0)), batch=((), ())),
    *dots("D[2,3,4]", "D[2,4,5]", contract=((2,), (1,)), batch=((0,), (0,))),
    *dots("D[2,3,4]", "D[4,2,5]", contract=((2,), (0,)), batch=((0,), (1,))),
    *dots("D[3,2,4]", "D[5,4,2]", contract=((2,), (1,)), batch=((1,), (2,))),
    *dots("D[2,3]", "D[2,3]", contract=((1,), (1,)), batch=((0,), (0,))),
    *dots("D[2,3]", "D[2,3]", contract=((), ()), batch=((0, 1), (0, 1))),
    *dots("D[2,3]", "D[3,2]", contract=((), ()), batch=((0, 1), (1, 0))),
    *dots("D[2,3,4]", "D[3,2,5]", contract=((), ()), batch=((0, 1), (1, 0))),
    *dots("D[2,3,4,2]", "D[4,2,3,5]", contract=((1, 2), (2, 0)), batch=((0,), (1,))),
    *dots("f32[2,0,4]", "f32[2,4,3]", contract=((2,), (1,)), batch=((0,), (0,))),
    *dots("f32[2,3,0]", "f32[2,0,3]", contract=((2,), (1,)), batch=((0,), (0,))),
    *dots("f32[0,3,4]", "f32[0,4,3]", contract=((2,), (1,)), batch=((0,), (0,))),
    *sums_of("D[2,3,4]", "D[2,4,5]", subscripts="bij,bjk->bik"),
    *sums_of("D[2,3]", "D[3,4]", "D[4,2]", subscripts="ij,jk,kl->il"),
    *sums_of("D[3,3]", subscripts="ii->i"),
    *sums_of("D[3,3]", subscripts="ii"),
    *sums_of("D[2,3]", subscripts="ij->ji"),
    *sums_of("D[2,3,4]", "D[3]", subscripts="...ij,i->...j"),
    *sums_of("D[2,3]", "D[4]", subscripts="ij,k->kij"),
    *sums_of("bf16[2,3]", "bf16[3,4]", subscripts="ij,jk"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


REFUSED = {
    "matmul-sizes": (lambda x: ops.matmul(x, x), ShapeError, r"f32\[2,3\].*sizes 3 and 2"),
    "matmul-scalar": (lambda x: ops.matmul(x, 2.0), ShapeError, "scalar"),
    "matmul-lost-bits": (lambda x: ops.matmul(x, ops.zeros((3, 2), "i32")), DTypeError, "f32 and i32"),
    "matmul-bool": (lambda x: ops.matmul(x > 0, ops.zeros((3, 2), "bool")), DTypeError, "number"),
    "tensordot-count": (lambda x: ops.tensordot(x, x, ((0, 1), (0,))), ShapeError, "as many axes"),
    "einsum-misfit": (lambda x: ops.einsum("ij,jk->ik", x, x), ShapeError, "einsum"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ag.capture(function, ag.spec((2, 3)))
