"""The IDX format, and MNIST from files that are made here."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from antegrad.data import DataError, cache, mnist, read_idx
from antegrad.data.idx import ELEMENT_TYPES, parse_idx
from antegrad.data.mnist import FILES

CODES = {np.dtype(name).newbyteorder("="): code for code, name in ELEMENT_TYPES.items()}


def encode(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, CODES[array.dtype], array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


ANY = arrays.arrays(st.sampled_from(sorted(CODES, key=str)), arrays.array_shapes(min_dims=0, max_dims=5, min_side=0))


@given(ANY)
def test_what_was_written_is_read(array: np.ndarray) -> None:
    found = parse_idx(encode(array), "file")
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


@given(ANY, st.data())
def test_every_other_length_is_refused(array: np.ndarray, data: st.DataObject) -> None:
    content = encode(array)
    wrong = data.draw(st.one_of(st.integers(0, len(content) - 1), st.just(len(content) + 1)))
    with pytest.raises(DataError, match=r"^file: "):
        parse_idx((content + b"x")[:wrong], "file")


@given(st.binary(max_size=80).map(lambda rest: bytes([0, 0, 8]) + rest) | st.binary(max_size=80))
def test_rubbish_gives_an_array_or_a_data_error(content: bytes) -> None:
    with contextlib.suppress(DataError):
        assert len(encode(parse_idx(content, "file"))) == len(content)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"has 0 bytes, expected at least the 4"),
    "html": (b"<!DOCTYPE html>", r"expected two zero bytes and the code of an IDX type, found b'<!DOCTYPE html>'"),
    "magic": (b"\0\1\x08\1\0\0\0\1x", r"two zero bytes"),
    "code": (b"\0\0\x0a\1\0\0\0\1x", r"two zero bytes"),
    "header": (b"\0\0\x08\3\0\0\0\1", r"ends at byte 8, within the 16 bytes of its IDX header"),
    "truncated": (b"\0\0\x08\2\0\0\0\2\0\0\0\3abcde", r"promises 2x3 numbers of 1 bytes, 6 bytes in all, and 5 bytes"),
    "trailing": (b"\0\0\x0c\1\0\0\0\1abcde", r"promises 1 numbers of 4 bytes, 4 bytes in all, and 5 bytes"),
    "huge": (b"\0\0\x08\2" + b"\xff" * 8, r"18446744065119617025 bytes in all, and 0 bytes follow"),
    "huge-zero": (b"\0\0\x08\4" + b"\xff" * 12 + b"\0" * 4, r"an array of shape .* cannot be made"),
    "rank": (b"\0\0\x08\x41" + b"\0\0\0\1" * 65 + b"x", r"cannot be made"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(DataError, match=rf"^file: .*{message}"):
        parse_idx(content, "file")


IMAGES = np.arange(5 * 28 * 28).reshape(5, 28, 28).astype(np.uint8)
LABELS = np.array([7, 2, 1, 0, 9], np.uint8)
"""A small MNIST."""
NAMES = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local copy with the small MNIST, whose hashes are then those that are expected."""
    (tmp_path / "mnist").mkdir()
    files = []
    for name, array, file in zip(NAMES, (IMAGES, LABELS), FILES["test"], strict=True):
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(encode(array), mtime=0))
        files.append(replace(file, content_sha256=hashlib.sha256(encode(array)).hexdigest()))
    monkeypatch.setitem(FILES, "test", tuple(files))
    monkeypatch.setenv(cache.LOCAL_COPY, str(tmp_path))
    return tmp_path / "mnist"


def test_mnist(directory: Path) -> None:
    data = mnist("test")
    np.testing.assert_array_equal(data.inputs, IMAGES)
    np.testing.assert_array_equal(data.targets, LABELS)
    assert (data.inputs.dtype, data.targets.dtype) == (np.uint8, np.uint8)
    assert data.class_names == tuple("0123456789")
    np.testing.assert_array_equal(read_idx(directory / NAMES[0]), IMAGES)


@pytest.mark.parametrize("level", [0, 9])
def test_mnist_however_it_is_compressed(directory: Path, level: int) -> None:
    (directory / NAMES[0]).write_bytes(gzip.compress(encode(IMAGES), level))
    np.testing.assert_array_equal(mnist("test").inputs, IMAGES)


CORRUPT: dict[str, tuple[Any, str]] = {
    "truncated": (lambda whole: whole[:-9], r"expected a whole gzip file, found \d+ bytes of one: .*ended before"),
    "bit": (lambda whole: whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], r"expected a whole gzip file"),
    "trailing": (lambda whole: whole + b"x", r"expected a whole gzip file"),
    "empty": (lambda whole: b"", r"has 0 bytes, expected at least"),
    "html": (lambda whole: b"<!DOCTYPE html>", r"expected two zero bytes .* found b'<!DOCTYPE html>'"),
    "other": (lambda whole: gzip.compress(encode(IMAGES[::-1])), r"expected contents with SHA-256 [0-9a-f]{64}, found"),
    "fewer": (lambda whole: gzip.compress(encode(IMAGES)[:-1]), r"promises 5x28x28 .* 3919 bytes follow"),
}


@pytest.mark.parametrize("kind", CORRUPT)
def test_case_dataset_corrupt(directory: Path, kind: str) -> None:
    change, message = CORRUPT[kind]
    path = directory / NAMES[0]
    content = change(path.read_bytes())
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        mnist("test")
    assert str(caught.value).startswith(f"{path}: ")
    assert path.read_bytes() == content, "a local copy is never touched"


def test_splits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the split train or test, found 'validation'"):
        mnist("validation")
    with pytest.raises(DataError, match=r"missing\.gz: cannot be read, No such file"):
        read_idx(tmp_path / "missing.gz")
