"""Text from a language model: prompt, key-value cache and sampling as one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antegrad import flow, ops, random
from antegrad.capture import capture
from antegrad.errors import ShapeError
from antegrad.ir.program import Program
from antegrad.ir.types import spec
from antegrad.optim import settings
from antegrad.passes.simplify import simplify
from antegrad.train.objective import KEY


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen from logits.

    `temperature` divides the logits; 0, or what f32 holds for 0, takes the most likely token. `top_k` keeps the k most
    likely tokens, `top_p` the fewest whose probabilities sum to p or more; ties with the last of them stay. Source of
    top_p: Holtzman et al., "The curious case of neural text degeneration" (2020).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        settings.number("generate", "temperature", self.temperature, "[0, inf)")
        if self.top_k is not None:
            settings.whole("generate", "top_k", self.top_k, 1)
        if self.top_p is not None:
            settings.number("generate", "top_p", self.top_p, "(0, 1]")

    def __call__(self, key: Any, logits: Any) -> Any:
        """A token (i32[batch]) for each row of `logits` f32[batch,vocabulary]."""
        logits = ops.convert(logits, "f32")
        if self.temperature < np.finfo(np.float32).tiny:
            return ops.argmax(logits, -1)
        # The largest is 0, so that a small temperature makes no infinity of it.
        logits = logits - ops.max(logits, -1, keepdims=True)
        return random.categorical(key, self.kept(logits / self.temperature), axis=-1)

    def kept(self, logits: Any) -> Any:
        """`logits` with -inf for what `top_k` and `top_p` leave out."""
        if self.top_k is not None:
            least = ops.top_k(logits, min(self.top_k, logits.shape[-1]))[0][..., -1:]
            logits = ops.where(logits < least, -float("inf"), logits)
        if self.top_p is not None and self.top_p < 1:
            ordered = ops.sort(logits, -1, descending=True)
            probabilities = ops.softmax(ordered)
            before = ops.cumsum(probabilities, -1) - probabilities
            least = ops.min(ops.where(before < self.top_p, ordered, float("inf")), -1, keepdims=True)
            logits = ops.where(logits < least, -float("inf"), logits)
        return logits


def generation_program(model: Any, context: int, prompt: int, tokens: int, sampler: Sampler) -> Program:
    """Model, prompt (i32[1,prompt]) and key to `tokens` new tokens, i32[1,tokens].

    The cache holds `context` tokens, at first the last ones of the prompt. When it is full it is made again from the
    last half of them, so what a token depends on is at least ``context / 2`` tokens long (or all there are), and the
    cost of a token does not grow.
    """
    if prompt < 1 or tokens < 1:
        raise ShapeError(f"generate needs a prompt and at least one new token, found {prompt} and {tokens}")
    kept, start = max(1, context // 2), min(prompt, context)

    def generate(model: Any, text: Any, key: Any) -> Any:
        window = text[:, prompt - start :]
        first = min(tokens, context - start + 1)  # the last token of a segment needs no place in the cache
        made = _segment(model, context, window, random.fold_in(key, 0), first, sampler)
        parts, done, number = [made], first, 1
        while done < tokens:
            everything = ops.concatenate([window, *parts], 1)
            count = min(tokens - done, context - kept + 1)
            rounds = (tokens - done) // count
            last = everything[:, everything.shape[1] - kept :]
            parts.append(_segments(model, context, last, random.fold_in(key, number), count, rounds, sampler))
            done, number = done + count * rounds, number + 1
        return ops.concatenate(parts, 1)

    return simplify(capture(generate, model, spec((1, prompt), "i32"), KEY, name="generate"))


def _segments(model: Any, context: int, window: Any, key: Any, count: int, rounds: int, sampler: Sampler) -> Any:
    """`rounds` times `count` tokens, each time from the last ones."""
    size = window.shape[1]

    def one(window: Any, number: Any) -> tuple[Any, Any]:
        made = _segment(model, context, window, random.fold_in(key, number), count, sampler)
        return ops.concatenate([window, made], 1)[:, -size:], made

    _, made = flow.scan(one, window, ops.arange(rounds))
    return ops.reshape(ops.swapaxes(made, 0, 1), (window.shape[0], rounds * count))


def _segment(model: Any, context: int, window: Any, key: Any, count: int, sampler: Sampler) -> Any:
    """`count` tokens after `window`, with a cache that is filled from it."""
    logits, cache = model.step(window, model.init_cache(window.shape[0], context))
    token = ops.convert(sampler(random.fold_in(key, 0), logits[:, -1]), "i32")

    def one(carry: Any, number: Any) -> tuple[Any, Any]:
        token, cache = carry
        logits, cache = model.step(ops.expand_dims(token, 1), cache)
        following = ops.convert(sampler(random.fold_in(key, number), logits[:, -1]), "i32")
        return (following, cache), token

    (last, _), before = flow.scan(one, (token, cache), ops.arange(1, count))
    return ops.concatenate([ops.swapaxes(before, 0, 1), ops.expand_dims(last, 1)], 1)
