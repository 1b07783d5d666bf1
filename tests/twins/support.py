"""What the tests of the twins share."""

from __future__ import annotations

import numpy as np
import pytest

SIDES = ("jax", "torch")


def need(side: str) -> None:
    """The test is skipped where the packages of `side` are missing."""
    package = {"jax": "optax", "torch": "torch"}[side]
    pytest.importorskip(package, reason=f"{package} is not installed")


def assert_follows(losses: np.ndarray, expected: np.ndarray, allowed: float) -> None:
    """Every loss is finite and within `allowed` of the expected one, relatively; the message says from when on not."""
    assert losses.shape == expected.shape
    assert np.isfinite(expected).all()
    distance = np.abs(losses - expected) / np.abs(expected)
    wrong = ~(distance <= allowed)
    if wrong.any():
        first, worst = int(np.argmax(wrong)), int(np.argmax(distance))
        raise AssertionError(
            f"losses differ from step {first} on: {losses[first]:.9g}, expected {expected[first]:.9g}, "
            f"{distance[first]:.2g} relatively; at most {distance[worst]:.2g}, in step {worst}; allowed {allowed:.2g}"
        )
