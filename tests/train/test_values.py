"""Values as JSON, which has no NaN, and as a person reads them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from antegrad.errors import DTypeError
from antegrad.train.values import from_json, shown, shown_record, to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (np.True_, "true"),
        (3, "3"),
        (np.int64(3), "3"),
        (0.1, "0.1"),
        (np.float32(0.1), "0.10000000149011612"),
        (ml_dtypes.bfloat16(1.5), "1.5"),
        (math.nan, '"NaN"'),
        (np.float32(np.inf), '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        ("größer", '"größer"'),
        (Path("out/disc"), '"out/disc"'),
        ((1, [2.5, None]), "[1, [2.5, null]]"),
        (np.array([[1, np.nan]]), '[[1.0, "NaN"]]'),
        (np.array(2, ml_dtypes.bfloat16), "2.0"),
        (np.array([1, 2], np.uint8), "[1, 2]"),
        ({"a": {"b": np.float64(1)}}, '{"a": {"b": 1.0}}'),
    ],
    ids=str,
)
def test_json(value: Any, text: str) -> None:
    assert to_json(value, "value") == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_floats_come_back() -> None:
    value = {"loss": [0.1, math.inf, -math.inf], "name": "Inf", "step": 3}
    assert from_json(to_json(value, "value")) == value
    assert math.isnan(from_json('{"loss": "NaN"}')["loss"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"loss": {"f": [print]}}, r"config\['loss'\]\['f'\]\[0\] is <built-in function print> of type builtin_fun"),
        ({1: 2}, "config has the key 1 of type int, expected text"),
        ({"a": 1j}, r"config\['a'\] is 1j of type complex"),
        ({"a": {1, 2}}, r"config\['a'\] is \{1, 2\} of type set"),
    ],
)
def test_what_json_cannot_hold(value: Any, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        to_json(value, "config")


def test_shown() -> None:
    assert shown("loss", 0.123456) == "loss 0.1235"
    assert shown("loss", np.float32(1e-7)) == "loss 1e-07"
    assert shown("loss", ml_dtypes.bfloat16(0.5)) == "loss 0.5"
    assert shown("loss", math.nan) == "loss NaN"
    assert shown("step", 1200) == "step 1200"
    assert shown("samples_per_second", 12345.6) == "12,346 samples/s"
    assert shown("seconds", 3) == "3.0 s"
    assert shown_record({"loss": 0.5, "learning_rate": None, "note": "warm"}) == "loss 0.5  note warm"
