"""The block of a transformer: attention, then a feed-forward part, each with a norm and a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import ops, random
from antegrad.ir.types import DTypeLike
from antegrad.nn import initializers
from antegrad.nn.attention import KeyValueCache, MultiHeadAttention
from antegrad.nn.dropout import Dropout
from antegrad.nn.feedforward import MLP
from antegrad.nn.layers import Activation, Sequential
from antegrad.nn.module import Module, in_layer, static
from antegrad.nn.normalization import LayerNorm
from antegrad.nn.repeat import Repeat


class TransformerBlock(Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``.

    With ``norm_first=False`` it is ``norm(x + attention(x))``, then ``norm(x + mlp(x))``: the norm comes first in GPT-2
    and ViT, and last in the paper and BERT. Arguments of the constructor:
      features, heads, hidden: sizes; `hidden` is four times `features` by default.
      causal, attention_dropout, block_size: of the attention.
      dropout: the rate for what attention and feed-forward part add.
      activation, bias, eps: of the feed-forward part, of all maps and norms, and of the norms.
      initializer, output_initializer: of weights, and of those of the maps that write to the residual stream.
    Source: Vaswani et al. (2017); Xiong et al., "On layer normalization in the transformer architecture" (2020).
    """

    attention_norm: LayerNorm
    attention: MultiHeadAttention
    mlp_norm: LayerNorm
    mlp: MLP
    dropout: Dropout | None
    norm_first: bool = static(default=True)

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int | None = None,
        *,
        key: Any,
        norm_first: bool = True,
        causal: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        block_size: int | None = None,
        activation: Activation = ops.gelu,
        bias: bool = True,
        eps: float = 1e-5,
        initializer: initializers.Initializer = initializers.lecun_normal,
        output_initializer: initializers.Initializer | None = None,
        dtype: DTypeLike = "f32",
    ) -> None:
        of_attention, of_mlp = random.split(key)
        shared = {"bias": bias, "initializer": initializer, "output_initializer": output_initializer, "dtype": dtype}
        own = {"causal": causal, "dropout": attention_dropout, "block_size": block_size}
        self._set(
            attention_norm=LayerNorm(features, eps=eps, bias=bias, dtype=dtype),
            attention=MultiHeadAttention(features, heads, key=of_attention, **own, **shared),
            mlp_norm=LayerNorm(features, eps=eps, bias=bias, dtype=dtype),
            mlp=MLP(features, hidden or 4 * features, activation, key=of_mlp, **shared),
            dropout=Dropout(dropout) if dropout else None,
            norm_first=norm_first,
        )

    def __call__(self, x: Any, padding: Any = None, mask: Any = None) -> Any:
        """`x` [..., L, features] to the same shape; `padding` and `mask` as in `MultiHeadAttention`."""
        attended = self.attention(self._before(self.attention_norm, x), padding=padding, mask=mask)
        return self._fed(self._added(self.attention_norm, x, attended))

    @in_layer
    def step(self, x: Any, cache: KeyValueCache, *, padding: Any = None) -> tuple[Any, KeyValueCache]:
        """The next tokens `x` [batch, L, features] after those of `cache`; as `MultiHeadAttention.step`."""
        attended, cache = self.attention.step(self._before(self.attention_norm, x), cache, padding=padding)
        return self._fed(self._added(self.attention_norm, x, attended)), cache

    def _fed(self, x: Any) -> Any:
        return self._added(self.mlp_norm, x, self.mlp(self._before(self.mlp_norm, x)))

    def _before(self, norm: LayerNorm, x: Any) -> Any:
        return norm(x) if self.norm_first else x

    def _added(self, norm: LayerNorm, x: Any, change: Any) -> Any:
        total = x + (change if self.dropout is None else self.dropout(change))
        return total if self.norm_first else norm(total)


def in_a_row(make_block: Callable[[Any], Module], count: int, *, key: Any, rolled: bool) -> Sequential | Repeat:
    """`count` blocks, each made with a key of its own; if `rolled`, one loop over stacked arrays of the same values."""
    if rolled:
        return Repeat(make_block, count, key=key)
    keys = random.split(key, count)
    return Sequential(*(make_block(keys[index]) for index in range(count)))
