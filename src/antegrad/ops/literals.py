"""How constants are written in Python source: exactly, and as short as that allows."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from antegrad.ir.code import ATOM, MULTIPLY, UNARY, Code, dtype_code
from antegrad.ir.types import is_float

_LONGEST_DECIMAL = 6
_LARGEST_DENOMINATOR = 1 << 20
_LARGEST_NUMERATOR = 1 << 4


def scalar_literal(value: np.ndarray | np.generic) -> Code:
    """A bare Python number that becomes exactly `value` when NumPy converts it to the element type of `value`."""
    if value.dtype.kind == "b":
        return Code(str(bool(value)))
    if not is_float(value.dtype):
        return _signed(str(int(value)))
    number = float(value)
    if math.isnan(number):
        return Code("np.nan")
    if math.isinf(number):
        return Code("np.inf") if number > 0 else Code("-np.inf", UNARY)
    if number.is_integer() and abs(number) < 2**53 and not (number == 0 and math.copysign(1, number) < 0):
        return _signed(str(int(number)))
    return _ratio(value, number) or _signed(_decimal(value, number))


def _signed(text: str) -> Code:
    return Code(text, UNARY if text.startswith("-") else ATOM)


def _decimal(value: np.ndarray | np.generic, number: float) -> str:
    """The shortest decimals, with a point or an exponent: ``-0`` would be an integer, which has no sign."""
    shortest = str(value.dtype.type(number)) if value.dtype.itemsize < 8 else repr(number)
    shortest += "" if "." in shortest or "e" in shortest else ".0"
    return shortest if float(shortest) == number or _same(value, float(shortest)) else repr(number)


def _same(value: np.ndarray | np.generic, number: float) -> bool:
    return np.asarray(number).astype(value.dtype).tobytes() == np.asarray(value).tobytes()


def _ratio(value: np.ndarray | np.generic, number: float) -> Code | None:
    """``2 / 512`` where that is exactly `value` and shorter than its decimals."""
    if len(_decimal(value, number)) <= _LONGEST_DECIMAL or abs(number) < 1e-6:
        return None
    fraction = Fraction(number).limit_denominator(_LARGEST_DENOMINATOR)
    text = f"{fraction.numerator} / {fraction.denominator}"
    simple = fraction.denominator > 1 and abs(fraction.numerator) <= _LARGEST_NUMERATOR
    shorter = simple and len(text) < len(_decimal(value, number))
    return Code(text, MULTIPLY) if shorter and _same(value, fraction.numerator / fraction.denominator) else None


def filled_literal(value: np.ndarray | np.generic, shape: tuple[int, ...]) -> Code:
    """``np.zeros(shape, np.float32)``, or ``np.full`` with the number."""
    number, dtype = scalar_literal(value).text, dtype_code(value.dtype)
    return Code(f"np.zeros({shape}, {dtype})" if number == "0" else f"np.full({shape}, {number}, {dtype})")


def array_literal(value: np.ndarray) -> Code:
    """``np.array([1, 2], np.float32)``; an empty array keeps its shape through ``np.zeros``."""
    if value.size == 0:
        return Code(f"np.zeros({value.shape}, {dtype_code(value.dtype)})")
    first = value.flat[0]
    if value.size > 1 and value.tobytes() == np.full(value.shape, first, value.dtype).tobytes():
        return filled_literal(first, value.shape)
    return Code(f"np.array({_rows(value)}, {dtype_code(value.dtype)})")


def _rows(value: np.ndarray) -> str:
    if value.ndim == 0:
        return scalar_literal(value).text
    return f"[{', '.join(_rows(np.asarray(row)) for row in value)}]"
