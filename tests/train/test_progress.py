"""How far training is: what a terminal gets, what a file gets, and how often."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import pytest

from antegrad.train.progress import Progress

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

GONE = "\x1b[?25h\r\x1b[1A\x1b[2K"
"""The cursor is shown again, and the line of the bar erased."""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A time that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def last_line(terminal: Terminal) -> str:
    """What stands on the last line that was drawn."""
    return ESCAPES.sub("", terminal.getvalue()).replace("\n", "\r").rstrip("\r").split("\r")[-1].rstrip()


def drawings(terminal: Terminal) -> int:
    return terminal.getvalue().count("epoch ")


def train(progress: Progress, epochs: int = 2, steps: int = 50) -> None:
    with progress:
        for epoch in range(1, epochs + 1):
            for step in range(1, steps + 1):
                progress.update(epoch - 1, step, {"loss": 1 / step, "learning_rate": 0.001})
            record = {"epoch": epoch, "step": epoch * steps, "loss": 0.25, "val_loss": 0.123456, "seconds": 1.26}
            progress.epoch(record)


def test_case_progress_not_tty() -> None:
    """To a file: one line an epoch, and no character that only a terminal understands."""
    stream = io.StringIO()
    train(Progress(2, 50, stream=stream))
    assert stream.getvalue() == (
        "epoch 1/2  loss 0.25  val_loss 0.1235  1.3 s\n"
        "epoch 2/2  loss 0.25  val_loss 0.1235  1.3 s\n"
    )  # fmt: skip


def test_case_progress_not_tty_of_a_process() -> None:
    """``python train.py > log``, where colours are asked for by force."""
    code = (
        "from antegrad.train.progress import Progress\n"
        "with Progress(2, 3) as progress:\n"
        "    for epoch in (1, 2):\n"
        "        progress.update(epoch - 1, 3, {'loss': 0.5})\n"
        "        progress.epoch({'epoch': epoch, 'loss': 0.5})\n"
        "import sys; assert 'rich' not in sys.modules"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"epoch 1/2  loss 0.5\nepoch 2/2  loss 0.5\n"


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_lines(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    stream = Terminal()
    train(Progress(3, 50, stream=stream), epochs=3)
    assert stream.getvalue().count("\n") == 3
    assert not {"\r", "\x1b"} & set(stream.getvalue())


def test_silent(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    progress = Progress(2, 50, verbose=False, stream=stream)
    train(progress)
    progress.message("hidden")
    assert stream.getvalue() == ""
    train(Progress(2, 50, verbose=False))
    assert capsys.readouterr() == ("", "")


def test_the_line_on_a_terminal(terminal: Terminal, clock: Clock) -> None:
    progress = Progress(2, 100, stream=terminal, batch_size=64, clock=clock)
    with progress:
        progress.update(0, 10, {"loss": 0.5})
        assert last_line(terminal) == f"epoch 1/2 {'━' * 2}{'─' * 18} 10/100  loss 0.5"  # no speed yet
        clock.now += 2
        progress.update(0, 50, {"loss": 0.25, "accuracy": 0.75, "learning_rate": 1e-3})
        assert last_line(terminal).endswith(
            "─ 50/100  0:00:08 left  loss 0.25  accuracy 0.75  lr 0.001  1,280 samples/s"
        )
        clock.now += 2
        progress.update(1, 10, {"loss": 0.2})
        assert last_line(terminal).startswith("epoch 2/2 ")
        assert last_line(terminal).endswith("─ 10/100  0:00:04 left  loss 0.2  1,600 samples/s")
    assert terminal.getvalue().endswith(GONE)


def test_at_most_ten_drawings_a_second(terminal: Terminal, clock: Clock) -> None:
    progress = Progress(1, 1000, stream=terminal, clock=clock)
    with progress:
        for step in range(1, 1001):
            clock.now += 0.002
            progress.update(0, step, {"loss": 0.5})
        within = drawings(terminal)
    assert 15 <= within <= 20, within


def test_short_epochs_are_not_drawn_more_often(terminal: Terminal, clock: Clock) -> None:
    progress = Progress(1000, 1, stream=terminal, clock=clock)
    with progress:
        for epoch in range(1000):
            clock.now += 0.002
            progress.update(epoch, 1, {"loss": 0.5})
        assert drawings(terminal) <= 20


def test_epochs_stay_above_the_bar_and_it_goes(terminal: Terminal, clock: Clock) -> None:
    train(Progress(2, 50, stream=terminal, clock=clock))
    text = ESCAPES.sub("", terminal.getvalue())
    for epoch in (1, 2):
        assert f"epoch {epoch}/2  loss 0.25  val_loss 0.1235  1.3 s\n" in text
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1
    assert terminal.getvalue().endswith(GONE)


def test_a_narrow_terminal_cuts_the_end(monkeypatch: pytest.MonkeyPatch, terminal: Terminal, clock: Clock) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    progress = Progress(1, 10, stream=terminal, clock=clock)
    with progress:
        progress.update(0, 5, {f"metric_{number}": 0.5 for number in range(9)})
        assert last_line(terminal).startswith("epoch 1/1 ━")
        assert last_line(terminal).endswith("…")
        assert len(last_line(terminal)) == 50
        assert "\n" not in terminal.getvalue()


def test_an_ascii_terminal(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with Progress(1, 10, stream=stream, clock=clock) as progress:
        progress.update(0, 5, {f"metric_{number}": 0.5 for number in range(9)})
    assert b"==========" in written.getvalue()


def test_an_error_gives_the_terminal_back(terminal: Terminal) -> None:
    def fails() -> None:
        with Progress(1, 10, stream=terminal) as progress:
            progress.update(0, 5, {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert "\x1b[?25h" in terminal.getvalue()


def test_messages(terminal: Terminal) -> None:
    text = "saved [bold]here[/bold] :smile: " + "x" * 200
    stream = io.StringIO()
    for target in (terminal, stream):
        with Progress(1, 10, stream=target) as progress:
            progress.update(0, 1, {"loss": 0.5})
            progress.message(text)
    assert stream.getvalue() == f"{text}\n"
    assert f"{text}\n" in ESCAPES.sub("", terminal.getvalue())


def test_odd_values(terminal: Terminal, clock: Clock) -> None:
    """No step done, no time gone, a time that stands still, and values that are not finite."""
    progress = Progress(1, 0, stream=terminal, clock=clock)
    values: dict[str, Any] = {"loss": float("nan"), "[red]": float("inf")}
    with progress:
        progress.update(0, 0, values)
        progress.update(0, 0, values)
        progress.epoch(values)
        progress.epoch({})
    assert "loss NaN  [red] Infinity\n" in ESCAPES.sub("", terminal.getvalue())
