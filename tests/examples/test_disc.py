"""The disc, run as a user runs it: its evidence, its files, and an edited gradient."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import antegrad as ag

ROOT = Path(__file__).parents[2]
KEYS = {
    "device", "loss_first", "loss_last", "losses", "heldout_accuracy", "equations_forward", "equations_gradient",
    "executables_training", "executables_total", "ms_per_step", "check_max_abs", "check_relative",
    "reload_bit_identical", "disagreeing_cells",
}  # fmt: skip


def run_disc(out: Path, *options: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / "disc.py"), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["cpu", "host"])
def disc(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    out = tmp_path_factory.mktemp(request.param)
    return request.param, out, run_disc(out, "--device", request.param)


def test_learns_the_disc(disc):
    device, out, _ = disc
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) == KEYS
    assert summary["device"] == device
    assert summary["heldout_accuracy"] >= 0.97
    assert summary["loss_last"] < 0.06
    assert summary["loss_first"] == summary["losses"][0]
    assert len(summary["losses"]) == 600
    assert (summary["executables_training"], summary["executables_total"]) == (1, 3)
    assert summary["reload_bit_identical"] is True
    assert summary["check_relative"] < 1e-6
    assert summary["disagreeing_cells"] < 60


def test_two_runs_agree_in_every_printed_number_but_the_clock(disc, tmp_path):
    device, out, first = disc
    second = run_disc(tmp_path, "--device", device)

    def without_clock(text: str, folder: Path) -> list[str]:
        return [line.replace(str(folder), "OUT") for line in text.splitlines() if not line.startswith("time ")]

    assert without_clock(first, out) == without_clock(second, tmp_path)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (out, tmp_path)]
    for summary in summaries:
        del summary["ms_per_step"]
    assert summaries[0] == summaries[1]
    assert (out / "gradient.py").read_text() == (tmp_path / "gradient.py").read_text()


def test_the_written_files_are_whole(disc):
    _, out, text = disc
    saved = ag.checkpoint.load(out / "disc.safetensors")
    info = ag.checkpoint.training_info(saved)
    assert (info.step, info.optimizer, info.seed) == (600, "adam", 20260921)
    assert {"param.0.w", "opt.m.0.w", "opt.v.4.b"} <= set(saved.tensors)
    assert "stablehlo.dot_general" in (out / "gradient.mlir").read_text()
    assert "#" in text
    assert "ground truth" in text


def random_inputs(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [(2, 16), (16,), (16, 16), (16,), (16, 1), (1,), (512, 2), (512, 1)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


NUMPY_ALONE = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "antegrad", "ml_dtypes", "scipy"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import importlib.util, numpy as np
spec = importlib.util.spec_from_file_location("gradient", sys.argv[1])
gradient = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gradient)
inputs = np.load(sys.argv[2])
results = gradient.sequential_gradient(*(inputs[f"arr_{i}"] for i in range(len(inputs.files))))
np.savez(sys.argv[3], *results)
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_the_printed_gradient_runs_with_numpy_alone_to_the_bit(disc, tmp_path, seed):
    _, out, _ = disc
    inputs = random_inputs(seed)
    np.savez(tmp_path / "inputs.npz", *inputs)
    files = [str(out / "gradient.py"), str(tmp_path / "inputs.npz"), str(tmp_path / "results.npz")]
    subprocess.run([sys.executable, "-c", NUMPY_ALONE, *files], check=True)
    found = np.load(tmp_path / "results.npz")
    expected = ag.from_python(out / "gradient.py").run(*inputs, device="host")
    assert len(found.files) == len(expected) == 7
    for name, array in zip(found.files, expected, strict=True):
        assert found[name].tobytes() == array.tobytes()


def test_no_line_of_the_gradient_is_redundant(disc):
    _, out, _ = disc
    lines = [line.split("#")[0].strip() for line in (out / "gradient.py").read_text().splitlines()]
    assignments = [line for line in lines if re.match(r"\w+ = ", line)]
    assert len({line.split(" = ", 1)[1] for line in assignments}) == len(assignments)
    assert not any(re.search(r"\.T\.T|\* 1\b(?! /)|\+ 0\b", line) for line in assignments)
    for layer in ("0", "2", "4"):
        assert any(line.startswith((f"d_w{layer} = ", f"d_b{layer} = ")) for line in assignments)


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_an_edit_changes_exactly_that_output(disc, device):
    _, out, _ = disc
    text = (out / "gradient.py").read_text()
    edited, count = re.subn(r"d_b2 = (\S+)", r"d_b2 = 2 * \1", text)
    assert count == 1
    inputs = random_inputs(2)
    original = ag.from_python(text)
    before, after = (program.run(*inputs, device=device) for program in (original, ag.from_python(edited)))
    for name, old, new in zip(original.output_names, before, after, strict=True):
        expected = 2 * old if name in ("d_b2", "d_2.b") else old
        assert new.tobytes() == expected.tobytes(), name


def test_wrong_options_give_one_message_and_write_nothing(tmp_path):
    for options in (["--device", "abacus"], ["--device", "tpu"], ["--steps", "0"]):
        command = [sys.executable, str(ROOT / "examples" / "disc.py"), "--out", str(tmp_path / "x"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert options[1] in done.stderr
        assert not (tmp_path / "x" / "summary.json").exists()
