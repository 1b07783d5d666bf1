"""GPT: a causal transformer over tokens, after GPT-2 in the form of nanoGPT."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from antegrad import ops, random, tree
from antegrad.flow import scan
from antegrad.ir.types import DTypeLike, type_of
from antegrad.nn import initializers
from antegrad.nn.attention import KeyValueCache
from antegrad.nn.dropout import Dropout
from antegrad.nn.embedding import Embedding
from antegrad.nn.feedforward import tanh_gelu
from antegrad.nn.layers import Sequential
from antegrad.nn.module import Module, in_layer, mounted, static
from antegrad.nn.normalization import LayerNorm
from antegrad.nn.positions import LearnedPositions
from antegrad.nn.repeat import Repeat
from antegrad.nn.transformer import TransformerBlock, in_a_row
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor

STD = 0.02
"""Standard deviation of all weights at the start, but for maps that write to the residual stream."""


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT; by default those of GPT-2 small (124 million parameters).

    `vocabulary` is the number of tokens, `context` the most of them in a sequence. `dropout` is used for embeddings,
    attention probabilities and what each part adds. `bias` is that of all maps and norms. GELU is exact, as in nanoGPT,
    or if `tanh_gelu` the approximation that GPT-2 was trained with. `rolled` blocks are one loop over stacked arrays,
    which compiles faster, and else stand one after the other. `block_size` is that of `MultiHeadAttention`.
    """

    vocabulary: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    features: int = 768
    dropout: float = 0.0
    bias: bool = True
    tanh_gelu: bool = False
    rolled: bool = False
    block_size: int | None = None


class GPT(Module):
    """Logits of the next token at every place of a sequence: ``model(tokens)``.

    Tokens and positions are embedded and added; blocks with the norm first follow, a last norm, and the product with
    the embedding of every token, which is the same array. Weights are normal with standard deviation 0.02, those that
    write to the residual stream with ``0.02 / sqrt(2 * layers)``, so at the start the loss is near log(vocabulary).

    To generate, give tokens step by step, the first time all of the prompt:

        cache = model.init_cache(batch=1)
        logits, cache = model.step(prompt, cache)
        logits, cache = model.step(next_token, cache)

    Source: Radford et al., "Language models are unsupervised multitask learners" (2019); Karpathy, nanoGPT.
    """

    embedding: Embedding
    positions: LearnedPositions
    dropout: Dropout | None
    blocks: Sequential | Repeat
    norm: LayerNorm
    config: GPTConfig = static()

    def __init__(self, config: GPTConfig, *, key: Any, dtype: DTypeLike = "f32") -> None:
        of_tokens, of_positions, of_blocks = random.split(key, 3)
        small, features = initializers.normal(STD), config.features

        def block(key: Any) -> TransformerBlock:
            return _block(config, key, dtype)

        self._set(
            embedding=Embedding(config.vocabulary, features, key=of_tokens, initializer=small, dtype=dtype),
            positions=LearnedPositions(config.context, features, key=of_positions, initializer=small, dtype=dtype),
            dropout=Dropout(config.dropout) if config.dropout else None,
            blocks=in_a_row(block, config.layers, key=of_blocks, rolled=config.rolled),
            norm=LayerNorm(features, bias=config.bias, dtype=dtype),
            config=config,
        )

    def __call__(self, tokens: Any) -> Any:
        """`tokens` int[..., L] with L <= context to logits [..., L, vocabulary]."""
        return self.embedding.attend(self.norm(self.blocks(self._embedded(tokens, 0))))

    def init_cache(self, batch: int, capacity: int | None = None, dtype: DTypeLike | None = None) -> Any:
        """An empty cache for `batch` sequences of up to `capacity` tokens (`context` if None), for `step`.

        A tuple with a `KeyValueCache` for each block; if the blocks are rolled, one of stacked arrays. The element type
        is that of the model or another one, to which keys and values are then converted.
        """
        context = self.config.context
        capacity = context if capacity is None else capacity
        if not 0 < capacity <= context:
            raise misfit(f"GPT: the capacity of a cache lies between 1 and the context {context}, found {capacity}")
        one, count = self.blocks[0].attention.init_cache(batch, capacity, dtype), self.config.layers
        return tree.map(lambda each: ops.stack([each] * count), one) if self.config.rolled else (one,) * count

    @in_layer
    def step(self, tokens: Any, cache: Any) -> tuple[Any, Any]:
        """Logits for the next `tokens` int[batch, L] after those of `cache`, and the cache with them.

        The logits [batch, L, vocabulary] are those of one call for all tokens. Raises `ShapeError` when the cache is
        full; where its length is traced, they are NaN.
        """
        first = cache if self.config.rolled else cache[0]
        x = self._embedded(tokens, first.length[0] if self.config.rolled else first.length)
        if self.config.rolled:
            x, cache = scan(_stepped, x, (self.blocks.layers, cache))
        else:
            steps = []
            for index, own in zip(range(len(self.blocks)), cache, strict=True):
                x, extended = self.blocks[index].step(x, own)
                steps.append(extended)
            cache = tuple(steps)
        return self.embedding.attend(self.norm(x)), cache

    def _embedded(self, tokens: Any, offset: Any) -> Any:
        tokens, context = as_tensor(tokens), self.config.context
        if tokens.ndim < 1 or tokens.shape[-1] > context:
            raise misfit(f"GPT takes tokens (..., L) with L up to its context {context}, found {type_of(tokens)}")
        x = self.positions(self.embedding(tokens), offset)
        return x if self.dropout is None else self.dropout(x)


def _block(config: GPTConfig, key: Any, dtype: DTypeLike) -> TransformerBlock:
    return TransformerBlock(
        config.features,
        config.heads,
        key=key,
        causal=True,
        dropout=config.dropout,
        attention_dropout=config.dropout,
        block_size=config.block_size,
        activation=tanh_gelu if config.tanh_gelu else ops.gelu,
        bias=config.bias,
        initializer=initializers.normal(STD),
        output_initializer=initializers.normal(STD / math.sqrt(2 * config.layers)),
        dtype=dtype,
    )


def _stepped(x: Any, block_and_cache: tuple[TransformerBlock, KeyValueCache]) -> tuple[Any, KeyValueCache]:
    block, cache = block_and_cache
    with mounted(block, "blocks.layers"):
        return block.step(x, cache)
