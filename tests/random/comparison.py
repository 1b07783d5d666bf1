"""Draws, computed in every way that there is, against `jax.random`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import tree
from tests.support import assert_same_bits, devices, run


def _computes_f16() -> bool:
    """Whether the processor has instructions for f16, so that XLA does not go through f32 there."""
    info = Path("/proc/cpuinfo")
    return info.exists() and "avx512_fp16" in info.read_text(encoding="utf-8")


F16 = pytest.param(
    "f16",
    marks=pytest.mark.skipif(
        _computes_f16(),
        reason="this processor has f16 instructions, with which XLA rounds a product and a sum once instead of twice",
    ),
)
"""f16 where `jax.random` rounds as it does on most processors."""

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5), (65537,)]
"""A scalar, sizes 0 and 1, odd ones, several axes, and more than 2**16 elements."""


def raw_key(seed: int) -> np.ndarray:
    """JAX's key of a seed, as u32[2]."""
    return np.asarray(jax.random.PRNGKey(seed))


def reference(draw: Callable[..., Any], *arguments: Any, wide: bool = False, **keywords: Any) -> np.ndarray:
    """What JAX draws on the CPU; `wide` allows 64-bit types."""
    with jax.enable_x64(wide), jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(draw(*arguments, **keywords))


def together(draw: Callable[..., Sequence[Any]], *arguments: Any, wide: bool = False) -> list[np.ndarray]:
    """What JAX gives for a function of several draws, compiled as one, which takes less time."""
    with jax.enable_x64(wide), jax.default_device(jax.local_devices(backend="cpu")[0]):
        return [np.asarray(result) for result in jax.jit(draw)(*arguments)]


def everywhere(draw: Callable[..., Any], *arguments: Any) -> dict[str, list[np.ndarray]]:
    """The results of `draw` at once, and captured on every device; `arguments` are its inputs."""
    results = {"at once": [np.asarray(leaf) for leaf in tree.leaves(draw(*arguments))]}
    program = ag.capture(draw, *arguments, name="draw")
    return {**results, **{device: run(program, arguments, device) for device in devices()}}


def assert_draws(expected: np.ndarray | Sequence[np.ndarray], draw: Callable[..., Any], *arguments: Any) -> None:
    """`draw`, which gives an array or a list, gives the bits of `expected` at once, and captured on every device.

    Many draws in one program cost one compilation.
    """
    wanted = [expected] if isinstance(expected, np.ndarray) else expected
    for how, results in everywhere(draw, *arguments).items():
        for position, (result, one) in enumerate(zip(results, wanted, strict=True)):
            assert_same_bits(result, one, f"{how}, result {position}")
