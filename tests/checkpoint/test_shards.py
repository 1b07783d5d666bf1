"""Sets of files that several processes wrote give the same arrays as one file, and the same file by an export."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.checkpoint import Sharded, export, load, load_metadata, pack, restore_parameters, save
from antegrad.checkpoint.shards import SHARD_KEY, part, shard_name, uncovered, whole
from antegrad.errors import CheckpointError
from antegrad.ir.types import DTYPES, TensorType, spec, type_of
from antegrad.train.writer import CheckpointWriter, best, checkpoint_at, checkpoints, latest
from tests.train.together import Member, pieces, run, same, save_set, split

SHAPES = [(), (1,), (0,), (2, 0, 3), (2,), (3,), (7,), (2, 3), (5, 4), (3, 1, 5)]
STEP = 600


def arrays() -> dict[str, np.ndarray]:
    """One array of each shape, and one of each element type, with values that differ everywhere."""
    full = {
        f"opt.m.{n}": np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + n for n, shape in enumerate(SHAPES)
    }
    full |= {f"param.{name}": np.arange(5).astype(dtype) for name, dtype in DTYPES.items()}
    return full | {"opt.count": np.array(STEP, np.int32)}


WHOLE = {"opt.count", "param.f64"}
"""Not sharded."""
METADATA = {"antegrad.step": str(STEP), "user.note": "wärm \N{SNOWMAN}"}


@pytest.mark.parametrize(("ranks", "processes"), [(n, p) for n in range(1, 6) for p in range(2, n + 1)])
def test_a_set_gives_what_one_file_gives(ranks: int, processes: int, tmp_path: Path) -> None:
    full = arrays()
    index = save_set(tmp_path / "run", full, METADATA, ranks, processes, full.keys() - WHOLE)
    one = save(tmp_path / "one.safetensors", full, METADATA)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "latest",
        index.name,
        *(shard_name(STEP, number, processes) for number in range(1, processes + 1)),
    ]
    found = load(index)
    assert found.path == index
    assert same(found.tensors, load(one).tensors)
    assert found.metadata == load_metadata(index) == METADATA
    assert all(array.flags.owndata or array.base.flags.owndata for array in found.tensors.values())
    assert all(array.flags.writeable for array in found.tensors.values())
    for source in (index, tmp_path / "run"):
        target = tmp_path / "exported.safetensors"
        assert export(source, target) == target
        assert target.read_bytes() == one.read_bytes()


@pytest.mark.parametrize("ranks", range(1, 6))
def test_one_process_writes_one_file(ranks: int, tmp_path: Path) -> None:
    """It holds all pieces, and the file has the bytes of a save of full arrays."""
    full = arrays()
    tensors, sharded = pieces(full, full.keys() - WHOLE, ranks, 0, ranks)
    expected = save(tmp_path / "one.safetensors", full, METADATA).read_bytes()
    for background in (True, False):
        with CheckpointWriter(tmp_path / f"{background}", background=background) as target:
            path = target.save(STEP, tensors, METADATA, sharded=sharded)
        assert path.name == f"step-{STEP:08d}.safetensors"
        assert path.read_bytes() == expected
        assert sorted(os.listdir(path.parent)) == ["latest", path.name]


def test_what_the_files_hold(tmp_path: Path) -> None:
    """Every piece is flat and is in the file of its ranks; the arrays that are not cut are in the first one alone."""
    safetensors = pytest.importorskip("safetensors.numpy", reason="the library reads the files here")
    full = {"opt.m": np.arange(7, dtype=np.float32), "param.w": np.ones((2, 2), np.float32)}
    index = save_set(tmp_path, full, {"note": "x"}, ranks=3, processes=2, names={"opt.m"})
    first, second = (tmp_path / shard_name(STEP, number, 2) for number in (1, 2))
    assert {n: a.tolist() for n, a in safetensors.load_file(first).items()} == {
        "opt.m": [0, 1, 2, 3, 4, 5],
        "param.w": [[1, 1], [1, 1]],
    }
    assert {n: a.tolist() for n, a in safetensors.load_file(second).items()} == {"opt.m": [6, 0, 0]}
    found = json.loads(index.read_text())
    token = found.pop("token")
    assert found == {
        "antegrad.index": 1,
        "step": STEP,
        "ranks": 3,
        "processes": 2,
        "files": [
            {"name": first.name, "bytes": first.stat().st_size, "first": 0, "count": 2},
            {"name": second.name, "bytes": second.stat().st_size, "first": 2, "count": 1},
        ],
        "tensors": {"opt.m": {"dtype": "F32", "shape": [7]}},
        "metadata": {"note": "x"},
    }
    assert token.encode() in first.read_bytes()
    assert token.encode() in second.read_bytes()


@pytest.mark.parametrize("cut", [set(), {"param.embed.w"}, {"param.embed.w", "param.a"}])
def test_tied_arrays_stay_tied(cut: set[str], tmp_path: Path) -> None:
    """What is tied to a sharded array is that array again, and so it is after an export."""
    shared = np.arange(5, dtype=np.float32)
    empty = np.empty((0, 2), np.float32)
    parameters = {"embed.w": shared, "head.w": shared, "a": empty, "b": empty}
    full, metadata = pack(parameters, step=1)
    assert full.keys() == {"param.embed.w", "param.a"}
    index = save_set(tmp_path / "run", full, metadata, 3, 2, names=cut)
    exported = export(index, tmp_path / "one.safetensors")
    assert exported.read_bytes() == save(tmp_path / "expected.safetensors", full, metadata).read_bytes()
    for path in (index, exported):
        found = load(path)
        assert found.tensors["param.head.w"] is found.tensors["param.embed.w"]
        assert found.tensors["param.b"] is found.tensors["param.a"]
        assert same(found.tensors, {f"param.{name}": array for name, array in parameters.items()})
    restored = restore_parameters(load(index), {name: type_of(array) for name, array in parameters.items()})
    assert restored["head.w"] is restored["embed.w"]


def test_tied_arrays_that_were_loaded(tmp_path: Path) -> None:
    """Both names are given, as after a load, and as pieces too; one is written."""
    full, metadata = pack(
        {"a": (shared := np.arange(5.0)), "b": shared, "c": (nothing := np.empty(0)), "d": nothing}, step=1
    )
    ranks = 3

    def cut(first: int, count: int) -> tuple[dict[str, np.ndarray], dict[str, Sharded]]:
        tensors, sharded = pieces(full, set(full), ranks, first, count)
        pairs = {"param.b": "param.a", "param.d": "param.c"}
        return (
            tensors | {name: tensors[of] for name, of in pairs.items()},
            sharded | {name: sharded[of] for name, of in pairs.items()},
        )

    def work(group: Member) -> Path:
        tensors, sharded = cut(*split(ranks, 2)[group.index])
        with CheckpointWriter(tmp_path / "set", group=group) as target:
            return target.save(1, tensors, metadata, sharded=sharded)

    paths = [run(2, work)[0]]
    with CheckpointWriter(tmp_path / "one") as target:
        tensors, sharded = cut(0, ranks)
        paths.append(target.save(1, tensors, metadata, sharded=sharded))
    for path in paths:
        found = load(path).tensors
        assert found["param.a"] is found["param.b"]
        assert found["param.a"].tolist() == shared.tolist()
    assert export(paths[0], tmp_path / "a.safetensors").read_bytes() == paths[1].read_bytes()


# export

FULL = {"opt.m": np.arange(7, dtype=np.float32), "opt.f": np.array([True, False, True]), "param.w": np.ones(3)}
FIRST, SECOND = (shard_name(STEP, number, 2) for number in (1, 2))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a set of two files; do not change it."""
    directory = tmp_path_factory.mktemp("sound")
    save_set(directory, FULL, METADATA, 4, 2, names={"opt.m", "opt.f"})
    return directory


def test_export_of_an_ordinary_file(tmp_path: Path) -> None:
    path = save(tmp_path / "run" / f"step-{STEP:08d}.safetensors", arrays(), METADATA)
    assert export(path, tmp_path / "a.safetensors").read_bytes() == path.read_bytes()
    (path.parent / "latest").write_text(path.name)
    assert export(path.parent, tmp_path / "b.safetensors").read_bytes() == path.read_bytes()


def test_export_never_writes_over_its_source(sound: Path, tmp_path: Path) -> None:
    run_directory = tmp_path / "run"
    shutil.copytree(sound, run_directory)
    index = run_directory / f"step-{STEP:08d}.index.json"
    one = save(tmp_path / "one.safetensors", FULL)
    (tmp_path / "link.safetensors").symlink_to(one)
    os.link(run_directory / FIRST, tmp_path / "hard.safetensors")
    before = {path: path.read_bytes() for path in (*run_directory.iterdir(), one)}
    for source, target in (
        *((run_directory, run_directory / FIRST), (index, run_directory / SECOND), (index, index)),
        *((one, one), (one, tmp_path / "link.safetensors"), (tmp_path / "link.safetensors", one)),
        *((index, tmp_path / "hard.safetensors"), (index, tmp_path / "other.index.json")),
    ):
        with pytest.raises(CheckpointError, match=r"cannot export .*(would be overwritten|name of an index)\. Choose"):
            export(source, target)
    assert before == {path: path.read_bytes() for path in before}
    with pytest.raises(CheckpointError, match="has no checkpoint: name a file"):
        export(tmp_path, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="No such file"):
        export(tmp_path / "nowhere.safetensors", tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", ["config.json", "latest", "best", "step-00000009.safetensors", shard_name(9, 1, 2)])
def test_export_never_writes_over_another_file_of_the_run(sound: Path, tmp_path: Path, name: str) -> None:
    """Nor does it make one that would be taken for a checkpoint; ordinary files there may be replaced."""
    run_directory = tmp_path / "run"
    shutil.copytree(sound, run_directory)
    (run_directory / "config.json").write_text("{}")
    before = {path: path.read_bytes() for path in run_directory.iterdir()}
    with pytest.raises(CheckpointError, match=r"cannot export .*that is a file of the run\. Choose"):
        export(run_directory, run_directory / name)
    assert before == {path: path.read_bytes() for path in run_directory.iterdir()}
    for _ in range(2):
        export(run_directory, run_directory / "model.safetensors")
    export(run_directory, tmp_path / "config.json")


def test_one_array_at_a_time_is_in_memory(tmp_path: Path) -> None:
    size, count = 1 << 20, 12
    full = {f"opt.m.{number}": np.full(size, number, np.uint8) for number in range(count)}
    index = save_set(tmp_path / "run", full, {}, 3, 2, names={f"opt.m.{number}" for number in range(count - 2)})
    for call, most in (
        (lambda: load(index), (count + 0.5) * size),
        (lambda: export(index, tmp_path / "x"), 2.5 * size),
    ):
        tracemalloc.start()
        try:
            call()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < most
    assert same(load(tmp_path / "x").tensors, full)


# what a process brings


def test_pieces_that_cannot_be_saved() -> None:
    of = Sharded(spec((2, 3), "f32"), 4, 1, 2)
    assert of.piece == TensorType((4,), DTYPES["f32"])
    good = {"a": np.zeros(4, np.float32)}

    def refuse(message: str, tensors: dict[str, Any], sharded: dict[str, Sharded], metadata: Any = None) -> None:
        with pytest.raises(CheckpointError, match=message):
            part(tensors, metadata or {}, sharded, everything=False, copy=False)

    found = part(good, {}, {"a": of}, everything=False, copy=False)
    assert (found.ranks, found.first, found.count) == (4, 1, 2)
    assert found.layout == {"a": of.type}
    refuse(
        r"'a': 2 of 4 ranks of f32\[2,3\] are a piece f32\[4\], found float32\[5\]", {"a": np.zeros(5, "f4")}, {"a": of}
    )
    refuse(r"found float64\[4\]", {"a": np.zeros(4)}, {"a": of})
    refuse(r"found float32\[2, 2\]", {"a": np.zeros((2, 2), "f4")}, {"a": of})
    refuse(r"found list\[4\]", {"a": [0, 0, 0, 0]}, {"a": of})
    refuse(r"'b': it is said to be sharded, and there is no such tensor", good, {"a": of, "b": of})
    for numbers in ((4, 3, 2), (4, -1, 2), (4, 0, 0), (0, 0, 0), (4, 1.0, 2), (True, False, True)):
        refuse("expected whole numbers with 0 <= first", good, {"a": Sharded(of.type, *numbers)})  # type: ignore[arg-type]
    more = good | {"b": np.zeros(2, np.float32)}
    refuse("pieces of different ranks together, found 'a' ranks 1 to 2 of 4, 'b' ranks 0 to 0 of 4",
           more, {"a": of, "b": Sharded(of.type, 4, 0, 1)})  # fmt: skip
    refuse(f"cannot save metadata '{SHARD_KEY}'", good, {"a": of}, {SHARD_KEY: "x"})
    with pytest.raises(
        CheckpointError, match=r"'a': this is the only process, and it holds 2 of 4 ranks: pass the group"
    ):
        whole(good, {"a": of})


def test_only_the_first_process_needs_what_is_not_sharded() -> None:
    of = Sharded(spec(3, "f32"), 2, 1, 1)
    tensors = {"a": np.zeros(2, np.float32), "other": object()}
    found = part(tensors, {}, {"a": of}, everything=False, copy=True)  # type: ignore[arg-type]
    assert found.types.keys() == {"a"}
    with pytest.raises(CheckpointError, match="'other': expected an array"):
        part(tensors, {}, {"a": of}, everything=True, copy=True)  # type: ignore[arg-type]


def test_uncovered_against_counting() -> None:
    """All ways to give two or three ranges."""
    ranges = [(first, count) for first in range(4) for count in range(1, 4)]
    for several in (*itertools.product(ranges, repeat=2), *itertools.product(ranges[::2], repeat=3)):
        held = sorted(rank for first, count in several for rank in range(first, first + count))
        for ranks in (1, 3, 4):
            assert (uncovered(several, ranks) is None) == (held == list(range(ranks))), (several, ranks)


# in a directory


def test_the_directory_knows_both_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full = {"opt.m": np.arange(7, dtype=np.float32)}
    with CheckpointWriter(tmp_path) as target:
        one = target.save(100, full, {})
    newer = save_set(tmp_path, full, {}, 3, 2, step=200)
    assert checkpoints(tmp_path) == [one, newer]
    assert latest(tmp_path) == newer
    assert best(tmp_path) is None
    assert (checkpoint_at(tmp_path, 100), checkpoint_at(tmp_path, 200), checkpoint_at(tmp_path, 3)) == (
        one,
        newer,
        None,
    )
    assert not caplog.records
    (tmp_path / shard_name(200, 2, 2)).unlink()
    assert latest(tmp_path) == one
    assert checkpoint_at(tmp_path, 200) is None
    assert "the newest complete checkpoint step-00000100.safetensors is taken" in caplog.text
    one.unlink()
    with pytest.raises(CheckpointError, match=r"has no complete checkpoint: .*shard-00002-of-00002.* No such file"):
        latest(tmp_path)
