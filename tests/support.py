"""What tests of many families share: devices, arrays from a short text, and comparison in units in the last place."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from antegrad import tree
from antegrad.ir.program import Program
from antegrad.ir.types import DTYPES, SHORT_NAMES, is_float

EXACT, FUNCTION, COMPOSED, SUM = "exact", "function", "composed", "sum"
ULPS: dict[str, dict[str, float]] = {
    EXACT: {"f64": 0.5, "f32": 0.5, "bf16": 0.5, "f16": 0.5},
    FUNCTION: {"f64": 4, "f32": 4, "bf16": 0.51, "f16": 0.51},
    COMPOSED: {"f64": 16, "f32": 16, "bf16": 2, "f16": 2},
    SUM: {"f64": 2, "f32": 2, "bf16": 0.51, "f16": 0.51},
}
"""Allowed distance from the true value, in units in the last place (ulp) of the result.

EXACT is correctly rounded. FUNCTION is one call of a function library in the working precision, f32 for 16-bit floats
and then rounded once. COMPOSED is a chain of such steps, each of which rounds. SUM is a sum of products whose terms
may cancel, measured in ulps of the sum of their magnitudes.
"""

GRADIENT_EPS: dict[str, float] = {"f64": 32, "f32": 32, "bf16": 4, "f16": 4}
"""Allowed error of a gradient in machine epsilons, relative to its largest element.

A second derivative is measured relative to the largest element of the first one too, since its parts may cancel.
"""

DIFFERENCE = 1e-9
"""Allowed error of an f64 gradient against finite differences of fourth order, relative to its largest element."""


def devices() -> tuple[str, ...]:
    """The devices on which programs are certified: the host, and XLA on the CPU."""
    return ("host", "cpu")


def run(program: Program, arrays: Sequence[Any], device: str) -> list[np.ndarray]:
    """The outputs of `program` on `device`, in a flat list."""
    return [np.asarray(output) for output in tree.leaves(program.run(*arrays, device=device))]


_OPERAND = re.compile(
    r"(?P<dtype>\w+)(?:{(?P<values>.*)})?(?:\[(?P<shape>[\d,]*)\])?(?P<turned>\.T)?(?::(?P<low>[^:]+):(?P<high>.+))?"
)


def array(text: str, seed: str = "") -> np.ndarray:
    """An array as `text` says.

    ``f32[3,4]`` holds random values within -2 to 2, ``f32[3,4]:0.5:2`` within other bounds; integers lie within -9 to
    9 (0 to 9 for unsigned ones), both ends included. The same text and seed give the same values. ``f32{0 -0 nan}``
    holds the values listed, and ``f32{0 -0 nan}[2,3]`` holds them over and over in a shape; ``.T`` at the end
    transposes it. max, min (the lowest) and tiny (the smallest normal number) are those of the type.
    """
    match = _OPERAND.fullmatch(text)
    assert match, f"{text!r} does not describe an array"
    dtype = DTYPES[match["dtype"]]
    shape = tuple(int(size) for size in (match["shape"] or "").split(",") if size)
    if match["values"] is not None:
        with np.errstate(over="ignore"):
            listed = np.array([_number(word, dtype) for word in match["values"].split()], dtype)
        listed = listed if match["shape"] is None else np.resize(listed, shape)
        return np.ascontiguousarray(listed.T) if match["turned"] else listed
    rng = np.random.default_rng(zlib.crc32(f"{text} {seed}".encode()))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if is_float(dtype):
        return rng.uniform(float(match["low"] or -2), float(match["high"] or 2), shape).astype(dtype)
    lowest = 0 if dtype.kind == "u" else -9
    return rng.integers(int(match["low"] or lowest), int(match["high"] or 9), shape, endpoint=True).astype(dtype)


def _number(word: str, dtype: np.dtype) -> Any:
    """A number of `dtype` as it stands between braces."""
    if word in ("max", "min", "tiny"):
        return getattr(ml_dtypes.finfo(dtype) if is_float(dtype) else np.iinfo(dtype), word)
    return float(word) if is_float(dtype) else int(word)


def unit(truth: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The unit in the last place of `dtype` at each (finite) f64 value."""
    info = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(truth)
    return np.ldexp(1.0, np.maximum(exponent - 1, info.minexp) - info.nmant)


def ulps(actual: np.ndarray, truth: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
    """Distance of each element of a float array from an f64 value, in ulps of the array's type at `scale`, or there.

    Equal infinities and two NaN have the distance 0; a finite number and one that is not are infinitely far apart,
    unless the finite true value rounds to that infinity.
    """
    with np.errstate(all="ignore"):
        rounded = truth.astype(actual.dtype).astype(np.float64)
        wide = actual.astype(np.float64)
        same = (wide == rounded) & ~np.isfinite(rounded) | np.isnan(wide) & np.isnan(rounded)
        size = truth if scale is None else scale
        distance = np.abs(wide - truth) / unit(np.where(np.isfinite(size), size, 0), actual.dtype)
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


def assert_within(
    actual: np.ndarray,
    truth: np.ndarray,
    allowed: float,
    what: str,
    *,
    signs: bool = False,
    flushed: bool = False,
    scale: np.ndarray | None = None,
) -> None:
    """Every element of `actual` within `allowed` ulps of the f64 array `truth`.

    With `signs`, zeros must have the same sign; with `flushed`, a 0 may stand for a number too small to be normal.
    """
    distance = ulps(actual, truth, scale)
    if flushed:
        small = np.abs(truth) < float(ml_dtypes.finfo(actual.dtype).smallest_normal)
        distance = np.where(small & (actual == 0), 0, distance)
    if signs:
        zeros = (actual == 0) & (truth == 0)
        distance = np.where(zeros & (np.signbit(actual) != np.signbit(truth)), np.inf, distance)
    assert_below(distance, allowed, "ulp", actual, truth, what)


def assert_close(actual: np.ndarray, truth: np.ndarray, allowed: float, what: str, scale: float = 0) -> None:
    """Every element of `actual` within `allowed`, relative to `scale` or the largest element of `truth`."""
    largest = max(np.max(np.abs(truth), initial=0), scale)
    distance = np.abs(actual.astype(np.float64) - truth) / (largest or 1)
    assert_below(distance, allowed, f"relative to {largest:.3g}", actual, truth, what)


def assert_below(
    distance: np.ndarray, allowed: float, unit: str, actual: np.ndarray, truth: np.ndarray, what: str
) -> None:
    wrong = ~(distance <= allowed)
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(np.isnan(distance), np.inf, distance)), distance.shape)
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} elements are off; at {tuple(map(int, worst))} found "
            f"{actual[worst]}, expected {truth[worst]}: {distance[worst]:.3g} {unit}, allowed {allowed:.3g}"
        )


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal types, shapes and bits; NaN equals NaN."""
    found, wanted = describe(actual), describe(expected)
    assert found == wanted, f"{what}: found {found}, expected {wanted}"
    numbers = is_float(actual.dtype)
    same = (actual == expected) | (numbers & (actual != actual) & (expected != expected))
    if numbers:
        same &= (np.signbit(actual) == np.signbit(expected)) | (actual != actual)
    assert same.all(), f"{what}: found\n{actual}\nexpected\n{expected}"


def describe(array: np.ndarray) -> str:
    """``f32[3,4]``."""
    return f"{SHORT_NAMES[array.dtype]}[{','.join(map(str, array.shape))}]"
