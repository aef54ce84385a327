"""Functions that are measured in sandboxes: a module that imports nothing much, as agents' modules should be."""

from __future__ import annotations

import os
import signal
import sys
import time

from ramet import Policy
from ramet.sub_agent_client import spawn_sub_agent

HALF = Policy(memory_mb=256)


def nothing() -> int:
    """The least an agent can do."""
    return 1


def megabyte() -> list[dict[str, str]]:
    """A typed result of 1 MB."""
    return [{"name": f"row {n}", "text": "x" * 80} for n in range(10_000)]


def wait() -> None:
    """Do nothing for long."""
    _say("here")
    time.sleep(3600)


def middle() -> object:
    """The second of three levels."""
    return spawn_sub_agent(nothing, Policy(memory_mb=128)).output


def top() -> object:
    """The first."""
    return spawn_sub_agent(middle, HALF).output


def deaf() -> None:
    """A synchronous call that does not hear SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def above_deaf() -> None:
    """Deaf itself, and waiting for one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spawn_sub_agent(deaf, Policy(memory_mb=64))


def top_of_deaf() -> None:
    """Likewise."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spawn_sub_agent(above_deaf, HALF)


def hostile() -> None:
    """Two processes that nothing short of SIGKILL ends, one in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        time.sleep(600)
    _say("here")
    time.sleep(600)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
