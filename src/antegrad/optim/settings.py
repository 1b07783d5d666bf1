"""Checks of settings, made where an optimizer, a schedule or a loss is built: NaN and the like go no further.

Each raises a `SettingError` with the owner, the name of the setting, what it must be, and what was found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from antegrad.errors import SettingError

F = TypeVar("F", bound=Callable[..., Any])

LAST_STEP = 2**31 - 1
"""The largest count of steps: that of an i32."""


def number(owner: str, name: str, value: Any, interval: str) -> float:
    """`value` as a Python float, if it is a number in `interval`, such as ``[0, 1)``. NaN lies in none."""
    if not _inside(value, interval):
        refuse(owner, name, f"a number in {interval}", value)
    return float(value)


def whole(owner: str, name: str, value: Any, lowest: int) -> int:
    """`value` as a Python int, if it is a whole number from `lowest` to 2**31 - 1."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not lowest <= value <= LAST_STEP:
        refuse(owner, name, f"a whole number in [{lowest}, 2**31)", value)
    return int(value)


def flag(owner: str, name: str, value: Any) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        refuse(owner, name, "True or False", value)
    return value


def choice(owner: str, name: str, value: Any, names: Sequence[str]) -> str:
    """`value`, if it is one of `names`."""
    if value not in names:
        refuse(owner, name, f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}", value)
    return value


def function(owner: str, name: str, value: F) -> F:
    """`value`, if it can be called."""
    if not callable(value):
        refuse(owner, name, "a function", value)
    return value


def learning_rate(owner: str, value: Any) -> Any:
    """`value`, if it is a function, or as a Python float, if it is a number in [0, inf)."""
    if callable(value):
        return value
    if not _inside(value, "[0, inf)"):
        refuse(owner, "learning_rate", "a number in [0, inf) or a function of the number of updates done", value)
    return float(value)


def refuse(owner: str, name: str, expected: str, value: Any) -> NoReturn:
    raise SettingError(f"{owner}: {name} must be {expected}, found {value!r}")


def _inside(value: Any, interval: str) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return False
    real, (low, high) = float(value), map(float, interval[1:-1].split(","))
    above = real >= low if interval[0] == "[" else real > low
    below = real <= high if interval[-1] == "]" else real < high
    return above and below
