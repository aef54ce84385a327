"""Files of agents that are at work, copied out of their sandboxes for their owner."""

from __future__ import annotations

import asyncio
import pathlib
from typing import TYPE_CHECKING, NamedTuple

from ramet.core.errors import Gone
from ramet.isolation.workspace.artifacts import read_file

if TYPE_CHECKING:  # The command line looks at journals without all that runs agents.
    from ramet.spawn.run import Run


class Workspace(NamedTuple):
    """The workspace of a run as it is on this machine, and what may be taken of it at once."""

    folder: pathlib.Path
    max_bytes: int


async def workspace_of(run: Run) -> Workspace:
    """Have the files of a run on this machine as they are now. Raises Gone, SandboxFailed if they cannot travel."""
    if run.grant is None or run.folder is None:
        raise Gone(f"{run.path} works in no sandbox, and has no workspace of its own")
    if not run.is_living:
        raise Gone(f"{run.path} has ended: what it left is among the files of its result")
    if run.box is not None:
        await run.box.sync()
    return Workspace(run.folder.workspace, run.grant.max_output_bytes)


async def file_of(run: Run, path: str) -> bytes:
    """Return the content of a file of a run at work, by its name below the workspace.

    Raises Gone, InvalidValue for what is no plain file, Unknown, OutputTooLarge above the policy's `max_output_bytes`.
    """
    found = await workspace_of(run)
    return await asyncio.to_thread(read_file, found.folder, path, max_bytes=found.max_bytes)
