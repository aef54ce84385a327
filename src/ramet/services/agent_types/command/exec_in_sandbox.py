"""Starts a program in a sandbox, with pipes to the host for its stdin and stdout. The standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

#: Named pipes in the run's own folder, until both ends of both are open.
STDIN, STDOUT = "stdin.pipe", "stdout.pipe"


def start(argv: Sequence[str], cwd: str) -> int | str:
    """Be there as long as the program is: its exit status, negative for a signal; or why it cannot be started.

    Says that the pipes are there by a line on stdout; the host opens `STDIN`, then `STDOUT`. What passes through them
    passes nobody else. Without `cwd` the program works in the run's own folder.
    """
    for name in (STDIN, STDOUT):
        os.mkfifo(name, 0o600)
    stdin = os.open(STDIN, os.O_RDONLY | os.O_NONBLOCK)  # Else it would wait for the host, which waits for it.
    sys.stdout.write("there\n")
    sys.stdout.flush()
    stdout = os.open(STDOUT, os.O_WRONLY)
    os.set_blocking(stdin, True)
    for name in (STDIN, STDOUT):
        os.unlink(name)  # noqa: PTH108 - the names of this folder
    try:
        program = subprocess.Popen(argv, cwd=cwd or None, stdin=stdin, stdout=stdout)
    except OSError as problem:
        return told(problem)
    finally:
        os.close(stdin)
        os.close(stdout)
    return program.wait()


def told(problem: OSError) -> str:
    """What keeps a program from being started, in a line."""
    return f"{problem.strerror or problem}: {problem.filename}" if problem.filename else str(problem)
