"""Operations that move elements and change none, and those that make arrays: exact in every element type."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.types import DTYPES
from tests.ops.certification import GROUPS, Case, cases, check_derivatives, check_forward
from tests.support import EXACT, assert_same_bits, devices, run

CASES = [
    *cases("reshape", "A[3,4]", shape=(2, 6)),
    *cases("reshape", "f64[3,4]", shape=(-1,)),
    *cases("reshape", "f64[3,4]", shape=(2, -1, 1)),
    *cases("reshape", "f32[]", shape=(1, 1)),
    *cases("reshape", "f32[1]", shape=()),
    *cases("reshape", "f32[0,3]", shape=(0, 5)),
    *cases("reshape", "f32[2,3]", shape=(2, 1, 3)),
    *cases("ravel", "D[3,4]"),
    *cases("ravel", "f32[]"),
    *cases("ravel", "f32[0,3]"),
    *cases("transpose", "A[2,3]"),
    *cases("transpose", "f64[2,3,4]"),
    *cases("transpose", "f64[2,3,4]", axes=(1, 2, 0)),
    *cases("transpose", "f64[2,3,4]", axes=(0, 2, 1)),
    *cases("transpose", "f32[2,0,4]", axes=(-1, 0, 1)),
    *cases("transpose", "f32[]"),
    *cases("transpose", "f32[5]"),
    *cases("swapaxes", "D[2,3,4]", jax=lambda x, first, second: jnp.swapaxes(x, first, second), first=0, second=-1),
    *cases("moveaxis", "D[2,3,4]", source=0, destination=2),
    *cases("moveaxis", "f32[2,3,4]", source=-1, destination=0),
    *cases("expand_dims", "D[2,3]", axis=1),
    *cases("expand_dims", "f32[2,3]", axis=(0, -1)),
    *cases("expand_dims", "f32[]", axis=0),
    *cases("squeeze", "D[1,3,1]"),
    *cases("squeeze", "f32[1,3,1]", axis=-1),
    *cases("squeeze", "f32[1,0]", axis=0),
    *cases("broadcast_to", "A[3,1]", shape=(2, 3, 4)),
    *cases("broadcast_to", "f64[]", shape=(2, 3)),
    *cases("broadcast_to", "f32[1]", shape=(0,)),
    *cases("broadcast_to", "f32[3,4]", shape=(3, 4)),
    *cases("concatenate", "A[2,3]", "A[4,3]", sequence=True),
    *cases("concatenate", "f64[2,1]", "f64[2,3]", "f64[2,2]", sequence=True, axis=1),
    *cases("concatenate", "f32[2,3]", "f32[0,3]", sequence=True, axis=-2),
    *cases("concatenate", "f32[3]", sequence=True),
    *cases("stack", "D[2,3]", "D[2,3]", sequence=True),
    *cases("stack", "D[2,3]", "D[2,3]", sequence=True, axis=-1),
    *cases("stack", "f32[]", "f32[]", "f32[]", sequence=True),
    *cases("split", "D[6,2]", jax=lambda x, sections: jnp.split(x, sections), sections=3),
    *cases("split", "f32[2,7]", jax=lambda x, sections, axis: jnp.split(x, sections, axis), sections=(2, 5), axis=1),
    *cases("split", "f32[3]", jax=lambda x, sections: jnp.split(x, sections), sections=(0, 3)),
    *cases("flip", "A[3,4]"),
    *cases("flip", "D[3,4]", axis=1),
    *cases("flip", "f32[2,3,4]", axis=(0, -1)),
    *cases("flip", "f32[0]"),
    *cases("tile", "D[2,3]", jax=lambda x, repeats: jnp.tile(x, repeats), repeats=(2, 2)),
    *cases("tile", "f32[3]", jax=lambda x, repeats: jnp.tile(x, repeats), repeats=(2, 1, 2)),
    *cases("tile", "f32[2,3]", jax=lambda x, repeats: jnp.tile(x, repeats), repeats=2),
    *cases("tile", "f32[2]", jax=lambda x, repeats: jnp.tile(x, repeats), repeats=0),
    *cases("repeat_axis", "D[2,3]", jax=jnp.repeat, repeats=3, axis=0),
    *cases("repeat_axis", "f32[2,3]", jax=jnp.repeat, repeats=2, axis=-1),
    *cases("pad", "A[2,3]", jax=lambda x, widths: jnp.pad(x, widths), widths=1),
    *cases("pad", "D[2,3]", jax=lambda x, widths: jnp.pad(x, widths), widths=((0, 2), (1, 0))),
    *cases("pad", "f32[3]", jax=lambda x, widths, value: jnp.pad(x, widths, constant_values=value), widths=(2, 1), value=7),
    *cases("pad", "f32[0]", jax=lambda x, widths: jnp.pad(x, widths), widths=2),
    *cases("tril", "A[3,4]"),
    *cases("tril", "D[2,4,3]", k=-1),
    *cases("triu", "D[3,4]"),
    *cases("triu", "f32[4,4]", k=2),
    *cases("one_hot", "J[5]:0:4", jax=jax.nn.one_hot, depth=4, out="f32", of=ops.one_hot) if False else [],
    *cases("zeros_like", "A[3,2]", differences=False),
    *cases("ones_like", "A[3,2]", differences=False),
    *cases("full_like", "F[3,2]", jax=lambda x, value: jnp.full_like(x, value), value=2.5, bound=EXACT, differences=False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)
