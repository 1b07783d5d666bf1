"""Strict and repeatable tests. That every warning is an error stands in pyproject.toml."""

from __future__ import annotations

import os

import hypothesis
import numpy as np
import pytest

# No deadline: a first call compiles. In CI the examples are the same in every run; elsewhere they vary and find more.
hypothesis.settings.register_profile("antegrad", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("antegrad")


@pytest.fixture(autouse=True)
def _seed_numpy() -> None:
    """Makes a test that draws from NumPy's global generator independent of the tests before it."""
    np.random.seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """The generator for a test's own data, the same in every run."""
    return np.random.default_rng(0)
