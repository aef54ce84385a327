"""Start a program in a sandbox, with pipes to the host for its stdin and stdout. Uses the standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

#: Named pipes in the run's own folder. They are removed once both ends of both are open.
STDIN, STDOUT = "stdin.pipe", "stdout.pipe"


def start(argv: Sequence[str], cwd: str) -> int | str:
    """Run the program. Return its exit status (negative for a signal), or the reason why it cannot be started.

    Prints a line on stdout when the pipes exist; the host then opens `STDIN`, then `STDOUT`. No other process sees the
    data in the pipes. Without `cwd` the program works in the run's own folder.
    """
    for name in (STDIN, STDOUT):
        os.mkfifo(name, 0o600)
    stdin = os.open(STDIN, os.O_RDONLY | os.O_NONBLOCK)  # A blocking open would be a deadlock with the host.
    sys.stdout.write("there\n")
    sys.stdout.flush()
    stdout = os.open(STDOUT, os.O_WRONLY)
    os.set_blocking(stdin, True)
    for name in (STDIN, STDOUT):
        os.unlink(name)  # noqa: PTH108 - the names of this folder
    try:
        program = subprocess.Popen(argv, cwd=cwd or None, stdin=stdin, stdout=stdout)
    except OSError as problem:
        return error_text(problem)
    finally:
        os.close(stdin)
        os.close(stdout)
    return program.wait()


def error_text(problem: OSError) -> str:
    """Return the reason why a program cannot be started, in one line."""
    return f"{problem.strerror or problem}: {problem.filename}" if problem.filename else str(problem)
