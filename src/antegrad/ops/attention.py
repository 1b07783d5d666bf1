"""Attention: in one piece, or a block of queries after the other where the scores of all would not fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import BOOL, DTYPES, accumulation_dtype, is_float, is_integer, promote, type_of
from antegrad.ops.arrays import misfit
from antegrad.ops.call import RULES, call_p
from antegrad.ops.composition import composed
from antegrad.ops.control import scan_p
from antegrad.ops.dispatch import as_tensor, bind, here
from antegrad.ops.linalg import dot_general
from antegrad.ops.promotion import unify
from antegrad.ops.shape import iota

__all__ = ["scaled_dot_product_attention"]

NAME = "scaled_dot_product_attention"
I32 = DTYPES["i32"]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    scale: Any = None,
    offset: Any = 0,
    block_size: int | None = None,
) -> Any:
    """``softmax(scale * query @ key.T + mask) @ value``, for each head; `scale` is ``1 / sqrt(E)`` if None.

    Shapes: query (..., H, L, E), key (..., G, S, E), value (..., G, S, V) give (..., H, L, V); H is a multiple of G,
    and every H / G heads of the query in a row share a head of the key. Leading axes broadcast. `mask` broadcasts to
    (..., H, L, S): bool, true where a query may attend, or float, added to the scores. 16-bit floats have scores and
    softmax in f32, and the probabilities are rounded before the product with the values, which sums in f32.
    `causal` lets query i attend to the keys up to ``i + offset``, an integer or an i32 scalar: 0 aligns the first
    query with the first key, ``S - L`` the last with the last, and with a cache `offset` is what it held before.
    With `block_size` so many queries are computed at a time, also in the backward pass, which computes their scores
    again: memory grows with L + S and not with L * S. A causal mask spares no work.
    Edges: a query that may attend to nothing, by false or by -inf, gives 0 and has gradient 0.
    Derivative: of query, key, value, a float mask and `scale`.
    Source: Vaswani et al., "Attention is all you need" (2017); in blocks, Rabe and Staats, "Self-attention does not
    need O(n^2) memory" (2021); heads in groups, Ainslie et al. (2023).
    """
    query, key, value = unify(NAME, query, key, value)
    lead, shape = _sizes(query, key, value)
    wide, length = accumulation_dtype(query.dtype), query.shape[-2]
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    operands = [
        ops.convert(ops.broadcast_to(query, (*lead, *query.shape[-3:])), wide) * scale,
        ops.convert(ops.broadcast_to(key, (*lead, *key.shape[-3:])), wide),
        ops.broadcast_to(value, (*lead, *value.shape[-3:])),
    ]
    start, bias = _start(offset, causal, shape), _mask(mask, shape, wide)
    if block_size is not None and (not isinstance(block_size, int) or block_size < 1):
        raise misfit(f"{NAME}: block_size is a number of queries of at least 1, or None, found {block_size!r}")
    if block_size is None or block_size >= length:
        extra = [x for x in (start, bias) if x is not None]
        return _attended(*operands, *extra, causal=causal, dtype=query.dtype)
    operands[2] = ops.convert(operands[2], wide)  # its cotangent is summed over the blocks
    return _in_blocks(operands, start, bias, block_size, query.dtype)


def _sizes(query: Any, key: Any, value: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the leading axes, and that of the scores."""
    found = f"found {type_of(query)}, {type_of(key)} and {type_of(value)}"
    if not is_float(query.dtype):
        raise DTypeError(f"{NAME} is for float tensors, {found}: use .astype(...)" + _place())
    expected = "query (..., H, L, E), key (..., G, S, E) and value (..., G, S, V) are needed, H a multiple of G"
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise misfit(f"{NAME}: {expected}, {found}")
    (heads, length, width), (groups, size, own) = query.shape[-3:], key.shape[-3:]
    if width != own or value.shape[-3:-1] != (groups, size) or heads % max(groups, 1) or (heads and not groups):
        raise misfit(f"{NAME}: {expected}, {found}")
    try:
        lead = np.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except ValueError:
        raise misfit(f"{NAME}: the axes before the heads must broadcast together, {found}") from None
    return lead, (*lead, heads, length, size)


def _place() -> str:
    place = str(here())
    return f"\n  at {place}" if place else ""


def _start(offset: Any, causal: bool, shape: tuple[int, ...]) -> Any:
    """The position of the first query as an i32 scalar; None where no position matters.

    It is moved to where every key is seen, or none: further away it makes no difference, and could overflow.
    """
    if not causal:
        if not isinstance(offset, int) or offset:
            raise misfit(f"{NAME}: an offset says where a causal mask begins: use causal=True with it")
        return None
    start = as_tensor(offset)
    if start.shape != () or not is_integer(start.dtype) or promote([start.dtype, I32]) != I32:
        raise DTypeError(f"{NAME}: the offset is an integer that i32 holds, found {type_of(start)}{_place()}")
    return ops.clip(ops.convert(start, "i32"), -shape[-2], shape[-1])


def _mask(mask: Any, shape: tuple[int, ...], wide: np.dtype) -> Any:
    """The mask, checked against the shape of the scores; of float ones the type is that of the scores."""
    if mask is None:
        return None
    mask = as_tensor(mask)
    if mask.dtype != BOOL and not (is_float(mask.dtype) and mask.dtype.itemsize <= wide.itemsize):
        raise DTypeError(f"{NAME}: the mask is bool, or float of at most {wide}, found {type_of(mask)}{_place()}")
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise misfit(f"{NAME}: the mask must broadcast to the scores {list(shape)}, found {type_of(mask)}")
    mask = ops.reshape(mask, (*(1,) * (len(shape) - mask.ndim), *mask.shape))
    return mask if mask.dtype == BOOL else ops.convert(mask, wide)


def _attended(query: Any, key: Any, value: Any, *extra: Any, causal: bool, dtype: np.dtype) -> Any:
    """Attention of scaled queries; `extra` is the position of the first of them if `causal`, and the mask if any.

    The heads that share a key stand below each other as rows of one matrix.
    """
    *lead, heads, length, width = query.shape
    groups, size = key.shape[-3:-1]
    rows = (*lead, groups, heads // max(groups, 1) * length)
    last, axes = len(lead) + 2, tuple(range(len(lead) + 1))
    scores = dot_general(ops.reshape(query, (*rows, width)), key, ((last,), (last,)), (axes, axes))
    scores = _masked(ops.reshape(scores, (*lead, heads, length, size)), extra, causal)
    weights = ops.reshape(ops.convert(ops.softmax(scores), dtype), (*rows, size))
    result = dot_general(weights, ops.convert(value, dtype), ((last,), (last - 1,)), (axes, axes))
    return ops.reshape(result, (*lead, heads, length, value.shape[-1]))


def _masked(scores: Any, extra: tuple[Any, ...], causal: bool) -> Any:
    """The scores with the mask applied, and -inf where a key comes after its query."""
    for mask in extra[int(causal) :]:
        scores = ops.where(mask, scores, -math.inf) if mask.dtype == BOOL else scores + mask
    if not causal:
        return scores
    positions = iota(scores.shape[-2:], I32, 0) + extra[0]
    return ops.where(iota(scores.shape[-2:], I32, 1) <= positions, scores, -math.inf)


def _in_blocks(operands: list[Any], start: Any, mask: Any, size: int, dtype: np.dtype) -> Any:
    """A scan over blocks of queries, each a `call` that the backward pass repeats. The last block is filled up."""
    query, key, value = operands
    length = query.shape[-2]
    count = -(-length // size)
    constants, slices = {"key": key, "value": value}, {"query": _blocks(query, count, size)}
    if start is not None:
        slices["first"] = ops.arange(count) * size + start
    if mask is not None and mask.shape[-2] > 1:
        slices["mask"] = _blocks(mask, count, size)
    elif mask is not None:
        constants["mask"] = mask
    given = [*constants.values(), *slices.values()]
    types = [type_of(x).with_shape(x.shape[int(i >= len(constants)) :]) for i, x in enumerate(given)]
    body = composed(_block, *types, names=(*constants, *slices), order=(*constants, *slices), dtype=dtype)
    (found,) = bind(scan_p, *given, body=body, counts=(len(constants), 0), length=count, reverse=False)
    joined = ops.moveaxis(found, 0, -3)
    joined = ops.reshape(joined, (*joined.shape[:-3], count * size, joined.shape[-1]))
    return joined[..., :length, :]


def _blocks(x: Any, count: int, size: int) -> Any:
    """Blocks of rows, stacked along a new first axis."""
    missing = count * size - x.shape[-2]
    filled = ops.pad(x, [*[(0, 0)] * (x.ndim - 2), (0, missing), (0, 0)])
    return ops.moveaxis(ops.reshape(filled, (*x.shape[:-2], count, size, x.shape[-1])), -3, 0)


def _block(*operands: Any, order: tuple[str, ...], dtype: np.dtype) -> Any:
    """One step of the scan; `order` says which operand is what."""
    given = dict(zip(order, operands, strict=True))
    names = tuple(name for name in ("query", "key", "value", "first", "mask") if name in given)
    chosen = [given[name] for name in names]
    program = composed(_attended, *map(type_of, chosen), names=names, causal="first" in given, dtype=dtype)
    return call_p(*chosen, program=program, rule=RULES["remat"])[0]
