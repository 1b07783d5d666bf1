"""The directory of a run: what was asked for, and what came of it, readable while the run goes on.

| file | holds |
| --- | --- |
| ``config.json`` | the settings, and what identifies the run |
| ``metrics.jsonl`` | every record, one JSON object a line |
| ``metrics.csv`` | the same as a table, with a column for each name that any record has |
| ``tensorboard/`` | the numbers of the records, where tensorboardX is installed |
| ``summary.json`` | what the run ended with |
| ``step-00000600.safetensors``, ``latest``, ``best`` | see `antegrad.train.writer` |
| ``step-00000600.index.json``, ``step-00000600.shard-...`` | in place of the first, where several processes save |

JSON has no NaN and no infinities: they are written as strings (see `antegrad.train.values`), and in the table as nan,
inf and -inf.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from antegrad.checkpoint.store import ensure_writable, write_file
from antegrad.data.error import PackageMissing
from antegrad.errors import CheckpointError
from antegrad.train.records import RECORDS, TABLE, Records, Scalars
from antegrad.train.values import to_json
from antegrad.train.writer import checkpoints

__all__ = ["Run", "locked"]

CONFIG, SUMMARY, SCALARS = "config.json", "summary.json", "tensorboard"
LISTED = 50
"""The most differences that a message lists; the count is always exact."""


class Run:
    """One directory for one run; a context manager.

    When it is made, it is checked before any work that the directory can be written to, that it holds no other run, and
    when resuming, that the run in it is the same one. Nothing in it is changed before the block is entered.

    Arguments:
      directory: created if it is missing.
      config: the settings, as `values.to_json` takes them. Those of a resumed run replace the earlier ones.
      resume: go on with the run in `directory`, or start it where there is none (see `resumed`).
      identity: what must be as it was when a run is resumed: names and types of the arrays, kind of the optimizer,
        seed, batch size, ...
      tensorboard: whether the records go to TensorBoard too; None means where tensorboardX is installed.
    Raises `CheckpointError` where a check fails, `DTypeError` for settings that JSON cannot hold, and `PackageMissing`
    where TensorBoard is asked for and tensorboardX is not installed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, Any],
        resume: bool = False,
        *,
        identity: Mapping[str, Any] | None = None,
        tensorboard: bool | None = None,
    ) -> None:
        self.directory = Path(directory)
        settings = {"identity": dict(identity or {}), "config": dict(config)}
        self._config = to_json(settings, "settings", indent=2)
        self._scalars = _scalars(self.directory / SCALARS, tensorboard)
        self.earlier: dict[str, Any] = {}
        """The settings that a resumed run had before."""
        self.resumed = self._is_resumed(resume, json.loads(self._config)["identity"])
        """Whether the directory held this run before."""
        self._records = Records(self.directory)
        self._records.read()
        ensure_writable(self.directory)

    def rewind(self, step: int) -> None:
        """Remove the records of later steps than `step`, from which the run goes on; call it before the first `log`.

        They are those of a run that was killed after its last checkpoint, or before its first one, and come again.
        """
        self._records.rewind(step)
        if self._scalars is not None:
            self._scalars.rewind(step)

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a record: names and values, among them ``"step"``, a whole number. The files have it at once.

        Raises `CheckpointError` for a record without its step, or when the disk is full.
        """
        plain = self._records.append(record)
        if self._scalars is not None:
            self._scalars.add(plain)

    def records(self) -> list[dict[str, Any]]:
        """All records so far, read from the file."""
        return self._records.read()

    def summary(self, mapping: Mapping[str, Any]) -> None:
        """Write what the run ended with, in place of an earlier summary."""
        self._write(SUMMARY, to_json(mapping, "summary", indent=2))

    def close(self) -> None:
        self._records.close()
        if self._scalars is not None:
            self._scalars.close()

    def __enter__(self) -> Run:
        self._write(CONFIG, self._config)  # first: by it a resume after a kill knows the run
        self._records.rewind(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, name: str, text: str) -> None:
        write_file(self.directory / name, [f"{text}\n".encode()])

    def _is_resumed(self, resume: bool, identity: dict[str, Any]) -> bool:
        """Whether the directory holds this run; refused where it holds another one, or a run that is not wanted."""
        names = [name for name in (CONFIG, RECORDS, TABLE, SUMMARY) if (self.directory / name).exists()]
        names += [path.name for path in checkpoints(self.directory)]
        if names and not resume:
            raise CheckpointError(
                f"{self.directory} already holds a run ({', '.join(names[:5])}): choose another directory, or go on "
                'with that run by resume="latest"'
            )
        if names:
            saved = _saved(self.directory / CONFIG)
            _check_identity(self.directory, saved["identity"], identity)
            self.earlier = saved.get("config", {})
        return bool(names)


@contextlib.contextmanager
def locked(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Within the block no other training works in `directory`; a `CheckpointError` where one does.

    The lock (``flock``) ends with the process, however that ends. A file system without locks locks nothing.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another training works in {directory} now: wait until it has ended, or choose another directory"
            ) from None
        except OSError:
            yield
        else:
            try:
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have the handle too
    finally:
        os.close(handle)


def _scalars(directory: Path, wanted: bool | None) -> Scalars | None:
    try:
        return None if wanted is False else Scalars(directory)
    except PackageMissing:
        if wanted:
            raise
        return None


def _saved(path: Path) -> dict[str, Any]:
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8")))
        return {**saved, "identity": dict(saved["identity"])}
    except FileNotFoundError:
        reason = "it is missing"
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"it cannot be read ({error!r})"
    raise CheckpointError(f"cannot tell whether the run is the one to go on with by {path}: {reason}")


def _check_identity(directory: Path, saved: Any, now: Any) -> None:
    differences = list(_differences(saved, now, ""))
    if not differences:
        return
    more = [f"and {len(differences) - LISTED} more"] if len(differences) > LISTED else []
    listed = "\n  ".join(differences[:LISTED] + more)
    raise CheckpointError(
        f"the run in {directory} differs from this one, and cannot be resumed as it:\n  {listed}\n"
        "Set them as they were saved, or choose another directory."
    )


def _differences(saved: Any, now: Any, path: str) -> Iterator[str]:
    """``optimizer: saved "adam", now "sgd"`` for each entry in which two JSON values differ."""
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*saved, *now)):
            inner = f"{path}.{name}" if path else name
            if name not in now:
                yield f"{inner}: saved {_brief(saved[name])}, now missing"
            elif name not in saved:
                yield f"{inner}: not saved, now {_brief(now[name])}"
            else:
                yield from _differences(saved[name], now[name], inner)
    elif saved != now or isinstance(saved, bool) != isinstance(now, bool):
        yield f"{path}: saved {_brief(saved)}, now {_brief(now)}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
