"""The files that a run leaves in its sandbox: transferred to this machine, and copied as artifacts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import RametError
from ramet.core.events import Notice
from ramet.core.outcome import Artifact
from ramet.isolation.contract import Sandbox
from ramet.isolation.git.clone import CLONE_FOLDER
from ramet.isolation.masking.secret_forms import mask_text
from ramet.isolation.workspace.artifacts import collect
from ramet.spawn.masking import masked_text, secret_forms
from ramet.spawn.run import Run
from ramet.wire.external_program import HOME_FOLDER


class CollectedFiles(NamedTuple):
    """The files that a run left, and the error if they could not be collected."""

    artifacts: tuple[Artifact, ...]
    error: RametError | None = None


async def sync_files(sandbox: Sandbox) -> RametError | None:
    """Transfer the files of the sandbox to this side; return an error if that failed."""
    try:
        await sandbox.sync()
    except RametError as problem:
        return problem
    return None


async def collect_artifacts(run: Run) -> CollectedFiles:
    """Copy the files that the run left to its artifacts, and return them; refused files are recorded as a notice."""
    folder, grant = run.sandbox.folder, run.grant
    assert folder is not None, "a run in a sandbox has a folder"
    assert grant is not None, "a run in a sandbox has a grant"
    try:
        if _is_empty(folder.workspace):
            return CollectedFiles(())
        collected = await asyncio.to_thread(
            collect, folder.workspace, folder.artifacts, max_bytes=grant.max_output_bytes, skipped=_skipped(run)
        )
    except RametError as refusal:
        return CollectedFiles((), refusal)
    forms = secret_forms(run)
    revealing = [each for each in collected.artifacts if mask_text(each.name, forms) != each.name]
    await asyncio.to_thread(_remove, revealing)  # Their names would be recorded.
    for name in (*collected.refused_lines, *(each.name for each in revealing)):
        run.context.emit(Notice, text=f"an artifact was refused: {masked_text(run, name)}")
    return CollectedFiles(tuple(each for each in collected.artifacts if each not in revealing))


def _skipped(run: Run) -> tuple[str, ...]:
    """Return the names in the workspace that are no results: the home of a program of another maker, and a clone."""
    home = (HOME_FOLDER,) if run.agent.external is not None or run.request.stdio else ()
    return (*home, CLONE_FOLDER) if run.sandbox.clone is not None else home


def _remove(artifacts: Sequence[Artifact]) -> None:
    for each in artifacts:
        if each.path is not None:
            Path(each.path).unlink(missing_ok=True)


def _is_empty(workspace: Path) -> bool:
    """Return whether the workspace is empty, which is the usual case.

    A folder that cannot be read counts as not empty.
    """
    try:
        with os.scandir(workspace) as entries:
            return next(entries, None) is None
    except OSError:
        return False
