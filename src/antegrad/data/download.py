"""Files from the web, each trusted only after its SHA-256 has been compared with the one that is known.

A download goes to a temporary file beside its target, continues where an earlier one broke off (HTTP Range), and is
checked, flushed to the disk and renamed. Several addresses are tried in turn. pooch would check and rename too, but it
starts every download anew, knows one address a file, and brings requests: the standard library is enough. POSIX only.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BufferedRandom
from pathlib import Path

from antegrad.data.cache import LOCAL_COPY, cache_directory, local_copy
from antegrad.data.error import DataError
from antegrad.data.progress import ProgressBar

__all__ = ["Source", "fetch", "read_contents", "sha256_of"]

GZIP_MAGIC = b"\x1f\x8b"
ATTEMPTS = 5
"""How often one address is tried, as long as each try brings the download forward."""
PIECE = 1 << 18
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""


@dataclass(frozen=True)
class Source:
    """A file that is known byte for byte: its path below the cache, the addresses to try in turn, size and SHA-256."""

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str


class _Broken(Exception):
    """A request or a connection that failed."""


def fetch(source: Source, cache: str | os.PathLike[str] | None = None, progress: bool | None = None) -> Path:
    """The path of `source` on this machine; it is downloaded where it is not there.

    A copy below ``ANTEGRAD_DATA`` is taken as it is: the caller checks its contents, for it may be another encoding of
    the same data. A file in the cache and a new download have the size and the SHA-256 of `source`.

    Args:
      cache: the directory for downloads; None means `cache_directory()`.
      progress: whether to draw a progress bar; None draws one where stderr is a terminal.

    Raises:
      DataError: no address gave the file, each with its reason; the directory cannot be written to; or the file in the
        cache is corrupt, which removes it.
    """
    if local := local_copy(source.name):
        return local
    target = Path(cache or cache_directory()) / source.name
    try:
        if not target.exists():
            _download(source, target, progress)
        elif fault := _fault(target, source):
            target.unlink(missing_ok=True)
            raise DataError(f"{target} is corrupt and was removed: {fault}. Call again to download it anew.")
    except OSError as error:
        raise DataError(f"cannot keep {target}: {error.strerror or error}. Give another directory as cache.") from error
    return target


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of the file `path`, in hexadecimal digits. Raises `DataError` where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read, {error.strerror}") from error


def read_contents(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the file `path`, decompressed where they are gzipped.

    Raises `DataError` where the file cannot be read, is truncated, or fails gzip's checksum.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read, {error.strerror}") from error
    try:
        return gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content
    except (OSError, EOFError, zlib.error) as error:  # EOFError is gzip's word for a truncated file
        raise DataError(f"{path}: expected a whole gzip file, found {len(content)} bytes of one: {error}") from error


def _fault(path: Path, source: Source) -> str | None:
    """What was expected of `path` and what was found, or None when it is the file that it should be."""
    size, digest = path.stat().st_size, sha256_of(path)
    if digest == source.sha256:
        return None
    with open(path, "rb") as stream:
        return f"{_expected(source)}, found {size} bytes with SHA-256 {digest} that begin with {stream.read(24)!r}"


def _expected(source: Source) -> str:
    return f"expected {source.size} bytes with SHA-256 {source.sha256}"


def _download(source: Source, target: Path, progress: bool | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{source.sha256[:8]}.partial")
    problems = []
    with _locked(partial) as stream, ProgressBar(source.name, source.size, progress) as bar:
        if target.exists():  # another process has brought it while this one waited for the lock
            return partial.unlink()
        for url in source.urls:
            problem = _download_from(url, source, stream, bar)
            if problem is None:
                os.fsync(stream.fileno())
                return os.replace(partial, target)
            problems.append(f"\n  {url}: {problem}")
        if not _size(stream):
            partial.unlink()
    raise DataError(
        f"cannot download {source.name} to {target}, {_expected(source)}:{''.join(problems)}\n"
        f"Try again, or set {LOCAL_COPY} to a directory that has {source.name}."
    )


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[BufferedRandom]:
    """The temporary file, open for appending, and locked so that two processes do not write into it at once."""
    while True:
        with open(partial, "a+b") as stream:
            with contextlib.suppress(OSError):  # a file system without locks: the hash still tells
                fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_at(partial, stream):
                yield stream
                return


def _is_at(path: Path, stream: BufferedRandom) -> bool:
    """Whether `stream` is the file `path` still; whoever held its lock before may have renamed or removed it."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _download_from(url: str, source: Source, stream: BufferedRandom, bar: ProgressBar) -> str | None:
    """Complete `stream` from `url`; None, or why that failed."""
    problem = None
    for _ in range(ATTEMPTS):
        before = _size(stream)
        try:
            _append(url, source, stream, bar)
            problem = _completed(source, stream)
        except _Broken as error:
            problem = str(error)
        after = _size(stream)
        restarts = before > 0 and after == 0  # what an earlier download had left did not fit
        if problem is None or not (after > before or restarts):
            break
    return problem


def _append(url: str, source: Source, stream: BufferedRandom, bar: ProgressBar) -> None:
    """Append what `stream` lacks; raise `_Broken` where the answer cannot be a part of `source`."""
    done = _size(stream)
    bar.update(done)
    if done >= source.size:
        return
    with _request(url, done) as response:
        if done and response.headers.get("Content-Range", "").partition("-")[0] != f"bytes {done}":
            stream.truncate(done := 0)  # the server sends all of it
        length, kind = response.length, response.headers.get_content_type()  # no length where it comes in chunks
        if kind == "text/html" or length not in (None, source.size - done):
            found = f"{'an unknown number of' if length is None else length} bytes of {kind}"
            raise _Broken(f"expected {source.size - done} bytes, found {found} that begin with {_read(response, 24)!r}")
        while done <= source.size and (piece := _read(response, PIECE)):
            stream.write(piece)
            bar.update(done := done + len(piece))


def _completed(source: Source, stream: BufferedRandom) -> str | None:
    """None when `stream` holds the whole file; else what is wrong, and a `stream` that can never fit is emptied."""
    size = _size(stream)
    if size < source.size:
        return f"the connection ended after {size} of {source.size} bytes"
    stream.seek(0)
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest == source.sha256:
        return None
    stream.truncate(0)
    return f"expected SHA-256 {source.sha256}, found {digest} of the first {size} bytes"


def _size(stream: BufferedRandom) -> int:
    return stream.seek(0, os.SEEK_END)


def _request(url: str, offset: int) -> HTTPResponse:
    headers = {"User-Agent": "antegrad"} | ({"Range": f"bytes={offset}-"} if offset else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Broken(f"HTTP status {error.code}, {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _Broken(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _read(response: HTTPResponse, count: int) -> bytes:
    try:
        return response.read(count)
    except (OSError, HTTPException) as error:
        raise _Broken(f"the connection broke, {error or type(error).__name__}") from error
