"""Records of a run as they come: lines of JSON, a table, and TensorBoard."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from antegrad.checkpoint.store import write_file
from antegrad.data.error import PackageMissing
from antegrad.errors import CheckpointError
from antegrad.train.values import from_json, to_json

__all__ = ["RECORDS", "TABLE", "Records", "Scalars"]

RECORDS, TABLE = "metrics.jsonl", "metrics.csv"


class Records:
    """The files ``metrics.jsonl`` and ``metrics.csv`` in `directory`, with the same records.

    The lines are what counts: the table is made from them whenever it gets new columns, and by `rewind`, which comes
    first. Both files hold a record when `append` returns, though a power failure may still cost the last ones.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._columns: list[str] = []
        self._open: dict[str, FileIO] = {}

    def read(self) -> list[dict[str, Any]]:
        """All records, without the end of one that a kill cut off. Raises `CheckpointError` for any other line."""
        path = self.directory / RECORDS
        with _told(path):
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(text.split("\n")[:-1], 1)]

    def rewind(self, step: int | None) -> None:
        """Remove the records of later steps than `step`; with None only what a kill cut off."""
        self.close()
        records = [record for record in self.read() if step is None or record["step"] <= step]
        self._columns = list(dict.fromkeys(name for record in records for name in record))
        lines = "".join(f"{to_json(record, 'record')}\n" for record in records)
        write_file(self.directory / RECORDS, [lines.encode()])
        self._write_table(records)

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Add a record with a whole number ``"step"``; returns it as it will be read."""
        line = to_json(record, "record")
        plain = _parsed(line, "record")
        self._append(RECORDS, f"{line}\n")
        if new := [name for name in plain if name not in self._columns]:
            self._columns += new
            self._write_table(self.read())
        else:
            self._append(TABLE, self._rows([plain]))
        return plain

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _append(self, name: str, text: str) -> None:
        path = self.directory / name
        with _told(path):
            if name not in self._open:
                self._open[name] = open(path, "ab", buffering=0)  # noqa: SIM115  (stays open)
            stream, rest = self._open[name], text.encode()
            size = stream.seek(0, os.SEEK_END)
            try:
                while rest:
                    rest = rest[stream.write(rest) :]
            except OSError:
                stream.truncate(size)  # what a full disk took of the line would spoil the next one
                raise

    def _write_table(self, records: list[dict[str, Any]]) -> None:
        if table := self._open.pop(TABLE, None):
            table.close()  # it is replaced, and what would be written to it lost
        header = self._rows([dict(zip(self._columns, self._columns, strict=True))]) if self._columns else ""
        write_file(self.directory / TABLE, [(header + self._rows(records)).encode()])

    def _rows(self, records: Iterable[Mapping[str, Any]]) -> str:
        """Lines of the table: nothing for what a record lacks, nan and inf for floats, JSON for what is nested."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        for record in records:
            nested = {name: to_json(x, name) for name, x in record.items() if isinstance(x, (dict, list))}
            writer.writerow({**record, **nested})
        return text.getvalue()


class Scalars:
    """The numbers of records as TensorBoard's scalars in `directory`. Raises `PackageMissing` without tensorboardX."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise PackageMissing("tensorboardX", "writing TensorBoard scalars", "log") from error
        self._new_writer = SummaryWriter
        self._directory = str(directory)
        self._writer: Any = None
        self._purge_step: int | None = None

    def rewind(self, step: int) -> None:
        """TensorBoard shall not show what the directory has of later steps than `step`."""
        self.close()
        self._purge_step = step + 1

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of `record` at its step. Booleans, text and nested values are left out."""
        if self._writer is None:
            self._writer = self._new_writer(self._directory, purge_step=self._purge_step, flush_secs=10)
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _parsed(line: str, where: str) -> dict[str, Any]:
    """The record in a line of JSON."""
    record: Any = None
    with contextlib.suppress(json.JSONDecodeError, RecursionError):
        record = from_json(line)
    step = record.get("step") if isinstance(record, dict) else None
    if not isinstance(step, int) or isinstance(step, bool):
        raise CheckpointError(f"{where} is {line[:80]!r}, expected a JSON object with a whole number 'step'")
    return record


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """An `OSError` becomes a `CheckpointError` that names the file."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot read or write {path}: {error.strerror}") from error
