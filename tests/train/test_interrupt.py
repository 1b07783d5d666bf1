"""Signals, sent for real: to this process where they are only noted, to another one where they end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from antegrad.train import interrupt
from antegrad.train.interrupt import Interrupts

FIRST = "{}: finishing the step and saving; a second one ends at once, without saving\n"
SECOND = "{} again: ending at once\n"

CHILD = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from interrupt import Interrupts  # the module alone: antegrad takes seconds to import

with Interrupts() as interrupts:
    {body}
"""
WAITS = """
    print("ready", flush=True)
    while not interrupts.requested:
        time.sleep(0.01)
    print("saved", flush=True)
    interrupts.raise_if_requested()
"""
SAVES_SLOWLY = """
    print("ready", flush=True)
    while not interrupts.requested:
        time.sleep(0.01)
    time.sleep(0.4)
    print("saved", flush=True)
    interrupts.raise_if_requested()
"""
BUSY = """
    import ctypes
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    print("ready", flush=True)
    ctypes.CDLL(None).poll(None, 0, 60000)
    print("not reached", flush=True)
"""
"""The main thread in C, where no signal reaches it: another thread gets it, and Python's handlers must wait."""


def child(body: str, prefix: str = "") -> subprocess.Popen[str]:
    code = prefix + CHILD.format(body=body.strip())
    command = [sys.executable, "-c", code, str(Path(interrupt.__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts() as interrupts:
        interrupts.raise_if_requested()
        assert interrupts.requested is None
        os.kill(os.getpid(), number)
        assert interrupts.requested == number
        error, code = (KeyboardInterrupt, None) if number == signal.SIGINT else (SystemExit, 143)
        with pytest.raises(error) as info:
            interrupts.raise_if_requested()
    assert getattr(info.value, "code", None) == code
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert capfd.readouterr().err == FIRST.format(number.name)
    assert not [thread for thread in threading.enumerate() if thread.name == "antegrad-interrupts"]


def test_nothing_came() -> None:
    with Interrupts() as interrupts:
        pass
    assert interrupts.requested is None
    interrupts.raise_if_requested()


def test_what_was_there_before_comes_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    try:
        with pytest.raises(ZeroDivisionError), Interrupts():
            _ = 1 / 0
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        assert os.read(reading, 8) == bytes([signal.SIGTERM])
    finally:
        assert signal.set_wakeup_fd(-1) == writing
        signal.signal(signal.SIGTERM, before)
        os.close(reading)
        os.close(writing)


def test_other_signals_are_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
        assert interrupts.requested is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_outside_the_main_thread_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def run() -> None:
        with Interrupts() as interrupts:
            found.extend([signal.getsignal(signal.SIGINT), interrupts.requested])
            interrupts.raise_if_requested()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before, None]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_process_saves_and_ends(number: signal.Signals, code: int) -> None:
    """Python turns an uncaught KeyboardInterrupt into a death by SIGINT, which a shell calls 130."""
    process = child(WAITS)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert output == "saved\n"
    assert errors.startswith(FIRST.format(number.name))
    assert process.returncode == code


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_ends_at_once(second: signal.Signals) -> None:
    """Also where the main thread is in C code and runs no handler."""
    process = child(BUSY)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == FIRST.format("SIGINT")
    time.sleep(1.5 * interrupt.ECHO if second == signal.SIGINT else 0)
    process.send_signal(second)
    output, errors = process.communicate(timeout=30)
    assert (output, errors, process.returncode) == ("", SECOND.format(second.name), 128 + second)


def test_a_signal_that_comes_twice_at_once_is_one() -> None:
    """As from `timeout`, which sends it to the process and to its group."""
    process = child(SAVES_SLOWLY)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    output, errors = process.communicate(timeout=60)
    assert (output, errors, process.returncode) == ("saved\n", FIRST.format("SIGTERM"), 143)


def test_an_ignored_signal_stays_ignored() -> None:
    process = child(WAITS, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert errors.startswith(FIRST.format("SIGTERM"))
    assert process.returncode == 143
