"""A progress bar for downloads."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["ProgressBar"]

WIDTH = 24
INTERVAL = 0.1
"""Seconds between two drawings."""


class ProgressBar:
    """One line on stderr that is drawn over and over: a bar, the megabytes done, and the speed.

    Args:
      label: stands before the bar.
      total: the number of bytes in all.
      shown: whether to draw; None draws where stderr is a terminal.
    """

    def __init__(self, label: str, total: int, shown: bool | None = None) -> None:
        self.label, self.total = label, total
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.started = self.drawn = time.monotonic()
        self.offset: int | None = None

    def update(self, done: int) -> None:
        """Show that `done` bytes are there. Those of the first call count as there before, not towards the speed."""
        now = time.monotonic()
        if self.offset is None:
            self.offset = done
        elif self.shown and (now - self.drawn >= INTERVAL or done == self.total):
            self.drawn = now
            full = WIDTH * done // max(1, self.total)
            speed = (done - self.offset) / max(now - self.started, 1e-3) / 1e6
            bar = f"{'=' * full}{' ' * (WIDTH - full)}"
            sizes = f"{done / 1e6:.1f} of {self.total / 1e6:.1f} MB"
            print(f"\r{self.label} [{bar}] {sizes}, {speed:.1f} MB/s ", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.shown and self.offset is not None:
            print(file=sys.stderr)
