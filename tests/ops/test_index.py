"""Reading and writing by index: slices, index arrays, clamped places, repeated places."""

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
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import EXACT, SUM

exact = partial(cases, bound=EXACT)


def by_index(x: Any, index: Any) -> Any:
    return ops.getitem(x, index)


def by_index_in_jax(x: jax.Array, index: Any) -> jax.Array:
    return x[index]


basic = partial(exact, "getitem", of=by_index, jax=by_index_in_jax)


def by_arrays(x: Any, *indices: Any, before: tuple = ()) -> Any:
    """``x[before..., indices...]``; each index clamped, and counted from the end if negative."""
    return ops.getitem(x, (*before, *indices))


def inside(indices: jax.Array, size: int) -> jax.Array:
    """What an index means: from the end if negative, then clamped. (JAX wraps those that its i32 does not hold.)"""
    wide = indices.astype("int64")
    return jnp.clip(jnp.where(wide < 0, wide + size, wide), 0, size - 1)


def by_arrays_in_jax(x: jax.Array, *indices: jax.Array, before: tuple = ()) -> jax.Array:
    sizes = x.shape[len(before) :]
    return x[(*before, *(inside(i, size) for i, size in zip(indices, sizes, strict=False)))]


advanced = partial(exact, "getitem", of=by_arrays, jax=by_arrays_in_jax)


def taken(x: jax.Array, indices: jax.Array, axis: int | None = None) -> jax.Array:
    return jnp.take(x, inside(indices, x.size if axis is None else x.shape[axis]), axis)


def along(x: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
    return jnp.take_along_axis(x, inside(indices, x.shape[axis]), axis)


take = partial(exact, "take", jax=taken)
take_along = partial(exact, "take_along_axis", jax=along)


def set_basic(x: Any, values: Any, index: Any) -> Any:
    return ops.IndexUpdate(x)[index].set(values)


def add_basic(x: Any, values: Any, index: Any) -> Any:
    return ops.IndexUpdate(x)[index].add(values)


def set_rows(x: Any, indices: Any, values: Any, before: tuple = ()) -> Any:
    return ops.IndexUpdate(x)[(*before, indices)].set(values)


def add_rows(x: Any, indices: Any, values: Any, before: tuple = ()) -> Any:
    return ops.IndexUpdate(x)[(*before, indices)].add(values)


def set_rows_in_jax(x: jax.Array, indices: jax.Array, values: jax.Array, before: tuple = ()) -> jax.Array:
    return x.at[(*before, inside(indices, x.shape[len(before)]))].set(values)


def add_rows_in_jax(x: jax.Array, indices: jax.Array, values: jax.Array, before: tuple = ()) -> jax.Array:
    return x.at[(*before, inside(indices, x.shape[len(before)]))].add(values)


at_set = partial(exact, "at_set", of=set_basic, jax=lambda x, values, index: x.at[index].set(values))
at_add = partial(cases, "at_add", bound=SUM, of=add_basic, jax=lambda x, values, index: x.at[index].add(values))
set_at = partial(exact, "at_set", of=set_rows, jax=set_rows_in_jax)
add_at = partial(cases, "at_add", bound=SUM, of=add_rows, jax=add_rows_in_jax)


def block(x: Any, *starts: Any, sizes: tuple) -> Any:
    return ops.dynamic_slice(x, starts, sizes)


def block_in_jax(x: jax.Array, *starts: jax.Array, sizes: tuple) -> jax.Array:
    return jax.lax.dynamic_slice(x, starts, sizes)


def update(x: Any, values: Any, *starts: Any) -> Any:
    return ops.dynamic_update_slice(x, values, starts)


def update_in_jax(x: jax.Array, values: jax.Array, *starts: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(x, values, starts)


dynamic_slice = partial(exact, "dynamic_slice", of=block, jax=block_in_jax)
dynamic_update = partial(exact, "dynamic_update_slice", of=update, jax=update_in_jax)

CASES = [
    *basic("M[5,4]", index=1),
    *basic("D[5,4]", index=-1),
    *basic("D[5,4]", index=np.s_[1:4]),
    *basic("D[5,4]", index=np.s_[:, 2]),
    *basic("D[5,4]", index=np.s_[::2, 1:]),
    *basic("D[5,4]", index=np.s_[::-1]),
    *basic("f32[5,4]", index=np.s_[3:0:-2, ::-1]),
    *basic("f32[5,4]", index=np.s_[4:1]),
    *basic("f32[5,4]", index=np.s_[-2:, -3:-1]),
    *basic("f32[5,4]", index=np.s_[9:, :99]),
    *basic("f32[5,4]", index=np.s_[..., None]),
    *basic("f32[5,4]", index=np.s_[None, 1, None]),
    *basic("f32[2,3,4]", index=np.s_[..., 1]),
    *basic("f32[2,3,4]", index=np.s_[0, ..., ::3]),
    *basic("f32[2,3,4]", index=np.s_[0, 1, 2]),
    *basic("f32[]", index=()),
    *basic("f32[]", index=None),
    *basic("f32[0,3]", index=np.s_[:, 1]),
    *advanced("M[5,4]", "i32{3 0 0 4}"),
    *advanced("D[5,4]", "i32{3 -1 5 99 -5 -99}"),
    *advanced("D[5,4]", "i64{1 1 2 0}[2,2]"),
    *advanced("D[5,4]", "i32[]:0:4"),
    *advanced("D[5,4]", "u8{0 4 255}"),
    *advanced("D[5,4]", "i32{2 0 -1 7}", before=(slice(None),)),
    *advanced("D[2,5,4]", "i32{2 0 -1 7}", before=(1,)),
    *advanced("D[2,5,4]", "i32{2 0}", before=(slice(None, None, -1),)),
    *advanced("D[5,4]", "i32{0 4 -1 9}", "i32{0 -1 7 1}"),
    *advanced("D[2,5,4]", "i32{0 4 -1}", "i32{0 -1 2}", before=(slice(None),)),
    *advanced("f32[5,4]", "i32{}"),
    *advanced("f32[0,3]", "i32{}"),
    *take("A[6]", "i32{5 0 0 3}"),
    *take("D[3,4]", "i32{5 0 11 -1 12 99}"),
    *take("D[3,4]", "i32{2 -1 5}", axis=0),
    *take("D[3,4]", "i64{3 0 -4 4}[2,2]", axis=1),
    *take("D[3,4]", "u32{0 3 4 99}", axis=-1),
    *take("D[3,4]", "i32[]:1:2", axis=0),
    *take("bf16[3,4]", "i32{1 1 1}", axis=0),
    *take("f32[3,4]", "i8{}", axis=0),
    *take("f32[300]", "u8{0 255}"),
    *take("f32[300]", "i8{-1 0 127 -128}"),
    *take("f32[5]", "i64{4294967296 -4294967296 1}"),
    *take_along("D[3,4]", "i32{0 3 1 2 2 2}[3,2]", axis=1),
    *take_along("D[3,4]", "i32{0 2 1 -1}[1,4]", axis=0),
    *take_along("N[3,4]", "i32{3 0 1 2}[3,4]", axis=-1),
    *take_along("f32[2,3,2]", "i64{2 0 1 1}[2,2,2]", axis=1),
    *take_along("f32[0,3]", "i32[0,2]", axis=1),
    *take_along("f32[1,300]", "u8{255 0}[1,2]", axis=1),
    *take_along("f32[1,300]", "i8{-1 -128 127}[1,3]", axis=1),
    *take_along("f32[5]", "i64{4294967296 1}", axis=0),
    *at_set("M[5,4]", "M[4]", index=2),
    *at_set("D[5,4]", "D[]", index=np.s_[1:3, ::2]),
    *at_set("D[5,4]", "D[5]", index=np.s_[:, -1]),
    *at_set("f32[5,4]", "f32[2,4]", index=np.s_[::-3]),
    *at_set("f32[3]", "f32[0]", index=np.s_[3:]),
    *at_add("N[5,4]", "N[4]", index=2),
    *at_add("D[5,4]", "D[2,2]", index=np.s_[1:3, ::2]),
    *at_add("f32[]", "f32[]", index=()),
    *set_at("D[5,4]", "i32{4 0 2}", "D[3,4]"),
    *set_at("D[5,4]", "i32{1 -1}", "D[]"),
    *set_at("M[5]", "i64{3 0}", "M[2]"),
    *set_at("f32[5,4]", "i32{2 0}", "f32[5,2]", before=(slice(None),)),
    *set_at("f32[5,4]", "i32{9 0}", "f32[2,4]"),
    *set_at("f32[5,4]", "i32{}", "f32[0,4]"),
    *add_at("N[5,4]", "i32{1 0 1 1}", "N[4,4]"),
    *add_at("D[5,4]", "i32{4 9 -1}", "D[3,4]"),
    *add_at("D[5,4]", "i32{1 1 3}", "D[5,3]", before=(slice(None),)),
    *add_at("f32[5]", "u8{1 1 250}", "f32[3]"),
    *add_at("f32[300]", "u8{1 1 250}", "f32[3]"),
    *add_at("f32[300]", "i8{1 -1 -128}", "f32[3]"),
    *set_at("f32[300]", "u8{1 255 250}", "f32[3]"),
    *add_at("bf16[3]:0.5:1", "i32[300]:0:2", "bf16[300]:0.5:1"),
    *add_at("f32[5]", "i32{1 2 1 0}[2,2]", "f32[2,2]"),
    *dynamic_slice("M[5,4]", "i32{2}[]", "i32{1}[]", sizes=(2, 3)),
    *dynamic_slice("D[5,4]", "i32{9}[]", "i32{-9}[]", sizes=(3, 2)),
    *dynamic_slice("D[5]", "u8{3}[]", sizes=(2,)),
    *dynamic_slice("f32[5]", "i64{1}[]", sizes=(0,)),
    *dynamic_slice("f32[]", sizes=()),
    *dynamic_update("M[5,4]", "M[2,3]", "i32{2}[]", "i32{1}[]"),
    *dynamic_update("D[5,4]", "D[2,3]", "i32{9}[]", "i32{-9}[]"),
    *dynamic_update("f32[5]", "f32[5]", "i32{2}[]"),
    *dynamic_update("f32[5]", "f32[0]", "i32{2}[]"),
    *dynamic_update("f32[]", "f32[]"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=str)
def test_derivatives(case: Case) -> None:
    check_derivatives(case)


REFUSED = {
    "too-many": (lambda x: x[0, 0, 0], ShapeError, "3 indices"),
    "out-of-range": (lambda x: x[5], ShapeError, "5 is out of range for axis 0"),
    "float": (lambda x: ops.take(x, x, 0), DTypeError, "integer"),
    "mask": (lambda x: x[x > 0], ShapeError, "ops.where"),
    "two-ellipses": (lambda x: x[..., ...], ShapeError, "ellips"),
    "empty-axis": (lambda x: ops.take(x[0:0], np.array([0]), 0), ShapeError, "no element"),
    "slice-sizes": (lambda x: ops.dynamic_slice(x, (0, 0), (6, 1)), ShapeError, "dynamic_slice"),
    "update-too-large": (lambda x: ops.dynamic_update_slice(x, ops.zeros((6, 1)), (0, 0)), ShapeError, "update"),
    "values-misfit": (lambda x: x.at[0].set(ops.zeros(3)), ShapeError, "broadcast"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    """What does not fit a tensor of shape (5, 4)."""
    with pytest.raises(error, match=message):
        ag.capture(function, ag.spec((5, 4)))
