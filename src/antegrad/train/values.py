"""Values of records and settings: as JSON, and as a person reads them.

JSON has no NaN and no infinities. They are written as the strings "NaN", "Infinity" and "-Infinity", which ``float`` of
Python and ``Number`` of JavaScript read; null would not say which it was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from antegrad.errors import DTypeError
from antegrad.ir.types import is_float

__all__ = ["from_json", "shown", "shown_record", "to_json"]

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES = {str(value): name for name, value in NOT_FINITE.items()}
UNITS = {"learning_rate": "lr {:.4g}", "samples_per_second": "{:,.0f} samples/s", "seconds": "{:.1f} s"}
"""How a person reads the values of these names."""


def to_json(value: Any, where: str, indent: int | None = None) -> str:
    """`value` as one line of JSON, or with an `indent`.

    Text, numbers, None, paths, mappings with text keys, lists, tuples, arrays and NumPy scalars. Raises `DTypeError`
    for anything else; `where` names the value in the message.
    """
    return json.dumps(_plain(value, where), indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(text: str) -> Any:
    """What `to_json` wrote, with lists for sequences and floats where it wrote one of its three strings."""
    return _revived(json.loads(text))


def shown(name: str, value: Any) -> str:
    """``loss 0.1234``: name and value as a person reads them, floats with four digits."""
    plain = _plain(value, name)
    if isinstance(plain, (int, float)) and name in UNITS:
        return UNITS[name].format(plain)
    return f"{name} {plain:.4g}" if isinstance(plain, float) else f"{name} {plain}"


def shown_record(record: Mapping[str, Any]) -> str:
    """The entries of a record on one line, without those that are None."""
    return "  ".join(shown(name, value) for name, value in record.items() if value is not None)


def _plain(value: Any, where: str) -> Any:
    """`value` of the types that JSON has."""
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        value = (array.astype(np.float64) if is_float(array.dtype) else array).tolist()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NAMES[str(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    raise DTypeError(
        f"{where} is {value!r} of type {type(value).__name__}, which JSON cannot hold: "
        "expected text, numbers, None, arrays, or mappings and sequences of them"
    )


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise DTypeError(f"{where} has the key {key!r} of type {type(key).__name__}, expected text")
    return key


def _revived(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_revived(item) for item in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
