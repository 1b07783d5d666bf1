"""antegrad starts without the packages of its extra `data`, and says how to get them where they are needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from antegrad.data import PackageMissing, cifar, pusht
from antegrad.errors import AntegradError


def test_import_brings_no_package_of_the_extra() -> None:
    code = "import sys, antegrad.data; print(sorted({'pooch', 'pyarrow', 'PIL', 'requests'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_missing_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PackageMissing, match=r"pyarrow: pip install antegrad\[data\]") as caught:
        pusht(tmp_path / "file.parquet")
    assert isinstance(caught.value, AntegradError)
    assert isinstance(caught.value, ImportError)


def test_missing_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PackageMissing, match=r"pillow: pip install antegrad\[data\]"):
        cifar._image(b"content", "image")
