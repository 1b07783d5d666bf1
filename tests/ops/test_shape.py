"""Operations that move elements and change none, and those that make arrays: exact in every element type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.types import DTYPES
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import EXACT, assert_same_bits, devices, run

exact = partial(cases, bound=EXACT)


def padded(x: jax.Array, fill: float, low: tuple, high: tuple, interior: tuple) -> jax.Array:
    return jax.lax.pad(x, jnp.asarray(fill, x.dtype), list(zip(low, high, interior, strict=True)))


def padded_all_round(x: jax.Array, widths: Any, value: float = 0) -> jax.Array:
    return jnp.pad(x, widths, constant_values=value)


def tiled(x: jax.Array, repeats: Any) -> jax.Array:
    return jnp.tile(x, repeats)


def cut(x: jax.Array, sections: Any, axis: int = 0) -> list[jax.Array]:
    return jnp.split(x, sections, axis)


def pad_primitive(x: Any, fill: float, **widths: tuple) -> Any:
    return ops.pad_p(x, np.asarray(fill, x.dtype), **widths)


def spread(x: Any, shape: tuple, dims: tuple) -> Any:
    return ops.bind(ops.broadcast_in_dim, x, shape=shape, dims=dims)


def spread_by_jax(x: jax.Array, shape: tuple, dims: tuple) -> jax.Array:
    return jax.lax.broadcast_in_dim(x, shape, dims)


def sliced(x: jax.Array, start: tuple, stop: tuple, step: tuple) -> jax.Array:
    return jax.lax.slice(x, start, stop, step)


pads = partial(exact, "pad_p", of=pad_primitive, jax=padded)

CASES = [
    *exact("reshape", "M[3,4]", shape=(2, 6)),
    *exact("reshape", "f64[3,4]", shape=(-1,)),
    *exact("reshape", "f64[3,4]", shape=(2, -1, 1)),
    *exact("reshape", "f32[]", shape=(1, 1)),
    *exact("reshape", "f32[1]", shape=()),
    *exact("reshape", "f32[0,3]", shape=(0, 5)),
    *exact("reshape", "f32[2,3]", shape=(2, 1, 3)),
    *exact("ravel", "D[3,4]"),
    *exact("ravel", "f32[]"),
    *exact("ravel", "f32[0,3]"),
    *exact("transpose", "M[2,3]"),
    *exact("transpose", "f64[2,3,4]"),
    *exact("transpose", "f64[2,3,4]", axes=(1, 2, 0)),
    *exact("transpose", "f64[2,3,4]", axes=(0, 2, 1)),
    *exact("transpose", "f32[2,0,4]", axes=(-1, 0, 1)),
    *exact("transpose", "f32[]"),
    *exact("transpose", "f32[5]"),
    *exact("swapaxes", "D[2,3,4]", jax=lambda x, first, second: jnp.swapaxes(x, first, second), first=0, second=-1),
    *exact("moveaxis", "D[2,3,4]", source=0, destination=2),
    *exact("moveaxis", "f32[2,3,4]", source=-1, destination=0),
    *exact("expand_dims", "D[2,3]", axis=1),
    *exact("expand_dims", "f32[2,3]", axis=(0, -1)),
    *exact("expand_dims", "f32[]", axis=0),
    *exact("squeeze", "D[1,3,1]"),
    *exact("squeeze", "f32[1,3,1]", axis=-1),
    *exact("squeeze", "f32[1,0]", axis=0),
    *exact("broadcast_to", "M[3,1]", shape=(2, 3, 4)),
    *exact("broadcast_to", "f64[]", shape=(2, 3)),
    *exact("broadcast_to", "f32[1]", shape=(0,)),
    *exact("broadcast_to", "f32[3,4]", shape=(3, 4)),
    *exact("concatenate", "A[2,3]", "A[4,3]", sequence=True),
    *exact("concatenate", "f64[2,1]", "f64[2,3]", "f64[2,2]", sequence=True, axis=1),
    *exact("concatenate", "f32[2,3]", "f32[0,3]", sequence=True, axis=-2),
    *exact("concatenate", "f32[3]", sequence=True),
    *exact("stack", "D[2,3]", "D[2,3]", sequence=True),
    *exact("stack", "D[2,3]", "D[2,3]", sequence=True, axis=-1),
    *exact("stack", "f32[]", "f32[]", "f32[]", sequence=True),
    *exact("split", "D[6,2]", jax=cut, sections=3),
    *exact("split", "f32[2,7]", jax=cut, sections=(2, 5), axis=1),
    *exact("split", "f32[3]", jax=cut, sections=(0, 3)),
    *exact("flip", "M[3,4]"),
    *exact("flip", "D[3,4]", axis=1),
    *exact("flip", "f32[2,3,4]", axis=(0, -1)),
    *exact("flip", "f32[0]"),
    *exact("tile", "D[2,3]", jax=tiled, repeats=(2, 2)),
    *exact("tile", "f32[3]", jax=tiled, repeats=(2, 1, 2)),
    *exact("tile", "f32[2,3]", jax=tiled, repeats=2),
    *exact("tile", "f32[2]", jax=tiled, repeats=0),
    *exact("repeat_axis", "D[2,3]", jax=jnp.repeat, repeats=3, axis=0),
    *exact("repeat_axis", "f32[2,3]", jax=jnp.repeat, repeats=2, axis=-1),
    *exact("pad", "A[2,3]", jax=padded_all_round, widths=1),
    *exact("pad", "D[2,3]", jax=padded_all_round, widths=((0, 2), (1, 0))),
    *exact("pad", "f32[3]", jax=padded_all_round, widths=(2, 1), value=7.5),
    *exact("pad", "f32[0]", jax=padded_all_round, widths=2),
    *exact("tril", "M[3,4]"),
    *exact("tril", "D[2,4,3]", k=-1),
    *exact("triu", "D[3,4]"),
    *exact("triu", "f32[4,4]", k=2),
    *exact("zeros_like", "M[3,2]"),
    *exact("ones_like", "M[3,2]"),
    *exact("full_like", "F[3,2]", jax=lambda x, value: jnp.full_like(x, value), value=2.5),
    *pads("M[3]", fill=1, low=(1,), high=(2,), interior=(1,)),
    *pads("D[3,4]", fill=0.5, low=(-1, 2), high=(0, -3), interior=(0, 1)),
    *pads("f32[5]", fill=0, low=(-2,), high=(-2,), interior=(2,)),
    *pads("f32[0]", fill=3, low=(1,), high=(0,), interior=(2,)),
    *pads("f32[1,2]", fill=3, low=(0, 0), high=(1, 0), interior=(2, 0)),
    *pads("f32[3]", fill=3, low=(-3,), high=(0,), interior=(0,)),
    *exact("slice_p", "M[7]", of=ops.slice_p, jax=sliced, start=(1,), stop=(6,), step=(2,)),
    *exact("slice_p", "D[5,4]", of=ops.slice_p, jax=sliced, start=(1, 0), stop=(5, 4), step=(3, 1)),
    *exact("slice_p", "f32[5]", of=ops.slice_p, jax=sliced, start=(2,), stop=(2,), step=(1,)),
    *exact("broadcast_in_dim", "D[3]", of=spread, jax=spread_by_jax, shape=(3, 2), dims=(0,)),
    *exact("broadcast_in_dim", "D[3,1]", of=spread, jax=spread_by_jax, shape=(3, 2, 4), dims=(0, 2)),
    *exact("broadcast_in_dim", "f32[]", of=spread, jax=spread_by_jax, shape=(0, 2), dims=()),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


MADE = {
    "arange": (lambda: ops.arange(5), np.arange(5, dtype=np.int32)),
    "arange-bounds": (lambda: ops.arange(2, 11, 3, "i64"), np.arange(2, 11, 3)),
    "arange-down": (lambda: ops.arange(5, 0, -2, "f32"), np.arange(5, 0, -2, dtype=np.float32)),
    "arange-empty": (lambda: ops.arange(3, 1), np.zeros(0, np.int32)),
    "eye": (lambda: ops.eye(3), np.eye(3, dtype=np.float32)),
    "eye-wide": (lambda: ops.eye(2, 4, "i8"), np.eye(2, 4, dtype=np.int8)),
    "zeros": (lambda: ops.zeros((2, 3), "f64"), np.zeros((2, 3))),
    "zeros-bool": (lambda: ops.zeros(2, "bool"), np.zeros(2, bool)),
    "ones": (lambda: ops.ones((2, 0)), np.ones((2, 0), np.float32)),
    "ones-bf16": (lambda: ops.ones(3, "bf16"), np.ones(3, DTYPES["bf16"])),
    "full": (lambda: ops.full((2, 2), -0.1, "f16"), np.full((2, 2), -0.1, np.float16)),
    "full-scalar": (lambda: ops.full((), 7, "u8"), np.array(7, np.uint8)),
    "full-inf": (lambda: ops.full(2, float("-inf")), np.full(2, -np.inf, np.float32)),
    "iota": (lambda: ops.iota((2, 3), DTYPES["i32"], 1), np.array([[0, 1, 2]] * 2, np.int32)),
    "iota-bf16": (lambda: ops.iota((3, 2), DTYPES["bf16"]), np.array([[0, 0], [1, 1], [2, 2]], DTYPES["bf16"])),
    "one_hot": (lambda: ops.one_hot(np.array([2, 0, -1, 3]), 3), np.eye(4, 3, dtype=np.float32)[[2, 0, 3, 3]]),
    "one_hot-wide": (lambda: ops.one_hot(np.uint8(3), 300), np.eye(1, 300, 3, np.float32)[0]),
    "one_hot-u8": (lambda: ops.one_hot(np.array([[1]], np.uint8), 2, "bool"), np.array([[[False, True]]])),
}
"""What makes an array of nothing, and the array."""


@pytest.mark.parametrize(("make", "expected"), MADE.values(), ids=MADE)
def test_made(make: Callable[[], Any], expected: np.ndarray) -> None:
    assert_same_bits(make(), expected, "at once")
    program = ag.capture(make)
    for device in devices():
        assert_same_bits(run(program, [], device)[0], expected, device)


REFUSED = {
    "reshape-count": lambda x: ops.reshape(x, (5,)),
    "reshape-two-unknown": lambda x: ops.reshape(x, (-1, -1)),
    "reshape-unknown-of-none": lambda x: ops.reshape(ops.zeros((0, 3)), (0, -1)),
    "transpose-twice": lambda x: ops.transpose(x, (0, 0)),
    "axis-out-of-range": lambda x: ops.expand_dims(x, 4),
    "squeeze-wide": lambda x: ops.squeeze(x, 1),
    "broadcast-shrinks": lambda x: ops.broadcast_to(x, (3,)),
    "concatenate-misfit": lambda x: ops.concatenate([x, ops.zeros((2, 4))]),
    "stack-misfit": lambda x: ops.stack([x, ops.zeros((3, 2))]),
    "split-uneven": lambda x: ops.split(x, 2, axis=1),
    "pad-cut-all": lambda x: ops.pad_p(x, np.float32(0), (-3, 0), (0, 0), (0, 0)),
    "slice-outside": lambda x: ops.slice_p(x, (0, 0), (3, 3), (1, 1)),
    "arange-still": lambda x: ops.arange(0, 3, 0),
}
"""What does not fit a tensor of shape (2, 3)."""


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any]) -> None:
    """The same error at once and in a capture, where it names this file."""
    with pytest.raises(ShapeError):
        function(np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"test_shape\.py"):
        ag.capture(function, ag.spec((2, 3)))
