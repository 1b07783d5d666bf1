"""What the operations on images share: which axes are spatial, how windows move over them, and errors that say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from antegrad import ops
from antegrad.errors import AntegradError, DTypeError, ShapeError
from antegrad.ir.types import accumulation_dtype, is_float, type_of
from antegrad.ops.dispatch import as_tensor, here
from antegrad.ops.linalg import dot_general
from antegrad.ops.shape import pad_p, slice_p

__all__: list[str] = []

Sizes = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
Each = int | Sequence[int]
"""One number for all spatial axes, or one for each."""
Padding = str | int | Sequence[int | Sequence[int]]
"""``"VALID"``, ``"SAME"``, one number for every side, or for each spatial axis a number or a pair (before, after)."""

LAYOUTS = {3: ("NWC", "NCW"), 4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}
"""The layouts of 1, 2 and 3 spatial axes, by the number of axes; the first is the default."""


class Windows(NamedTuple):
    """How a window moves, for each spatial axis: how far, over what padding, and the distance of its elements."""

    strides: Sizes
    padding: Pads
    dilation: Sizes


def refusal(
    operation: str, operands: Sequence[Any], message: str, kind: type[AntegradError] = ShapeError
) -> AntegradError:
    """The error, with the types of all operands and the user's line."""
    place = str(here())
    text = f"{operation} of {' and '.join(str(type_of(x)) for x in operands)}: {message}"
    return kind(f"{text}\n  at {place}" if place else text)


class Image:
    """The operand x of `operation`: its layout, its spatial `axes` with their `sizes`, and the axis of its channels.

    `others` are operands that an error names too.
    """

    def __init__(self, operation: str, x: Any, layout: str | None, *others: Any) -> None:
        self.x = x = as_tensor(x)
        self.operation, self.operands = operation, (x, *others)
        if x.ndim not in LAYOUTS:
            raise self.error("x has a batch axis, 1 to 3 spatial axes and a channel axis")
        self.layout = LAYOUTS[x.ndim][0] if layout is None else layout
        if self.layout not in LAYOUTS[x.ndim]:
            raise self.error(f"layout {layout!r} does not name {x.ndim} axes; expected {' or '.join(LAYOUTS[x.ndim])}")
        self.channel = self.layout.index("C")
        self.axes = tuple(axis for axis, letter in enumerate(self.layout) if letter not in "NC")
        self.sizes = tuple(x.shape[axis] for axis in self.axes)

    def error(self, message: str, kind: type[AntegradError] = ShapeError) -> AntegradError:
        """The error, with the types of all operands and the user's line."""
        return refusal(self.operation, self.operands, message, kind)

    def wide(self) -> Any:
        """x with its 16-bit floats as f32, so that what is summed keeps its bits; floats alone have means."""
        if not is_float(self.x.dtype):
            raise self.error("floats are needed: use .astype(...)", DTypeError)
        return ops.convert(self.x, accumulation_dtype(self.x.dtype))

    def whole(self, numbers: Sequence[Any], other: Any, axes: Sizes | None = None) -> tuple[Any, ...]:
        """The numbers of the spatial axes, or of those in `axes`, in their places, and `other` for all other axes."""
        of = dict(zip(self.axes, numbers, strict=True))
        kept = self.axes if axes is None else axes
        return tuple(of[axis] if axis in kept else other for axis in range(self.x.ndim))

    def each(self, name: str, given: Each, least: int = 1) -> Sizes:
        """`given` for every spatial axis."""
        count = len(self.axes)
        numbers = (given,) * count if isinstance(given, (int, np.integer)) else tuple(given)
        fits = len(numbers) == count and all(isinstance(n, (int, np.integer)) and n >= least for n in numbers)
        if not fits or isinstance(given, bool):
            raise self.error(f"{name} must be a number from {least} up, or {count} of them, found {given!r}")
        return tuple(int(n) for n in numbers)

    def windows(self, window: Sizes, stride: Each, padding: Padding, dilation: Each) -> Windows:
        """The movement of a window of these sizes, none of which may be larger than the padded x."""
        strides, dilations = self.each("stride", stride), self.each("dilation", dilation)
        reach = extents(window, dilations)
        pads = self.pads(padding, reach, strides)
        for axis, size, extent, (low, high) in zip(self.axes, self.sizes, reach, pads, strict=True):
            if not 1 <= extent <= low + size + high:
                raise self.error(
                    f"a window of {extent} (window {window}, dilation {dilations}) is larger than what it moves over: "
                    f"axis {axis} has size {size}, with padding {low} and {high}"
                )
        return Windows(strides, pads, dilations)

    def pads(self, padding: Padding, reach: Sizes, strides: Sizes) -> Pads:
        """`padding` as a pair for each spatial axis, for windows that extend so far."""
        if isinstance(padding, str):
            return self._named(padding, reach, strides)
        count = len(self.axes)
        listed = [padding] * count if isinstance(padding, (int, np.integer)) else list(padding)
        pairs = [(p, p) if isinstance(p, (int, np.integer)) else tuple(p) for p in listed]
        numbers = [n for pair in pairs for n in pair]
        right = len(pairs) == count and all(len(pair) == 2 for pair in pairs) and not isinstance(padding, bool)
        if not right or any(not isinstance(n, (int, np.integer)) or n < 0 for n in numbers):
            raise self.error(
                f"padding must be 'VALID', 'SAME', a number from 0 up, or a number or a pair (before, after) for each "
                f"of {count} spatial axes, found {padding!r}"
            )
        return tuple((int(low), int(high)) for low, high in pairs)

    def _named(self, padding: str, reach: Sizes, strides: Sizes) -> Pads:
        if padding == "VALID":
            return ((0, 0),) * len(self.axes)
        if padding != "SAME":
            raise self.error(f"padding {padding!r} has no meaning; expected 'VALID', 'SAME' or numbers")
        return same_padding(self.sizes, reach, strides)


def same_padding(sizes: Sizes, reach: Sizes, strides: Sizes) -> Pads:
    """The padding with which ``ceil(size / stride)`` windows fit; an odd one has the larger half behind."""
    totals = (max((-(-n // s) - 1) * s + e - n, 0) for n, e, s in zip(sizes, reach, strides, strict=True))
    return tuple((total // 2, total - total // 2) for total in totals)


def extents(window: Sizes, dilation: Sizes) -> Sizes:
    """How far a window extends along each axis."""
    return tuple((size - 1) * step + 1 for size, step in zip(window, dilation, strict=True))


def padded(x: Any, value: float, low: Sizes, high: Sizes) -> Any:
    """`x` with `value` around it; a negative width cuts off."""
    return pad_p(x, np.asarray(value, x.dtype), low, high, (0,) * x.ndim) if any((*low, *high)) else x


def block(x: Any, start: Sizes, size: Sizes) -> Any:
    """The part of `x` of this size that begins at `start`."""
    stop = tuple(a + n for a, n in zip(start, size, strict=True))
    return x if size == x.shape else slice_p(x, start, stop, (1,) * x.ndim)


def parts(counts: Sizes, window: Sizes, strides: Sizes, dilation: Sizes) -> list[tuple[Sizes, Sizes, Sizes]]:
    """For each place in the window, in order, the slice of the elements that stand there in all windows."""
    slices = []
    for place in np.ndindex(*window):
        start = tuple(number * step for number, step in zip(place, dilation, strict=True))
        rows = zip(start, counts, strides, strict=True)
        slices.append((start, tuple(a + (n - 1) * step + 1 if n else a for a, n, step in rows), strides))
    return slices


def tiles(x: Any, window: Sizes) -> Any:
    """x cut into windows that neither overlap nor leave gaps; `inner_axes` of the result lie inside a window."""
    counts = tuple(n // size for n, size in zip(x.shape, window, strict=True))
    whole = block(x, (0,) * x.ndim, tuple(n * k for n, k in zip(counts, window, strict=True)))
    return ops.reshape(whole, with_inner_axes(counts, window, window))


def with_inner_axes(outer: Sizes, inner: Sizes, window: Sizes) -> Sizes:
    """The shape that has `outer`, and behind each axis along which the window is larger than 1 the size in `inner`."""
    rows = zip(outer, inner, window, strict=True)
    return tuple(n for count, size, k in rows for n in ((count, size) if k > 1 else (count,)))


def inner_axes(window: Sizes) -> Sizes:
    """The axes that `with_inner_axes` adds."""
    return tuple(axis + sum(k > 1 for k in window[: axis + 1]) for axis, size in enumerate(window) if size > 1)


def weighted_means(x: Any, axis: int, weights: Any) -> Any:
    """Means over `axis`, one for each row of `weights`, which are integers and need not sum to 1."""
    shares = ops.convert(weights, x.dtype)
    shares = shares / ops.sum(shares, 1, keepdims=True)
    return ops.moveaxis(dot_general(shares, x, ((1,), (axis,)), precision="highest"), 0, axis)
