"""A program in a sandbox at the terminal, or at the pipes, that the host made for it.

The terminal is a pseudo-terminal of the run alone. Its other end is the host's, which passes bytes on, so no program
inside reaches the terminal of a person:

- Input that is pushed into a terminal (TIOCSTI) is refused by the sandbox, and would be read inside or by nobody.
- Modes and size are those of a terminal that ends with the run.
- The program is in no session with a process outside: it cannot stop a shell of the host, or hang up its terminal.

The program leads a session of its own, with that terminal as the controlling terminal, so that a shell in it has job
control and `/dev/tty` works. No shell waits for the program: it is continued when it stops itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from ramet.core.errors import RametError
from ramet.core.policy.rights import STDIO

_SIGNALLED: Final = 128  #: added to the number of a signal, as shells do
#: Python ignores some signals, as `nohup` does, and a kernel may block some: a program would inherit that.
_PROGRAM: Final = """\
import fcntl, os, signal, sys, termios
for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(each, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    os.write(2, f"{sys.argv[1]}: {error.strerror}\\n".encode(errors="replace"))
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


def run_program(command: Sequence[str], env: Mapping[str, str], cwd: str) -> int:
    """Run a program at the descriptors of this sandbox, and return its exit status: 128 + n for signal n.

    Its process group is ended with it, and the rest of what it started at the end of the sandbox. SIGTERM to this
    process is passed on. Status 127 is that of a program that was not found, 126 of one that cannot be executed. Raises
    RametError if this sandbox has no descriptors for a program, OSError if `cwd` cannot be entered.
    """
    stdio = _take_stdio()
    stdin, stdout, stderr = stdio * 3 if len(stdio) == 1 else stdio
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={name: value for name, value in env.items() if name != STDIO},
            cwd=cwd,
            start_new_session=True,
        )
    finally:
        for fd in stdio:
            os.close(fd)
    with _passing_on_stop(process.pid):
        process.returncode = _wait(process.pid)
    return process.returncode


def _take_stdio() -> list[int]:
    """Return the descriptors, which are this caller's from now on."""
    numbers = os.environ.pop(STDIO, "")
    if not numbers:
        raise RametError("this sandbox has no terminal, and no pipes, for a program")
    return [int(each) for each in numbers.split(",")]


def _wait(leader: int) -> int:
    """Wait for the end of the leader of a session, end its group, and return its exit status."""
    while (state := os.waitid(os.P_PID, leader, os.WEXITED | os.WSTOPPED | os.WNOWAIT)) is not None:
        if state.si_code != os.CLD_STOPPED:
            break
        os.waitid(os.P_PID, leader, os.WSTOPPED | os.WNOHANG)
        _signal_group(leader, signal.SIGCONT)
    _signal_group(leader, signal.SIGKILL)  # Before it is reaped: until then no other group has its number.
    code = os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
    return code if code >= 0 else _SIGNALLED - code


@contextmanager
def _passing_on_stop(leader: int) -> Iterator[None]:
    """Pass on the request to end, also to a program that stands still."""

    def stop(*_: object) -> None:
        for each in (signal.SIGTERM, signal.SIGCONT):
            _signal_group(leader, each)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
