"""Arrays to a device and back, and how much room it has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from antegrad import tree
from antegrad.runtime.device import DeviceInfo


def put(arrays: Any, device: DeviceInfo) -> Any:
    """A pytree of arrays on `device`, copied, so that the caller may change or donate either side."""
    if device.handle is None:
        return tree.map(np.array, arrays)
    with jax.enable_x64(True):  # or else JAX would narrow 64-bit types
        return tree.map(lambda leaf: jax.device_put(np.array(leaf, order="C"), device.handle), arrays)


def fetch(arrays: Any) -> Any:
    """A pytree of arrays as NumPy arrays of their own memory; waits until they are computed."""
    return tree.map(np.array, arrays)


def ready(arrays: Any) -> None:
    """Wait until a pytree of arrays is computed."""
    jax.block_until_ready(arrays)


def free_bytes(device: DeviceInfo) -> int | None:
    """Bytes that are free on `device` now; None where it does not say."""
    if device.handle is not None and device.platform != "cpu":
        stats = device.handle.memory_stats() or {}
        limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use")
        return None if limit is None or used is None else int(limit - used)
    try:
        # What Linux could give, with the file cache, which takes nearly all that nobody needs.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
