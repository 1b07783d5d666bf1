"""Convolution in 1, 2 and 3 dimensions, and its adjoint, the transposed convolution."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from antegrad.ops.convolution import conv_general, input_gradient
from antegrad.ops.promotion import unify
from antegrad.ops.spatial import Each, Image, Padding, Pads, Sizes, extents, same_padding

__all__ = ["conv", "conv_transpose"]


def conv(
    x: Any,
    w: Any,
    stride: Each = 1,
    padding: Padding = "VALID",
    dilation: Each = 1,
    groups: int = 1,
    layout: str | None = None,
) -> Any:
    """Correlation: ``y[n, p, o] = sum over q, c of x[n, stride * p + dilation * q - before, c] * w[q, c, o]``.

    Shapes: x (N, H, W, C) and w (h, w, C / groups, O) give (N, H', W', O), where H' is ``(H + before + after - extent)
    // stride + 1`` with ``extent = dilation * (h - 1) + 1``; 16-bit floats are summed in f32. The layout is NWC, NHWC
    or NDHWC by the number of axes; ``layout="NCHW"`` (NCW, NCDHW) takes x (N, C, H, W) and w (O, C / groups, h, w), as
    torch does.
    Padding: "VALID" is none; "SAME" gives ``ceil(H / stride)`` places, and what is odd is larger behind; else a number
    for all sides, or for each spatial axis a number or a pair (before, after).
    Groups: channels and outputs fall into `groups`, each convolved on its own; depthwise where ``groups = C``.
    Edges: an empty batch gives an empty result. A kernel that is larger than the padded x, channels that do not fit, a
    negative padding, and a stride or dilation below 1 are a `ShapeError`.
    Derivative: by x the transposed convolution of dy with w; by w the correlation of x with dy.
    """
    x, w = unify("conv", x, w)
    image = Image("conv", x, layout, w)
    kernel = _kernel(image, w, groups)
    channels = x.shape[image.channel]
    if channels != kernel.inputs * groups:
        raise image.error(
            f"w takes {kernel.inputs * groups} channels, {kernel.inputs} for each of {groups} groups, and x has "
            f"{channels} on axis {image.channel}"
        )
    moves = image.windows(kernel.sizes, stride, padding, dilation)
    return conv_general(x, w, kernel.labels, moves.strides, moves.padding, None, moves.dilation, groups)


def conv_transpose(
    x: Any,
    w: Any,
    stride: Each = 1,
    padding: Padding = "VALID",
    dilation: Each = 1,
    groups: int = 1,
    output_size: Each | None = None,
    layout: str | None = None,
) -> Any:
    """The adjoint of `conv` with these arguments: ``sum(conv(a, w) * x) = sum(a * conv_transpose(x, w))`` for every a.

    Shapes: x (N, H', W', O) and w (h, w, C / groups, O), the kernel as `conv` takes it, give (N, H, W, C). With
    ``layout="NCHW"`` x is (N, O, H', W') and w (O, C / groups, h, w), as in torch.
    Size: `stride` sizes H have the same H'. Unless `output_size` names one for the spatial axes, it is ``stride * H'``
    with "SAME", and else the smallest, ``stride * (H' - 1) + dilation * (h - 1) + 1 - before - after``, to which
    torch's output_padding adds. So padding means what is cut off here, not what is put around x.
    Edges: an empty batch gives an empty result. A size that `conv` would not bring to that of x, channels that do not
    fit, a negative padding, and a stride or dilation below 1 are a `ShapeError`.
    Derivative: by x the convolution of dy with w; by w the correlation of dy with x.
    """
    x, w = unify("conv_transpose", x, w)
    image = Image("conv_transpose", x, layout, w)
    kernel = _kernel(image, w, groups)
    if x.shape[image.channel] != kernel.outputs:
        channels = f"{x.shape[image.channel]} on axis {image.channel}"
        raise image.error(f"the convolution with w gives {kernel.outputs} channels, and x has {channels}")
    strides, dilations = image.each("stride", stride), image.each("dilation", dilation)
    pads, sizes = _sizes_before(image, extents(kernel.sizes, dilations), strides, padding, output_size)
    shape = list(x.shape)
    shape[image.channel] = kernel.inputs * groups
    for axis, size in zip(image.axes, sizes, strict=True):
        shape[axis] = size
    return input_gradient(
        x, w, tuple(shape), labels=kernel.labels, strides=strides, padding=pads, x_dilation=(1,) * len(sizes),
        w_dilation=dilations, feature_groups=groups, batch_groups=1, precision="default",
    )  # fmt: skip


class _Kernel(NamedTuple):
    """The spatial sizes of a kernel, its channels in (of one group) and out, and the labels of the convolution."""

    sizes: Sizes
    inputs: int
    outputs: int
    labels: str


def _kernel(image: Image, w: Any, groups: int) -> _Kernel:
    digits, first = "012"[: len(image.axes)], image.channel == 1
    of_x, of_w = (f"bf{digits}", f"oi{digits}") if first else (f"b{digits}f", f"{digits}io")
    if w.ndim != len(of_w) or 0 in w.shape:
        spatial = ", ".join("dhw"[-len(digits) :])
        form = f"(O, C / groups, {spatial})" if first else f"({spatial}, C / groups, O)"
        raise image.error(f"with layout {image.layout} the kernel w is {form}, and no axis of it is empty")
    inputs, outputs = w.shape[of_w.index("i")], w.shape[of_w.index("o")]
    if not isinstance(groups, (int, np.integer)) or groups < 1 or outputs % groups:
        raise image.error(f"groups must divide the {outputs} outputs of w, found {groups!r}")
    return _Kernel(tuple(w.shape[of_w.index(c)] for c in digits), inputs, outputs, f"{of_x}_{of_w}->{of_x}")


def _sizes_before(
    image: Image, reach: Sizes, strides: Sizes, padding: Padding, output_size: Each | None
) -> tuple[Pads, Sizes]:
    """The padding and the sizes from which the convolution makes those of `image`."""
    same = padding == "SAME"
    pads = ((0, 0),) * len(reach) if same else image.pads(padding, reach, strides)
    rows = list(zip(image.sizes, reach, strides, pads, strict=True))
    if output_size is not None:
        sizes = image.each("output_size", output_size)
    else:
        sizes = tuple(s * m if same else s * (m - 1) + e - low - high for m, e, s, (low, high) in rows)
    if same:
        pads = same_padding(sizes, reach, strides)
    moves = zip(sizes, reach, strides, pads, strict=True)
    made = tuple((n + low + high - e) // s + 1 for n, e, s, (low, high) in moves)
    if made != image.sizes or min(*made, *sizes) < 1:
        raise image.error(
            f"the convolution would make {made} of the spatial sizes {sizes}, and x has {image.sizes} "
            f"(window {reach}, strides {strides}, padding {pads})"
        )
    return pads, sizes
