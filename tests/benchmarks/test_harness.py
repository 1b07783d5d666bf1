"""`python -m benchmarks` runs its sides in processes of their own, checks their losses, and prints a table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("optax", reason="the JAX side of the benchmarks needs optax")

from benchmarks.__main__ import table
from benchmarks.sides import side
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_workload_is_timed_beside_jax(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    found = run("W5", "--rounds", "1", "--sides", "antegrad", "jax", "--json", str(file))
    assert found.returncode == 0, found.stderr
    assert "| W5 disc" in found.stdout
    assert '"processor_ratio"' in file.read_text(encoding="utf-8")


def test_an_unknown_workload_is_named() -> None:
    found = run("W9")
    assert found.returncode == 2
    assert "unknown workload W9" in found.stderr


def test_losses_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import __main__ as harness

    class Fake:
        def __init__(self, side: str, loss: float) -> None:
            self.side, self.loss = side, loss

        def run(self, steps: int) -> dict[str, float]:
            return {"loss": self.loss}

    with pytest.raises(SystemExit, match=r"W1: the losses after 4 steps differ: .*'jax': 2\.01"):
        harness._check_losses(WORKLOADS["W1"], [Fake("antegrad", 2.0), Fake("jax", 2.01)])  # pyright: ignore


@pytest.mark.parametrize("name", ["W1", "W5"])
def test_both_sides_train_alike(name: str) -> None:
    """The loss falls, and it is the same on both sides after as many steps."""
    workload = WORKLOADS[name]
    steps = max(4, workload.dispatch)
    losses = {kind: side(kind, workload).run(steps) for kind in ("antegrad", "jax")}
    assert losses["antegrad"] == pytest.approx(losses["jax"], rel=workload.agree)
    assert losses["antegrad"] < {"W1": 2.3, "W5": 0.2}[name]


def test_every_workload_of_the_plan_is_there() -> None:
    assert list(WORKLOADS) == ["W1", "W2", "W3", "W4a", "W4b", "W5", "W6"]


def test_the_table_has_a_row_a_workload() -> None:
    row = {
        "workload": "W1", "title": "MLP", "ms": {"antegrad": 1.0, "jax": 2.0}, "ratio": {"jax": 0.5},
        "processor_ratio": {"jax": 0.75}, "roof_ms": 0.25, "of_roof": 0.25, "peak_mib": {"antegrad": 1, "jax": 2},
    }  # fmt: skip
    head, rule, line = table([row], ["antegrad", "jax"]).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line == "| W1 MLP | 1 | 2 | 0.50 | 0.75 | 0.25 | 25% | 1 | 2 |"
