"""CIFAR-10 from small parquet files that are made here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antegrad.data import DataError, cache, cifar, cifar10

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
LABELS = [3, 8, 0, 9]
SCHEMA = pa.schema([("img", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])


def encoded(image: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    stream = io.BytesIO()
    whole = Image.fromarray(image)
    (whole.convert(mode) if mode else whole).save(stream, kind)
    return stream.getvalue()


def rows(contents: list[bytes | None], labels: list[int | None] = LABELS) -> Any:  # type: ignore[assignment]  # list is invariant
    cells = [None if content is None else {"bytes": content, "path": f"{i}.png"} for i, content in enumerate(contents)]
    return pa.table({"img": cells, "label": labels}, SCHEMA)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a local copy, four PNG images long."""
    path = tmp_path / "local" / "cifar10" / "test-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(rows([encoded(image) for image in IMAGES]), path, row_group_size=3)
    monkeypatch.setenv(cache.LOCAL_COPY, str(tmp_path / "local"))
    monkeypatch.setitem(cifar.FILES, "test", (cifar.FILES["test"][0], 4))
    return path


def test_cifar10(path: Path, tmp_path: Path) -> None:
    data = cifar10("test", cache=tmp_path / "cache")
    np.testing.assert_array_equal(data.inputs, IMAGES)
    np.testing.assert_array_equal(data.targets, LABELS)
    assert (data.inputs.dtype, data.targets.dtype) == (np.uint8, np.uint8)
    assert data.class_names is not None
    assert [data.class_names[label] for label in data.targets] == ["cat", "ship", "airplane", "truck"]


def test_jpeg_images(path: Path, tmp_path: Path) -> None:
    contents = [encoded(np.full_like(IMAGES[0], shade), "JPEG") for shade in (0, 100, 200, 255)]
    parquet.write_table(rows(contents), path)  # type: ignore[arg-type]  # list is invariant
    shades = cifar10("test", cache=tmp_path / "cache").inputs.astype(int)[:, 16, 16]
    np.testing.assert_allclose(shades, np.array([[0], [100], [200], [255]]).repeat(3, 1), atol=2)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The images that are decoded from now on."""
    seen: list[bytes] = []
    decode = cifar._image

    def count(content: bytes, name: str) -> np.ndarray:
        seen.append(content)
        return decode(content, name)

    monkeypatch.setattr(cifar, "_image", count)
    return seen


def test_decoded_once(path: Path, tmp_path: Path, counted: list[bytes]) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(cifar10("test", cache=tmp_path / "cache").inputs, IMAGES)
    assert len(counted) == 4


def test_another_file_is_decoded_anew(path: Path, tmp_path: Path, counted: list[bytes]) -> None:
    cifar10("test", cache=tmp_path / "cache")
    parquet.write_table(rows([encoded(image) for image in IMAGES[::-1]]), path)
    np.testing.assert_array_equal(cifar10("test", cache=tmp_path / "cache").inputs, IMAGES[::-1])
    assert len(counted) == 8


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


SPOILED: dict[str, Any] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-100],
    "flipped": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "text": lambda content: b"<!DOCTYPE html>",
    "npy": lambda content: saved(IMAGES),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_spoiled_decoded_arrays_are_decoded_anew(path: Path, tmp_path: Path, counted: list[bytes], kind: str) -> None:
    cifar10("test", cache=tmp_path / "cache")
    (decoded,) = (tmp_path / "cache" / "cifar10").iterdir()
    decoded.write_bytes(SPOILED[kind](decoded.read_bytes()))
    for _ in range(2):
        np.testing.assert_array_equal(cifar10("test", cache=tmp_path / "cache").inputs, IMAGES)
    assert len(counted) == 8


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": IMAGES[:3], "labels": np.array(LABELS, np.uint8)},
        {"images": IMAGES, "labels": np.array(LABELS)},
        {"images": IMAGES},
        {"images": IMAGES, "labels": np.array(LABELS, np.uint8), "more": IMAGES},
        {"images": IMAGES, "labels": np.array(LABELS, object)},
    ],
)
def test_other_decoded_arrays_are_decoded_anew(
    path: Path, tmp_path: Path, counted: list[bytes], arrays: dict[str, np.ndarray]
) -> None:
    cifar10("test", cache=tmp_path / "cache")
    (decoded,) = (tmp_path / "cache" / "cifar10").iterdir()
    np.savez(decoded, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    np.testing.assert_array_equal(cifar10("test", cache=tmp_path / "cache").targets, LABELS)
    assert len(counted) == 8


def test_a_cache_that_cannot_be_written(path: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    np.testing.assert_array_equal(cifar10("test", cache=tmp_path / "cache").inputs, IMAGES)


PNGS: list[bytes | None] = [encoded(image) for image in IMAGES]
BAD: dict[str, tuple[Any, str]] = {
    "rows": (lambda: rows(PNGS[:3], LABELS[:3]), "expected 4 rows, found 3"),  # type: ignore[arg-type]  # list is invariant
    "label": (lambda: rows(PNGS, [0, 1, 10, 2]), r"labels\[2\] is 10, expected a class from 0 to 9"),
    "no-label": (lambda: rows(PNGS, [0, None, 2, None]), "column label has 2 nulls in 4 rows"),
    "no-image": (lambda: rows([*PNGS[:3], None]), "column img has 1 nulls in 4 rows"),
    "no-bytes": (lambda: rows([*PNGS[:3], b""]), "the image in row 3 is missing"),
    "truncated": (lambda: rows([PNGS[0], PNGS[1][:99], *PNGS[2:]]), "the image in row 1 cannot be decoded"),  # type: ignore[index]  # none is None
    "html": (lambda: rows([b"<html>", *PNGS[1:]]), "the image in row 0 cannot be decoded"),
    "size": (
        lambda: rows([encoded(IMAGES[0][:16]), *PNGS[1:]]),
        "the image in row 0 has 32x16 pixels of mode RGB, expected 32x32 of RGB",
    ),
    "grey": (lambda: rows([encoded(IMAGES[0], mode="L"), *PNGS[1:]]), "has 32x32 pixels of mode L"),
    "gif": (lambda: rows([encoded(IMAGES[0], "GIF"), *PNGS[1:]]), "the image in row 0 cannot be decoded"),
    "column": (lambda: pa.table({"image": [1], "label": [2]}), "expected a column img of struct.*, found image, label"),
    "type": (
        lambda: rows(PNGS).set_column(1, "label", pa.array(LABELS, pa.int32())),
        "expected column label to be int64, found int32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(path: Path, tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    parquet.write_table(make(), path)
    with pytest.raises(DataError, match=message) as caught:
        cifar10("test", cache=tmp_path / "cache")
    assert str(caught.value).startswith(f"{path}: ")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>" * 50, b"PAR1" + bytes(40) + b"PAR1", None])
def test_case_dataset_corrupt(path: Path, tmp_path: Path, content: bytes | None) -> None:
    content = path.read_bytes()[:-300] if content is None else content
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as parquet") as caught:
        cifar10("test", cache=tmp_path / "cache")
    assert str(caught.value).startswith(f"{path}: ")
    assert path.read_bytes() == content, "a local copy is never touched"
    assert not (tmp_path / "cache").exists()


def test_damaged_pages_are_refused(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1000:1400] = bytes(400)
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be"):
        cifar10("test", cache=tmp_path / "cache")


def test_splits() -> None:
    with pytest.raises(DataError, match="expected the split train or test, found 'validation'"):
        cifar10("validation")
