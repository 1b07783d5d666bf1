"""What is asked of XLA for training on a GPU, without one."""

from __future__ import annotations

import pytest

from antegrad.runtime.device import DeviceInfo
from antegrad.train.options import compiler_options

GPU = DeviceInfo("gpu:0", "gpu", "a GPU", None)
CPU = DeviceInfo("cpu", "cpu", "2 cores", None)


def test_a_cpu_needs_none(caplog: pytest.LogCaptureFixture) -> None:
    for graph_capture in (False, True):
        assert compiler_options(CPU, graph_capture, deterministic=True) == {}
    assert not caplog.text


def test_graph_capture_turns_command_buffers_on_and_nothing_else() -> None:
    off, on = (compiler_options(GPU, captured, deterministic=False) for captured in (False, True))
    assert set(off) == set(on) == {"xla_gpu_enable_command_buffer"}
    assert off["xla_gpu_enable_command_buffer"] == ""
    assert {"FUSION", "CUBLAS", "CUDNN", "WHILE"} <= set(on["xla_gpu_enable_command_buffer"].split(","))


def test_determinism_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    options = compiler_options(GPU, False, deterministic=True)
    assert options["xla_gpu_exclude_nondeterministic_ops"] is True
    assert options["xla_gpu_autotune_level"] == 0
    assert "deterministic=True on gpu:0" in caplog.text
    assert "longer" in caplog.text
