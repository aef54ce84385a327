"""The trials of the gates, in a fork of a program that works concurrently and needs the results only later."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Mapping

from ramet.isolation.linux import calls
from ramet.isolation.linux.trials import gates
from ramet.isolation.linux.trials.throwaway import run_trial

_running: list[tuple[int, int]] = []  #: the pid, and the pipe with its results


def start() -> None:
    """Start the trials as the current user; call once per process, while it has a single thread."""
    read_end, write_end = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        try:
            calls.die_with_parent(signal.SIGKILL)
            if os.getppid() == parent:
                report = json.dumps({name: run_trial(trial, None) for name, trial in gates.TRIALS.items()})
                os.write(write_end, report.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    _running.append((pid, read_end))


@functools.cache
def results() -> Mapping[str, tuple[bool, str]]:
    """Return for each name whether it works and the observation; empty without `start`. Blocks until all trials end."""
    if not _running:
        return {}
    pid, read_end = _running.pop()
    with os.fdopen(read_end, "rb") as pipe:
        report = pipe.read()
    os.waitpid(pid, 0)
    return {name: (works, detail) for name, (works, detail) in json.loads(report or b"{}").items()}
