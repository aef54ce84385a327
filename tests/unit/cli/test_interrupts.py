"""Ctrl-C and its kin."""

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
def not_nohup() -> Iterator[None]:
    """Whoever started the tests may have asked that a hang-up is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("not_nohup")
@pytest.mark.parametrize("number", NAMES)
def test_the_first_word_stops_in_good_order(number: signal.Signals) -> None:
    """Whoever was told to stop knows by whom, and the process goes on."""
    heard: list[str] = []

    with Interrupts(heard.append, lambda: heard.append("at once")) as interrupts:
        os.kill(os.getpid(), number)

    assert heard == [interrupts.signal_name] == [NAMES[number]]


def test_the_handlers_from_before_are_back() -> None:
    """What a caller had set is set again."""
    before = [signal.getsignal(number) for number in NAMES]

    with Interrupts(lambda name: None, lambda: None):
        assert [signal.getsignal(number) for number in NAMES] != before

    assert [signal.getsignal(number) for number in NAMES] == before


def test_nohup_stays_nohup() -> None:
    """A hang-up that is ignored stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(lambda name: pytest.fail("heard"), lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_word_ends_the_process_at_once() -> None:
    """With status 130, after the terminal was restored, without waiting for anything."""
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (130, "stop: Ctrl-C\nat once\n")
