"""Where files are kept: the cache, which antegrad writes, and the user's local copy, which it only reads."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from antegrad.ir.types import TensorType, type_of

__all__ = ["LOCAL_COPY", "cache_directory", "local_copy", "remembered", "replace_file"]

LOCAL_COPY = "ANTEGRAD_DATA"
"""The environment variable that names a directory with the user's own copies; it is never written to."""


def cache_directory() -> Path:
    """The directory for downloads of this user, by the custom of the platform."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "antegrad"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "antegrad" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "antegrad"


def local_copy(name: str) -> Path | None:
    """The file or directory `name` below the directory that ``ANTEGRAD_DATA`` names, or None where there is none."""
    root = os.environ.get(LOCAL_COPY)
    path = Path(root) / name if root else None
    return path if path and path.exists() else None


def replace_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Make or replace the file `path` by what `write` puts into the stream it is given: all of it, or nothing."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "xb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def remembered(
    path: Path, expected: Mapping[str, TensorType], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays of the file `path` (.npz), or those of `make()`, then written to it.

    The file is believed when it holds `expected`, names and types, and passes the checksums of its zip container; any
    other is made anew. `path` must name all that the arrays depend on, such as the hash of their source. Where nothing
    can be written, nothing is remembered.
    """
    if (arrays := _believed(path, expected)) is not None:
        return arrays
    arrays = make()
    with contextlib.suppress(OSError):  # a full disk or a read-only cache costs time, not the data
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda stream: np.savez(stream, **arrays))  # type: ignore[arg-type]  # no array is called allow_pickle
    return arrays


def _believed(path: Path, expected: Mapping[str, TensorType]) -> dict[str, np.ndarray] | None:
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in expected}
            fits = set(file.files) == set(expected) and all(type_of(arrays[n]) == t for n, t in expected.items())
            return arrays if fits else None
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error):
        return None  # TypeError: a lone .npy, which is no context manager, or elements that antegrad does not have
