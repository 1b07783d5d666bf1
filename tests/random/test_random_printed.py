"""Programs that draw, as printed text: run where there is NumPy alone, and brought back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import random
from tests.random.comparison import raw_key
from tests.support import assert_same_bits, devices, run

# Blocks everything that a program might lean on, and makes warnings errors.
ALONE = """
import importlib.util, sys, warnings
for name in ("antegrad", "jax", "jaxlib", "ml_dtypes", "safetensors", "rich"):
    sys.modules[name] = None
warnings.simplefilter("error")
import numpy as np
spec = importlib.util.spec_from_file_location("printed", sys.argv[1])
printed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(printed)
given = np.load(sys.argv[2])
results = getattr(printed, sys.argv[3])(*(given[f"arr_{i}"] for i in range(len(given.files))))
np.savez(sys.argv[4], *(results if isinstance(results, tuple) else (results,)))
"""


def dropout(key: Any, x: Any) -> Any:
    keep = random.bernoulli(key, 0.8, x.shape)
    return x * keep.astype("f32") / 0.8


def noise(key: Any) -> Any:
    first, second = random.split(random.fold_in(key, 12))
    return random.normal(first, (3000,)), random.normal(first, (5,), "f64"), random.truncated_normal(second, -2, 2, 100)


def scalars(key: Any) -> Any:
    return (
        random.bits(key),
        random.uniform(key),
        random.normal(key),
        random.randint(key, (), -5, 5),
        random.bernoulli(key),
    )


def selections(key: Any, step: Any) -> Any:
    key = random.fold_in(key, step)
    return random.epoch_permutation(key, 3, 2000), random.randint(key, (40,), 0, 10), random.choice(key, 9, (4,), False)


def ranges(key: Any, low: Any) -> Any:
    return random.uniform(key, (300,), low=low, high=0.7), random.uniform(key, (30,), "f64", -0.3, 0.4)


CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (dropout, (raw_key(1), np.linspace(-1, 1, 105, dtype=np.float32).reshape(3, 5, 7))),
    (noise, (raw_key(2),)),
    (scalars, (raw_key(3),)),
    (selections, (raw_key(4), np.uint32(9))),
    (ranges, (raw_key(5), np.float32(-0.1))),
]


def by_name(case: Any) -> str:
    return case.__name__ if callable(case) else ""


@pytest.mark.parametrize(("draw", "inputs"), CASES, ids=by_name)
def test_printed_text_needs_numpy_alone(draw: Callable[..., Any], inputs: tuple[Any, ...], tmp_path: Path) -> None:
    program = ag.capture(draw, *inputs)
    module, given, found = tmp_path / "printed.py", tmp_path / "given.npz", tmp_path / "found.npz"
    module.write_text(program.python(), encoding="utf-8")
    np.savez(given, *inputs)
    command = [sys.executable, "-I", "-c", ALONE, str(module), str(given), draw.__name__, str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(found) as results:
        for name, expected in zip(results.files, run(program, inputs, "host"), strict=True):
            assert_same_bits(results[name], expected, name)


@pytest.mark.parametrize(("draw", "inputs"), CASES, ids=by_name)
def test_printed_text_comes_back(draw: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    program = ag.capture(draw, *inputs)
    again = ag.from_python(program.python())
    for device in devices():
        for found, expected in zip(run(again, inputs, device), run(program, inputs, device), strict=True):
            assert_same_bits(found, expected, device)


@pytest.mark.parametrize(("draw", "inputs"), CASES, ids=by_name)
def test_simplified_programs_draw_the_same(draw: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    program = ag.capture(draw, *inputs)
    simple = ag.simplify(program)
    assert len(simple.equations) < len(program.equations)
    for device in devices():
        for found, expected in zip(run(simple, inputs, device), run(program, inputs, device), strict=True):
            assert_same_bits(found, expected, device)
