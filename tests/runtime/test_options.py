"""Which options XLA gets for a program, where the user says nothing."""

from __future__ import annotations

from typing import Any

import pytest

import antegrad as ag
from antegrad import nn, ops
from antegrad.runtime import xla

LARGE, SMALL = ag.spec((512, 128)), ag.spec((512, 2))
FUSION = "xla_cpu_experimental_ynn_fusion_type"


def library(function: Any, type: ag.TensorType, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What XLA may hand to its library for `function`, if it knows all options."""
    monkeypatch.setattr(xla, "_known", lambda name, value: True)
    options = xla.default_options("cpu", ag.capture(function, type))
    return {each.removeprefix("LIBRARY_FUSION_TYPE_") for each in options[FUSION].split(",")}


REDUCING = {
    "sum": lambda x: ops.sum(x, 1),
    "max in a loop": lambda x: ag.scan(lambda c, _: (c + ops.max(x), None), ops.sum(x[:1, :1]), length=2)[0],
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
    "norm": lambda x: nn.LayerNorm(x.shape[1])(x),
}


@pytest.mark.parametrize("name", REDUCING)
def test_only_large_reductions_go_to_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those inside of softmax and norms as well."""
    assert library(REDUCING[name], LARGE, monkeypatch) == {"DOT", "REDUCE"}
    assert library(REDUCING[name], SMALL, monkeypatch) == {"DOT"}


def test_what_reduces_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library(lambda x: ops.gelu(x) + ops.reshape(x, x.shape), LARGE, monkeypatch) == {"DOT"}


def test_an_option_that_this_xla_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "CPU_OPTIONS", {**xla.CPU_OPTIONS, "xla_cpu_no_such_option": True})
    options = xla.default_options("cpu", ag.capture(ops.sin, SMALL))
    assert "xla_cpu_no_such_option" not in options
    assert options["xla_allow_excess_precision"] is False


def test_other_platforms_get_none() -> None:
    assert xla.default_options("gpu", ag.capture(ops.softmax, LARGE)) == {}
