"""One draw, computed in every way that there is, against `jax.random`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import antegrad as ag
from tests.support import assert_same_bits, devices, run

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5), (65537,)]
"""A scalar, sizes 0 and 1, odd ones, several axes, and more than 2**16 elements."""


def raw_key(seed: int) -> np.ndarray:
    """JAX's key of a seed, as u32[2]."""
    return np.asarray(jax.random.PRNGKey(seed))


def reference(draw: Callable[..., Any], *arguments: Any, wide: bool = False, **keywords: Any) -> np.ndarray:
    """What JAX draws on the CPU; `wide` allows 64-bit types."""
    with jax.enable_x64(wide), jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(draw(*arguments, **keywords))


def everywhere(draw: Callable[..., Any], *arguments: Any) -> dict[str, np.ndarray]:
    """`draw` at once, and captured on every device; `arguments` are its inputs."""
    results = {"at once": np.asarray(draw(*arguments))}
    program = ag.capture(draw, *arguments, name="draw")
    for device in devices():
        (results[device],) = run(program, arguments, device)
    return results


def assert_draws(expected: np.ndarray, draw: Callable[..., Any], *arguments: Any) -> None:
    """`draw` gives the bits of `expected` at once, and captured on every device."""
    for how, result in everywhere(draw, *arguments).items():
        assert_same_bits(result, expected, how)
