"""Layers that convolve: `Conv1D`, `Conv2D`, `ConvTranspose1D` and `ConvTranspose2D`. Channels are the last axis."""

from __future__ import annotations

from typing import Any, ClassVar

from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ir.types import DTypeLike, type_of
from antegrad.nn import initializers
from antegrad.nn.layers import Activation, activated
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.spatial import Each, Padding


class _Convolution(Module):
    """What the layers share; for the arguments see `Conv2D`."""

    w: Any
    b: Any
    stride: tuple[int, ...] = static()
    padding: Padding = static()
    dilation: tuple[int, ...] = static()
    groups: int = static(default=1)
    activation: Activation | None = static(default=None)

    axes: ClassVar[str] = ""
    """The spatial axes, a letter each."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Each,
        *,
        key: Any,
        stride: Each = 1,
        padding: Padding = "SAME",
        dilation: Each = 1,
        groups: int = 1,
        bias: bool = True,
        activation: Activation | None = None,
        initializer: initializers.Initializer = initializers.lecun_normal,
        dtype: DTypeLike = "f32",
    ) -> None:
        if groups < 1 or inputs % groups or outputs % groups:
            sizes = f"{inputs} inputs and {outputs} outputs"
            raise ShapeError(f"{type(self).__name__}: {groups} groups do not divide {sizes}")
        shape = (*self._each("kernel", kernel), inputs // groups, outputs)
        self._set(w=self._arranged(initializer(key, shape, dtype), groups))
        self._set(b=ops.zeros((outputs,), dtype) if bias else None)
        self._set(stride=self._each("stride", stride), dilation=self._each("dilation", dilation))
        self._set(padding=_hashable(padding), groups=groups, activation=activation)

    def _each(self, name: str, value: Each) -> tuple[int, ...]:
        """One number for each spatial axis."""
        count = len(self.axes)
        numbers = (value,) * count if isinstance(value, int) else tuple(value)
        if len(numbers) != count or min(numbers) < 1:
            expected = " or ".join(["a number from 1 up", *([f"{count} of them"] if count > 1 else [])])
            raise ShapeError(f"{type(self).__name__}: {name} must be {expected}, found {value!r}")
        return numbers

    def _arranged(self, drawn: Any, groups: int) -> Any:
        """The kernel (..., inputs / groups, outputs) as the layer keeps it."""
        return drawn

    @property
    def _channels(self) -> tuple[int, int]:
        """How many channels go in and come out."""
        return self.w.shape[-2] * self.groups, self.w.shape[-1]

    def _checked(self, x: Any) -> Any:
        """`x` as a tensor [N, *spatial, inputs]; a `ShapeError` that names the layer if it is not."""
        x, (inputs, outputs) = as_tensor(x), self._channels
        if x.ndim != len(self.axes) + 2 or x.shape[-1] != inputs:
            kernel = "x".join(map(str, self.w.shape[:-2]))
            raise misfit(
                f"{type(self).__name__}({inputs} -> {outputs}, kernel {kernel}) takes an input "
                f"[N, {', '.join(self.axes)}, {inputs}], found {type_of(x)}; its kernel is {type_of(self.w)}"
            )
        return x

    def _options(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def __call__(self, x: Any) -> Any:
        """`x` [N, *spatial, inputs] to [N, *spatial', outputs], with the sizes of `ops.conv`.

        Raises `ShapeError` for another number of axes or channels, or a kernel that is larger than the padded x.
        """
        return activated(ops.conv(self._checked(x), self.w, **self._options()), self.b, self.activation)


class Conv2D(_Convolution, init=False):
    """Convolution of images [N, H, W, inputs] (`ops.conv`), ``+ b``, and `activation` of that where there is one.

    Arguments of the constructor: channels in and out, the sizes of the kernel, a threefry `key`; `stride`, `padding`,
    `dilation` and `groups` as `ops.conv` takes them, but "SAME" padding unless another is given, as in Flax; the
    activation, the initializer of `w` (LeCun normal by default), and whether there is a bias, which starts at 0.
    Parameters: ``w`` f32[h,w,inputs/groups,outputs] and ``b`` f32[outputs]. The constructor raises `ShapeError` for
    groups that do not divide the channels.
    """

    axes = "HW"


class Conv1D(_Convolution, init=False):
    """Convolution of sequences [N, W, inputs]; otherwise as `Conv2D`, with ``w`` f32[w,inputs/groups,outputs]."""

    axes = "W"


class _ConvTranspose(_Convolution, init=False):
    def _arranged(self, drawn: Any, groups: int) -> Any:
        *sizes, inputs, outputs = drawn.shape
        parted = ops.reshape(drawn, (*sizes, inputs, groups, outputs // groups))
        moved = ops.swapaxes(parted, -1, -3)
        return ops.reshape(moved, (*sizes, outputs // groups, groups * inputs))

    @property
    def _channels(self) -> tuple[int, int]:
        return self.w.shape[-1], self.w.shape[-2] * self.groups

    def __call__(self, x: Any, output_size: Each | None = None) -> Any:
        """`x` [N, *spatial, inputs] to [N, *spatial', outputs], with the sizes of `ops.conv_transpose`.

        Raises `ShapeError` for another number of axes or channels, or an `output_size` that no convolution has.
        """
        y = ops.conv_transpose(self._checked(x), self.w, output_size=output_size, **self._options())
        return activated(y, self.b, self.activation)


class ConvTranspose2D(_ConvTranspose, init=False):
    """The adjoint of the convolution of images with these sizes (`ops.conv_transpose`): a stride makes them larger.

    Arguments of the constructor are those of `Conv2D`. Padding means what is cut off of the result. Parameters: ``w``
    f32[h,w,outputs/groups,inputs], the kernel of the convolution from `outputs` to `inputs`, and ``b`` f32[outputs].
    """

    axes = "HW"


class ConvTranspose1D(_ConvTranspose, init=False):
    """`ConvTranspose2D` for sequences [N, W, inputs], with ``w`` f32[w,outputs/groups,inputs]."""

    axes = "W"


def _hashable(padding: Padding) -> Padding:
    """The padding with tuples for lists, so that structures can be compared."""
    if isinstance(padding, (str, int)):
        return padding
    return tuple(pair if isinstance(pair, int) else tuple(pair) for pair in padding)
