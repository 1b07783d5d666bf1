"""Says at the end how much was certified."""

from __future__ import annotations

import re
from typing import Any

CASE = re.compile(r"tests/ops/test_\w+\.py::test_(forward|derivatives|torch)\[(\w+)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line: operators, cases by kind, and how many were skipped; their reasons are in pytest's own summary."""
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
