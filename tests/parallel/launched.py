"""Runs of script.py as several processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antegrad import checkpoint, train

SCRIPT = Path(__file__).with_name("script.py")
PATIENCE = 120.0
"""Seconds after which a test gives up; nothing here takes nearly so long."""
TIMEOUT = 3.0
"""For which the processes wait for a silent one."""
LAUNCH = (
    "import json, sys; from antegrad.parallel.launch import launch; "
    "sys.exit(launch(sys.argv[2:], **json.loads(sys.argv[1])))"
)
OURS = re.compile("ANTEGRAD_P|JAX_|SLURM_|OMPI_|KUBERNETES_|JOB_COMPLETION|PJRT_|XLA_|TPU_")
CLOCKED = ("seconds", "samples_per_second")


@dataclass(frozen=True)
class Ended:
    """How a launcher ended, and all that it wrote."""

    code: int
    text: str

    def lines(self, rank: int) -> list[str]:
        """What one rank wrote."""
        prefix = f"[{rank}] "
        return [line.removeprefix(prefix) for line in self.text.splitlines() if line.startswith(prefix)]


def environment(cache: Path) -> dict[str, str]:
    """That of this process without what names a run. What one process has compiled the next ones find in `cache`."""
    kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {**kept, **compiled, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[2])}


def launched(directory: Path, cache: Path, *runs: dict[str, Any], processes: int = 2, **options: Any) -> Ended:
    """Do `runs` (see `script.Plan`) under the launcher; what still runs after `PATIENCE` is killed, and fails."""
    options = {"processes": processes, "timeout": TIMEOUT, "grace": 2.0, **options}
    command = [sys.executable, "-c", LAUNCH, json.dumps(options), str(SCRIPT), str(directory), json.dumps(runs)]
    child = subprocess.Popen(
        command, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = child.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its processes end with it
        child.wait()
    return Ended(child.returncode, text)


def done(directory: Path, cache: Path, *runs: dict[str, Any], **options: Any) -> Ended:
    """`launched`, which must succeed."""
    ended = launched(directory, cache, *runs, **options)
    assert ended.code == 0, ended.text
    return ended


def results(directory: Path, name: str) -> dict[str, np.ndarray]:
    """What came of a run: losses, validated, before.* and after.*."""
    with np.load(directory / f"{name}.npz") as found:
        return dict(found)


def state(found: Mapping[str, np.ndarray], when: str = "after") -> dict[str, np.ndarray]:
    """The state among results."""
    return {name.removeprefix(f"{when}."): array for name, array in found.items() if name.startswith(f"{when}.")}


def same_bits(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (other[name].dtype, other[name].shape, other[name].tobytes())
        for name in one
    )


def records(directory: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what the clock says."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCKED} for line in lines]


def exported(directory: Path) -> bytes:
    """The latest checkpoint of a run as the bytes of one file."""
    return checkpoint.export(directory, directory.with_suffix(".exported")).read_bytes()


def last_step(directory: Path) -> int:
    """The step of the latest checkpoint, all of which is read; 0 where there is none."""
    path = train.latest(directory)
    return 0 if path is None else checkpoint.training_info(checkpoint.load(path)).step


def check_same_run(directory: Path, whole: Path) -> None:
    """The run in `directory` ended as the one in `whole`: its last checkpoint, its records, its best checkpoint."""
    assert exported(directory) == exported(whole)
    assert records(directory) == records(whole)
    assert not list(directory.glob(".antegrad-*")), "leftovers of saves that were killed"
    assert (directory / "summary.json").exists()
