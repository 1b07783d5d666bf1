"""Downloads from a server on this machine: continued, checked before use, and never half there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from antegrad.data import DataError, cache, download, fetch
from tests.data.server import CONTENT, HTML, SHA256, Server, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv(cache.LOCAL_COPY, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    with serving() as server:
        yield server


def partial(directory: Path) -> Path:
    """The temporary file of the only source of these tests."""
    return directory / "set" / f".file.bin.{SHA256[:8]}.partial"


def put_partial(directory: Path, content: bytes) -> None:
    partial(directory).parent.mkdir(parents=True)
    partial(directory).write_bytes(content)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_download_lands_in_the_cache_and_is_used_again(server: Server, tmp_path: Path) -> None:
    path = fetch(server.source("whole"), tmp_path)
    assert path == tmp_path / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert files(tmp_path) == ["file.bin"]
    assert fetch(server.source("whole"), tmp_path) == path
    assert server.requests == [("whole", None)]


def test_broken_connections_are_continued(server: Server, tmp_path: Path) -> None:
    assert fetch(server.source("breaking"), tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=20000-", "bytes=40000-", "bytes=60000-"]


def test_another_address_continues(server: Server, tmp_path: Path) -> None:
    put_partial(tmp_path, CONTENT[:100])
    assert fetch(server.source("missing", "silent", "whole"), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("missing", "bytes=100-"), ("silent", "bytes=100-"), ("silent", None), ("whole", None)]


def test_a_later_call_continues(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    with pytest.raises(DataError, match=r"/breaking/file.bin: the connection ended after 40000 of 76800 bytes"):
        fetch(server.source("breaking"), tmp_path)
    assert files(tmp_path) == [partial(tmp_path).name]
    assert fetch(server.source("whole"), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("whole", "bytes=40000-")


@pytest.mark.parametrize("how", ["norange", "refusing"])
def test_a_server_that_cannot_continue_sends_all(server: Server, tmp_path: Path, how: str) -> None:
    put_partial(tmp_path, CONTENT[:100])
    assert fetch(server.source(how, "whole"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"rubbish", HTML * 10, bytes(len(CONTENT)), bytes(len(CONTENT) + 1)])
def test_a_wrong_beginning_is_thrown_away(server: Server, tmp_path: Path, left: bytes) -> None:
    put_partial(tmp_path, left)
    assert fetch(server.source("whole"), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("whole", None)


def test_a_whole_temporary_file_needs_no_request(server: Server, tmp_path: Path) -> None:
    put_partial(tmp_path, CONTENT)
    assert fetch(server.source("missing"), tmp_path).read_bytes() == CONTENT
    assert server.requests == []


WRONG = {
    "missing": r"HTTP status 404, Not Found",
    "html": r"found an unknown number of bytes of text/html that begin with b'<!DOCTYPE html><title>To'",
    "page": r"the connection ended after 47 of 76800 bytes",
    "empty": r"expected 76800 bytes, found 0 bytes of text/plain that begin with b''",
    "short": r"expected 76800 bytes, found 76795 bytes",
    "long": rf"expected SHA-256 {SHA256}, found [0-9a-f]{{64}} of the first 76804 bytes",
    "other": rf"expected SHA-256 {SHA256}, found [0-9a-f]{{64}} of the first 76800 bytes",
    "silent": r"the connection ended after 0 of 76800 bytes",
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_answer_is_refused_and_the_next_address_tried(server: Server, tmp_path: Path, how: str) -> None:
    with pytest.raises(DataError, match=WRONG[how]) as caught:
        fetch(server.source(how), tmp_path)
    assert str(tmp_path / "set" / "file.bin") in str(caught.value)
    assert f"expected 76800 bytes with SHA-256 {SHA256}" in str(caught.value)
    assert "file.bin" not in files(tmp_path)
    assert fetch(server.source(how, "whole"), tmp_path).read_bytes() == CONTENT


def test_every_address_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)/missing/.*404.*\n.*/other/.*SHA-256.*ANTEGRAD_DATA"):
        fetch(server.source("missing", "other"), tmp_path)
    assert files(tmp_path) == []


def test_no_server(server: Server, tmp_path: Path) -> None:
    with serving() as stopped:
        source = stopped.source("whole")
    with pytest.raises(DataError, match=r"/whole/file.bin: .*refused"):
        fetch(source, tmp_path)


def test_no_directory(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"")
    with pytest.raises(DataError, match=rf"cannot keep {tmp_path}/set/file.bin: .*another directory"):
        fetch(server.source("whole"), tmp_path)


def test_calls_at_once_download_once(server: Server, tmp_path: Path) -> None:
    found: list[bytes] = []
    source = server.source("breaking")
    threads = [threading.Thread(target=lambda: found.append(fetch(source, tmp_path).read_bytes())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 6
    assert len(server.requests) == 4
    assert files(tmp_path) == ["file.bin"]


CORRUPT = {
    "truncated": (CONTENT[:1000], r"found 1000 bytes"),
    "wrong-byte": (CONTENT[:-1] + b"\0", r"found 76800 bytes with SHA-256 (?!" + SHA256 + ")"),
    "empty": (b"", r"found 0 bytes"),
    "html": (HTML, r"found 47 bytes .* begin with b'<!DOCTYPE html>"),
}


@pytest.mark.parametrize("kind", CORRUPT)
def test_case_dataset_corrupt(server: Server, tmp_path: Path, kind: str) -> None:
    content, found = CORRUPT[kind]
    path = fetch(server.source("whole"), tmp_path)
    path.write_bytes(content)
    with pytest.raises(DataError, match=found) as caught:
        fetch(server.source("whole"), tmp_path)
    assert f"{path} is corrupt and was removed: expected 76800 bytes with SHA-256 {SHA256}" in str(caught.value)
    assert files(tmp_path) == []
    assert fetch(server.source("whole"), tmp_path).read_bytes() == CONTENT


def test_local_copy_comes_first_and_is_left(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "local" / "set" / "file.bin"
    local.parent.mkdir(parents=True)
    local.write_bytes(b"mine")
    monkeypatch.setenv(cache.LOCAL_COPY, str(tmp_path / "local"))
    assert fetch(server.source("whole"), tmp_path / "cache") == local
    assert local.read_bytes() == b"mine"
    other = fetch(server.source("whole", name="other.bin"), tmp_path / "cache")
    assert other == tmp_path / "cache" / "other.bin"
    assert files(tmp_path / "local") == ["file.bin"]


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / "antegrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_directory() == Path.home() / ".cache" / "antegrad"
    monkeypatch.setattr(cache.sys, "platform", "darwin")
    assert cache.cache_directory() == Path.home() / "Library" / "Caches" / "antegrad"


def test_progress_bar_only_where_asked(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch(server.source("whole"), tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    fetch(server.source("whole"), tmp_path / "shown", progress=True)
    drawn = capsys.readouterr().err
    assert drawn.startswith("\rset/file.bin [")
    assert f"[{'=' * 24}] 0.1 of 0.1 MB" in drawn
    assert drawn.endswith(" \n")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(stream: object) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        cache.replace_file(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
