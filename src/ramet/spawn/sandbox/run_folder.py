"""The folder of a sandboxed run: created at its spawn, found again later, or reported as lost."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import stat
from pathlib import Path

from ramet.concurrency.mailbox import Mail
from ramet.core.errors import Unknown
from ramet.core.events import FolderLost, MailPushed
from ramet.isolation.contract import Backend, Sandbox, SandboxSpec
from ramet.isolation.git.clone import CLONE_ENV, Clone, create
from ramet.isolation.linux.beneath import open_without_links
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.run_folder")
#: The text for an agent whose folder is missing, sent with its next turn.
_FOLDER_LOST_NOTE = (
    "(From the host: the workspace of your sandbox was lost, because its folder no longer exists. "
    "The files that you wrote there are lost, and you continue in an empty folder.)"
)
#: The same for an agent that works in a clone.
_CLONE_LOST_NOTE = (
    "(From the host: the workspace of your sandbox was lost, because its folder no longer exists. The files and "
    "commits that you made there are lost, and you continue in a new clone of the repository.)"
)


def create_folder(run: Run, placement: Placement | None) -> None:
    """Create the folder of a new run that works in a sandbox.

    Raises OSError.
    """
    if run.grant is not None:
        assert placement is not None, "a plan has no grant without a placement"
        run.sandbox.folder = placement.folder(run.info)
        _enter_clone(run)


def restore_folder(run: Run, placement: Placement | None) -> None:
    """Find the folder of a living sandboxed run, or create an empty one and report the loss.

    The loss is recorded for the run. A conversation is informed with its next turn, unless it may continue in a sandbox
    that outlived its kernel: in that case `report_lost_folder` informs it if it does not. Raises OSError.
    """
    if run.grant is None or not run.is_living:
        return
    assert placement is not None, "a plan has no grant without a placement"
    try:
        run.sandbox.folder = placement.folder(run.info, is_there=True)
        lost_part = "workspace" if run.sandbox.folder.restore_workspace() else ""
    except Unknown:
        run.sandbox.folder, lost_part = placement.folder(run.info), "folder"
    _enter_clone(run)
    if lost_part and run.sandbox.was_started:  # Otherwise the folder cannot have held anything.
        _log.warning(
            "the %s of %s (%s) no longer exists: the run continues in an empty one",
            lost_part,
            run.info.path,
            run.info.id,
        )
        run.context.emit(FolderLost, part=lost_part)
        run.sandbox.is_folder_lost = True
        if run.sandbox.replay is None:
            report_lost_folder(run)


def _enter_clone(run: Run) -> None:
    if run.sandbox.clone is not None:
        run.context.works_in = run.visible_cwd


def report_lost_folder(run: Run) -> None:
    """Put a note into the mailbox of a conversation whose folder was lost, once.

    The note wakes no run and is durable. A function receives no note: it restarts in any case.
    """
    if not run.sandbox.is_folder_lost:
        return
    run.sandbox.is_folder_lost = False
    if run.agent.function is not None:
        return
    text = _FOLDER_LOST_NOTE if run.sandbox.clone is None else _CLONE_LOST_NOTE
    for number in itertools.count(1):
        mail = Mail(id=f"folder:{run.info.id}:{number}", sender="", text=text, kind="note")
        if run.context.mailbox.push(mail):  # Otherwise it was lost, and reported, before.
            run.context.emit(MailPushed, mail_id=mail.id, sender=mail.sender, kind=mail.kind, text=mail.text)
            return


async def start_in_clone(run: Run, clone: Clone, spec: SandboxSpec, backend: Backend) -> Sandbox:
    """Start the sandbox of a run in its clone, which is made first unless it is there.

    Raises as `Backend.start`, and NoWorktree if the clone cannot be made.
    """
    max_bytes, abort = spec.grant.workspace_size_mb << 20, run.context.abort
    await create(clone, spec.workspace, owner=backend.owner, max_bytes=max_bytes, abort=abort)
    run.worktree = clone  # From now on its end leaves the clone.
    cwd, env = spec.cwd, {**CLONE_ENV, **spec.env}
    if run.agent.external is None:  # A program enters its folder itself.
        has_cwd = await asyncio.to_thread(lambda: _is_folder(clone.cwd(spec.workspace.resolve())))
        cwd = clone.cwd(spec.workspace) if has_cwd else None
    return await backend.start(dataclasses.replace(spec, cwd=cwd, env=env))


def _is_folder(path: Path) -> bool:
    """Return whether a run left a folder in its place: a process must not begin where a link leads."""
    try:
        handle = open_without_links(str(path))
    except OSError:
        return False
    try:
        return stat.S_ISDIR(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
