"""Where a token stands: rotary, learned and sinusoidal positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import DTypeLike, accumulation_dtype, as_dtype, is_float, type_of
from antegrad.nn import initializers
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit, placed
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.tensor import Tensor

SMALL = initializers.normal(0.02)


def rotary(x: Any, positions: Any, *, base: float = 10000.0, interleaved: bool = False) -> Any:
    """Pairs of features turned by ``positions * base ** (-2 i / D)``: products then depend on distances alone.

    Pair i is ``(x[i], x[i + D / 2])``, as in GPT-NeoX and in Hugging Face's Llama; if `interleaved` it is
    ``(x[2 i], x[2 i + 1])``, as in the paper and in Meta's Llama.

    Shapes: x (..., L, D) with even D and positions (..., L), which broadcast, give the shape of x; angles and products
        are computed in f32 for 16-bit floats.
    Derivative: dy turned back.
    Source: Su et al., "RoFormer" (2021), arXiv:2104.09864.
    """
    x, positions = as_tensor(x), as_tensor(positions)
    if x.ndim < 2 or x.shape[-1] % 2 or positions.ndim < 1 or positions.shape[-1] != x.shape[-2]:
        raise misfit(
            "rotary: x (..., L, D) with an even number D of features and positions (..., L) are needed, found "
            f"{type_of(x)} and {type_of(positions)}"
        )
    if not is_float(x.dtype):
        raise placed(DTypeError, f"rotary is for float tensors, found {type_of(x)}: use .astype(...)")
    wide, features = accumulation_dtype(x.dtype), x.shape[-1]
    angles = _angles(positions, features, base, wide)
    sine, cosine, x_wide = ops.sin(angles), ops.cos(angles), ops.convert(x, wide)
    if interleaved:
        pairs = ops.reshape(x_wide, (*x.shape[:-1], features // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = ops.split(x_wide, 2, axis=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    joined = ops.stack(turned, axis=-1) if interleaved else ops.concatenate(turned, axis=-1)
    return ops.convert(ops.reshape(joined, x.shape), x.dtype)


def sinusoidal(positions: Any, features: int, *, base: float = 10000.0, dtype: DTypeLike = "f32") -> Any:
    """``y[p, 2 i] = sin(p * base ** (-2 i / D))`` and ``y[p, 2 i + 1]`` the cosine of the same angle.

    Shapes: positions (..., L) give (..., L, D) for an even number D of `features`; computed in f32 for 16-bit floats.
    Source: Vaswani et al., "Attention is all you need" (2017), section 3.5.
    """
    if features % 2:
        raise misfit(f"sinusoidal: an even number of features is needed, found {features}")
    angles = _angles(as_tensor(positions), features, base, accumulation_dtype(as_dtype(dtype)))
    pairs = ops.stack((ops.sin(angles), ops.cos(angles)), axis=-1)
    return ops.convert(ops.reshape(pairs, (*angles.shape[:-1], features)), dtype)


def _angles(positions: Any, features: int, base: float, dtype: np.dtype) -> Any:
    """(..., L) positions times D/2 frequencies."""
    frequencies = np.asarray(base ** (-np.arange(0, features, 2) / max(features, 1)), dtype)
    return ops.convert(positions, dtype)[..., None] * frequencies


def within(y: Any, stop: Any, size: int, what: str) -> Any:
    """`y`, which uses the places up to `stop` of the `size` that there are.

    Beyond them a read would be clamped without a word. A known `stop` is then a `ShapeError`; a traced one makes all of
    `y` NaN.
    """
    if isinstance(stop, Tensor):
        return ops.where(stop <= size, y, np.nan)
    if stop > size:
        raise misfit(f"{what} has {size} places, and place {int(stop) - 1} was asked for")
    return y


class SinusoidalPositions(Module):
    """Adds the sines and cosines of `sinusoidal` to its input; it has no parameters."""

    base: float = static(default=10000.0)

    def __call__(self, x: Any, offset: Any = 0) -> Any:
        """`x` [..., L, D] with even D, whose first token stands at `offset` (an integer, or an i32 scalar)."""
        x = _sequence("SinusoidalPositions", as_tensor(x))
        positions = ops.arange(x.shape[-2]) + offset
        return x + sinusoidal(positions, x.shape[-1], base=self.base, dtype=x.dtype)


class LearnedPositions(Module):
    """Adds a learned vector to each token, one for each of `context` positions."""

    table: Any
    """f32[context,features]"""

    def __init__(
        self,
        context: int,
        features: int,
        *,
        key: Any,
        initializer: initializers.Initializer = SMALL,
        dtype: DTypeLike = "f32",
    ) -> None:
        self._set(table=initializer(key, (context, features), dtype))

    def __call__(self, x: Any, offset: Any = 0) -> Any:
        """`x` [..., L, features], whose first token stands at `offset` (an integer, or an i32 scalar).

        Raises `ShapeError` for more positions than the table has; with a traced offset the result is then NaN.
        """
        x = _sequence("LearnedPositions", as_tensor(x))
        (context, features), length = self.table.shape, x.shape[-2]
        if x.shape[-1] != features or length > context:
            raise misfit(
                f"LearnedPositions({context}, {features}) takes at most {context} tokens of {features} features, "
                f"found {type_of(x)}"
            )
        stop = as_tensor(offset) + length
        vectors = ops.dynamic_slice(self.table, (offset, 0), (length, features))
        return within(x + vectors, stop, context, "the table of positions")


def _sequence(layer: str, x: Any) -> Any:
    if x.ndim < 2:
        raise misfit(f"{layer} takes an input (..., length, features), found {type_of(x)}")
    return x
