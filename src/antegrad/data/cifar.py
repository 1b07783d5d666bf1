"""CIFAR-10: colour photographs, 32 by 32 pixels. Source: Krizhevsky, "Learning multiple layers of features from tiny
images" (2009), in the packing of the Hugging Face data set uoft-cs/cifar10."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from antegrad.data.cache import cache_directory, remembered
from antegrad.data.dataset import Dataset
from antegrad.data.download import Source, fetch, sha256_of
from antegrad.data.error import DataError, PackageMissing
from antegrad.data.parquet import read_columns
from antegrad.ir.types import spec
from antegrad.losses import LabelError, check_labels

__all__ = ["cifar10"]

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = (32, 32)
COLUMNS = {"img": "struct<bytes: binary, path: string>", "label": "int64"}
REVISION = "0b2714987fa478483af9968de7c934580d0bb9a2"


def _source(split: str, size: int, sha256: str) -> Source:
    file = f"{split}-00000-of-00001.parquet"
    url = f"https://huggingface.co/datasets/uoft-cs/cifar10/resolve/{REVISION}/plain_text/{file}"
    return Source(f"cifar10/{file}", (url,), size, sha256)


FILES: dict[str, tuple[Source, int]] = {
    "train": (
        _source("train", 119705255, "8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883"),
        50_000,
    ),
    "test": (
        _source("test", 23940850, "841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de"),
        10_000,
    ),
}
"""The file of each split, and the number of its images."""


def cifar10(
    split: str = "train", *, cache: str | os.PathLike[str] | None = None, progress: bool | None = None
) -> Dataset:
    """CIFAR-10's 50,000 training or 10,000 test images: inputs u8[n,32,32,3], targets u8[n], in alphabetical order.

    The parquet file comes from ``ANTEGRAD_DATA/cifar10`` where it is there, else from the cache, else from the web. A
    local copy may hold PNG or JPEG images. The decoded arrays are kept in the cache under the SHA-256 of the file that
    they were decoded from, so that the next call only reads them.

    Args:
      split: "train" or "test".
      cache: the directory for downloads and decoded arrays; None means the user's cache directory.
      progress: whether to draw a progress bar for the download; None draws one where stderr is a terminal.

    Raises:
      DataError: the file cannot be had, has other columns or another number of rows, or an image cannot be decoded.
      PackageMissing: pyarrow or pillow is not installed.
    """
    if split not in FILES:
        raise DataError(f"cifar10: expected the split train or test, found {split!r}")
    source, count = FILES[split]
    path = fetch(source, cache, progress)
    decoded = Path(cache or cache_directory()) / "cifar10" / f"decoded-{sha256_of(path)}.npz"
    expected = {"images": spec((count, *SIZE, 3), "u8"), "labels": spec((count,), "u8")}
    arrays = remembered(decoded, expected, lambda: _decoded(path, count))
    return Dataset(arrays["images"], arrays["labels"], classes=CLASS_NAMES)


def _decoded(path: Path, count: int) -> dict[str, np.ndarray]:
    columns = read_columns(path, COLUMNS)
    labels = columns["label"].to_numpy()
    if len(labels) != count:
        raise DataError(f"{path}: expected {count} rows, found {len(labels)}")
    try:
        check_labels(labels, len(CLASS_NAMES))
    except LabelError as error:
        raise DataError(f"{path}: {error}") from error
    return {"images": _images(path, columns["img"]), "labels": labels.astype(np.uint8)}


def _images(path: Path, column: Any) -> np.ndarray:
    """One image after the other: nearly all of the time passes in Pillow's Python code, where threads do not help."""
    images = np.empty((len(column), *SIZE, 3), np.uint8)
    for row, cell in enumerate(column.to_pylist()):
        images[row] = _image(cell["bytes"], f"{path}: the image in row {row}")
    return images


def _image(content: bytes | None, name: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise PackageMissing("pillow", "decoding images") from error
    if not content:
        raise DataError(f"{name} is missing")
    try:
        image = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
        if image.size == SIZE and image.mode == "RGB":  # before the pixels are decoded: a header may promise many
            return np.asarray(image)
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and others
        raise DataError(f"{name} cannot be decoded, {error}") from error
    raise DataError(f"{name} has {image.size[0]}x{image.size[1]} pixels of mode {image.mode}, expected 32x32 of RGB")
