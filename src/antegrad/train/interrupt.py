"""Ctrl-C and SIGTERM while training: finish the step, save, and only then end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts", "ending"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 0.5
"""Seconds within which the same signal is not a second one: `timeout` sends it to a process and then to its group."""
CLEAR_LINE, SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25h"
"""For a terminal with a live display: its line is drawn again, but the cursor that it hides would stay away."""


class Interrupts:
    """Within the block, the first SIGINT or SIGTERM only sets `requested` and says so; the second ends the process.

        with Interrupts() as interrupts:
            for step in range(steps):
                ...
                if interrupts.requested:
                    save()
                    interrupts.raise_if_requested()

    The second ends it at once, with the exit code ``128 + number`` and without a clean-up of Python: what is saved
    atomically is there in full, or not at all. Both work while the main thread waits for a device, when Python runs no
    handler: a thread of its own sees the signals. A signal that was ignored before the block (``nohup``) stays ignored.

    Python allows handlers in the main thread only; in any other the block does nothing.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        """The number of the first signal, or None."""
        self._since = 0.0
        self._previous: dict[int, Any] = {}
        self._lock = threading.RLock()

    def raise_if_requested(self) -> None:
        """After SIGINT raise `KeyboardInterrupt`, after SIGTERM ``SystemExit(143)``, else do nothing."""
        if self.requested is not None:
            raise ending(self.requested)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._previous_descriptor = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="antegrad-interrupts", daemon=True)
        self._watcher.start()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_descriptor)
        os.close(self._writing)
        self._watcher.join()
        os.close(self._reading)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Python's handler. It runs late, so the thread does the work; but code after a signal shall know of it."""
        self._read()

    def _watch(self) -> None:
        arrival = select.poll()  # unlike select, it takes descriptors above 1023
        arrival.register(self._reading, select.POLLIN)
        while arrival.poll() and self._read():
            pass

    def _read(self) -> bool:
        """Work off the signals that came, whoever is first to see them; False when there will be none any more."""
        with self._lock, contextlib.suppress(BlockingIOError):
            numbers = os.read(self._reading, 64)
            for number in numbers:
                if number in SIGNALS:
                    self._receive(number)
            return bool(numbers)
        return True

    def _receive(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.requested == number and time.monotonic() - self._since < ECHO:
            return
        if self.requested is not None:
            _say(f"{name} again: ending at once", SHOW_CURSOR)
            os._exit(128 + number)
        self.requested, self._since = number, time.monotonic()
        _say(f"{name}: finishing the step and saving; a second one ends at once, without saving")


def ending(number: int) -> BaseException:
    """What a program raises that ends because of a signal: `KeyboardInterrupt`, or ``SystemExit(143)`` for SIGTERM."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _say(text: str, control: str = "") -> None:
    """One line on stderr, past Python's buffers, in which the signal may have interrupted somebody."""
    with contextlib.suppress(OSError):
        drawn = f"{CLEAR_LINE}{control}" if os.isatty(2) else ""
        os.write(2, f"{drawn}{text}\n".encode())
