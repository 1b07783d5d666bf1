"""Resizing images, cutting them into patches, and trading channels for pixels."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import DTYPES, accumulation_dtype, is_float
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.shape import iota, slice_p
from antegrad.ops.spatial import (
    Each,
    Image,
    Padding,
    extents,
    inner_axes,
    padded,
    parts,
    refusal,
    tiles,
    weighted_means,
)

__all__ = ["patches", "pixel_shuffle", "pixel_unshuffle", "resize"]

Method = Literal["nearest", "linear", "bilinear", "trilinear"]


def resize(x: Any, shape: Any, method: Method = "bilinear", antialias: bool = True) -> Any:
    """`x` sampled at the centres of the elements of `shape`: ``y[i]`` lies at ``(i + 0.5) * n / m - 0.5`` of x.

    Shapes: x of any shape gives `shape`, of as many axes, any of which may differ; n is the size in x, m in the result.
    16-bit floats are computed in f32.
    Method: "nearest" takes the element ``(2 * i + 1) * n // (2 * m)``, as jax and torch's "nearest-exact" do.
    "bilinear" ("linear", "trilinear": the number of axes does not matter) weighs by a triangle, renormalised at the
    borders; where x shrinks, `antialias` widens it by n / m. With that it is jax.image.resize, and without it torch's
    interpolate with align_corners=False.
    Edges: an axis may become empty, but an empty one cannot grow: a `ShapeError`, as for another number of axes.
    Derivative: the same weights on dy the other way; for "nearest" the sum of dy over all that took the element.
    """
    x, sizes = as_tensor(x), tuple(shape)
    whole = all(isinstance(size, (int, np.integer)) and size >= 0 for size in sizes)
    if len(sizes) != x.ndim or not whole or any(n == 0 < m for n, m in zip(x.shape, sizes, strict=True)):
        raise refusal("resize", (x,), f"{x.ndim} sizes from 0 up are needed, and 0 cannot grow, found {shape!r}")
    if method == "nearest":
        for axis, m in enumerate(sizes):
            x = _nearest(x, axis, int(m))
        return x
    if method not in ("linear", "bilinear", "trilinear"):
        raise refusal("resize", (x,), f"no method {method!r}; expected nearest, linear, bilinear or trilinear")
    if not is_float(x.dtype):
        raise refusal("resize", (x,), f"{method} needs floats: use .astype(...), or nearest", DTypeError)
    result = ops.convert(x, accumulation_dtype(x.dtype))
    for axis, m in enumerate(sizes):
        if m != x.shape[axis]:
            result = weighted_means(result, axis, _triangles(x.shape[axis], int(m), antialias))
    return ops.convert(result, x.dtype)


def _nearest(x: Any, axis: int, m: int) -> Any:
    n, before, after = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    if n and m % n == 0:
        copies = ops.broadcast_to(ops.reshape(x, (*before, n, 1, *after)), (*before, n, m // n, *after))
        return ops.reshape(copies, (*before, m, *after))
    places = iota((m,), DTYPES["i32"])
    return ops.take_p(x, (places * 2 + 1) * n // (2 * m), axis)


def _triangles(n: int, m: int, antialias: bool) -> Any:
    """Weights (m, n): how far element j is from the centre of sample i, times 2 m, subtracted from the width."""
    samples, places = (iota((m, n), DTYPES["i64"], axis) for axis in (0, 1))
    distance = ops.abs((places * 2 + 1) * m - (samples * 2 + 1) * n)
    return ops.maximum(2 * max(m, n if antialias else m) - distance, 0)


def patches(
    x: Any, window: Each, stride: Each = 1, padding: Padding = "VALID", dilation: Each = 1, layout: str | None = None
) -> Any:
    """The elements of every window as channels, zeros where it lies in the padding (im2col).

    Shapes: x (N, H, W, C) gives (N, H', W', C * h * w), with sizes, `padding` and `layout` as in `conv`. Element (i, j)
    of the window in channel c becomes channel ``(c * h + i) * w + j``, as in torch's unfold and in
    jax.lax.conv_general_dilated_patches.
    Edges: a window larger than the padded x is a `ShapeError`.
    Derivative: for each element the sum of dy over all its copies.
    """
    image = Image("patches", x, layout)
    size = image.each("window", window)
    moves = image.windows(size, stride, padding, dilation)
    low, high = zip(*moves.padding, strict=True)
    x = padded(image.x, 0, image.whole(low, 0), image.whole(high, 0))
    reach, strides, dilations = (image.whole(each, 1) for each in (size, moves.strides, moves.dilation))
    rows = zip(x.shape, extents(reach, dilations), strides, strict=True)
    counts = tuple((n - extent) // step + 1 for n, extent, step in rows)
    if reach == strides and max(dilations) == 1:
        cut, inner = tiles(x, reach), inner_axes(reach)
        order = [axis for axis in range(cut.ndim) if axis not in inner]
        order[image.channel + 1 : image.channel + 1] = inner
        found = ops.transpose(cut, order)
    else:
        every = [slice_p(x, *part) for part in parts(counts, reach, strides, dilations)]
        found = ops.stack(every, image.channel + 1)
    shape = [n * math.prod(size) if axis == image.channel else n for axis, n in enumerate(counts)]
    return ops.reshape(found, tuple(shape))


def pixel_shuffle(x: Any, factor: Each, layout: str | None = None) -> Any:
    """Channels as pixels, as torch has it: ``y[n, h * r + i, w * r + j, c] = x[n, h, w, (c * r + i) * r + j]``.

    Shapes: x (N, H, W, C * r * r) gives (N, H * r, W * r, C), where r is `factor`, one number or one for each spatial
    axis; `layout` is that of `conv`. (TensorFlow's depth_to_space has c behind i and j.)
    Edges: channels that `factor` does not divide so often are a `ShapeError`.
    Derivative: `pixel_unshuffle` of dy.
    """
    image = Image("pixel_shuffle", x, layout)
    factors = image.each("factor", factor)
    channels, rest = divmod(image.x.shape[image.channel], math.prod(factors))
    if rest:
        raise image.error(f"factor {factors} does not divide the {image.x.shape[image.channel]} channels")
    count = len(factors)
    before, after = image.x.shape[: image.channel], image.x.shape[image.channel + 1 :]
    apart = ops.reshape(image.x, (*before, channels, *factors, *after))
    order: list[int] = []
    for axis in range(image.x.ndim):
        order.append(axis + count if axis > image.channel else axis)
        if axis in image.axes:
            order.append(image.channel + 1 + image.axes.index(axis))
    mixed = ops.transpose(apart, order)
    sizes = [n * k for n, k in zip(image.x.shape, image.whole(factors, 1), strict=True)]
    sizes[image.channel] = channels
    return ops.reshape(mixed, tuple(sizes))


def pixel_unshuffle(x: Any, factor: Each, layout: str | None = None) -> Any:
    """Pixels as channels, the reverse of `pixel_shuffle`: the patches whose windows are as large as their stride.

    Shapes: x (N, H * r, W * r, C) gives (N, H, W, C * r * r).
    Edges: sizes that `factor` does not divide are a `ShapeError`.
    Derivative: `pixel_shuffle` of dy.
    """
    image = Image("pixel_unshuffle", x, layout)
    factors = image.each("factor", factor)
    if any(n % k for n, k in zip(image.sizes, factors, strict=True)):
        raise image.error(f"factor {factors} does not divide the spatial sizes {image.sizes}")
    return patches(x, factors, factors, layout=layout)
