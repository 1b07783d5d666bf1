"""What NumPy lacks: the fused multiply-add, the error function and its inverse.

In f32 the host repeats the arithmetic of XLA, so that normally distributed draws have the same bits on both.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.builder import Builder
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, tensor
from antegrad.ir.program import Equation, Program, Source
from antegrad.ir.types import TensorType, accumulation_dtype, is_float, type_of
from antegrad.ops.dispatch import as_tensor, here, lift, tracing
from antegrad.ops.elementwise import Elementwise, Unary, mul_no_nan
from antegrad.ops.promotion import harmonise
from antegrad.ops.tensor import Tensor

__all__ = ["erf", "erfinv", "fma"]

F = TypeVar("F", bound=Callable[..., Any])


def fma_helper(x: Any, y: Any, z: Any) -> Any:
    """x * y + z rounded once: sums that keep their error, the last but one rounded to odd (Boldo, Melquiond, 2008)."""
    dtype = np.result_type(x, y, z)
    x, y, z = (np.asarray(operand, dtype).astype(np.float64) for operand in (x, y, z))

    def two_sum(a: Any, b: Any) -> Any:
        total = a + b
        part = total - a
        return total, (a - (total - part)) + (b - part)

    def odd_sum(a: Any, b: Any) -> Any:
        total, error = two_sum(a, b)
        neighbour = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        even = total.view(np.int64) % 2 == 0
        return np.where(even & (error != 0) & np.isfinite(error), neighbour, total)

    def halves(a: Any) -> Any:
        high = 134217729.0 * a
        high = high - (high - a)
        return high, a - high

    product = x * y
    if dtype != np.float64:
        return odd_sum(product, z).astype(dtype)
    (a, b), (c, d) = halves(x), halves(y)
    low, lowest = two_sum(z, ((a * c - product) + a * d + b * c) + b * d)
    high, middle = two_sum(product, low)
    total = high + odd_sum(middle, lowest)
    return np.where(np.isfinite(total) & (total != 0), total, product + z)


class Fma(Elementwise):
    """``x * y + z`` of f32 or f64, rounded once.

    XLA rounds once where it puts product and sum into one loop of a processor that can: on GPUs and on all CPUs but
    very old ones.

    Shapes: x, y and z broadcast; 16-bit floats are a `DTypeError`.
    Edges: in f64 the host rounds twice where a factor is above 1e300 or the product below 1e-290.
    Derivative: ``dy * y``, ``dy * x`` and dy.
    """

    numpy = "fma_helper({x}, {y}, {z})"
    helpers = (fma_helper,)
    accepts = ("float",)
    cost = 2

    def result(self, x: TensorType, y: TensorType, z: TensorType) -> TensorType:
        type = self.checked(x, y, z)
        if type.dtype.itemsize < 4:
            raise DTypeError(f"fma is for f32 and f64, found {type}: processors have none for 16-bit floats")
        return type

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        type = tensor(equation.output.type)
        product = emitter.op(f"stablehlo.multiply {operands[0]}, {operands[1]} : {type}")
        return emitter.op(f"stablehlo.add {product}, {operands[2]} : {type}")

    def vjp(self, dy: Any, value: Any, x: Any, y: Any, z: Any) -> Any:
        return dy * y, dy * x, dy


def erfinv_helper(
    x: Any,
    center: Any = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                   -0.00417768164, 0.246640727, 1.50140941),
    tail: Any = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                 0.00943887047, 1.00167406, 2.83297682),
) -> Any:  # fmt: skip
    """Inverse of the error function in f32 (Giles, 2010), with the bits that XLA gives on a CPU.

    There the product before a sum is not rounded. In f64 that product is exact, so rounding the sum is enough.
    """
    f32 = np.float32

    def fma(a: Any, b: Any, c: Any) -> Any:
        return (np.multiply(a, b, dtype=np.float64) + c).astype(f32)

    def horner(x: Any, total: Any, *coefficients: float) -> Any:
        for coefficient in coefficients:
            total = fma(total, x, f32(coefficient))
        return total

    def log(x: Any) -> Any:  # Cephes, logf.c
        mantissa, exponent = np.frexp(x)
        low = mantissa < f32(0.707106781186547524)
        exponent = (exponent - low).astype(f32)
        z = (mantissa - f32(1)) + np.where(low, mantissa, f32(0))
        square = z * z
        cube = square * z
        total = horner(z, f32(7.0376836292e-2), -1.1514610310e-1, 1.1676998740e-1)
        total = fma(total, cube, horner(z, f32(-1.2420140846e-1), 1.4249322787e-1, -1.6668057665e-1))
        total = fma(total, cube, horner(z, f32(2.0000714765e-1), -2.4999993993e-1, 3.3333331174e-1))
        total = fma(total, cube, exponent * f32(-2.12194440e-4))
        return fma(exponent, f32(0.693359375), fma(square, f32(-0.5), z) + total)

    def log1p(x: Any) -> Any:  # Cephes, unity.c, for -1 <= x <= 0
        top = horner(x, f32(4.5270000862e-5), 4.9854102823e-1, 6.5787325942e0, 2.9911919329e1, 6.0949667981e1,
                     5.7112963591e1, 2.0039553499e1)  # fmt: skip
        bottom = horner(x, f32(1), 1.5062909083e1, 8.3047565968e1, 2.2176239824e2, 3.0909872225e2, 2.1642788615e2,
                        6.0118660498e1)  # fmt: skip
        square = x * x
        near = x + fma(square, f32(-0.5), square * x * (top / bottom))
        return np.where(x > f32(1 - 2**0.5), near, log(f32(1) + x))

    def block(x: Any) -> Any:
        w = -log1p(x * -x)
        inner = w < 5
        w = np.where(inner, w - f32(2.5), np.sqrt(w) - f32(3))
        total = np.where(inner, f32(center[0]), f32(tail[0]))
        for a, b in zip(center[1:], tail[1:], strict=True):
            total = fma(total, w, np.where(inner, f32(a), f32(b)))
        edge = np.where(np.abs(x) == 1, f32(np.inf), f32(np.nan))
        return x * np.where(np.abs(x) < 1, total, edge)

    blocks = np.array_split(x.reshape(-1), x.size // 4096 + 1)  # small enough for the processor's cache
    return np.concatenate([block(part) for part in blocks]).reshape(x.shape)


def erfinv64_helper(x: Any) -> Any:
    """Inverse of the error function in f64 (Giles, 2010)."""
    w = -np.log1p(x * -x)
    near, far, root = w - 3.125, w < 16, np.sqrt(w)

    def horner(x: Any, total: Any, *coefficients: float) -> Any:
        for coefficient in coefficients:
            total = total * x + coefficient
        return total

    center = horner(
        near, -3.6444120640178197e-21, -1.6850591381820166e-19, 1.28584807152564e-18, 1.1157877678025181e-17,
        -1.3331716628546209e-16, 2.0972767875968562e-17, 6.6376381343583238e-15, -4.0545662729752069e-14,
        -8.1519341976054722e-14, 2.6335093153082323e-12, -1.2975133253453532e-11, -5.4154120542946279e-11,
        1.0512122733215323e-09, -4.1126339803469837e-09, -2.9070369957882005e-08, 4.2347877827932404e-07,
        -1.3654692000834679e-06, -1.3882523362786469e-05, 0.00018673420803405714, -0.000740702534166267,
        -0.0060336708714301491, 0.24015818242558962, 1.6536545626831027,
    )  # fmt: skip
    middle = horner(
        root - 3.25, 2.2137376921775787e-09, 9.0756561938885391e-08, -2.7517406297064545e-07, 1.8239629214389228e-08,
        1.5027403968909828e-06, -4.013867526981546e-06, 2.9234449089955446e-06, 1.2475304481671779e-05,
        -4.7318229009055734e-05, 6.8284851459573175e-05, 2.4031110387097894e-05, -0.00035503752036284748,
        0.0009532893797373805, -0.0016882755560235047, 0.0024914420961078508, -0.0037512085075692412,
        0.0053709145535900636, 1.0052589676941592, 3.0838856104922208,
    )  # fmt: skip
    end = horner(
        root - 5.0, -2.7109920616438573e-11, -2.5556418169965252e-10, 1.5076572693500548e-09, -3.789465440126737e-09,
        7.61570120807834e-09, -1.496002662714924e-08, 2.9147953450901081e-08, -6.7711997758452339e-08,
        2.2900482228026655e-07, -9.9298272942317e-07, 4.5260625972231537e-06, -1.9681778105531671e-05,
        7.5995277030017761e-05, -0.00021503011930044477, -0.00013871931833623122, 1.0103004648645344,
        4.8499064014085844,
    )  # fmt: skip
    total = np.where(w < 6.25, center, np.where(far, middle, end))
    return x * np.where(np.abs(x) == 1, np.inf, total)


def floating(operation: str, x: Any) -> Any:
    """`x` as a tensor; a `DTypeError` that names the operation when it is none of floats."""
    x = as_tensor(x)
    if not is_float(x.dtype):
        place = str(here())
        message = f"{operation} is for float tensors, found {type_of(x)}: use .astype(...)"
        raise DTypeError(f"{message}\n  at {place}" if place else message)
    return x


def rounded_once(function: F) -> F:
    """`function` of a float tensor, computed in f32 for 16-bit floats and rounded to their type at the end."""

    @functools.wraps(function)
    def wrapped(x: Any, *arguments: Any, **keywords: Any) -> Any:
        x = floating(function.__name__, x)
        wide = ops.convert(x, accumulation_dtype(x.dtype))
        return ops.convert(function(wide, *arguments, **keywords), x.dtype)

    return cast(F, wrapped)


class Special(Elementwise):
    """Base of functions that StableHLO lacks: on XLA they are the composition `formula`, in the operations of `ops`.

    Without a formula of its own, a function has its helper for that, run on traced tensors: so the coefficients stand
    in one place. Where there are two helpers, the second is for f64. 16-bit floats are computed in f32 and rounded.
    """

    accepts = ("float",)
    cost = 50

    def __call__(self, *operands: Any, **keywords: Any) -> Any:
        operands = harmonise(self.name, *operands)
        dtype = operands[0].dtype
        wide = accumulation_dtype(dtype)
        return ops.convert(super().__call__(*(ops.convert(x, wide) for x in operands), **keywords), dtype)

    def checked(self, *operands: TensorType) -> TensorType:
        type = super().checked(*operands)
        if type.dtype.itemsize < 4:
            raise DTypeError(f"{self.name} is for f32 and f64, found {type}: use .astype('f32')")
        return type

    def helper(self, dtype: np.dtype) -> Callable[..., Any]:
        """The helper for an element type."""
        return self.helpers[-1] if dtype.itemsize == 8 else self.helpers[0]

    def render(self, equation: Equation, *operands: Code) -> Code:
        if self.numpy:
            return super().render(equation, *operands)
        helper = self.helper(equation.output.type.dtype)
        return fill(f"{helper.__name__}({{x}})", ("x",), operands, {})

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str:
        composed = _composition(self, equation.input_types, tuple(equation.params.items()))
        return emitter.body(composed, operands)[0]

    def formula(self, *operands: Any, **params: Any) -> Any:
        """The function, written with the operations of `ops`."""
        return self.helper(operands[0].dtype)(*operands, **params)


@lru_cache(maxsize=1024)
def _composition(special: Special, types: Sequence[TensorType], params: tuple[tuple[str, Any], ...]) -> Program:
    """The Program of a function's `formula` for operands of `types`."""
    builder = Builder(source=Source())
    operands = [Tensor(builder.input(type, f"x{i}"), builder) for i, type in enumerate(types)]
    with tracing(builder):
        result = lift(builder, special.formula(*operands, **dict(params)))
    return builder.finish("formula", [result], ["y"])


def _tables(helper: Callable[..., Any]) -> list[tuple[float, ...]]:
    """The tables of coefficients that stand in the signature of a helper."""
    return [p.default for p in inspect.signature(helper).parameters.values() if p.default is not p.empty]


class Erfinv(Special, Unary):
    """Inverse of the error function.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: infinite at -1 and 1, NaN beyond.
    Derivative: ``dy * sqrt(pi) / 2 * exp(result**2)``; infinite at -1 and 1.
    Source: Giles, "Approximating the erfinv function" (2010).
    """

    helpers = (erfinv_helper, erfinv64_helper)

    def formula(self, x: Any) -> Any:
        if x.dtype.itemsize == 8:
            return super().formula(x)
        center, tail = _tables(erfinv_helper)
        w = -ops.log1p(x * -x)
        inner = w < 5
        w = ops.where(inner, w - 2.5, ops.sqrt(w) - 3)
        total = ops.where(inner, *(ops.full(x.shape, table[0]) for table in (center, tail)))
        for coefficients in zip(center[1:], tail[1:], strict=True):
            total = total * w + ops.where(inner, *(ops.full(x.shape, number) for number in coefficients))
        return x * ops.where(ops.abs(x) == 1, math.inf, total)

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return mul_no_nan(dy, math.sqrt(math.pi) / 2 * ops.exp(y * y))


def erf_helper(
    x: Any,
    top: Any = (2.2905065861350646e-4, 3.4082910107109506e-3, 5.0955695062380861e-2, 1.8520832239976145e-1,
                1.128379143519084),
    bottom: Any = (-1.1791602954361697e-7, 2.3547966471313185e-5, 1.0179625278914885e-3, 1.4070470171167667e-2,
                   1.1098505178285362e-1, 4.9746925110067538e-1, 1.0),
) -> Any:  # fmt: skip
    """The error function in f32 (a rational minimax approximation), with the bits that XLA gives on a CPU.

    There the product before a sum is not rounded. In f64 that product is exact, so rounding the sum is enough.
    """
    square = x * x

    def horner(first: float, *coefficients: float) -> Any:
        total = np.float32(first)
        for coefficient in coefficients:
            total = (np.multiply(total, square, dtype=np.float64) + np.float32(coefficient)).astype(np.float32)
        return total

    return np.where(np.abs(x) < np.float32(3.8325069), x * horner(*top) / horner(*bottom), np.sign(x))


def erf64_helper(x: Any) -> Any:
    """The error function in f64 (Cephes, ndtr.c)."""

    def horner(x: Any, total: Any, *coefficients: float) -> Any:
        for coefficient in coefficients:
            total = total * x + coefficient
        return total

    square, size = x * x, np.minimum(np.abs(x), 8.0)
    near = x * horner(square, 9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226,
                      7003.32514112805075473, 55592.3013010394962768)  # fmt: skip
    near = near / horner(square, 1.0, 33.5617141647503099647, 521.357949780152679795, 4594.32382970980127987,
                         22629.0000613890934246, 49267.3942608635921086)  # fmt: skip
    top = horner(size, 2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687,
                 48.6371970985681366614, 196.520832956077098242, 526.445194995477358631, 934.528527171957607540,
                 1027.55188689515710272, 557.535335369399327526)  # fmt: skip
    bottom = horner(size, 1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062,
                    975.708501743205489753, 1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182,
                    557.535340817727675546)  # fmt: skip
    far = np.sign(x) * (1.0 - np.exp(-size * size) * top / bottom)
    return np.where(np.abs(x) < 1, near, far)


class Erf(Special, Unary):
    """The error function ``2 / sqrt(pi) * integral of exp(-t**2) for t from 0 to x``.

    Shapes: x (...) gives the same shape; 16-bit floats are computed in f32.
    Edges: -1 and 1 at the infinities.
    Derivative: ``dy * 2 / sqrt(pi) * exp(-x**2)``.
    """

    helpers = (erf_helper, erf64_helper)

    def formula(self, x: Any) -> Any:
        if x.dtype.itemsize == 8:
            return super().formula(x)
        square = x * x
        top, bottom = (_horner(square, table) for table in _tables(erf_helper))
        return ops.where(ops.abs(x) < 3.8325069, x * top / bottom, ops.sign(x))

    def vjp(self, dy: Any, y: Any, x: Any) -> Any:
        return dy * (2 / math.sqrt(math.pi) * ops.exp(-x * x))


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    total = ops.full(x.shape, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


fma = Fma()
erfinv = Erfinv()
erf = Erf()
