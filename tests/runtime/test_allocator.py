"""Freed memory stays in the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
from antegrad.runtime.allocator import keep_freed_memory
kept = keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        np.ones(16 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(kept, faults())
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator has the settings")


def run(**environment: str) -> tuple[str, int]:
    kept = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES" and not k.startswith("MALLOC_")}
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**kept, **environment}, capture_output=True, text=True, check=True
    ).stdout.split()
    return output[0], int(output[1])


@glibc
def test_an_array_after_another_one_takes_its_memory() -> None:
    """Four arrays of 16 MiB one after the other: 16,384 pages of 4 KiB, of which none is touched for the first time."""
    kept, faults = run()
    assert kept == "True"
    assert faults < 100


@glibc
def test_what_the_environment_says_stands() -> None:
    kept, _ = run(MALLOC_MMAP_THRESHOLD_="65536")
    assert kept == "False"
