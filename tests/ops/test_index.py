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
from antegrad.ir.types import DTYPES
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, EXACT, SUM, array, assert_same_bits, devices, run

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


def updated(x: Any, indices: Any, values: Any, how: str) -> Any:
    return getattr(ops.IndexUpdate(x)[indices], how)(values)


def updated_in_jax(x: jax.Array, indices: jax.Array, values: jax.Array, how: str) -> jax.Array:
    return getattr(x.at[inside(indices, x.shape[0])], how)(values)


def multiplied_in_jax(x: jax.Array, indices: jax.Array, values: jax.Array, how: str) -> jax.Array:
    """One after the other, since JAX has no derivative for repeated indices."""
    factors = jnp.ones_like(x)
    for place, value in zip(inside(indices, x.shape[0]), values, strict=True):
        factors = factors.at[place].set(factors[place] * value)
    return x * factors if how == "multiply" else x / factors


update_at = partial(cases, "at_set", of=updated, jax=updated_in_jax, bound=EXACT)
multiply_at = partial(cases, "at_set", of=updated, jax=multiplied_in_jax, bound=COMPOSED)


def several(x: Any, *indices: Any, index: tuple) -> Any:
    """``x[index]`` with the arrays in place of the numbers in `index`."""
    return ops.getitem(x, placed(index, indices))


def several_in_jax(x: jax.Array, *indices: jax.Array, index: tuple) -> jax.Array:
    return x[placed(index, indices)]


def placed(index: tuple, arrays: tuple) -> tuple:
    plain = (item[0] if isinstance(item, list) else item for item in index)
    return tuple(arrays[item] if type(kind) is int else item for kind, item in zip(index, plain, strict=True))


apart = partial(exact, "getitem", of=several, jax=several_in_jax)
ALL = slice(None)


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
    *[case for how in ("min", "max") for case in update_at("N[3,2]", "i32{1 0 1 -1}", "N[4,2]:0:9", how=how)],
    *[case for how in ("min", "max") for case in update_at("f64[3]", "i32{}", "f64[0]", how=how)],
    *update_at("bool[3]", "u8{0 0 9}", "bool[3]", how="max"),
    *multiply_at("N[3]", "i32{1 0 1 1}", "N[4]:0:3", how="multiply"),
    *multiply_at("f64[3,2]", "i32{1 -1 1 99}", "f64[4,2]", how="multiply"),
    *multiply_at("f64[3]", "i32{0 0 1 1 1 2}", "f64{2 0 0 3 0 5}", how="multiply"),
    *multiply_at("D[3]", "i32{1 0 1 1}", "D[4]:0.5:2", how="divide"),
    *apart("D[3,4,5]", "i32{0 2}", "i32{1 3}", index=(0, ALL, 1)),
    *apart("f64[3,4,5]", "i32{0 2}[2,1]", "i32{1 3 0}", index=(0, ALL, 1, None)),
    *apart("f64[3,4,5]", "i32{0 2}", index=([1], ALL, 0)),
    *apart("f64[3,4,5]", "i32{0 2}", index=(ALL, [1], 0)),
    *apart("f64[3,4,5]", "i32{0 2}", index=(None, 0, None)),
    *apart("f64[3,4,5]", "i32{0 2}[1,2]", index=(ALL, 0, None)),
    *apart("f64[3,4,5]", "i32{0 2}", "i32{1 3}", index=(0, None, 1)),
    *apart("f64[3,4,5,2]", "i32{0 2}", "i32{1 0}", index=(slice(None, None, -1), 0, ..., 1)),
    *apart("f32[3,4]", "i32{0 2}", "i32{1}", index=(0, 1)),
    *apart("f32[3,4]", "i32{1}[]", "i32{2}[]", index=(0, 1)),
    *dynamic_slice("M[5,4]", "i32{2}[]", "i32{1}[]", sizes=(2, 3)),
    *dynamic_slice("D[5,4]", "i32{9}[]", "i32{-9}[]", sizes=(3, 2)),
    *dynamic_slice("D[5]", "u8{3}[]", sizes=(2,)),
    *dynamic_slice("D[5]", "i32{-4}[]", sizes=(2,)),
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


SIZE = 5
ROWS = np.arange(1, SIZE + 1) ** 2 / 4.0
"""What is read, or written to."""
VALUES = np.array([2.0, 3, 5, 7, 11, 13])
"""What is written, and the cotangents of what is read."""

PLACES = {
    "i8": ([0, -1, 4, 5, 127, -128], [0, 4, 4, 4, 4, 0]),
    "u8": ([0, 1, 4, 5, 255, 1], [0, 1, 4, 4, 4, 1]),
    "i64": ([0, -1, 2**32, -(2**32), 2**63 - 1, -(2**63)], [0, 4, 4, 0, 4, 0]),
    "u64": ([0, 1, 2**32, 5, 2**64 - 1, 2**63], [0, 1, 4, 4, 4, 4]),
    "i32": ([-5, -6, 3, 3, 2**31 - 1, -(2**31)], [0, 0, 3, 3, 4, 0]),
}
"""Indices by type, and the places that they mean in an axis of five: from the end if negative, then clamped."""


def start_of(x: Any, indices: Any, values: Any) -> Any:
    return ops.stack([ops.dynamic_slice(x, (indices[i],), (1,))[0] for i in range(6)])


def update_start(x: Any, indices: Any, values: Any) -> Any:
    for i in range(6):
        x = ops.dynamic_update_slice(x, values[i : i + 1], (indices[i],))
    return x


RULE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "take": lambda x, i, v: ops.take(x, i) * v,
    "take, axis": lambda x, i, v: ops.take(x, i, 0) * v,
    "take_along_axis": lambda x, i, v: ops.take_along_axis(x, i, 0) * v,
    "getitem": lambda x, i, v: ops.getitem(x, i) * v,
    "getitem, second axis": lambda x, i, v: ops.getitem(ops.stack([x, x]), (1, i)) * v,
    "getitem, two arrays": lambda x, i, v: ops.getitem(ops.stack([x] * 5), (i, i)) * v,
    "getitem, arrays apart": lambda x, i, v: ops.getitem(ops.stack([ops.stack([x] * 5)] * 5), (i, ALL, i)) * v[:, None],
    "dynamic_slice": lambda x, i, v: start_of(x, i, v) * v,
    "dynamic_update_slice": update_start,
    **{
        f"at.{how}": lambda x, i, v, how=how: getattr(ops.IndexUpdate(x)[i], how)(v)
        for how in ("set", "add", "multiply", "divide", "min", "max")
    },
    "at.add, two arrays": lambda x, i, v: ops.IndexUpdate(ops.stack([x] * 5))[i, i].add(v),
}
"""Everything that takes indices which count from the end if negative, and are clamped."""


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", RULE)
def test_one_rule_for_indices(name: str, device: str) -> None:
    """Value and gradients for indices of every type are those for the places that they mean."""
    weights = array("f64[5,5,6]:0.5:2").ravel()

    def loss(x: Any, values: Any, *indices: Any) -> Any:
        results = [RULE[name](x, each, values) for each in indices]
        return sum(ops.sum(ops.ravel(each) * weights[: each.size]) for each in results), results

    indices = [np.array(listed, DTYPES[dtype]) for dtype, (listed, _) in PLACES.items()]
    places = [np.array(meant, np.int32) for _, meant in PLACES.values()]
    found, expected = (
        run(ag.reverse(ag.capture(loss, ROWS, VALUES, *arrays), ["x", "values"]), [ROWS, VALUES, *arrays], device)
        for arrays in (indices, places)
    )
    for what, a, b in zip(["loss", *PLACES, "d_x", "d_values"], found, expected, strict=True):
        assert_same_bits(a, b, f"{name}: {what} on {device}")


@pytest.mark.parametrize("device", devices())
def test_ties_of_scattered_extrema_share_the_cotangent(device: str) -> None:
    x, indices, values = np.array([3.0, 1, 5]), np.array([0, 0, 1, 1, 2]), np.array([3.0, 3, 4, 4, 2])

    def loss(x: Any, values: Any) -> Any:
        return ops.sum(ops.IndexUpdate(x)[indices].max(values) * np.array([6.0, 8, 10]))

    _, dx, d_values = run(ag.reverse(ag.capture(loss, x, values)), [x, values], device)
    assert (dx.tolist(), d_values.tolist()) == ([2, 0, 10], [2, 2, 4, 4, 0])


def test_an_index_by_list() -> None:
    x = np.arange(4.0)
    np.testing.assert_array_equal(ops.getitem(x, [0, -1, 2**40]), [0, 3, 3])
    np.testing.assert_array_equal(ops.getitem(x, []), [])
    traced = ag.capture(lambda x, i: ops.getitem(x, [i, 1]), x, np.int32(2))
    np.testing.assert_array_equal(run(traced, [x, np.int32(2)], "host")[0], [2, 1])


def test_indices_as_in_numpy() -> None:
    """Every mixture of slices, integers, None, an ellipsis and index arrays, drawn at random."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = rng.normal(size=rng.integers(2, 4, rng.integers(1, 5)))
        arrays = [rng.integers(-2, 2, shape) for shape in ((2,), (2, 2))]
        kinds = [None, ..., ALL, slice(None, None, -1), slice(1, 9), 0, -1, *arrays]
        index = tuple(kinds[i] for i in rng.integers(0, len(kinds), rng.integers(1, 6)))
        used = sum(item is not None and item is not ... for item in index)
        if used <= x.ndim and sum(item is ... for item in index) <= 1:
            np.testing.assert_array_equal(ops.getitem(x, index), x[index], str(index))


REFUSED = {
    "too-many": (lambda x: x[0, 0, 0], ShapeError, r"3 indices and 0 ellipses for f32\[5,4\]"),
    "out-of-range": (lambda x: x[5], ShapeError, r"5 is out of range for axis 0 of f32\[5,4\]"),
    "float": (lambda x: ops.take(x, x, 0), DTypeError, "integer"),
    "float-index": (lambda x: x[x], DTypeError, r"an index must be an integer, found f32\[5,4\]"),
    "float-scalar": (lambda x: x[1.5], DTypeError, "an index must be an integer"),
    "float-bound": (lambda x: x[0.5:], ShapeError, "the bounds of a slice are integers"),
    "step-zero": (lambda x: x[::0], ShapeError, "its step is not 0"),
    "mask": (lambda x: x[x > 0], ShapeError, "ops.where"),
    "mask-list": (lambda x: x[[True, False, True, True, False]], ShapeError, "ops.where"),
    "mask-scalar": (lambda x: x[True], ShapeError, "ops.where"),
    "two-ellipses": (lambda x: x[..., ...], ShapeError, "ellips"),
    "arrays-misfit": (lambda x: x[np.arange(2), np.arange(3)], ShapeError, r"indexing: i32\[2\] and i32\[3\]"),
    "empty-axis": (lambda x: ops.take(x[0:0], np.array([0]), 0), ShapeError, "no element"),
    "along-float": (lambda x: ops.take_along_axis(x, x, 0), DTypeError, "take_along_axis: .*integer"),
    "along-axes": (lambda x: ops.take_along_axis(x, np.array([0]), 0), ShapeError, r"f32\[5,4\], i64\[1\]"),
    "along-misfit": (lambda x: ops.take_along_axis(x, np.zeros((1, 3), int), 0), ShapeError, r"f32\[5,4\], i64\[1,3\]"),
    "slice-sizes": (lambda x: ops.dynamic_slice(x, (0, 0), (6, 1)), ShapeError, "dynamic_slice"),
    "slice-starts": (lambda x: ops.dynamic_slice(x, (0, 0, 0), (1, 1)), ShapeError, "needs 2 starts, found i32"),
    "slice-start-float": (lambda x: ops.dynamic_slice(x, (0, 1.5), (1, 1)), DTypeError, "a start must be an integer"),
    "update-too-large": (lambda x: ops.dynamic_update_slice(x, ops.zeros((6, 1)), (0, 0)), ShapeError, "update"),
    "values-misfit": (lambda x: x.at[0].set(ops.zeros(3)), ShapeError, r"at\[...\].set: f32\[3\] does not broadcast"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(function: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    """What does not fit a tensor of shape (5, 4)."""
    with pytest.raises(error, match=rf"(?s){message}.*test_index\.py"):
        ag.capture(function, ag.spec((5, 4)))
