"""The directory of a run: what is refused, what is written, and what a kill and a resume leave."""

from __future__ import annotations

import builtins
import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.data import PackageMissing
from antegrad.errors import CheckpointError, DTypeError
from antegrad.train.run import Run

IDENTITY = {"seed": 1, "batch_size": 32, "arrays": {"param.0.w": "f32[2,16]", "param.0.b": "f32[16]"}}
CONFIG = {"epochs": 5, "rate": 0.1, "data": Path("data/mnist")}


def start(directory: Path, **options: Any) -> Run:
    return Run(directory, CONFIG, **{"identity": IDENTITY, "tensorboard": False} | options)


def made(directory: Path, **options: Any) -> None:
    with start(directory, **options):
        pass


def table(directory: Path) -> list[dict[str, str]]:
    with open(directory / "metrics.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_new_run(tmp_path: Path) -> None:
    directory = tmp_path / "out" / "disc"
    with start(directory) as run:
        assert not run.resumed
        run.log({"step": np.int32(10), "loss": np.float32(0.5)})
        run.log({"step": 20, "loss": 0.25})
        assert lines(directory) == [{"step": 10, "loss": 0.5}, {"step": 20, "loss": 0.25}]  # flushed
        assert table(directory) == [{"step": "10", "loss": "0.5"}, {"step": "20", "loss": "0.25"}]
        run.summary({"loss": 0.25, "best": {"step": 20}})
    assert sorted(os.listdir(directory)) == ["config.json", "metrics.csv", "metrics.jsonl", "summary.json"]
    assert json.loads((directory / "config.json").read_text()) == {
        "identity": IDENTITY,
        "config": {"epochs": 5, "rate": 0.1, "data": "data/mnist"},
    }
    assert json.loads((directory / "summary.json").read_text()) == {"loss": 0.25, "best": {"step": 20}}


def test_columns_grow(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.log({"step": 1, "loss": 0.5})
        run.log({"step": 2, "epoch": 1, "val_loss": 0.7, "note": 'a, "b"\nc', "classes": [0.5, None]})
        run.log({"step": 3, "loss": 0.25})
    assert table(tmp_path) == [
        {"step": "1", "loss": "0.5", "epoch": "", "val_loss": "", "note": "", "classes": ""},
        {"step": "2", "loss": "", "epoch": "1", "val_loss": "0.7", "note": 'a, "b"\nc', "classes": "[0.5, null]"},
        {"step": "3", "loss": "0.25", "epoch": "", "val_loss": "", "note": "", "classes": ""},
    ]
    assert len(lines(tmp_path)) == 3


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.log({"step": 1, "loss": math.nan, "norm": np.float32(np.inf), "low": -math.inf})
        (record,) = run.records()
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "loss": "NaN", "norm": "Infinity", "low": "-Infinity"}\n'
    )
    assert table(tmp_path) == [{"step": "1", "loss": "nan", "norm": "inf", "low": "-inf"}]
    assert math.isnan(record["loss"])
    assert (record["norm"], record["low"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", "step-00000001.safetensors"])
def test_a_directory_with_a_run_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(CheckpointError, match=rf"{tmp_path} already holds a run \({name}\).*resume=\"latest\""):
        start(tmp_path)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_other_files_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    made(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_is_resumed(tmp_path: Path) -> None:
    made(tmp_path)
    with Run(tmp_path, {"epochs": 9}, resume=True, identity=IDENTITY, tensorboard=False) as run:
        assert run.resumed
    assert json.loads((tmp_path / "config.json").read_text())["config"] == {"epochs": 9}
    with start(tmp_path / "new", resume=True) as run:
        assert not run.resumed


def test_another_run_is_not_resumed(tmp_path: Path) -> None:
    made(tmp_path)
    before = (tmp_path / "config.json").read_text()
    other = {
        "seed": 2,
        "arrays": {"param.0.w": "f32[2,32]", "param.0.b": "f32[16]", "param.1.w": "f32[16]"},
        "batch_size": 32,
        "optimizer": "adam",
    }
    with pytest.raises(CheckpointError) as info:
        start(tmp_path, resume=True, identity=other)
    assert str(info.value) == (
        f"the run in {tmp_path} differs from this one, and cannot be resumed as it:\n"
        "  seed: saved 1, now 2\n"
        '  arrays.param.0.w: saved "f32[2,16]", now "f32[2,32]"\n'
        '  arrays.param.1.w: not saved, now "f32[16]"\n'
        '  optimizer: not saved, now "adam"\n'
        "Set them as they were saved, or choose another directory."
    )
    assert (tmp_path / "config.json").read_text() == before
    with pytest.raises(CheckpointError, match="batch_size: saved 32, now missing"):
        start(tmp_path, resume=True, identity={"seed": 1, "arrays": IDENTITY["arrays"]})
    with pytest.raises(CheckpointError, match="seed: saved 1, now true"):
        start(tmp_path, resume=True, identity=IDENTITY | {"seed": True})


def test_a_long_list_of_differences_is_cut(tmp_path: Path) -> None:
    made(tmp_path, identity={f"p{i}": "x" * 200 for i in range(60)})
    with pytest.raises(CheckpointError, match=r'p0: saved "x{76}\.\.\., now missing') as info:
        start(tmp_path, resume=True, identity={})
    assert "and 10 more" in str(info.value)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"config": {}}', '{"identity": 3}'])
def test_settings_that_cannot_be_read(text: str | None, tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "config.json").unlink()
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/config.json: it (is missing|cannot be read)"):
        start(tmp_path, resume=True)


def test_nothing_is_changed_before_the_block(tmp_path: Path) -> None:
    """What a caller finds wrong after the run was checked costs nothing, and a kill there leaves no half of a run."""
    start(tmp_path / "new")
    assert not os.listdir(tmp_path / "new")
    made(tmp_path / "old")
    before = (tmp_path / "old" / "config.json").read_text()
    Run(tmp_path / "old", {"epochs": 9}, resume=True, identity=IDENTITY, tensorboard=False)
    assert (tmp_path / "old" / "config.json").read_text() == before


def test_the_settings_are_there_before_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it starts, a run can be resumed: the file by which it is known comes first."""
    written: list[str] = []
    real = os.replace

    def replaced(source: Any, target: Any) -> None:
        written.append(Path(target).name)
        real(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    made(tmp_path)
    assert written == ["config.json", "metrics.jsonl", "metrics.csv"]


def test_a_resume_cuts_off_what_comes_again(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        for step in (10, 20, 30):
            run.log({"step": step, "loss": 1 / step} | ({"late": 1} if step == 30 else {}))
    with start(tmp_path, resume=True) as run:
        run.rewind(20)
        assert [record["step"] for record in lines(tmp_path)] == [10, 20]
        assert table(tmp_path) == [{"step": "10", "loss": "0.1"}, {"step": "20", "loss": "0.05"}]
        run.log({"step": 30, "loss": 0.5})
    assert [record["step"] for record in lines(tmp_path)] == [10, 20, 30]
    assert [row["loss"] for row in table(tmp_path)] == ["0.1", "0.05", "0.5"]


@pytest.mark.parametrize("cut", [1, 5, 16])
def test_a_kill_in_a_record(cut: int, tmp_path: Path) -> None:
    """The last line is cut off in the file of records, and the table has it not at all."""
    with start(tmp_path) as run:
        run.log({"step": 1, "loss": 0.5})
        run.log({"step": 2, "loss": 0.25})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with start(tmp_path, resume=True) as run:
        assert run.records() == [{"step": 1, "loss": 0.5}]
        run.log({"step": 3, "loss": 0.1})
    assert [record["step"] for record in lines(tmp_path)] == [1, 3]
    assert [row["step"] for row in table(tmp_path)] == ["1", "3"]


@pytest.mark.parametrize("line", ["{", "3", '{"loss": 1}', '{"step": true}', '{"step": 1.5}', "\0\0"])
def test_a_line_that_is_no_record(line: str, tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl, line 2 is .*expected a JSON object with a whole number"):
        start(tmp_path, resume=True)


@pytest.mark.parametrize("record", [{}, {"step": 1.0}, {"step": "1"}, {"step": True}, {"step": None}])
def test_a_record_needs_a_step(record: dict[str, Any], tmp_path: Path) -> None:
    with start(tmp_path) as run, pytest.raises(CheckpointError, match="whole number 'step'"):
        run.log(record)
    assert lines(tmp_path) == []


def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=r"settings\['config'\]\['loss'\] is <built-in function print>"):
        Run(tmp_path / "run", {"loss": print}, tensorboard=False)
    assert os.listdir(tmp_path) == []
    with start(tmp_path) as run, pytest.raises(DTypeError, match=r"record\['loss'\] is 1j"):
        run.log({"step": 1, "loss": 1j})
    assert lines(tmp_path) == []


def test_a_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    try:
        with pytest.raises(CheckpointError, match="nobody may write to it"):
            start(closed)
    finally:
        closed.chmod(0o755)
    assert os.listdir(closed) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file"):
        start(tmp_path / "file")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """In a process of its own, whose files may grow to 200 bytes: a line is there in full, or not at all."""
    code = (
        "import resource, signal, sys\n"
        "from antegrad.errors import CheckpointError\n"
        "from antegrad.train.run import Run\n"
        "with Run(sys.argv[1], {}, tensorboard=False) as run:\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        "    for step in range(9):\n"
        "        try:\n"
        "            run.log({'step': step, 'note': 'x' * 20})\n"
        "        except CheckpointError as error:\n"
        "            print(step, error)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [int(line.split()[0]) for line in done.stdout.splitlines()]
    assert f"cannot read or write {tmp_path}/metrics.jsonl: File too large" in done.stdout
    assert [record["step"] for record in lines(tmp_path)] == list(range(found[0])) == [0, 1, 2, 3]


def events(directory: Path) -> list[Any]:
    """Everything in the TensorBoard files, in the order of the files."""
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted((directory / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data, at = path.read_bytes(), 0
        while at < len(data):  # length u64, its checksum u32, the event, its checksum u32
            length = int.from_bytes(data[at : at + 8], "little")
            found.append(event_pb2.Event.FromString(data[at + 12 : at + 12 + length]))
            at += length + 16
    return found


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with start(tmp_path, tensorboard=True) as run:
        run.log({"step": 10, "loss": 0.5, "epoch": 1, "note": "warm", "fine": True, "norm": math.inf})
        run.log({"step": 20, "loss": 0.25})
    scalars = [(e.step, v.tag, v.simple_value) for e in events(tmp_path) for v in e.summary.value]
    assert scalars == [(10, "loss", 0.5), (10, "epoch", 1), (10, "norm", math.inf), (20, "loss", 0.25)]
    with start(tmp_path, resume=True) as run:
        assert run.resumed
    with start(tmp_path, resume=True, tensorboard=None) as run:
        run.rewind(10)
        run.log({"step": 20, "loss": 0.125})
    later = events(tmp_path)[-3:]
    assert [(e.step, e.session_log.status) for e in later if e.HasField("session_log")] == [(11, 1)]  # 1 is START
    assert [(e.step, v.simple_value) for e in later for v in e.summary.value] == [(20, 0.125)]


def test_tensorboard_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "tensorboardX":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(PackageMissing, match=r"tensorboardX: pip install antegrad\[log\]"):
        start(tmp_path / "wanted", tensorboard=True)
    assert not (tmp_path / "wanted").exists()
    with start(tmp_path / "run", tensorboard=None) as run:
        run.log({"step": 1, "loss": 0.5})
    assert "tensorboard" not in os.listdir(tmp_path / "run")
