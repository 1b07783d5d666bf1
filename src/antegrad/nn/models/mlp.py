"""Multilayer perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from antegrad import ops, random
from antegrad.errors import ShapeError
from antegrad.ir.types import DTypeLike
from antegrad.nn import initializers
from antegrad.nn.layers import Dense, Sequential


def mlp(
    sizes: Sequence[int],
    *,
    key: Any,
    activation: Callable[[Any], Any] = ops.relu,
    initializer: initializers.Initializer = initializers.lecun_normal,
    dtype: DTypeLike = "f32",
) -> Sequential:
    """Dense layers of `sizes`, with `activation` between them: ``mlp([784, 256, 10], key=key)`` has two.

    Parameters: ``0.w``, ``0.b``, ``2.w``, ``2.b`` and so on. Raises `ShapeError` for fewer than two sizes.
    """
    if len(sizes) < 2:
        raise ShapeError(f"mlp needs the sizes of an input and an output at least, found {list(sizes)}")
    keys = random.split(key, len(sizes) - 1)
    layers: list[Any] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [activation] if index else []
        layers.append(Dense(inputs, outputs, key=keys[index], initializer=initializer, dtype=dtype))
    return Sequential(*layers)
