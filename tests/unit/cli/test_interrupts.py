"""Ctrl-C and other signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ramet.cli.signals import NAMES, Interrupts

#: Signals itself three times: the first is heard, the second ends the process before the third and the last line.
TWICE = """
import os, signal
from ramet.cli.signals import Interrupts
with Interrupts(lambda name: print("stop:", name, flush=True), lambda: print("at once", flush=True)):
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
    print("not reached")
"""


@pytest.fixture
def default_hangup() -> Iterator[None]:
    """Restore the default action of SIGHUP, which the caller of the tests may ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize("number", NAMES)
def test_the_first_signal_asks_for_a_stop(number: signal.Signals) -> None:
    """The callback gets the signal's name, and the process continues."""
    calls: list[str] = []

    with Interrupts(calls.append, lambda: calls.append("at once")) as interrupts:
        os.kill(os.getpid(), number)

    assert calls == [interrupts.signal_name] == [NAMES[number]]


def test_earlier_signal_handlers_are_restored() -> None:
    """The caller's handlers are set again."""
    before = [signal.getsignal(number) for number in NAMES]

    with Interrupts(lambda name: None, lambda: None):
        assert [signal.getsignal(number) for number in NAMES] != before

    assert [signal.getsignal(number) for number in NAMES] == before


def test_an_ignored_hangup_stays_ignored() -> None:
    """A program under nohup starts with an ignored hangup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(lambda name: pytest.fail("heard"), lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_signal_ends_the_process_at_once() -> None:
    """The terminal is restored, and the status is 130."""
    process_result = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)

    assert (process_result.returncode, process_result.stdout) == (130, "stop: Ctrl-C\nat once\n")
