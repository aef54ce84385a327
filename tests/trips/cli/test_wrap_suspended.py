"""`ramet wrap` as a job of a real shell: suspended, in the background, and in the foreground again."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import eventually
from tests.trips.cli.test_wrap import is_cooked
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.terminal import Terminal, shell_terminal

__all__ = ["usual_backend"]

#: A shell with job control, which leaves the editing of lines to its terminal.
SHELL = "PS1='out> ' exec bash --norc --noprofile --noediting -i"

#: The alternate screen, the mouse, a hidden cursor, and keys of a newer protocol.
MODES = ("\x1b[?1049h", "\x1b[?1000h", "\x1b[?25l", "\x1b[>1u")
#: A program that uses the whole screen, and draws it when its size changes.
PROGRAM = f"""
import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: print("size", *os.get_terminal_size(), flush=True))
print({"".join(MODES)!r} + "ready", flush=True)
print("got-" + input(), flush=True)
print("end-" + input(), flush=True)
sys.exit(3)
"""


@pytest.fixture
def wrap(tmp_path: Path, usual_backend: BackendName) -> str:
    """Return the beginning of a command line."""
    return f"$RAMET wrap --dir {shlex.quote(str(tmp_path))} --backend {usual_backend} -- sh -c "


def ramet_in(shell: Terminal) -> psutil.Process:
    """Return the job of a shell."""
    (job,) = [each for each in psutil.Process(shell.process.pid).children() if "wrap" in each.cmdline()]
    return job


async def test_a_suspended_ramet_leaves_the_terminal_to_the_shell_and_takes_it_back(wrap: str, tmp_path: Path) -> None:
    """The shell edits lines meanwhile, and the program gets none of what is typed there. `bg` does not wake it.

    The modes of the screen are reset for the shell. They are set again afterwards, and the program draws it again.
    """
    (tmp_path / "screen.py").write_text(PROGRAM)
    async with shell_terminal(SHELL) as shell:
        await shell.shows("out> ")
        shell.type(f"{wrap}'exec python3 screen.py'\r")
        await shell.shows("ready")
        assert not is_cooked(shell)
        job = ramet_in(shell)
        os.kill(job.pid, signal.SIGTSTP)
        await shell.shows("out> ", 2)
        assert job.status() == psutil.STATUS_STOPPED
        assert is_cooked(shell)
        assert all(each in shell.text for each in ("\x1b[?1049l", "\x1b[?1000l", "\x1b[?25h", "\x1b[<1u"))
        shell.type("echo here-$((1 + 1))\r")
        await shell.shows("here-2")
        shell.type("fg\r")
        await eventually(lambda: not is_cooked(shell))
        for mode in MODES:
            await shell.shows(mode, 2)
        await shell.shows("size 80 24")
        shell.type("hello\r")
        await shell.shows("got-hello")

        os.kill(job.pid, signal.SIGTSTP)
        await shell.shows("out> ", 4)
        # A shell hears of a stop when the last thread has stopped. Until then its `fg` would continue nothing.
        shell.type('bg; until [ -n "$(jobs -s)" ]; do :; done; echo begun\r')
        await shell.shows("\nbegun")
        assert job.status() == psutil.STATUS_STOPPED
        assert is_cooked(shell)
        shell.type("fg\r")
        await eventually(lambda: not is_cooked(shell))
        shell.type("again\r")
        await shell.shows("end-again")
        await shell.shows("ramet: sh ended with status 3")
        shell.type("echo status-$?\r")
        await shell.shows("status-3")
        assert is_cooked(shell)


async def test_ctrl_z_suspends_a_ramet_that_is_part_of_a_pipe(wrap: str) -> None:
    """The program has pipes, so the key is for the job of the shell. `fg` continues it, and no byte is lost."""
    program = "echo rea''dy; read line; echo got-$line"
    async with shell_terminal(SHELL) as shell:
        await shell.shows("out> ")
        shell.type(f"{wrap}{shlex.quote(program)} | cat\r")
        await shell.shows("ready")
        job = ramet_in(shell)
        shell.type("\x1a")
        await shell.shows("out> ", 2)
        assert job.status() == psutil.STATUS_STOPPED
        shell.type("fg\r")
        await eventually(lambda: job.status() != psutil.STATUS_STOPPED)
        shell.type("hello\r")
        await shell.shows("got-hello")
        await shell.shows("out> ", 3)
