"""NumPy functions called on traced tensors: which operation each of them means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import AntegradError, TraceError
from antegrad.ir.primitive import REGISTRY
from antegrad.ops.dispatch import here

_SAME_NAME_UFUNCS = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "negative", "abs", "sign",
    "maximum", "minimum", "exp", "expm1", "log", "log1p", "sqrt", "cbrt", "square", "reciprocal", "sin", "cos", "tan",
    "tanh", "arctan2", "floor", "ceil", "isfinite", "isnan", "isinf", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and",
    "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift", "matmul", "trunc", "copysign", "signbit",
    "deg2rad", "rad2deg", "logaddexp2",
]  # fmt: skip

_UFUNCS: dict[np.ufunc, Callable] = {
    **{getattr(np, name): getattr(ops, name) for name in _SAME_NAME_UFUNCS},
    np.rint: ops.round,
    np.fmod: ops.truncated_remainder,
    np.positive: lambda x: x,
}

_SAME_NAME_FUNCTIONS = [
    "where", "sum", "prod", "mean", "var", "std", "max", "min", "all", "any", "argmax", "argmin", "reshape",
    "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze", "concatenate", "stack", "split", "flip",
    "broadcast_to", "ravel", "tile", "zeros_like", "ones_like", "full_like", "sort", "argsort", "take_along_axis",
    "dot", "outer", "tensordot", "tril", "triu", "round", "einsum", "median", "nansum", "nanmean", "nanmax", "nanmin",
    "ptp", "average", "count_nonzero", "diff", "repeat", "roll", "rot90", "flipud", "fliplr", "hstack", "vstack",
    "array_split", "atleast_1d", "atleast_2d", "diag", "diagonal", "trace", "searchsorted", "inner", "kron", "vdot",
    "sinc", "nan_to_num", "isclose", "isposinf", "isneginf",
]  # fmt: skip

_SAME_NAME_LINALG = ["cholesky", "det", "inv", "matrix_power", "slogdet", "solve"]


def _take(x: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Any:
    if mode == "clip" and axis is not None:
        return ops.take_p(x, indices, axis)
    return ops.take(x, indices, axis)


def _clip(x: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    return ops.clip(x, min if a_min is None else a_min, max if a_max is None else a_max)


def _cumulative(operation: Callable) -> Callable:
    def call(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
        return operation(x if dtype is None else x.astype(dtype), axis)

    return call


def _quantile(operation: Callable) -> Callable:
    def call(x: Any, q: Any, axis: Any = None, *, method: str = "linear", keepdims: bool = False) -> Any:
        return operation(x, q, axis, keepdims, method)

    return call


def _pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    return ops.pad(x, pad_width, mode, constant_values)


_FUNCTIONS: dict[Callable, Callable] = {
    **{getattr(np, name): getattr(ops, name) for name in _SAME_NAME_FUNCTIONS},
    **{getattr(np.linalg, name): getattr(ops, name) for name in _SAME_NAME_LINALG},
    np.clip: _clip,
    np.linalg.norm: ops.norm,
    np.cumsum: _cumulative(ops.cumsum),
    np.cumprod: _cumulative(ops.cumprod),
    np.quantile: _quantile(ops.quantile),
    np.percentile: _quantile(ops.percentile),
    np.pad: _pad,
    np.take: _take,
}
_ACCUMULATIONS: dict[np.ufunc, Callable] = {np.maximum: ops.cummax, np.minimum: ops.cummin}
_IGNORED_KEYWORDS = {"kind": "stable", "optimize": True, "out": None, "casting": "same_kind"}


def ufunc_call(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict[str, Any]) -> Any:
    """The operation for a ufunc called on a traced tensor; `TraceError` when there is none."""
    if method == "accumulate" and ufunc in _ACCUMULATIONS and keywords.keys() <= {"axis"}:
        return _ACCUMULATIONS[ufunc](*inputs, keywords.get("axis", 0))
    operation = _UFUNCS.get(ufunc) or _declared(ufunc)
    if method != "__call__" or operation is None or keywords:
        how = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        raise TraceError(_refusal(how, keywords))
    return operation(*inputs)


def _declared(ufunc: np.ufunc) -> Callable | None:
    """The primitive whose NumPy text is a call of `ufunc`."""
    calls = f"np.{ufunc.__name__}("
    return next((p for p in REGISTRY.values() if p.numpy.startswith(calls) and callable(p)), None)


def function_call(function: Callable, args: tuple, keywords: dict[str, Any]) -> Any:
    """The operation for a NumPy function called on a traced tensor; `TraceError` when there is none."""
    operation = _FUNCTIONS.get(function)
    if operation is None:
        raise TraceError(_refusal(_name(function), {}))
    kept = {key: value for key, value in keywords.items() if not _is_ignored(key, value)}
    try:
        return operation(*args, **kept)
    except AntegradError:
        raise
    except TypeError as error:
        raise TraceError(f"{_refusal(_name(function), kept)}: {error}") from None


def _is_ignored(key: str, value: Any) -> bool:
    """Whether a keyword asks for what is done anyway. An array, as `out`, has no single truth to compare."""
    array = isinstance(value, (np.ndarray, ops.Tensor))
    return not array and key in _IGNORED_KEYWORDS and _IGNORED_KEYWORDS[key] == value


def _name(function: Callable) -> str:
    """``np.linalg.norm``."""
    return f"{function.__module__.replace('numpy', 'np', 1)}.{function.__name__}"


def _refusal(how: str, keywords: dict[str, Any]) -> str:
    place = str(here())
    detail = f" with {', '.join(keywords)}" if keywords else ""
    return f"{how}{detail} on a traced tensor has no counterpart in antegrad.ops" + (f"\n  at {place}" if place else "")
