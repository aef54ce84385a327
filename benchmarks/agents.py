"""Functions that are measured in sandboxes. The module imports little, as modules of agents should."""

from __future__ import annotations

import os
import signal
import sys
import time

from ramet import Policy
from ramet.sub_agent_client import spawn_sub_agent

HALF = Policy(memory_mb=256)


def nothing() -> int:
    """Do the least that an agent can do."""
    return 1


def megabyte() -> list[dict[str, str]]:
    """Return a typed result of 1 MB."""
    return [{"name": f"row {n}", "text": "x" * 80} for n in range(10_000)]


def wait() -> None:
    """Sleep for an hour."""
    _say("here")
    time.sleep(3600)


def middle() -> object:
    """Spawn the third of three levels."""
    return spawn_sub_agent(nothing, Policy(memory_mb=128)).output


def top() -> object:
    """Spawn the second of three levels."""
    return spawn_sub_agent(middle, HALF).output


def deaf() -> None:
    """Ignore SIGTERM in a synchronous call."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def above_deaf() -> None:
    """Ignore SIGTERM, and wait for a child that ignores it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spawn_sub_agent(deaf, Policy(memory_mb=64))


def top_of_deaf() -> None:
    """Ignore SIGTERM, and wait for a child and a grandchild that ignore it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spawn_sub_agent(above_deaf, HALF)


def hostile() -> None:
    """Run two processes that only SIGKILL ends, one of them in its own session."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        time.sleep(600)
    _say("here")
    time.sleep(600)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
