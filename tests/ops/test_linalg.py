"""Contractions: matmul, dot, outer, tensordot, dot_general and einsum, with every arrangement of axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, SUM, assert_close


def general(x: jax.Array, y: jax.Array, contract: Any, batch: Any) -> jax.Array:
    return jax.lax.dot_general(x, y, (contract, batch))


def einsum(*operands: Any, subscripts: str) -> Any:
    return ops.einsum(subscripts, *operands)


def einsum_by_jax(*operands: Any, subscripts: str) -> Any:
    return jnp.einsum(subscripts, *operands, precision="highest")


sums = partial(cases, bound=SUM)
dots = partial(sums, "dot_general", jax=general)
powers = partial(sums, "matrix_power", jax=jnp.linalg.matrix_power)
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
    *sums("vdot", "F[2,3]", "F[3,2]"),
    *sums("vdot", "f32[]", "f32[]"),
    *sums("vdot", "f32[0]", "f32[0,2]"),
    *sums("inner", "F[2,3]", "F[4,3]"),
    *sums("inner", "D[3]", "D[2,2,3]"),
    *sums("inner", "D[]", "D[2]"),
    *sums("inner", "f32[2,0]", "f32[3,0]"),
    *sums("kron", "N[2,3]", "N[3,2]"),
    *sums("kron", "D[2]", "D[2,1,3]"),
    *sums("kron", "D[]", "D[2]"),
    *sums("kron", "f32[0,2]", "f32[3,1]"),
    *powers("D[3,3]:0.5:2", n=5),
    *powers("D[2,2,2]", n=2),
    *powers("f64[2,2]:1:3", n=1),
    *powers("i32[2,2]", n=3),
    *powers("f32[3,3]", n=0),
    *powers("f64{3 1 -1 2}[2,2]", n=-3, bound=COMPOSED),
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
    *sums_of("F[2,3]", "F[3,4]", "F[4,5]", subscripts="ij,jk,kl->il"),
    *sums_of("F[2,3]", "F[3,4]", subscripts="ij,jk->k"),
    *sums_of("D[3,2,3]", "D[2]", subscripts="iji,j->i"),
    *sums_of("D[2,4,3]", "D[4,3]", subscripts="a...i,...i->...a"),
    *sums_of("i32[2,3]", "i32[3]", subscripts="ij,j"),
    *sums_of("D[]", "D[2]", subscripts=",i->i"),
    *sums_of("f32[0,3]", "f32[3,0]", subscripts="ij,ji"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """A valid expression of einsum, and shapes that it fits."""
    sizes = {letter: draw(st.integers(0, 3)) for letter in "ijkA"}
    dots = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 5))):
        labels = draw(st.lists(st.sampled_from("ijkA"), max_size=3))
        shape = [sizes[label] for label in labels]
        once = len(set(labels)) == len(labels)
        shape = [1 if once and draw(st.integers(0, 5)) == 0 else size for size in shape]
        if dots and draw(st.booleans()):
            place, width = draw(st.integers(0, len(labels))), draw(st.integers(0, len(dots)))
            own = [draw(st.sampled_from([size, 1])) for size in dots[len(dots) - width :]]
            labels, shape = [*labels[:place], "...", *labels[place:]], [*shape[:place], *own, *shape[place:]]
        terms.append("".join(labels))
        shapes.append(tuple(shape))
    text = ",".join(terms)
    if draw(st.booleans()):
        used = sorted(set(text) & set("ijkA"))
        output = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        text = f"{text}->{''.join([*output, '...'] if '...' in text else output)}"
    return text, shapes


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_einsum_is_that_of_numpy(expression: tuple[str, list[tuple[int, ...]]]) -> None:
    text, shapes = expression
    arrays = [np.random.default_rng(i).uniform(0.5, 2, shape) for i, shape in enumerate(shapes)]
    expected = np.einsum(text, *arrays)
    found = ops.einsum(text, *arrays)
    assert found.shape == expected.shape
    assert_close(found, expected, 1e-14, text)


def test_einsum_takes_the_cheap_order() -> None:
    """A chain ending in a vector is multiplied from that end."""
    types = [ag.spec((100, 100)), ag.spec((100, 100)), ag.spec((100, 100)), ag.spec((100,))]
    for subscripts, count in (("ij,jk,kl,l->i", 4), ("ij,jk,kl,l,m,n->inm", 6)):
        operands = [*types, ag.spec((2,)), ag.spec((2,))][:count]
        program = ag.capture(lambda *xs, text=subscripts: ops.einsum(text, *xs), *operands)
        assert program.cost().total.flops < 100_000


def test_einsum_of_numbers_keeps_the_type() -> None:
    assert ops.einsum("i,->i", np.ones(2, np.float16), 2.0).dtype == np.float16


REFUSED = {
    "matmul-sizes": (lambda x: ops.matmul(x, x), ShapeError, r"f32\[2,3\].*sizes 3 and 2"),
    "matmul-scalar": (lambda x: ops.matmul(x, 2.0), ShapeError, "scalar"),
    "matmul-lost-bits": (lambda x: ops.matmul(x, ops.zeros((3, 2), "i32")), DTypeError, "f32 and i32"),
    "matmul-bool": (lambda x: ops.matmul(x > 0, ops.zeros((3, 2), "bool")), DTypeError, "number"),
    "tensordot-count": (lambda x: ops.tensordot(x, x, ((0, 1), (0,))), ShapeError, "as many axes"),
    "matmul-batches": (
        lambda x: ops.matmul(ops.zeros((2, 3, 4)), ops.zeros((3, 4, 2))), ShapeError, "before the last two"
    ),
    "tensordot-axes": (lambda x: ops.tensordot(x, x, 3), ShapeError, r"f32\[2,3\]: there are no 3 axes"),
    "vdot-sizes": (lambda x: ops.vdot(x, x[0]), ShapeError, "sizes 6 and 3"),
    "matrix_power-shape": (lambda x: ops.matrix_power(x, 2), ShapeError, r"square matrix.*f32\[2,3\]"),
    "einsum-misfit": (lambda x: ops.einsum("ij,jk->ik", x, x), ShapeError, r"einsum.*f32\[2,3\] and f32\[2,3\]"),
    "einsum-count": (lambda x: ops.einsum("ij,jk", x), ShapeError, "names 2 operands, found 1"),
    "einsum-labels": (lambda x: ops.einsum("ijk->i", x), ShapeError, r"'ijk' has 3 labels for f32\[2,3\]"),
    "einsum-diagonal": (lambda x: ops.einsum("ii", x), ShapeError, r"axes i of f32\[2,3\] differ"),
    "einsum-output-twice": (lambda x: ops.einsum("ij->ii", x), ShapeError, "more than once in the output"),
    "einsum-output-unknown": (lambda x: ops.einsum("ij->k", x), ShapeError, "k did not appear in the input"),
    "einsum-no-letter": (lambda x: ops.einsum("i1->i", x), ShapeError, "labels are letters"),
    "einsum-dots": (lambda x: ops.einsum("..i->i", x), ShapeError, "'...' stands once"),
    "einsum-dots-lost": (lambda x: ops.einsum("...i->i", x), ShapeError, "lacks the '...'"),
    "einsum-bool": (lambda x: ops.einsum("ij->i", x > 0), DTypeError, r"numbers, found bool\[2,3\]"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ag.capture(function, ag.spec((2, 3)))
