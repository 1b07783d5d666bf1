"""Attention of several heads, within a sequence or to another one, and the cache for generating token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from antegrad import ops, random
from antegrad.errors import DTypeError, SettingError
from antegrad.ir.types import BOOL, DTypeLike, accumulation_dtype, type_of
from antegrad.nn import initializers
from antegrad.nn.context import training
from antegrad.nn.dropout import Dropout
from antegrad.nn.layers import Dense
from antegrad.nn.module import Module, in_layer, static
from antegrad.nn.positions import rotary, within
from antegrad.ops.arrays import misfit, placed
from antegrad.ops.dispatch import as_tensor


class KeyValueCache(Module):
    """The keys and values of the tokens that a causal attention layer has seen, and room for more. It is a value."""

    keys: Any
    """float[batch,key_value_heads,capacity,head_dim], 0 from `length` on"""
    values: Any
    """the same shape"""
    length: Any
    """i32[], the number of tokens"""

    def extended(self, keys: Any, values: Any) -> KeyValueCache:
        """The cache with those of new tokens [batch, key_value_heads, L, head_dim], converted to its element type.

        Raises `ShapeError` when they do not fit; where `length` is traced and there is no room, the new values are NaN.
        """
        keys, values = as_tensor(keys), as_tensor(values)
        (batch, heads, capacity, width), added = self.keys.shape, keys.shape[-2]
        if keys.shape != (batch, heads, added, width) or added > capacity:
            raise misfit(f"the cache holds {type_of(self.keys)} and cannot take {type_of(keys)}")
        stop, start = as_tensor(self.length) + added, (0, 0, self.length, 0)
        values = within(values, stop, capacity, "the cache of keys and values")
        keys = ops.dynamic_update_slice(self.keys, ops.convert(keys, self.keys.dtype), start)
        values = ops.dynamic_update_slice(self.values, ops.convert(values, self.values.dtype), start)
        return KeyValueCache(keys, values, stop)


class MultiHeadAttention(Module):
    """Scaled dot-product attention of `heads` parts of the features, with linear maps before and after.

    ``layer(x)`` attends within a sequence, ``layer(x, context)`` to another one. Arguments of the constructor:
      features, heads: the size of input and output, and the number of heads.
      key_value_heads: fewer heads for keys and values, each shared by as many heads in a row (grouped queries).
      head_dim: the size of a head, ``features / heads`` by default.
      context_features: the size of the other sequence, where it differs.
      causal: each token attends to itself and what is before it.
      dropout: the rate at which attention probabilities are dropped in training.
      rope: the base of rotary positions (10000.0), in the order of halves; None for none. See `nn.rotary`.
      block_size: this number of queries at a time, so that memory does not grow with the square of the length.
      initializer, output_initializer: of the weights, and of those of the last map where they differ.
    Source: Vaswani et al., "Attention is all you need" (2017); Ainslie et al., "GQA" (2023), arXiv:2305.13245.
    """

    query: Dense
    key: Dense
    value: Dense
    output: Dense
    dropout: Dropout | None
    heads: int = static()
    key_value_heads: int = static()
    causal: bool = static(default=False)
    rope: float | None = static(default=None)
    block_size: int | None = static(default=None)

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        key: Any,
        key_value_heads: int | None = None,
        head_dim: int | None = None,
        context_features: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        rope: float | None = None,
        bias: bool = True,
        block_size: int | None = None,
        initializer: Callable[..., Any] = initializers.lecun_normal,
        output_initializer: Callable[..., Any] | None = None,
        dtype: DTypeLike = "f32",
    ) -> None:
        groups = heads if key_value_heads is None else key_value_heads
        size = _head_dim(features, heads, groups, head_dim, even=rope is not None)
        if dropout and block_size is not None:
            raise SettingError("MultiHeadAttention: with a block_size no probabilities can be dropped: set dropout=0")
        sizes = {
            "query": (features, heads * size),
            "key": (context_features or features, groups * size),
            "value": (context_features or features, groups * size),
            "output": (heads * size, features),
        }
        draw = {"output": output_initializer or initializer}
        keys = random.split(key, len(sizes))
        maps = {
            name: Dense(*shape, key=keys[i], initializer=draw.get(name, initializer), bias=bias, dtype=dtype)
            for i, (name, shape) in enumerate(sizes.items())
        }
        self._set(
            **maps,
            dropout=Dropout(dropout) if dropout else None,
            heads=heads,
            key_value_heads=groups,
            causal=causal,
            rope=rope,
            block_size=block_size,
        )

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.query.w.shape[-1] // self.heads

    def __call__(self, x: Any, context: Any = None, *, padding: Any = None, mask: Any = None) -> Any:
        """Each token of `x` as a mean over values, weighted by how well keys match its query.

        Arguments:
          x: [..., L, features].
          context: [..., S, context_features], what is attended to; `x` itself if None.
          padding: bool[..., S], true for the keys that are there.
          mask: broadcasts to [..., heads, L, S]; bool, true where a query may attend, or float, added to the scores.
        Returns [..., L, features]; a query that may attend to nothing gives the bias of the last map.
        """
        x = self._sequence(x)
        if context is not None and (self.causal or self.rope is not None):
            raise misfit("MultiHeadAttention: a causal layer, or one with rope, attends within one sequence alone")
        source = x if context is None else self._sequence(context)
        query, key, value = self._projected(x, source, 0)
        return self._attended(query, key, value, _joined(mask, padding), 0)

    @in_layer
    def step(self, x: Any, cache: KeyValueCache, *, padding: Any = None) -> tuple[Any, KeyValueCache]:
        """The next tokens `x` [batch, L, features] of sequences of which `cache` holds what came before.

        Any number of tokens at a time gives what one call for all would. `padding` bool[batch, capacity] is false for
        places of the cache that do not count. Returns [batch, L, features] and the cache with the new tokens. Raises
        `ShapeError` when the cache is full; where its length is traced, the result is NaN.
        """
        x = self._sequence(x)
        if not self.causal:
            raise misfit("MultiHeadAttention: only a causal layer goes step by step: later tokens would change earlier")
        query, key, value = self._projected(x, x, cache.length)
        extended = cache.extended(key, value)
        return self._attended(query, extended.keys, extended.values, _joined(None, padding), cache.length), extended

    def init_cache(self, batch: int, capacity: int, dtype: DTypeLike | None = None) -> KeyValueCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens, of the layer's element type or another."""
        shape, dtype = (batch, self.key_value_heads, capacity, self.head_dim), dtype or self.key.w.dtype
        return KeyValueCache(ops.zeros(shape, dtype), ops.zeros(shape, dtype), ops.zeros((), "i32"))

    def _sequence(self, x: Any) -> Any:
        x = as_tensor(x)
        if x.ndim < 2:
            raise misfit(f"MultiHeadAttention takes an input (..., length, features), found {type_of(x)}")
        return x

    def _projected(self, x: Any, source: Any, start: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values (..., heads, length, head_dim); those of rotary positions count from `start`."""
        query = _split(self.query(x), self.heads)
        key, value = (_split(layer(source), self.key_value_heads) for layer in (self.key, self.value))
        if self.rope is None:
            return query, key, value
        positions = ops.arange(x.shape[-2]) + start
        return rotary(query, positions, base=self.rope), rotary(key, positions, base=self.rope), value

    def _attended(self, query: Any, key: Any, value: Any, mask: Any, start: Any) -> Any:
        if self.dropout is not None and training() is not None:
            mixed = _with_dropout(query, key, value, mask, start if self.causal else None, self.dropout)
        else:
            mixed = ops.scaled_dot_product_attention(
                query, key, value, mask, causal=self.causal, offset=start, block_size=self.block_size
            )
        together = ops.swapaxes(mixed, -2, -3)
        return self.output(ops.reshape(together, (*together.shape[:-2], self.heads * self.head_dim)))


def _head_dim(features: int, heads: int, groups: int, head_dim: int | None, *, even: bool) -> int:
    if heads < 1 or groups < 1 or heads % groups:
        raise misfit(
            "MultiHeadAttention: the number of heads must be a multiple of key_value_heads, "
            f"found heads={heads} and key_value_heads={groups}"
        )
    if head_dim is None and features % heads:
        raise misfit(
            f"MultiHeadAttention: {features} features do not divide into {heads} heads: "
            "choose another number, or give head_dim"
        )
    size = features // heads if head_dim is None else head_dim
    if even and size % 2:
        raise misfit(f"MultiHeadAttention: rope turns pairs of features, and a head has {size}")
    return size


def _split(x: Any, heads: int) -> Any:
    """(..., length, heads * size) as (..., heads, length, size)."""
    return ops.swapaxes(ops.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads)), -2, -3)


def _joined(mask: Any, padding: Any) -> Any:
    """One mask that broadcasts to the scores (..., heads, length, keys)."""
    if padding is None:
        return mask
    padding = as_tensor(padding)
    if padding.dtype != BOOL or padding.ndim < 1:
        wanted = "padding is bool[..., keys], true for the keys that are there"
        raise placed(DTypeError, f"MultiHeadAttention: {wanted}, found {type_of(padding)}")
    present = padding[..., None, None, :]
    if mask is None:
        return present
    mask = as_tensor(mask)
    return ops.logical_and(mask, present) if mask.dtype == BOOL else ops.where(present, mask, -math.inf)


def _with_dropout(query: Any, key: Any, value: Any, mask: Any, start: Any, dropout: Dropout) -> Any:
    """Attention in which `dropout` sees the probabilities of all heads [..., heads, length, keys].

    `start` is the place of the first query among the keys if the attention is causal, else None.
    """
    shared, wide = query.shape[-3] // key.shape[-3], accumulation_dtype(query.dtype)
    key, value = (ops.repeat(x, shared, axis=-3) if shared > 1 else x for x in (key, value))
    scaled = ops.convert(query, wide) * (1 / math.sqrt(max(query.shape[-1], 1)))
    scores = ops.matmul(scaled, ops.swapaxes(ops.convert(key, wide), -1, -2))
    if start is not None:
        places = ops.arange(scores.shape[-2]) + start
        scores = ops.where(ops.arange(scores.shape[-1]) <= places[:, None], scores, -math.inf)
    if mask is not None:
        mask = as_tensor(mask)
        scores = ops.where(mask, scores, -math.inf) if mask.dtype == BOOL else scores + ops.convert(mask, wide)
    return ops.matmul(ops.convert(dropout(ops.softmax(scores)), query.dtype), value)
