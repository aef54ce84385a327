"""Files of active agents, copied out of their sandboxes for their owner."""

from __future__ import annotations

import asyncio
import pathlib
from typing import TYPE_CHECKING, NamedTuple

from ramet.core.errors import Gone
from ramet.isolation.workspace.artifacts import read_file

if TYPE_CHECKING:  # The command line reads journals without importing the modules that run agents.
    from ramet.spawn.run import Run


class Workspace(NamedTuple):
    """The workspace of a run on this machine, and the most bytes that may be taken of it at once."""

    folder: pathlib.Path
    max_bytes: int


async def workspace_of(run: Run) -> Workspace:
    """Return the present workspace of a run on this machine.

    Raises Gone; SandboxFailed if its files cannot be copied.
    """
    if run.grant is None or run.sandbox.folder is None:
        raise Gone(f"{run.path} runs in no sandbox, and has no workspace of its own")
    if not run.is_living:
        raise Gone(f"{run.path} has ended: its files are among the files of its result")
    if run.sandbox.current is not None:
        await run.sandbox.current.sync()
    return Workspace(run.sandbox.folder.workspace, run.grant.max_output_bytes)


async def file_of(run: Run, path: str) -> bytes:
    """Return the content of a file of an active run, by its name below the workspace.

    Raises Gone, InvalidValue if the file is not a plain file, Unknown, OutputTooLarge above the policy's
    `max_output_bytes`.
    """
    workspace = await workspace_of(run)
    return await asyncio.to_thread(read_file, workspace.folder, path, max_bytes=workspace.max_bytes)
