"""Embedding: vectors of features for the numbers of words."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import DTypeLike, is_integer, type_of
from antegrad.nn import initializers
from antegrad.nn.module import Module, in_layer
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor, here


class Embedding(Module):
    """A row of ``w`` for each integer: ``w[x]``. An index that is none is clamped, and counts from the end if < 0.

    Parameters: ``w`` f32[vocabulary,features], by default normal with the variance ``1 / features``. An output layer
    with the same weights is `attend`, so that there is one array, and gradients of both uses add up:

        hidden = self.embedding(tokens)
        ...
        logits = self.embedding.attend(hidden)

    """

    # The gradient is a scatter for every size of the vocabulary: on XLA for CPU a product with one-hot rows took twice
    # the time for 65 words (4096 tokens of 128 features) and more for more.
    w: Any

    def __init__(
        self,
        vocabulary: int,
        features: int,
        *,
        key: Any,
        initializer: initializers.Initializer | None = None,
        dtype: DTypeLike = "f32",
    ) -> None:
        initializer = initializer or initializers.normal(features**-0.5)
        self._set(w=initializer(key, (vocabulary, features), dtype))

    def __call__(self, x: Any) -> Any:
        """`x` int[...] to [..., features]; a `DTypeError` that names the layer for anything but integers."""
        x = as_tensor(x)
        if not is_integer(x.dtype):
            raise DTypeError(f"{self._title()} takes integers, found {type_of(x)}: use .astype('i32')\n  at {here()}")
        return ops.take(self.w, x, axis=0)

    @in_layer
    def attend(self, x: Any) -> Any:
        """The product of `x` [..., features] with every row, ``x @ w.T``: [..., vocabulary]."""
        x = as_tensor(x)
        if x.ndim == 0 or x.shape[-1] != self.w.shape[1]:
            raise misfit(f"attend of {self._title()} takes an input whose last axis has size {self.w.shape[1]}, "
                         f"found {type_of(x)}; its weight is {type_of(self.w)}")
        return ops.matmul(x, ops.transpose(self.w))

    def _title(self) -> str:
        return f"Embedding({self.w.shape[0]}, {self.w.shape[1]})"
