"""`conv_general`, the one primitive behind every convolution and both of its gradients."""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.code import Code, dtype_code, fill
from antegrad.ir.mlir import Emitter, signature
from antegrad.ir.primitive import Primitive
from antegrad.ir.program import Equation
from antegrad.ir.types import BOOL, TensorType, accumulation_dtype, is_float
from antegrad.ops.composition import composed
from antegrad.ops.dispatch import bind
from antegrad.ops.shape import pad_p, slice_p
from antegrad.ops.spatial import Pads, Sizes, extents, parts

__all__ = ["conv_general"]


def conv_general_helper(
    x: Any,
    w: Any,
    labels: Any,
    strides: Any = None,
    padding: Any = None,
    x_dilation: Any = None,
    w_dilation: Any = None,
    feature_groups: Any = 1,
    batch_groups: Any = 1,
) -> Any:
    """Sums of products of w with every window of x: the windows are the rows of one matrix, which is multiplied by w.

    The labels name axes: b is the batch, f the channels, i and o those of w, digits are spatial.
    """
    of_x, of_w, of_y = labels.replace("->", "_").split("_")
    count, groups = len(of_x) - 2, feature_groups * batch_groups
    digits, once = "012"[:count], (1,) * count
    strides, x_dilation, w_dilation = strides or once, x_dilation or once, w_dilation or once

    if padding or x_dilation != once:
        padded = dict(zip(digits, zip(padding or ((0, 0),) * count, x_dilation, strict=True), strict=True))
        low, high, gap = zip(*((*pair, gap) for pair, gap in (padded.get(c, ((0, 0), 1)) for c in of_x)), strict=True)
        sizes = [(size - 1) * step + 1 if size else 0 for size, step in zip(x.shape, gap, strict=True)]
        shape = [max(a, 0) + size + max(b, 0) for a, size, b in zip(low, sizes, high, strict=True)]
        spread = np.zeros(shape, x.dtype)
        spread[tuple(slice(max(a, 0), max(a, 0) + n, s) for a, n, s in zip(low, sizes, gap, strict=True))] = x
        x = spread[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, n, b in zip(low, shape, high, strict=True))]

    x = x.transpose([of_x.index(c) for c in "bf" + digits])
    w = w.transpose([of_w.index(c) for c in "oi" + digits])
    extents = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], w_dilation, strict=True)]
    places = [max(0, (n - e) // s + 1) for n, e, s in zip(x.shape[2:], extents, strides, strict=True)]
    batch, out = x.shape[0] // batch_groups, w.shape[0] // groups
    if not (x.size and w.size and all(places)):
        sizes = {"b": batch, "f": w.shape[0], **dict(zip(digits, places, strict=True))}
        return np.zeros([sizes[c] for c in of_y], x.dtype)

    x = x.reshape(batch_groups, batch, feature_groups, w.shape[1], *x.shape[2:]).swapaxes(1, 2)
    x = x.reshape(groups, batch, w.shape[1], *x.shape[4:])
    windows = np.lib.stride_tricks.sliding_window_view(x, extents, tuple(range(3, count + 3)))
    windows = windows[(..., *(slice(None, None, step) for step in (*strides, *w_dilation)))]
    # Axes in the order that they have in memory: then the matrix is quick to fill.
    kept = [1 if c == "b" else 3 + int(c) for c in of_x if c != "f"]
    summed = [2 if c == "f" else 3 + int(c) for c in of_x if c != "b"]
    columns = [2 if axis == 2 else axis + count for axis in summed]
    w = w.reshape(groups, out, *w.shape[1:]).transpose([0, *summed, 1]).reshape(groups, -1, out)
    rows = [windows.shape[axis] for axis in kept]
    if of_x.index("b") < of_x.index("f"):
        y = windows.transpose([0, *kept, *columns]).reshape(groups, -1, w.shape[1]) @ w
    else:
        y = windows.transpose([0, *columns, *kept]).reshape(groups, w.shape[1], -1).swapaxes(1, 2) @ w
    y = np.moveaxis(y.reshape(groups, *rows, out), 0, -2).reshape(*rows, groups * out)
    return y.transpose([(of_x.replace("f", "") + "f").index(c) for c in of_y])


class ConvGeneral(Primitive):
    """Correlation of x with the kernel w: ``y[p, o] = sum over q, i of w[q, i, o] * x[s * p + e * q - low, i]``.

    The strides s, the dilation e of w and `low`, the padding before x, have one number for each spatial axis.

    `labels` such as ``b01f_01io->b01f`` name the axes of x, w and the result: b is the batch, f the channels, i and o
    those of the kernel in and out, and digits are spatial. `padding` has a pair (low, high) for each spatial axis,
    and a negative one cuts off; `x_dilation` and `w_dilation` put zeros between neighbours. With `feature_groups`
    channels are convolved group by group, each with its own part of o; with `batch_groups` the batch is. Products of
    16-bit floats are summed in f32. `precision` is that of `dot_general`.

    Shapes: as `labels` say; an axis of n and a kernel of k give ``(n + low + high - e * (k - 1) - 1) // s + 1``.
    Edges: a kernel that does not fit, and sizes that do not agree, are a `ShapeError`; an empty batch stays empty.
    Derivative: of x and of w again `conv_general`, of dy with w and with x (see `vjp`).
    """

    helpers = (conv_general_helper,)

    def __call__(
        self,
        x: Any,
        w: Any,
        labels: str,
        strides: Sizes | None = None,
        padding: Pads | None = None,
        x_dilation: Sizes | None = None,
        w_dilation: Sizes | None = None,
        feature_groups: int = 1,
        batch_groups: int = 1,
        precision: str = "default",
    ) -> Any:
        once = (1,) * (x.ndim - 2)
        return bind(
            self, x, w, labels=labels, strides=strides or once, padding=padding or ((0, 0),) * len(once),
            x_dilation=x_dilation or once, w_dilation=w_dilation or once, feature_groups=feature_groups,
            batch_groups=batch_groups, precision=precision,
        )  # fmt: skip

    def result(self, x: TensorType, w: TensorType, **params: Any) -> TensorType:
        if x.dtype != w.dtype or x.dtype == BOOL:
            raise DTypeError(f"conv_general: operands of one number type are needed, found {x} and {w}")
        sizes = _result_sizes(x.shape, w.shape, **{key: params[key] for key in _SHAPING})
        if sizes is None:
            raise ShapeError(f"conv_general: {x} and {w} do not fit together as {params}")
        return x.with_shape(sizes)

    def render(self, equation: Equation, *operands: Code) -> Code:
        params, dtype = equation.params, equation.output.type.dtype
        wide = accumulation_dtype(dtype)
        cast = "" if wide == dtype else f".astype({dtype_code(wide)})"
        template = f"conv_general({{x}}{cast}, {{w}}{cast}, {{labels}}"
        for key in _SHAPING[1:]:
            if np.any(np.asarray(params[key]) != (0 if key == "padding" else 1)):
                template += f", {key}={{{key}}}"
        back = "" if wide == dtype else f".astype({dtype_code(dtype)})"
        return fill(f"{template}){back}", self.operand_names, operands, params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        params, out = equation.params, equation.output.type
        if 0 in (out.size, *(type.size for type in equation.input_types)):
            return emitter.splat(0, out)
        if _is_depthwise(equation):
            return emitter.body(composed(shifted_products, *equation.input_types, **params), operands)[0]
        of_x, of_w, of_y = (f"[{', '.join(label)}]" for label in axes_of(params["labels"]))
        window = {"stride": "strides", "pad": "padding", "lhs_dilate": "x_dilation", "rhs_dilate": "w_dilation"}
        written = ", ".join(f"{key} = {_listed(params[name])}" for key, name in window.items())
        exact = f"#stablehlo<precision {params['precision'].upper()}>"
        # XLA sums products of 16-bit floats in f32, and has fast kernels where the result has the type of the operands.
        return emitter.op(
            f"stablehlo.convolution({', '.join(operands)}) dim_numbers = {of_x}x{of_w}->{of_y}, window = {{{written}}} "
            f"{{batch_group_count = {params['batch_groups']} : i64, feature_group_count = {params['feature_groups']} : "
            f"i64, precision_config = [{exact}, {exact}]}} : {signature(equation.input_types, [out])}"
        )

    def vjp(self, dy: Any, y: Any, x: Any, w: Any, **params: Any) -> Any:
        return input_gradient(dy, w, x.shape, **params), weight_gradient(dy, x, w.shape, **params)

    def batch(self, size: int, operands: Any, batched: Any, **params: Any) -> Any:
        (x, w), (of_x, of_w, of_y) = operands, axes_of(params["labels"])
        features, batches = params["feature_groups"], params["batch_groups"]
        if not batched[1]:
            y = self(_merged(x, of_x.index("b"), batches), w, **params)
            return _parted(y, of_y.index("b"), size)
        if not batched[0]:
            y = self(x, _merged(w, of_w.index("o"), features * batches), **params)
            return _parted(y, of_y.index("f"), size, features * batches)
        key, axis = ("batch_groups", "b") if batches > 1 else ("feature_groups", "f")
        more = {**params, key: params[key] * size}
        y = self(_merged(x, of_x.index(axis)), _merged(w, of_w.index("o")), **more)
        return _parted(y, of_y.index("f"), size)

    def flops(self, equation: Equation) -> int:
        """Two for each product of two elements that are there; those with padding count nothing."""
        (x, w), out, params = equation.input_types, equation.output.type, equation.params
        of_x, of_w, of_y = axes_of(params["labels"])
        pairs = 1
        for i, label in enumerate(_digits(of_x)):
            sizes = (type.shape[of.index(label)] for type, of in ((x, of_x), (w, of_w), (out, of_y)))
            pairs *= _overlaps(*sizes, *(params[key][i] for key in _WINDOW))
        channels = out.shape[of_y.index("f")] * w.shape[of_w.index("i")]
        return 2 * out.shape[of_y.index("b")] * channels * pairs if is_float(out.dtype) else 0


_WINDOW = ("strides", "padding", "x_dilation", "w_dilation")
_SHAPING = ("labels", *_WINDOW, "feature_groups", "batch_groups")


@lru_cache(maxsize=256)
def axes_of(labels: str) -> tuple[str, str, str]:
    """The labels of x, of w and of the result."""
    of_x, of_w, of_y = labels.replace("->", "_").split("_")
    return of_x, of_w, of_y


def _digits(label: str) -> list[str]:
    return sorted(set(label) - set("bfio"))


def extent(size: int, dilation: int) -> int:
    """How many places `size` elements take with ``dilation - 1`` zeros between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


def _listed(value: Any) -> str:
    return f"[{', '.join(map(_listed, value))}]" if isinstance(value, tuple) else str(value)


@lru_cache(maxsize=4096)
def _result_sizes(
    x: Sizes, w: Sizes, labels: str, strides: Sizes, padding: Pads, x_dilation: Sizes, w_dilation: Sizes,
    feature_groups: int, batch_groups: int,
) -> Sizes | None:  # fmt: skip
    """The shape of the result; None where the operands do not fit. Remembered, because layers repeat."""
    (of_x, of_w, of_y), spatial = axes_of(labels), "012"[: len(x) - 2]
    window = strides, padding, x_dilation, w_dilation
    known = sorted(of_x) == sorted(of_y) == [*spatial, "b", "f"] and sorted(of_w) == [*spatial, "i", "o"]
    if not known or len(w) != len(x) or {len(each) for each in window} != {len(spatial)}:
        return None
    if 1 not in (feature_groups, batch_groups):
        return None
    of = {**dict(zip(of_x, x, strict=True)), "i": w[of_w.index("i")], "o": w[of_w.index("o")]}
    if of["f"] != of["i"] * feature_groups or of["o"] % (feature_groups * batch_groups) or of["b"] % batch_groups:
        return None
    result = {"b": of["b"] // batch_groups, "f": of["o"]}
    for label, stride, (low, high), gap, step in zip(spatial, *window, strict=True):
        size = w[of_w.index(label)]
        if size < 1 or min(stride, gap, step) < 1:
            return None
        result[label] = max(0, (extent(of[label], gap) + low + high - extent(size, step)) // stride + 1)
    return tuple(result[label] for label in of_y)


@lru_cache(maxsize=4096)
def _overlaps(
    x: int, w: int, y: int, stride: int, pads: tuple[int, int], x_dilation: int, w_dilation: int
) -> int:
    """How many pairs of a result and an element of the kernel meet an element of x along one axis."""
    places = np.arange(y)[:, None] * stride + np.arange(w) * w_dilation - pads[0]
    return int(np.sum((places >= 0) & (places < extent(x, x_dilation)) & (places % x_dilation == 0)))


def _is_depthwise(equation: Equation) -> bool:
    """Whether every channel has a small kernel of its own, so that `shifted_products` is emitted.

    At 16x32x32x64 with 3x3x1x64 in f32, XLA:CPU with jax 0.10.2 takes 2 ms for that and 100 to 300 for its convolution.
    """
    (x, w), params = equation.input_types, equation.params
    of_x, of_w, _ = axes_of(params["labels"])
    channels = x.shape[of_x.index("f")]
    own = params["feature_groups"] == channels == w.shape[of_w.index("o")] and params["batch_groups"] == 1
    return own and w.size <= 64 * channels


def shifted_products(
    x: Any, w: Any, *, labels: str, strides: Sizes, padding: Pads, x_dilation: Sizes, w_dilation: Sizes, **_: Any
) -> Any:
    """The convolution of every channel on its own: for each place in the window all that stands there, times w."""
    of_x, of_w, of_y = axes_of(labels)

    def along(numbers: Any, other: Any) -> Any:
        return tuple(numbers[int(label)] if label.isdigit() else other for label in of_x)

    wide, (low, high) = accumulation_dtype(x.dtype), zip(*along(padding, (0, 0)), strict=True)
    gaps = tuple(gap - 1 for gap in along(x_dilation, 1))
    around = pad_p(ops.convert(x, wide), np.asarray(0, wide), low, high, gaps)
    window = along([w.shape[of_w.index(label)] for label in _digits(of_w)], 1)
    steps, apart = along(strides, 1), along(w_dilation, 1)
    rows = zip(around.shape, extents(window, apart), steps, strict=True)
    places = parts(tuple((n - reach) // step + 1 for n, reach, step in rows), window, steps, apart)
    order = [*(of_w.index(label) for label in of_x if label.isdigit()), of_w.index("i"), of_w.index("o")]
    kernel = ops.transpose(ops.convert(w, wide), order)
    kernel = ops.reshape(kernel, (len(places), *(-1 if label == "f" else 1 for label in of_x)))
    total = reduce(ops.add, (slice_p(around, *place) * kernel[i] for i, place in enumerate(places)))
    return ops.convert(ops.transpose(total, [of_x.index(label) for label in of_y]), x.dtype)


def input_gradient(dy: Any, w: Any, shape: Sizes, **params: Any) -> Any:
    """The cotangent of x: dy, spread by the strides, convolved with the flipped kernel.

    Along one axis ``y[p] = sum over q of w[q] X[s p + e q - low]``, where X is x with its zeros, ``X[d n] = x[n]``. So
    ``dx[n]`` sums ``w[q] dy[p]`` over all p, q with ``s p = d n - e q + low``. With Y for dy with zeros, ``Y[s p] =
    dy[p]``, and the kernel read backwards, ``q = k - 1 - r``, it sums ``w[k - 1 - r] Y[d n + e r - before]`` over r,
    where ``before = e (k - 1) - low``: a convolution with stride d and dilation s. The padding after is what gives x
    its size.
    """
    of_x, of_w, of_y = axes_of(params["labels"])
    groups = params["feature_groups"] * params["batch_groups"]
    padding = []
    for n, k, m, (low, _) in _along(params, shape, w.shape, dy.shape):
        padding.append((k - 1 - low, n - m + low))
    axes = tuple(axis for axis, label in enumerate(of_w) if label.isdigit() and w.shape[axis] > 1)
    flipped = ops.flip(_exchanged(w, of_w, groups), axes) if axes else _exchanged(w, of_w, groups)
    swapped = of_w.translate(str.maketrans("io", "oi"))
    dx = conv_general(
        dy, flipped, f"{of_y}_{swapped}->{of_x}", params["x_dilation"], tuple(padding), params["strides"],
        params["w_dilation"], groups, 1, params["precision"],
    )  # fmt: skip
    if params["batch_groups"] == 1:
        return dx
    return _merged(_parted(dx, of_x.index("f"), params["batch_groups"]), of_x.index("b"))


def weight_gradient(dy: Any, x: Any, shape: Sizes, **params: Any) -> Any:
    """The cotangent of w: x convolved with dy as its kernel.

    By the equation of `input_gradient`, ``dw[q] = sum over p of dy[p] X[e q + s p - low]``: a convolution with stride
    e in which the kernel has the dilation s. What is summed is the batch, so it takes the place of the channels and
    the channels of x that of the batch; the groups of the channels become groups of the batch, and the other way.
    """
    of_x, of_w, of_y = axes_of(params["labels"])
    padding = []
    for n, k, m, (low, _) in _along(params, x.shape, shape, dy.shape):
        padding.append((low, k - 1 + m - n - low))
    x_labels, w_labels = of_x.translate(str.maketrans("bf", "fb")), of_y.translate(str.maketrans("bf", "io"))
    return conv_general(
        x, dy, f"{x_labels}_{w_labels}->{of_w.translate(str.maketrans('io', 'bf'))}", params["w_dilation"],
        tuple(padding), params["x_dilation"], params["strides"], params["batch_groups"], params["feature_groups"],
        params["precision"],
    )  # fmt: skip


def _along(params: Any, x: Sizes, w: Sizes, y: Sizes) -> list[tuple[int, int, int, tuple[int, int]]]:
    """For each spatial axis the extents of x, w and y with their zeros, and the padding."""
    of_x, of_w, of_y = axes_of(params["labels"])
    rows = zip(_digits(of_x), *(params[key] for key in _WINDOW), strict=True)
    return [
        (extent(x[of_x.index(c)], gap), extent(w[of_w.index(c)], step), extent(y[of_y.index(c)], stride), pads)
        for c, stride, pads, gap, step in rows
    ]


def _exchanged(w: Any, of_w: str, groups: int) -> Any:
    """The kernel with in and out exchanged inside each group: o keeps one group's part, i gets all of them."""
    if groups == 1:
        return w
    i, o = of_w.index("i"), of_w.index("o")
    parts = ops.reshape(w, (*w.shape[:o], groups, w.shape[o] // groups, *w.shape[o + 1 :]))
    shape = list(w.shape)
    shape[i], shape[o] = shape[i] * groups, shape[o] // groups
    return ops.reshape(ops.moveaxis(parts, o, i), tuple(shape))


def _merged(x: Any, axis: int, groups: int = 1) -> Any:
    """The first axis merged into the one that is `axis` without it, inside the `groups` outermost parts of that."""
    before, size, after = x.shape[1 : axis + 1], x.shape[axis + 1], x.shape[axis + 2 :]
    parts = ops.reshape(x, (x.shape[0], *before, groups, size // groups, *after))
    return ops.reshape(ops.moveaxis(parts, 0, axis + 1), (*before, x.shape[0] * size, *after))


def _parted(x: Any, axis: int, count: int, groups: int = 1) -> Any:
    """The reverse of `_merged`: `axis` loses the factor `count`, which becomes the first axis."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    parts = ops.reshape(x, (*before, groups, count, size // (groups * count), *after))
    return ops.reshape(ops.moveaxis(parts, axis + 1, 0), (count, *before, size // count, *after))


conv_general = ConvGeneral()
