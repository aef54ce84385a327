"""The folder of a run that works in a sandbox: made at its birth, found again later, or said to be lost."""

from __future__ import annotations

import itertools
import logging

from ramet.concurrency.mailbox import Mail
from ramet.core.errors import Unknown
from ramet.core.events import FolderLost, MailPushed
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.housing")
#: What an agent whose folder is missing is told, with its next turn.
_LOST = (
    "(From the host: the workspace of your sandbox was lost, since its folder is not there any more. "
    "What you wrote to it before is gone, and you go on in an empty one.)"
)


def house(run: Run, placement: Placement | None) -> None:
    """Make the folder of a newborn that works in a sandbox. Raises OSError."""
    if run.grant is not None:
        assert placement is not None, "a plan has no grant without a placement"
        run.folder = placement.folder(run.info)


def house_again(run: Run, placement: Placement | None) -> None:
    """Find the folder of a living run that works in a sandbox, or make an empty one and say that it is.

    The loss is on the run's record. A conversation is told with its next turn, unless it may go on in a sandbox that
    outlived its kernel: `tell_lost` tells it if it does not. Raises OSError.
    """
    if run.grant is None or not run.is_living:
        return
    assert placement is not None, "a plan has no grant without a placement"
    try:
        run.folder = placement.folder(run.info, is_there=True)
        lost = "workspace" if run.folder.restore_workspace() else ""
    except Unknown:
        run.folder, lost = placement.folder(run.info), "folder"
    if lost and run.was_inside:  # Else nothing can have been in it.
        _log.warning(
            "the %s of %s (%s) is not there any more: it goes on in an empty one", lost, run.info.path, run.info.id
        )
        run.context.emit(FolderLost, part=lost)
        run.is_folder_lost = True
        if run.left_in is None:
            tell_lost(run)


def tell_lost(run: Run) -> None:
    """Put a note for a conversation whose folder was lost into its mailbox, once: it wakes nobody, and survives a kill.

    A function is told nothing: it begins again in any case.
    """
    if not run.is_folder_lost:
        return
    run.is_folder_lost = False
    if run.agent.function is not None:
        return
    for number in itertools.count(1):
        mail = Mail(id=f"folder:{run.info.id}:{number}", sender="", text=_LOST, kind="note")
        if run.context.mailbox.push(mail):  # Else it had been lost, and said, before.
            run.context.emit(MailPushed, mail_id=mail.id, sender=mail.sender, kind=mail.kind, text=mail.text)
            return
