"""Tensor: what a captured function computes with. It has a type and no value."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from antegrad import ops
from antegrad.errors import TraceError
from antegrad.ir.builder import Builder
from antegrad.ir.program import Value
from antegrad.ir.types import DTypeLike, TensorType, as_dtype


class Tensor:
    """A traced tensor: the operators, indexing and methods of a NumPy array, each of which adds equations.

    NumPy functions and ufuncs called on it (``np.tanh(t)``) go to the operation of the same name in `antegrad.ops`.
    """

    __slots__ = ("builder", "value")
    __array_priority__ = 1000

    def __init__(self, value: Value, builder: Builder) -> None:
        self.value = value
        self.builder = builder

    @property
    def type(self) -> TensorType:
        return self.value.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.value.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.value.type.shape)

    @property
    def size(self) -> int:
        return self.value.type.size

    @property
    def T(self) -> Any:
        return ops.transpose(self)

    @property
    def mT(self) -> Any:
        """The transpose of the last two axes."""
        return ops.swapaxes(self, -1, -2)

    @property
    def at(self) -> Any:
        """``t.at[index].set(values)`` and ``.add(values)``: a changed copy."""
        return ops.IndexUpdate(self)

    def astype(self, dtype: DTypeLike) -> Any:
        return ops.convert(self, as_dtype(dtype))

    def reshape(self, *shape: Any) -> Any:
        return ops.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        return ops.transpose(self, (axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes) or None)

    def swapaxes(self, first: int, second: int) -> Any:
        return ops.swapaxes(self, first, second)

    def view(self, dtype: DTypeLike) -> Any:
        """The same bits as another element type of the same width."""
        return ops.bitcast(self, dtype)

    def copy(self) -> Any:
        return self

    def sum(self, axis: Any = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> Any:
        """Sum over `axis`, of the elements converted to `dtype` where one is given."""
        return ops.sum(self if dtype is None else self.astype(dtype), axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops.mean(self, axis, keepdims)

    def var(self, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
        return ops.var(self, axis, ddof, keepdims)

    def std(self, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
        return ops.std(self, axis, ddof, keepdims)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        return ops.clip(self, min, max)

    def round(self) -> Any:
        """The nearest whole numbers, halves to the even one."""
        return ops.round(self)

    def dot(self, other: Any) -> Any:
        return ops.dot(self, other)

    def take(self, indices: Any, axis: int | None = None) -> Any:
        return ops.take(self, indices, axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> Any:
        return ops.repeat(self, repeats, axis)

    def cumsum(self, axis: int | None = None) -> Any:
        return ops.cumsum(self, axis)

    def prod(self, axis: Any = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> Any:
        """Product over `axis`, of the elements converted to `dtype` where one is given."""
        return ops.prod(self if dtype is None else self.astype(dtype), axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops.max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops.min(self, axis, keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops.any(self, axis, keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> Any:
        return ops.all(self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        return ops.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        return ops.argmin(self, axis, keepdims)

    def flatten(self) -> Any:
        return ops.reshape(self, (-1,) if self.size else (0,))

    ravel = flatten

    def squeeze(self, axis: Any = None) -> Any:
        return ops.squeeze(self, axis)

    def __getitem__(self, index: Any) -> Any:
        return ops.getitem(self, index)

    def __neg__(self) -> Any:
        return ops.negative(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return ops.abs(self)

    def __invert__(self) -> Any:
        return ops.invert(self)

    def __add__(self, other: Any) -> Any:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return ops.subtract(self, other)

    def __rsub__(self, other: Any) -> Any:
        return ops.subtract(other, self)

    def __mul__(self, other: Any) -> Any:
        return ops.multiply(self, other)

    def __rmul__(self, other: Any) -> Any:
        return ops.multiply(other, self)

    def __truediv__(self, other: Any) -> Any:
        return ops.divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return ops.divide(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops.floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops.remainder(other, self)

    def __pow__(self, other: Any) -> Any:
        return ops.power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return ops.power(other, self)

    def __divmod__(self, other: Any) -> Any:
        return ops.floor_divide(self, other), ops.remainder(self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return ops.floor_divide(other, self), ops.remainder(other, self)

    def __round__(self, digits: int | None = None) -> Any:
        if digits:
            self._refuse(f"round(..., {digits})", "use ops.round(x * 10**digits) / 10**digits")
        return ops.round(self)

    def __matmul__(self, other: Any) -> Any:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return ops.matmul(other, self)

    def __and__(self, other: Any) -> Any:
        return ops.bitwise_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return ops.bitwise_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return ops.bitwise_xor(self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Any:
        return ops.left_shift(self, other)

    def __rlshift__(self, other: Any) -> Any:
        return ops.left_shift(other, self)

    def __rshift__(self, other: Any) -> Any:
        return ops.right_shift(self, other)

    def __rrshift__(self, other: Any) -> Any:
        return ops.right_shift(other, self)

    def __lt__(self, other: Any) -> Any:
        return ops.less(self, other)

    def __le__(self, other: Any) -> Any:
        return ops.less_equal(self, other)

    def __gt__(self, other: Any) -> Any:
        return ops.greater(self, other)

    def __ge__(self, other: Any) -> Any:
        return ops.greater_equal(self, other)

    def __eq__(self, other: Any) -> Any:
        return ops.equal(self, other)

    def __ne__(self, other: Any) -> Any:
        return ops.not_equal(self, other)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        if not self.shape:
            self._refuse("a sequence", "a scalar has no elements to count: give it an axis with .reshape(1)")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            self._refuse("a sequence", "a scalar has no elements to go through: give it an axis with .reshape(1)")
        return (self[index] for index in range(self.shape[0]))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        from antegrad.ops.numpy_protocol import ufunc_call

        return ufunc_call(ufunc, method, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        from antegrad.ops.numpy_protocol import function_call

        return function_call(function, args, keywords)

    def __bool__(self) -> NoReturn:
        self._refuse("bool()", "use ops.where or ag.cond for a choice that depends on data")

    def __float__(self) -> NoReturn:
        self._refuse("float()", "keep computing with the tensor; pass numbers that are not data through a closure")

    def __int__(self) -> NoReturn:
        self._refuse("int()", "keep computing with the tensor; pass numbers that are not data through a closure")

    def __index__(self) -> NoReturn:
        self._refuse("an index or a size", "shapes are fixed at capture: take them from .shape")

    def __array__(self, *args: Any, **keywords: Any) -> NoReturn:
        self._refuse("a NumPy array", "use the operation of the same name in antegrad.ops")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        self._refuse("the target of an in-place assignment", "write t = t.at[index].set(value)")

    def item(self) -> NoReturn:
        self._refuse(".item()", "return the tensor from the captured function and read it there")

    tolist = item

    def _refuse(self, use: str, advice: str) -> NoReturn:
        from antegrad.ops.dispatch import here

        name = self.value.name or "the tensor"
        place = str(here())
        raise TraceError(
            f"{name} ({self.type}) is traced: it has a type but no value, and was used as {use}. To mend it: {advice}."
            + (f"\n  at {place}" if place else "")
        )

    def __format__(self, specification: str) -> str:
        """As `repr`, for messages; there is no value to format as a number."""
        if specification:
            self._refuse(f"a number formatted with {specification!r}", "return it and format it outside the capture")
        return repr(self)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self

    def __repr__(self) -> str:
        return f"Tensor({self.value.name or '_'}: {self.type})"
