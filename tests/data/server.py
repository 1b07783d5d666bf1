"""A web server on this machine with addresses that fail in chosen ways."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from antegrad.data import Source

CONTENT = bytes(range(256)) * 300
"""76,800 bytes; no two places within 256 bytes of each other look alike."""
HTML = b"<!DOCTYPE html><title>Too many requests</title>"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers by the first part of the path; `server.requests` lists each path with its Range header."""

    server: Server  # type: ignore[assignment]  # the base class says BaseServer

    def do_GET(self) -> None:
        how, wanted = self.path.split("/")[1], self.headers.get("Range")
        self.server.requests.append((how, wanted))
        getattr(self, f"answer_{how}")(int(wanted[len("bytes=") : -1]) if wanted else 0)

    def send(self, body: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length != -1:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def send_rest(self, offset: int, end: int | None = None) -> None:
        """From `offset` on, as a server with Range does; the connection ends at `end`."""
        headers = {"Content_Range": f"bytes {offset}-{len(CONTENT) - 1}/{len(CONTENT)}"} if offset else {}
        self.send(CONTENT[offset:end], 206 if offset else 200, len(CONTENT) - offset, **headers)

    def answer_whole(self, offset: int) -> None:
        self.send_rest(offset)

    def answer_breaking(self, offset: int) -> None:
        self.send_rest(offset, offset + 20_000)

    def answer_silent(self, offset: int) -> None:
        self.send(b"", length=len(CONTENT))

    def answer_norange(self, offset: int) -> None:
        self.send(CONTENT)

    def answer_refusing(self, offset: int) -> None:
        self.send(b"", 416) if offset else self.send(CONTENT)

    def answer_missing(self, offset: int) -> None:
        self.send(HTML, 404)

    def answer_html(self, offset: int) -> None:
        self.send(HTML, length=-1, Content_Type="text/html; charset=utf-8")

    def answer_page(self, offset: int) -> None:
        """An error page that says neither what it is nor how long."""
        self.send(HTML, length=-1)

    def answer_empty(self, offset: int) -> None:
        self.send(b"")

    def answer_short(self, offset: int) -> None:
        self.send(CONTENT[:-5])

    def answer_long(self, offset: int) -> None:
        self.send(CONTENT + b"more", length=-1)

    def answer_other(self, offset: int) -> None:
        self.send(CONTENT[::-1])

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []

    def source(self, *ways: str, name: str = "set/file.bin") -> Source:
        """`CONTENT`, at one address for each of `ways`."""
        urls = tuple(f"http://127.0.0.1:{self.server_address[1]}/{how}/file.bin" for how in ways)
        return Source(name, urls, len(CONTENT), SHA256)


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
