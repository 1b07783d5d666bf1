"""Sets of files that cannot be trusted: one error class that names the file, and nothing beyond the files in memory."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antegrad.checkpoint import decode, export, load, load_metadata, save
from antegrad.checkpoint.index import read_index
from antegrad.checkpoint.shards import SHARD_KEY, shard_name
from antegrad.checkpoint.store import opened
from antegrad.errors import CheckpointError
from tests.train.together import same, save_set

STEP, METADATA = 600, {"antegrad.step": "600", "user.note": "warm"}
FULL = {"opt.m": np.arange(7, dtype=np.float32), "opt.f": np.array([True, False, True]), "param.w": np.ones(3)}
FIRST, SECOND = (shard_name(STEP, number, 2) for number in (1, 2))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a set of two files; do not change it."""
    directory = tmp_path_factory.mktemp("sound")
    save_set(directory, FULL, METADATA, 4, 2, names={"opt.m", "opt.f"})
    return directory


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """The index of a copy."""
    copied = tmp_path / "run"
    shutil.copytree(sound, copied)
    return copied / f"step-{STEP:08d}.index.json"


def refused(index: Path, *patterns: str) -> str:
    """The message with which everything refuses the set of `index`."""
    messages = []
    for call in (load, load_metadata, lambda path: export(path, path.with_name("exported.safetensors"))):
        with pytest.raises(CheckpointError) as caught:
            call(index)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1
    for pattern in patterns:
        assert re.search(pattern, messages[0]), messages[0]
    assert not index.with_name("exported.safetensors").exists()
    assert not list(index.parent.glob(".antegrad-*"))
    return messages[0]


def edited(index: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    value = json.loads(index.read_text())
    edit(value)
    index.write_text(json.dumps(value))
    return index


def test_a_missing_file(damaged: Path) -> None:
    damaged.with_name(SECOND).unlink()
    refused(damaged, rf"/run/{SECOND}: No such file", r"one of the 2 files of .*index.json\. Restore .* another one")


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_a_file_of_another_size(change: Callable[[bytes], bytes], damaged: Path) -> None:
    path = damaged.with_name(FIRST)
    data = path.read_bytes()
    path.write_bytes(change(data))
    refused(damaged, rf"{FIRST}: the file has {len(change(data))} bytes, expected {len(data)}", "Restore")


def test_a_file_that_is_damaged_within(damaged: Path) -> None:
    path = damaged.with_name(SECOND)
    path.write_bytes(b"\xff" * path.stat().st_size)
    refused(damaged, rf"{SECOND}: the header is said to have", "load another copy")


def test_a_file_that_is_a_directory(damaged: Path) -> None:
    damaged.with_name(SECOND).unlink()
    damaged.with_name(SECOND).mkdir()
    refused(damaged, rf"{SECOND}: Is a directory")


def test_a_file_of_another_save(damaged: Path, tmp_path: Path) -> None:
    """The same arrays of the same step, in a file of the same size."""
    save_set(tmp_path / "other", FULL, METADATA, 4, 2, names={"opt.m", "opt.f"})
    for name in (FIRST, SECOND):
        original = damaged.with_name(name).read_bytes()
        shutil.copy(tmp_path / "other" / name, damaged.with_name(name))
        assert damaged.with_name(name).stat().st_size == len(original)
        refused(damaged, rf"{name}: it does not belong to .*index.json: its stamp is .*token.*, expected", "Restore")
        damaged.with_name(name).write_bytes(original)
    assert same(load(damaged).tensors, FULL)


def test_files_in_each_other_s_place(tmp_path: Path) -> None:
    """Of one save and of one size; the values would be in the wrong order."""
    full = {"opt.m": np.arange(8, dtype=np.float32)}
    index = save_set(tmp_path, full, {}, 2, 2)
    first, second = (tmp_path / name for name in (FIRST, SECOND))
    swapped = [second.read_bytes(), first.read_bytes()]
    first.write_bytes(swapped[0])
    second.write_bytes(swapped[1])
    assert len(swapped[0]) == len(swapped[1])
    refused(index, rf"{FIRST}: it does not belong to", r'"first": 1.* expected .*"first": 0')


def test_an_ordinary_file_in_the_place_of_a_piece(damaged: Path) -> None:
    path = damaged.with_name(SECOND)
    size = path.stat().st_size
    save(path, {"opt.m": np.zeros(4, np.float32)}, {"x": "y"})
    edited(damaged, lambda index: index["files"][1].update(bytes=path.stat().st_size))
    assert size != path.stat().st_size
    refused(damaged, rf"{SECOND}: it does not belong to .*: it has no stamp")


def forged(index: Path, number: int, tensors: dict[str, np.ndarray]) -> Path:
    """A file of the set with the right stamp and other tensors."""
    value = json.loads(index.read_text())
    file = value["files"][number]
    path = index.with_name(file["name"])
    with open(index, "rb") as stream:
        text = read_index(stream, str(index)).stamps()[number]
    save(path, tensors, {SHARD_KEY: text})
    file["bytes"] = path.stat().st_size
    index.write_text(json.dumps(value))
    return index


def test_pieces_that_do_not_fit(damaged: Path) -> None:
    m, f = np.zeros(2, np.float32), np.zeros(1, bool)
    refused(forged(damaged, 1, {"opt.m": m}), rf"{SECOND}: it lacks 'opt.f', unlike what .*index.json says")
    refused(forged(damaged, 1, {"opt.m": m, "opt.f": f, "x": m}), rf"{SECOND}: it also has 'x'")
    refused(
        forged(damaged, 1, {"opt.m": m[:1], "opt.f": f}), rf"{SECOND}: tensor 'opt.m' has the type f32\[1\].*f32\[2\]"
    )
    refused(
        forged(damaged, 1, {"opt.m": m.reshape(1, 2), "opt.f": f}), rf"{SECOND}: tensor 'opt.m' has the type f32\[1,2\]"
    )
    refused(
        forged(damaged, 1, {"opt.m": m.astype("i4"), "opt.f": f}), rf"{SECOND}: tensor 'opt.m' has the type i32\[2\]"
    )
    forged(damaged, 1, {"opt.m": m, "opt.f": f})
    assert load(damaged).tensors["opt.m"].tolist() == [0, 1, 2, 3, 4, 5, 0]


def test_bytes_that_are_no_bool(damaged: Path) -> None:
    path = damaged.with_name(FIRST)
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:begin])
    data[begin + entries["opt.f"]["data_offsets"][0]] = 2
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{damaged}: tensor 'opt.f' of type bool\[3\] has 1 bytes that are nei"):
        load(damaged)


def restamped(index: Path) -> Path:
    """The set of an edited index, as if it had been written with it."""
    for number, name in enumerate((FIRST, SECOND)):
        with open(index.with_name(name), "rb") as stream:
            tensors, _ = decode(stream, name)
        forged(index, number, tensors)
    return index


def put(*keys: Any, value: Any) -> Callable[[dict[str, Any]], Any]:
    """Sets an entry of the index, by the keys on the way to it."""

    def edit(index: Any) -> None:
        for key in keys[:-1]:
            index = index[key]
        index[keys[-1]] = value

    return edit


HUGE = 10**30
EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (put("antegrad.index", value=2), r"the index has version 2, expected 1\. Update antegrad"),
    "no-version": (lambda index: index.pop("antegrad.index"), r"has the keys .*, expected antegrad.index, step"),
    "more": (put("more", value=1), r"the index has the keys"),
    "less": (lambda index: index.pop("files"), r"the index has the keys"),
    "token": (put("token", value="0" * 31), r"its token is '0+', expected 32 hexadecimal"),
    "token-other": (put("token", value="0" * 32), r"0001-of.*: it does not belong to"),
    "token-number": (put("token", value=1), r"its token is 1"),
    "step": (put("step", value=STEP + 1), r"file 1 has the name .*, expected step-00000601.shard-00001-of-00002"),
    "step-text": (put("step", value="600"), r"the index has '600' as 'step', expected a whole number from 0"),
    "ranks-more": (put("ranks", value=5), r"do not hold each rank once: nobody holds rank 4 of 5"),
    "ranks-less": (put("ranks", value=3), r"do not hold each rank once: rank 3 is held, and there are 3"),
    "ranks-huge": (put("ranks", value=HUGE), r"the index has 10+ as 'ranks'"),
    "ranks-zero": (put("ranks", value=0), r"the index has 0 as 'ranks'"),
    "ranks-float": (put("ranks", value=4.0), r"the index has 4.0 as 'ranks'"),
    "ranks-bool": (put("ranks", value=True), r"the index has True as 'ranks'"),
    "overlap": (put("files", 1, "first", value=2), r"rank 2 is held twice"),
    "hole": (put("files", 0, "count", value=2), r"nobody holds rank 2, and rank 3 is held"),
    "not-from-zero": (put("files", 0, "first", value=1), r"nobody holds rank 0, and rank 1 is"),
    "count-huge": (put("files", 1, "count", value=2**63 - 1), r"rank 9223372036854775809 is held, and there are 4"),
    "count-zero": (put("files", 1, "count", value=0), r"file 2 has 0 as 'count'"),
    "first-negative": (put("files", 0, "first", value=-1), r"file 1 has -1 as 'first'"),
    "other-ranges": (
        lambda index: (put("files", 0, "count", value=2)(index), put("files", 1, "first", value=2)(index),
                       put("files", 1, "count", value=2)(index)), r"00001-of-00002.safetensors: it does not belong",
    ),
    "bytes": (put("files", 0, "bytes", value=9), r"00001-of-00002.safetensors: the file has \d+ bytes, expected 9"),
    "bytes-text": (put("files", 0, "bytes", value="9"), r"file 1 has '9' as 'bytes'"),
    "processes": (put("processes", value=3), r"it is of 3 processes, and its files are"),
    "processes-huge": (put("processes", value=HUGE), r"it is of 10+ processes"),
    "no-files": (lambda index: index.update(files=[], processes=0), r"it is of 0 processes, and its files are \[\]"),
    "files-text": (put("files", value="x"), r"its files are 'x'"),
    "file-list": (put("files", 0, value=[1]), r"file 1 is \[1\], expected a JSON object"),
    "file-keys": (put("files", 0, "mode", value=7), r"file 1 has the keys"),
    "one-file": (lambda index: index.update(files=index["files"][:1], processes=1), r"expected .*00001-of-00001"),
    "same-file": (put("files", 1, "name", value=FIRST), r"file 2 has the name .*, expected .*00002-of-00002"),
    "parent": (put("files", 0, "name", value=f"../{FIRST}"), r"file 1 has the name '\.\./step.*without a directory"),
    "absolute": (put("files", 0, "name", value=f"/etc/{FIRST}"), r"file 1 has the name '/etc/"),
    "below": (put("files", 0, "name", value=f"a/{FIRST}"), r"file 1 has the name 'a/"),
    "backslash": (put("files", 0, "name", value=f"..\\{FIRST}"), r"file 1 has the name"),
    "nul": (put("files", 0, "name", value=f"{FIRST}\0"), r"file 1 has the name"),
    "newline": (put("files", 0, "name", value=f"{FIRST}\n"), r"file 1 has the name"),
    "passwd": (put("files", 0, "name", value="passwd"), r"file 1 has the name 'passwd'"),
    "name-number": (put("files", 0, "name", value=1), r"file 1 has the name 1,"),
    "digits": (put("files", 0, "name", value=f"step-{'9' * 5000}.shard-00001-of-00002.safetensors"), r"file 1 has the"),
    "tensors-list": (put("tensors", value=[]), r"'tensors' is \[\], expected a JSON object"),
    "tensor-list": (put("tensors", "opt.m", value=[]), r"tensor 'opt.m' is \[\]"),
    "tensor-keys": (put("tensors", "opt.m", "x", value=1), r"tensor 'opt.m' has the keys"),
    "tensor-more": (put("tensors", "opt.v", value={"dtype": "F32", "shape": [7]}), r"00001.*: it does not belong to"),
    "tensor-less": (lambda index: index["tensors"].pop("opt.m"), r"00001.*: it does not belong to"),
    "dtype": (put("tensors", "opt.m", "dtype", value="C64"), r"tensor 'opt.m' has the element type 'C64'"),
    "dtype-lower": (put("tensors", "opt.m", "dtype", value="f32"), r"the element type 'f32'"),
    "dtype-list": (put("tensors", "opt.m", "dtype", value=["F32"]), r"the element type \['F32'\]"),
    "dtype-other": (put("tensors", "opt.m", "dtype", value="I32"), r"00001.*: it does not belong to"),
    "shape-huge": (put("tensors", "opt.m", "shape", value=[2**40]), r"00001.*: it does not belong to"),
    "shape-in-padding": (put("tensors", "opt.m", "shape", value=[8]), r"00001.*: it does not belong to"),
    "shape-other": (put("tensors", "opt.m", "shape", value=[7, 1]), r"00001.*: it does not belong to"),
    "shape-10^30": (put("tensors", "opt.m", "shape", value=[HUGE]), r"'opt.m' has the shape \[10+\]"),
    "shape-negative": (put("tensors", "opt.m", "shape", value=[-7, -1]), r"'opt.m' has the shape \[-7, -1\]"),
    "shape-float": (put("tensors", "opt.m", "shape", value=[7.0]), r"'opt.m' has the shape \[7.0\]"),
    "shape-text": (put("tensors", "opt.m", "shape", value="7"), r"'opt.m' has the shape '7'"),
    "shape-rank": (put("tensors", "opt.m", "shape", value=[1] * 64 + [7]), r"at most 64 whole numbers"),
    "metadata-list": (put("metadata", value=[]), r"'metadata' is \[\]"),
    "metadata-number": (put("metadata", "x", value=1), r"'metadata' has 1 under 'x', expected text"),
    "surrogate": (put("metadata", "x", value="\ud800"), r"is not JSON \(.*surrogates not"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_index_that_lies(name: str, damaged: Path) -> None:
    edit, message = EDITS[name]
    edited(damaged, edit)
    size = damaged.stat().st_size
    tracemalloc.start()
    try:
        text = refused(damaged, message, r"cannot read /.*(index\.json|\.safetensors): ", r"Restore|Update")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300_000 + 40 * size
    assert len(text) < 1200


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "tensor-more": (put("tensors", "opt.v", value={"dtype": "F32", "shape": [7]}), r"00001.*: it lacks 'opt.v'"),
    "tensor-less": (lambda index: index["tensors"].pop("opt.m"), r"00002-of-00002.safetensors: it also has 'opt.m'"),
    "dtype-other": (put("tensors", "opt.m", "dtype", value="I32"), r"'opt.m' has the type f32\[6\], and by .*i32\[6\]"),
    "shape-huge": (put("tensors", "opt.m", "shape", value=[2**40]), r"'opt.m' has the type f32\[6\], and by"),
    "shape-2^80": (put("tensors", "opt.m", "shape", value=[2**40] * 2), r"'opt.m' has the type f32\[6\], and by"),
    "shape-larger": (put("tensors", "opt.m", "shape", value=[9]), r"'opt.m' has the type f32\[6\], and by .*f32\[9\]"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_set_that_was_forged(name: str, damaged: Path) -> None:
    """Its stamps fit the index, and what the index claims is not in the files."""
    edit, message = FORGED[name]
    restamped(edited(damaged, edit))
    tracemalloc.start()
    try:
        refused(damaged, message, "Restore")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300_000


TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the index of 0 bytes is not JSON"),
    "torn": (b'{"antegrad.index": 1, "st', "is not JSON"),
    "list": (b"[]", r"the index is \[\], expected a JSON object"),
    "not-utf8": (b'{"\xff": 1}', "is not JSON .*utf-8"),
    "deep": (b'{"a":' + b"[" * 100_000, "nests too deeply|is not JSON"),
    "endless-number": (b'{"a":' + b"1" * 5000 + b"}", "is not JSON"),
    "twice": (b'{"antegrad.index": 1, "antegrad.index": 2}', "a key comes twice among .'antegrad.index'"),
    "surrogate-key": (b'{"\\ud800": 1}', "is not JSON"),
    "hugging-face": (
        b'{"metadata": {}, "weight_map": {}}',
        r"has the keys \['metadata', 'weight_map'\], expected ante",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_index_that_is_none(name: str, damaged: Path) -> None:
    text, message = TEXTS[name]
    damaged.write_bytes(text)
    refused(damaged, message, rf"cannot read {damaged}: ")


def test_an_index_beyond_all_bounds(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antegrad.checkpoint.index.MAX_HEADER", damaged.stat().st_size - 1)
    refused(
        damaged,
        rf"{damaged}: the index has {damaged.stat().st_size} bytes, expected at most {damaged.stat().st_size - 1}",
    )


def test_an_array_that_cannot_be_made(tmp_path: Path) -> None:
    """No bytes, and yet a dimension beyond NumPy's limits."""
    index = save_set(tmp_path, {"opt.m": np.empty(0, np.float32)}, {}, 2, 2)
    restamped(edited(index, put("tensors", "opt.m", "shape", value=[0, 2**62])))
    with pytest.raises(CheckpointError, match=rf"{index}: tensor 'opt.m' of type .* cannot be made"):
        load(index)


def test_aliases_that_lie(damaged: Path) -> None:
    for alias, message in (
        ('{"x": "y"}', "has no such tensor"),
        ('{"opt.m": "param.w"}', "also an alias"),
        ("[", "not JSON"),
    ):
        edited(damaged, put("metadata", "antegrad.alias", value=alias))
        for call in (load, lambda path: export(path, path.with_name("exported.safetensors"))):
            with pytest.raises(CheckpointError, match=message):
                call(damaged)
    assert not damaged.with_name("exported.safetensors").exists()


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_edited_bytes(data: st.DataObject, sound: Path) -> None:
    """Bytes deleted and inserted anywhere in an index: a `CheckpointError`, or the same bytes of the arrays."""
    index = sound / f"step-{STEP:08d}.index.json"
    text = index.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        at, cut = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 3))
        known = st.sampled_from(
            [b"0", b"-", b"9", b",", b'"', b"{", b"}", b"[", b"]", b"null", b"1e3", b"/", b"\\ud800"]
        )
        text = text[:at] + data.draw(st.binary(max_size=2) | known) + text[at + cut :]
    changed = sound / "changed.index.json"
    changed.write_bytes(text)
    try:
        found = load(changed).tensors
    except CheckpointError:
        return
    assert sorted(a.tobytes() for a in found.values()) == sorted(a.tobytes() for a in FULL.values())


def test_one_file_of_a_set_is_no_checkpoint(sound: Path, tmp_path: Path) -> None:
    for call in (load, load_metadata, lambda path: export(path, tmp_path / "x.safetensors")):
        with pytest.raises(CheckpointError, match=rf"{FIRST}: it holds the pieces of one process only. Load the index"):
            call(sound / FIRST)


def test_a_missing_index(damaged: Path) -> None:
    damaged.rename(damaged.with_name("step-00000601.index.json"))
    with pytest.raises(CheckpointError, match=rf"{damaged}: No such file.*mean .*step-00000601.index.json\?"):
        load(damaged)


def test_a_set_that_is_replaced_while_it_is_read(damaged: Path) -> None:
    """What was opened is read to the end."""
    with opened(damaged) as reader:
        again = {name: array * 0 for name, array in FULL.items()}
        save_set(damaged.parent, again, {}, 4, 2, names={"opt.m", "opt.f"})
        assert same({name: reader.read(name) for name in reader.types}, FULL)
    assert same(load(damaged).tensors, again)
