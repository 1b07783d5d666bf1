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
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import DTYPES
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, EXACT, SUM, assert_same_bits, devices, run

exact = partial(cases, bound=EXACT)


def padded(x: jax.Array, fill: float, low: tuple, high: tuple, interior: tuple) -> jax.Array:
    return jax.lax.pad(x, jnp.asarray(fill, x.dtype), list(zip(low, high, interior, strict=True)))


def padded_all_round(x: jax.Array, widths: Any, mode: str = "constant", **value: float) -> jax.Array:
    constant = {"constant_values": value.get("value", 0)} if mode == "constant" else {}
    return jnp.pad(x, widths, mode, **constant)


def tiled(x: jax.Array, repeats: Any) -> jax.Array:
    return jnp.tile(x, repeats)


def cut(x: jax.Array, sections: Any, axis: int = 0) -> list[jax.Array]:
    return jnp.split(x, np.asarray(sections) if isinstance(sections, tuple) else sections, axis)


def cut_unequally(x: jax.Array, sections: Any, axis: int = 0) -> list[jax.Array]:
    return jnp.array_split(x, sections, axis)


def repeated(x: jax.Array, repeats: Any, axis: int | None = None) -> jax.Array:
    return jnp.repeat(x, np.asarray(repeats), axis)


def grid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    return ops.meshgrid(*arrays, indexing=indexing)


def grid_in_jax(*arrays: jax.Array, indexing: str = "xy") -> list[jax.Array]:
    return jnp.meshgrid(*arrays, indexing=indexing)


def traced(x: jax.Array, **options: int) -> jax.Array:
    """In the type of x, or i32 for bool, where JAX widens."""
    return jnp.trace(x, **options, dtype="int32" if x.dtype == bool else x.dtype)


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
    *exact("concatenate", "D[2,2]", "D[3]", sequence=True, axis=None),
    *exact("hstack", "M[2,1]", "M[2,3]", sequence=True),
    *exact("hstack", "f32[2]", "f32[3]", sequence=True),
    *exact("hstack", "f32[]", "f32[3]", sequence=True),
    *exact("vstack", "M[1,3]", "M[2,3]", sequence=True),
    *exact("vstack", "f64[3]", "f64[3]", sequence=True),
    *exact("atleast_1d", "D[]"),
    *exact("atleast_1d", "f32[2]"),
    *exact("atleast_2d", "D[3]"),
    *exact("atleast_2d", "f32[]"),
    *exact("atleast_2d", "f32[1,2,3]"),
    *exact("stack", "D[2,3]", "D[2,3]", sequence=True),
    *exact("stack", "D[2,3]", "D[2,3]", sequence=True, axis=-1),
    *exact("stack", "f32[]", "f32[]", "f32[]", sequence=True),
    *exact("split", "D[6,2]", jax=cut, sections=3),
    *exact("split", "f32[2,7]", jax=cut, sections=(2, 5), axis=1),
    *exact("split", "f32[3]", jax=cut, sections=(0, 3)),
    *exact("split", "f32[7]", jax=cut, sections=(2, 5, 5)),
    *exact("split", "f32[0,2]", jax=cut, sections=3),
    *exact("array_split", "D[7,2]", jax=cut_unequally, sections=3),
    *exact("array_split", "f32[2]", jax=cut_unequally, sections=4),
    *exact("array_split", "f32[2,5]", jax=cut_unequally, sections=(2,), axis=-1),
    *exact("flipud", "M[3,2]"),
    *exact("fliplr", "D[3,2]"),
    *[case for k in (-1, 0, 1, 2, 3, 4) for case in exact("rot90", "f64[2,3]", k=k)],
    *exact("rot90", "M[2,3,4]", k=1, axes=(2, 0)),
    *exact("moveaxis", "f32[2,3,4]", source=(0, 1), destination=(-1, 0)),
    *exact("meshgrid", "D[3]", "D[2]", of=grid, jax=grid_in_jax),
    *exact("meshgrid", "D[3]", "D[2]", "D[4]", of=grid, jax=grid_in_jax, indexing="ij"),
    *exact("meshgrid", "f32[0]", "f32[2]", of=grid, jax=grid_in_jax),
    *exact("meshgrid", "f32[3]", of=grid, jax=grid_in_jax),
    *exact("flip", "M[3,4]"),
    *exact("flip", "D[3,4]", axis=1),
    *exact("flip", "f32[2,3,4]", axis=(0, -1)),
    *exact("flip", "f32[0]"),
    *exact("tile", "D[2,3]", jax=tiled, repeats=(2, 2)),
    *exact("tile", "f32[3]", jax=tiled, repeats=(2, 1, 2)),
    *exact("tile", "f32[2,3]", jax=tiled, repeats=2),
    *exact("tile", "f32[2]", jax=tiled, repeats=0),
    *exact("tile", "f32[]", jax=tiled, repeats=(2, 1)),
    *exact("repeat", "M[2,3]", jax=repeated, repeats=3, axis=0),
    *exact("repeat", "D[2,3]", jax=repeated, repeats=2, axis=-1),
    *exact("repeat", "D[2,3]", jax=repeated, repeats=2),
    *exact("repeat", "D[3,2]", jax=repeated, repeats=(2, 0, 3), axis=0),
    *exact("repeat", "D[2,3]", jax=repeated, repeats=(1, 2, 1), axis=1),
    *exact("repeat", "f32[3]", jax=repeated, repeats=0),
    *exact("repeat", "f32[]", jax=repeated, repeats=4),
    *exact("repeat", "f32[3]", jax=repeated, repeats=(2,), axis=0),
    *exact("roll", "M[5]", shift=2),
    *exact("roll", "D[3,4]", shift=-1, axis=1),
    *exact("roll", "D[3,4]", shift=5),
    *exact("roll", "D[3,4]", shift=(1, 9), axis=(0, 1)),
    *exact("roll", "f32[3,4]", shift=1, axis=(0, 1)),
    *exact("roll", "f32[3,4]", shift=(1, 1), axis=0),
    *exact("roll", "f32[0,4]", shift=3, axis=0),
    *exact("roll", "f32[]", shift=3),
    *exact("pad", "A[2,3]", jax=padded_all_round, widths=1),
    *exact("pad", "D[2,3]", jax=padded_all_round, widths=((0, 2), (1, 0))),
    *exact("pad", "f32[3]", jax=padded_all_round, widths=(2, 1), value=7.5),
    *exact("pad", "f32[0]", jax=padded_all_round, widths=2),
    *exact("pad", "f32[]", jax=padded_all_round, widths=2),
    *[
        case
        for mode in ("edge", "reflect", "symmetric", "wrap")
        for text, widths in [("M[3]", (2, 1)), ("D[2,3]", ((1, 0), (5, 7))), ("f64[1,3]", ((2, 2), (0, 0)))]
        for case in exact("pad", text, jax=padded_all_round, widths=widths, mode=mode)
    ],
    *exact("diagonal", "M[3,4]"),
    *exact("diagonal", "D[4,3]", offset=-2),
    *exact("diagonal", "f64[2,4,3]", offset=1, axis1=2, axis2=-2),
    *exact("diagonal", "f32[2,3]", offset=3),
    *exact("diagonal", "f32[3,0]"),
    *exact("diag", "M[3]"),
    *exact("diag", "D[3]", k=2),
    *exact("diag", "f64[2]", k=-1),
    *exact("diag", "f32[0]", k=1),
    *exact("diag", "f32[0]"),
    *exact("diag", "D[3,4]", k=-1),
    *cases("trace", "M[3,3]", jax=traced, bound=SUM)[:-1],
    *cases("trace", "bool[3,3]", jax=traced, out="i32"),
    *cases("trace", "f64[2,3,4]", jax=traced, bound=SUM, offset=1, axis1=1, axis2=2),
    *cases("trace", "f32[3,2]", jax=traced, bound=SUM, offset=-5),
    *cases("linspace", "D[]", "D[]", bound=COMPOSED, num=7),
    *cases("linspace", "f64[2]", "f64[]", bound=COMPOSED, num=3, endpoint=False),
    *cases("linspace", "F[]", "F[]", bound=COMPOSED, num=1),
    *cases("linspace", "f32[]", "f32[]", num=0),
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
    "eye-wide": (lambda: ops.eye(2, 4, dtype="i8"), np.eye(2, 4, dtype=np.int8)),
    "eye-above": (lambda: ops.eye(2, 3, 1), np.eye(2, 3, 1, dtype=np.float32)),
    "tri": (lambda: ops.tri(3), np.tri(3, dtype=np.float32)),
    "tri-below": (lambda: ops.tri(3, 4, -1, "bool"), np.tri(3, 4, -1, dtype=bool)),
    "arange-float": (lambda: ops.arange(0.5, 2.5, 0.5), np.arange(0.5, 2.5, 0.5, dtype=np.float32)),
    "arange-float-end": (lambda: ops.arange(3.5), np.arange(3.5, dtype=np.float32)),
    "arange-bf16": (lambda: ops.arange(0, 0.5, 0.125, "bf16"), np.arange(0, 0.5, 0.125).astype(DTYPES["bf16"])),
    "arange-whole-floats": (lambda: ops.arange(0.0, 6.0, 2.0, "i16"), np.array([0, 2, 4], np.int16)),
    "arange-down-unsigned": (lambda: ops.arange(3, 0, -1, "u8"), np.array([3, 2, 1], np.uint8)),
    "arange-to-the-top": (lambda: ops.arange(253, 256, dtype="u8"), np.array([253, 254, 255], np.uint8)),
    "linspace": (lambda: ops.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype=np.float32)),
    "linspace-ends": (lambda: ops.linspace(0.1, 0.7, 2, dtype="f64"), np.array([0.1, 0.7])),
    "linspace-open": (lambda: ops.linspace(1, 2, 2, endpoint=False, dtype="f16"), np.array([1, 1.5], np.float16)),
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


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "reshape-count": (lambda x: ops.reshape(x, (5,)), r"f32\[2,3\] has 6 elements, the shape \(5,\) needs 5"),
    "reshape-two-unknown": (lambda x: ops.reshape(x, (-1, -1)), "more than one -1"),
    "reshape-unknown-of-none": (lambda x: ops.reshape(ops.zeros((0, 3)), (0, -1)), r"f32\[0,3\]"),
    "reshape-unknown": (lambda x: ops.reshape(x, (4, -1)), r"6 elements of f32\[2,3\]"),
    "reshape-negative": (lambda x: ops.reshape(x, (-2, -3)), r"integers >= -1 are needed, found \(-2, -3\)"),
    "reshape-fraction": (lambda x: ops.reshape(x, (1.5, 4)), r"reshape: .*found \(1.5, 4\)"),
    "reshape-bool": (lambda x: ops.reshape(x, (True, 6)), "reshape: .*True"),
    "transpose-twice": (lambda x: ops.transpose(x, (0, 0)), r"\(0, 0\) does not permute .* f32\[2,3\]"),
    "axis-out-of-range": (lambda x: ops.expand_dims(x, 4), "expand_dims: axis 4 of a tensor with 3 axes: .* -3 to 2"),
    "axis-float": (lambda x: ops.flip(x, 1.0), "flip: axis 1.0"),  # pyright: ignore[reportArgumentType]
    "axis-bool": (lambda x: ops.squeeze(x, True), "squeeze: axis True"),
    "axis-none": (lambda x: ops.expand_dims(x, None), "expand_dims: axis None"),  # pyright: ignore[reportArgumentType]
    "axis-of-scalar": (lambda x: ops.concatenate([x[0, 0]]), "concatenate: axis 0 .* a scalar has none"),
    "squeeze-wide": (lambda x: ops.squeeze(x, 1), r"squeeze: .* f32\[2,3\]"),
    "broadcast-shrinks": (lambda x: ops.broadcast_to(x, (3,)), r"f32\[2,3\] does not broadcast to .* \(3,\)"),
    "broadcast-misfit": (lambda x: ops.broadcast_to(x, (4, 3)), r"f32\[2,3\] does not broadcast to .* \(4, 3\)"),
    "concatenate-misfit": (lambda x: ops.concatenate([x, ops.zeros((2, 4))]), r"f32\[2,3\] and f32\[2,4\]"),
    "concatenate-nothing": (lambda x: ops.concatenate([]), "concatenate: at least one array"),
    "stack-misfit": (lambda x: ops.stack([x, ops.zeros((3, 2))]), r"stack: .* f32\[2,3\], f32\[3,2\]"),
    "stack-nothing": (lambda x: ops.stack([]), "stack: at least one array"),
    "hstack-nothing": (lambda x: ops.hstack([]), "hstack: at least one array"),
    "vstack-nothing": (lambda x: ops.vstack([]), "vstack: at least one array"),
    "split-uneven": (lambda x: ops.split(x, 2, axis=1), r"split: f32\[2,3\] along axis 1 .* array_split"),
    "split-zero": (lambda x: ops.split(x, 0), "split: integers >= 1 are needed, found 0"),
    "split-fraction": (lambda x: ops.split(x, (0.5,)), r"split: .*\(0.5,\)"),  # pyright: ignore[reportArgumentType]
    "array-split-zero": (lambda x: ops.array_split(x, 0), "array_split: integers >= 1"),
    "moveaxis-count": (lambda x: ops.moveaxis(x, (0, 1), 0), "moveaxis: .*as many"),
    "rot90-one-axis": (lambda x: ops.rot90(x, axes=(1, -1)), "rot90: two different axes"),
    "repeat-negative": (lambda x: ops.repeat(x, -1, 0), "repeat: integers >= 0 are needed, found -1"),
    "repeat-count": (lambda x: ops.repeat(x, (1, 2), 1), r"repeat: f32\[2,3\] along axis 1 takes 1 or 3"),
    "tile-negative": (lambda x: ops.tile(x, (1, -1)), "tile: integers >= 0"),
    "roll-fraction": (lambda x: ops.roll(x, 0.5), "roll: .*0.5"),  # pyright: ignore[reportArgumentType]
    "roll-count": (lambda x: ops.roll(x, (1, 2, 3), (0, 1)), r"as many shifts as axes .* \(1, 2, 3\) and \(0, 1\)"),
    "pad-cut-all": (lambda x: ops.pad_p(x, np.float32(0), (-3, 0), (0, 0), (0, 0)), "nothing left"),
    "pad-negative": (lambda x: ops.pad(x, -1), "pad: integers >= 0 are needed .* found -1"),
    "pad-fraction": (lambda x: ops.pad(x, 1.5), "pad: integers >= 0 are needed .* found 1.5"),
    "pad-pairs": (lambda x: ops.pad(x, ((1, 1),) * 3), "pad: .* 2 pairs"),
    "pad-mode": (lambda x: ops.pad(x, 1, "mean"), "constant, edge, .* found 'mean'"),
    "pad-nothing": (lambda x: ops.pad(x[:0], 1, "edge"), r"f32\[0,3\] has no element along axis 0"),
    "slice-outside": (lambda x: ops.slice_p(x, (0, 0), (3, 3), (1, 1)), "does not fit an axis of size 2"),
    "arange-still": (lambda x: ops.arange(0, 3, 0), "never arrives"),
    "arange-endless": (lambda x: ops.arange(0, float("inf")), "never arrives"),
    "zeros-negative": (lambda x: ops.zeros((-1,)), r"integers >= 0 are needed, found \(-1,\)"),
    "zeros-fraction": (lambda x: ops.zeros(2.5), "integers >= 0 are needed, found 2.5"),
    "full-text": (lambda x: ops.full("ab", 0), "integers >= 0 are needed, found 'ab'"),
    "one-hot-negative": (lambda x: ops.one_hot(np.array([1]), -1), "one_hot: integers >= 0"),
    "linspace-negative": (lambda x: ops.linspace(0, 1, -1), "linspace: integers >= 0"),
    "meshgrid-matrix": (lambda x: ops.meshgrid(x, x[0]), r"meshgrid: .* f32\[2,3\], f32\[3\]"),
    "meshgrid-indexing": (lambda x: ops.meshgrid(x[0], indexing="yx"), "'yx'"),
    "tril-vector": (lambda x: ops.tril(x[0]), r"tril: .* f32\[3\]"),
    "triu-scalar": (lambda x: ops.triu(x[0, 0]), r"triu: .* f32\[\]"),
    "diagonal-one-axis": (lambda x: ops.diagonal(x, 0, 1, 1), r"diagonal: two different axes of f32\[2,3\]"),
    "diag-cube": (lambda x: ops.diag(x[None]), r"diag: .* f32\[1,2,3\]"),
}
"""What does not fit a tensor of shape (2, 3)."""


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], message: str) -> None:
    """The same error at once and in a capture, where it names this file."""
    with pytest.raises(ShapeError, match=message):
        function(np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeError, match=rf"(?s){message}.*test_shape\.py"):
        ag.capture(function, ag.spec((2, 3)))


WRONG_TYPES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "full-array": (lambda x: ops.full((2,), [1, 2]), "full: one number is needed"),  # pyright: ignore[reportArgumentType]
    "full-tensor": (lambda x: ops.full((2,), x), "full: one number is needed"),
    "full-too-large": (lambda x: ops.full((2,), 256, "u8"), "256 does not fit in u8"),
    "arange-beyond": (lambda x: ops.arange(254, 258, dtype="u8"), "257 does not fit in u8"),
    "arange-fractions": (lambda x: ops.arange(0, 2, 0.5, "i32"), "arange: 1.5 would lose its value in i32"),
    "arange-tensor": (lambda x: ops.arange(x), "arange: numbers are needed"),
    "linspace-integers": (lambda x: ops.linspace(0, 4, 5, dtype="i32"), "linspace is for floats"),
    "one-hot-float": (lambda x: ops.one_hot(x, 3), r"one_hot: .* f32\[2,3\]"),
    "pad-value": (lambda x: ops.pad(x.astype("i32"), 1, value=0.5), "0.5 would lose its value in i32"),
    "concatenate-types": (lambda x: ops.concatenate([x, np.zeros((2, 3), np.int64)]), "concatenate of .*: f32 and i64"),
}


@pytest.mark.parametrize(("function", "message"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_types(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        ag.capture(function, ag.spec((2, 3)))


def test_a_padding_is_a_value_like_any_other() -> None:
    x, value = np.ones((2, 2), np.float32), np.array(3, np.float32)
    program = ag.reverse(ag.capture(lambda x, value: ops.sum(ops.pad(x, 1, value=value) * 2), x, value))
    for device in devices():
        total, dx, d_value = run(program, [x, value], device)
        assert (float(total), dx.tolist(), float(d_value)) == (80, [[2, 2], [2, 2]], 24)


def test_a_value_is_refused_where_padding_is_made_of_elements() -> None:
    with pytest.raises(ShapeError, match="mode 'edge' pads with elements of x, and takes no value; found 3"):
        ops.pad(np.ones(3, np.float32), 1, mode="edge", value=3)
