"""Program that runs each command of the command line in one folder, and writes to stderr how each of them ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import resource
import sys

from ramet.cli.main import main
from ramet.core.errors import Damaged, InvalidValue
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.server.server import Server

RUN = "r" * 16
MARK = "#### "  #: begins a line of this program among what the commands say
COMMANDS = (
    "ps --all",
    "repair",
    "repair --set-aside x",
    "tree",
    f"tree {RUN}",
    f"show {RUN}",
    f"logs {RUN}",
    f"export {RUN}",
    f"replay {RUN} --speed 0",
    "approvals",
    f"send {RUN} hello",
    f"stop {RUN}",
    f"port {RUN}",
    "approve a1",
    "deny a1",
    f"keep {RUN}",
    f"keep {RUN} --off",
    "schedule list",
    "schedule pause s1",
    "schedule resume s1",
    "schedule trigger s1",
    "schedule rm s1",
    "schedule add tests.trips.agents.scheduled:note --in 1h",
    "run tests.security.every_command:double 2",
    "resume",
    "ask What? --model offline --backend inline",
    "gc --older-than 0 --dry-run",
    "gc --older-than 0",
)


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def read_run_folders(project: pathlib.Path) -> None:
    """Do to each run's folder what a kernel does that resumes the run. A refusal names the folder."""
    folders = RunFolders(project)
    for run in folders.list():
        with contextlib.suppress(InvalidValue, Damaged, OSError):
            folder = folders.find(run.id)
            if (checkpoint := folder.open_checkpoint()) is not None:
                os.close(checkpoint.fd)
            folder.record_resume()
            folder.keep(False)
            folder.clear_workspace()


async def serve(project: pathlib.Path) -> None:
    """Start a server, and stop it."""
    server = Server(project, types={})
    await server.start()
    await server.stop()


def say(text: str) -> None:
    """Write a line with the mark of this program to stderr."""
    sys.stderr.write(f"{MARK}{text}\n")
    sys.stderr.flush()


def run_all(project: pathlib.Path) -> None:
    """Run each command. Start a server and read the runs' folders before the removal."""
    for command in COMMANDS:
        if command.startswith("gc"):
            for name, act in (("run folders", read_run_folders), ("server", lambda folder: asyncio.run(serve(folder)))):
                say(name)
                try:
                    act(project)
                except Exception as error:
                    say(f"status {type(error).__name__}")
                else:
                    say("status 0")
        say(command)
        say(f"status {main([*command.split(), '--dir', str(project)])}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))  # What reads a file without an end fails soon.
    run_all(pathlib.Path(sys.argv[1]))
