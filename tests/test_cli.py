"""The command line, called as functions; `tests/parallel/test_launch.py` runs the launcher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antegrad import checkpoint
from antegrad.cli import main


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    tensors, metadata = checkpoint.pack({"w": np.arange(3.0)}, step=1)
    checkpoint.save(saved, tensors, metadata)
    assert main(["export", str(saved), str(target)]) == 0
    assert target.read_bytes() == saved.read_bytes()
    assert capsys.readouterr().out == f"{target}: {target.stat().st_size} bytes\n"


def test_what_cannot_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "out.safetensors")]) == 2
    assert "has no checkpoint: name a file" in capsys.readouterr().err


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    found = capsys.readouterr().out
    assert "host (NumPy" in found
    assert "antegrad runs on" in found


def test_unknown_commands_are_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
