"""MNIST: handwritten digits, 28 by 28 pixels. Source: LeCun, Cortes, Burges, "The MNIST database" (1998)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np

from antegrad.data.dataset import Dataset
from antegrad.data.download import Source, fetch, read_contents
from antegrad.data.error import DataError
from antegrad.data.idx import parse_idx

__all__ = ["mnist"]

MIRRORS = ("https://storage.googleapis.com/cvdf-datasets/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist")


@dataclass(frozen=True)
class IdxFile:
    """One of the files: gzipped as it is published, and the SHA-256 of what is in it, however it is compressed."""

    source: Source
    content_sha256: str


def _file(name: str, size: int, sha256: str, content_sha256: str) -> IdxFile:
    return IdxFile(Source(f"mnist/{name}", tuple(f"{m}/{name}" for m in MIRRORS), size, sha256), content_sha256)


FILES: dict[str, tuple[IdxFile, IdxFile]] = {
    "train": (
        _file(
            "train-images-idx3-ubyte.gz",
            9912422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _file(
            "train-labels-idx1-ubyte.gz",
            28881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    "test": (
        _file(
            "t10k-images-idx3-ubyte.gz",
            1648877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _file(
            "t10k-labels-idx1-ubyte.gz",
            4542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
}


def mnist(
    split: str = "train", *, cache: str | os.PathLike[str] | None = None, progress: bool | None = None
) -> Dataset:
    """MNIST's 60,000 training or 10,000 test digits: inputs u8[n,28,28], ink is 255; targets u8[n], the digits.

    The four files come from ``ANTEGRAD_DATA/mnist`` where they are there, else from the cache, else from the web.

    Args:
      split: "train" or "test".
      cache: the directory for downloads; None means the user's cache directory.
      progress: whether to draw a progress bar; None draws one where stderr is a terminal.

    Raises:
      DataError: the files cannot be had, or are not those of MNIST.
    """
    if split not in FILES:
        raise DataError(f"mnist: expected the split train or test, found {split!r}")
    images, labels = (_read(file, cache, progress) for file in FILES[split])
    return Dataset(images, labels, classes=[str(digit) for digit in range(10)])


def _read(file: IdxFile, cache: str | os.PathLike[str] | None, progress: bool | None) -> np.ndarray:
    path = fetch(file.source, cache, progress)
    content = read_contents(path)
    array = parse_idx(content, str(path))  # first, because it can say more of a truncated file than a hash can
    found = hashlib.sha256(content).hexdigest()
    if found != file.content_sha256:
        raise DataError(f"{path}: expected contents with SHA-256 {file.content_sha256}, found {found}")
    return array
