"""What is asked of XLA for a training program."""

from __future__ import annotations

import logging
from typing import Any

from antegrad.runtime.device import DeviceInfo

logger = logging.getLogger("antegrad")


def compiler_options(device: DeviceInfo, graph_capture: bool, deterministic: bool) -> dict[str, Any]:
    """Options for XLA on `device`; a CPU needs none of them.

    - graph capture: command buffers (CUDA graphs) for every kind of kernel; without it none, so that a run without is
      one without.
    - deterministic: no atomic additions, and no choice of algorithms by timing, which may differ from run to run.
    """
    if device.platform not in ("gpu", "cuda"):
        return {}
    captured = "FUSION,CUBLAS,CUDNN,CUBLASLT,CUSTOM_CALL,CONDITIONAL,WHILE" if graph_capture else ""
    options: dict[str, Any] = {"xla_gpu_enable_command_buffer": captured}
    if deterministic:
        logger.warning(
            "deterministic=True on %s: sums without atomic additions and kernels chosen without timing them; steps "
            "take longer, most of all those with convolutions and scatters",
            device.name,
        )
        options |= {"xla_gpu_exclude_nondeterministic_ops": True, "xla_gpu_autotune_level": 0}
    return options
