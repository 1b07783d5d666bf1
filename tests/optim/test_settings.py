"""Settings of optimizers that are refused: the error names the optimizer, the setting, the range and the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from antegrad import optim
from antegrad.errors import AntegradError, SettingError
from antegrad.optim import settings

NAN, INF = float("nan"), float("inf")
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (optim.adam, {"b1": 1.0}, r"adam: b1 must be a number in \[0, 1\), found 1.0"),
    (optim.adam, {"b2": -0.1}, r"adam: b2 must be a number in \[0, 1\), found -0.1"),
    (optim.adam, {"eps": INF}, r"adam: eps must be a number in \(0, inf\), found inf"),
    (optim.adamw, {"eps": 0.0}, r"adamw: eps must be a number in \(0, inf\), found 0.0"),
    (optim.adamw, {"weight_decay": -1}, r"adamw: weight_decay must be a number in \[0, inf\), found -1"),
    (optim.adamw, {"mask": "w"}, "adamw: mask must be a function, found 'w'"),
    (optim.sgd, {"momentum": 1.0}, r"sgd: momentum must be a number in \[0, 1\), found 1.0"),
    (optim.sgd, {"nesterov": True}, "sgd: nesterov looks ahead along the momentum, and momentum is 0"),
    (optim.sgd, {"momentum": 0.9, "nesterov": 1}, "sgd: nesterov must be True or False, found 1"),
    (optim.sgd, {"weight_decay": NAN}, "sgd: weight_decay must be .* found nan"),
    (optim.rmsprop, {"decay": 1.0}, r"rmsprop: decay must be a number in \[0, 1\)"),
    (optim.rmsprop, {"eps": 0}, r"rmsprop: eps must be a number in \(0, inf\)"),
    (optim.rmsprop, {"momentum": NAN}, "rmsprop: momentum must be"),
    (optim.rmsprop, {"centered": None}, "rmsprop: centered must be True or False, found None"),
    (optim.lion, {"b1": "0.9"}, "lion: b1 must be a number in .* found '0.9'"),
    (optim.lion, {"b2": 1}, "lion: b2 must be"),
    (optim.adafactor, {"decay_rate": 0.0}, r"adafactor: decay_rate must be a number in \(0, 1\]"),
    (optim.adafactor, {"clip_threshold": 0.0}, r"adafactor: clip_threshold must be a number in \(0, inf\]"),
    (optim.adafactor, {"eps": 0.0}, "adafactor: eps must be"),
    (optim.adafactor, {"smallest_scale": None}, "adafactor: smallest_scale must be"),
    (optim.adafactor, {"smallest_factored": 1.5}, "adafactor: smallest_factored must be a whole number in"),
    (optim.adafactor, {"scale_parameter": 1}, "adafactor: scale_parameter must be True or False"),
    (optim.muon, {"momentum": 1.0}, "muon: momentum must be"),
    (optim.muon, {"nesterov": "yes"}, "muon: nesterov must be"),
    (optim.muon, {"steps": 0}, r"muon: steps must be a whole number in \[1, 2\*\*31\), found 0"),
    (optim.muon, {"consistent_rms": 0.0}, r"muon: consistent_rms must be a number in \(0, inf\)"),
    (optim.muon, {"rest": 0.1}, "muon: what trains parameters must be an Optimizer, found 0.1"),
    (optim.add_decayed_weights, {"weight_decay": NAN}, "add_decayed_weights: weight_decay must be .* found nan"),
    (optim.add_decayed_weights, {"weight_decay": 0.1, "mask": 1}, "add_decayed_weights: mask must be a function"),
    *(
        (make, {"learning_rate": rate}, f"{make.__name__}: learning_rate must be .* found {rate!r}")
        for make in (optim.sgd, optim.adam, optim.adamw, optim.rmsprop, optim.lion, optim.adafactor, optim.muon)
        for rate in (NAN, INF, -1e-3, "1e-3", True, [0.1])
    ),
    *(
        (make, {"weight_decay": decay}, f"{make.__name__}: weight_decay must be .* found {decay!r}")
        for make in (optim.adamw, optim.sgd, optim.rmsprop, optim.lion, optim.adafactor, optim.muon)
        for decay in (NAN, -0.1)
    ),
]


@pytest.mark.parametrize(("make", "settings", "message"), REFUSED)
def test_settings_out_of_range_are_refused(make: Callable[..., Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}".replace("[0.1]", r"\[0.1\]")):
        make(**({} if make in (optim.adafactor, optim.add_decayed_weights) else {"learning_rate": 1e-3}) | settings)


@pytest.mark.parametrize("interval", ["[0, 1)", "(0, 1]", "(0, inf)", "[0, inf]"])
def test_intervals(interval: str) -> None:
    inside = {"[0, 1)": {0, 0.5}, "(0, 1]": {0.5, 1}, "(0, inf)": {0.5, 1}, "[0, inf]": {0, 0.5, 1, INF}}
    for value in (-INF, -0.5, 0, 0.5, 1, INF, NAN):
        if value in inside[interval]:
            assert settings.number("f", "x", value, interval) == value
        else:
            with pytest.raises(SettingError):
                settings.number("f", "x", value, interval)


def test_numbers_of_numpy_become_python_numbers() -> None:
    assert type(settings.number("f", "x", np.float32(0.5), "[0, 1)")) is float
    assert type(settings.number("f", "x", np.int64(0), "[0, 1)")) is float
    assert type(settings.whole("f", "x", np.int64(3), 1)) is int
    assert settings.number("f", "x", 10**300, "[0, inf)") == 1e300


def test_a_setting_error_is_a_value_error() -> None:
    assert issubclass(SettingError, ValueError)
    assert issubclass(SettingError, AntegradError)
