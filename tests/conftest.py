"""Strict and repeatable tests, and a count of what was certified. Warnings are errors by pyproject.toml."""

from __future__ import annotations

import os
import re
from typing import Any

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


CASE = re.compile(r"tests/ops/test_\w+\.py::test_(forward|derivatives|torch)\[(\w+)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line on tests/ops: operators, cases by kind, and how many were skipped; pytest itself gives the reasons."""
    counts = {"forward": 0, "derivatives": 0, "torch": 0}
    operators, skipped = set(), 0
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            found = CASE.match(getattr(report, "nodeid", ""))
            if found is None or (outcome != "skipped" and report.when != "call"):
                continue
            operators.add(found[2])
            counts[found[1]] += 1
            skipped += outcome == "skipped"
    if operators:
        listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        total = sum(counts.values())
        terminalreporter.write_line(
            f"certified: {len(operators)} operators, {total} cases ({listed}), {skipped} of them skipped"
        )
