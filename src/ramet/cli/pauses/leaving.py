"""The end of a process that leaves its trees as they are, for another one."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from ramet.cli.paths import display_path
from ramet.cli.render.sanitize import one_line
from ramet.cli.signals import kill_descendants
from ramet.core.replay.paused_limits import raise_option
from ramet.host.runtime import AgentRuntime
from ramet.host.trees.exhausted_limits import ExhaustedLimit
from ramet.host.trees.factory import OpenTree


def print_commands(err: Console, limits: Iterable[ExhaustedLimit], folder: Path) -> None:
    """Print what is paused, and the commands with which it goes on."""
    with contextlib.suppress(OSError):
        for each in limits:
            err.print(Text(f"paused: {one_line(str(each), 400)}"), soft_wrap=True)
            err.print(Text(f"to go on: {resume_command(each, folder)}"), soft_wrap=True)


def resume_command(paused: ExhaustedLimit, folder: Path) -> str:
    """Return the command that raises a limit by the suggested amount, and continues its tree."""
    option = raise_option(paused.resource)
    where = "" if folder == Path.cwd() else f" --dir {_quoted(folder)}"
    return f"ramet resume {paused.run} {option} {paused.suggestion:.12g}{where}"


def _quoted(folder: Path) -> str:
    shown = display_path(folder)
    return f"~/{shlex.quote(shown[2:])}" if shown.startswith("~/") else shlex.quote(shown)


async def leave_process(runtimes: Collection[AgentRuntime], trees: Iterable[OpenTree], status: int) -> NoReturn:
    """End this process as a kill would, with that status: what is on record is resumed by another process.

    Nothing is closed, because closing would end the trees. Call it when all that must be kept is on record.
    """
    for runtime in runtimes:
        if runtime.journal is not None and runtime.journal.control_socket is not None:
            await runtime.journal.control_socket.stop()
    # From here on the event loop is blocked, so that no run records its end.
    for each in trees:
        each.recorder.close()  # It writes the rest of the transcripts.
    for runtime in runtimes:
        runtime.sandboxes.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    kill_descendants(os.getpid())
    os._exit(status)
