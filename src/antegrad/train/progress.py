"""How far training is: a live line on a terminal, one plain line an epoch elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from antegrad.train.values import shown, shown_record

if TYPE_CHECKING:
    import rich.live
    import rich.text

__all__ = ["Progress"]

INTERVAL = 0.1
"""The fewest seconds between two drawings."""
SPAN = 30
"""How many updates back the speed is measured from."""
BAR = 20
"""Columns of the bar."""
COUNTERS = ("epoch", "step")
"""Entries of a record that a line does not repeat."""


class Progress:
    """Shows how a run goes on; a context manager.

    On a terminal: a line with epoch, bar, step, values, samples per second and the time left, drawn at most ten times a
    second and gone at the end, and above it one line for each epoch. Elsewhere, in files, pipes and notebooks, these
    lines alone, without carriage returns and escape codes. The first update counts towards no speed, because it has
    waited for the compiler.

    Arguments:
      epochs, steps: epochs of the run, and steps of an epoch.
      verbose: False shows nothing at all.
      stream: where to; None means ``sys.stdout``.
      batch_size: samples of a step; without it no samples per second are shown.
      clock: gives the time in seconds.
    """

    def __init__(
        self,
        epochs: int,
        steps: int,
        verbose: bool = True,
        stream: TextIO | None = None,
        *,
        batch_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs, self.steps, self.batch_size = epochs, steps, batch_size
        self.stream = None if not verbose else sys.stdout if stream is None else stream
        self.clock = clock
        self._past: deque[tuple[float, int]] = deque(maxlen=SPAN)
        self._drawn: float | None = None
        self._live = None if self.stream is None or not _is_terminal(self.stream) else _live(self.stream)

    def update(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """`step` steps of the epoch after `epoch` others are done (0 in the first), the last ones with these values."""
        if self._live is None:
            return
        now, done = self.clock(), epoch * self.steps + step
        self._past.append((now, done))
        if self._drawn is None or now - self._drawn >= INTERVAL:
            self._drawn = now
            self._live.update(self._line(self._live, epoch, step, values), refresh=True)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is done: one line with its record, in which ``epoch`` counts it too."""
        number = (f"epoch {record['epoch']}/{self.epochs}",) if "epoch" in record else ()
        rest = {name: value for name, value in record.items() if name not in COUNTERS}
        self.message("  ".join((*number, shown_record(rest))))

    def message(self, text: str) -> None:
        """Show `text` on a line of its own."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        elif self.stream is not None:
            print(text, file=self.stream, flush=True)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _line(self, live: rich.live.Live, epoch: int, step: int, values: Mapping[str, float]) -> rich.text.Text:
        """Epoch, bar and the rest, whose end is cut off where the terminal is too narrow."""
        from rich.text import Text

        plain = live.console.options.ascii_only
        full = BAR * step // max(self.steps, 1)
        time_left, speed = self._pace()
        parts = [f" {step}/{self.steps}", *time_left, *(shown(*value) for value in values.items()), *speed]
        return Text.assemble(
            f"epoch {epoch + 1}/{self.epochs} ",
            (("=" if plain else "━") * full, "bar.complete"),
            (("-" if plain else "─") * (BAR - full), "bar.back"),
            "  ".join(parts),
            no_wrap=True,
            overflow="crop" if plain else "ellipsis",
        )

    def _pace(self) -> tuple[list[str], list[str]]:
        """Time left and samples per second, each in a list that is empty until two updates tell."""
        (first, before), (now, done) = self._past[0], self._past[-1]
        if now <= first or done <= before:
            return [], []
        steps = (done - before) / (now - first)
        left = timedelta(seconds=round((self.epochs * self.steps - done) / steps))
        speed = [] if self.batch_size is None else [shown("samples_per_second", steps * self.batch_size)]
        return [f"{left} left"], speed


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _live(stream: TextIO) -> rich.live.Live:
    """A display that draws when it is told to, without a thread."""
    # Here and not above: only a terminal needs rich, and importing it takes longer than the rest of this package.
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, force_terminal=True, force_jupyter=False)
    return Live(console=console, auto_refresh=False, transient=True)
