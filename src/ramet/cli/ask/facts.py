"""The facts of `ramet ask` that another process needs to continue its tree, in the tree's document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ramet.cli.project import open_project
from ramet.core.errors import DamagedTree
from ramet.host.journal.journal import change_tree
from ramet.host.recovery.resume import ResumeOptions, UnfinishedTree
from ramet.host.safety.write_approval import ASK_FACTS
from ramet.host.sandbox.sandboxes import BackendName
from ramet.host.session import Session


class AskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a question that are not in its tree."""

    is_approved: bool  #: every call that needs an approval is allowed
    backend: BackendName | None  #: where the agents below the root run; None: in the kernel's process


async def record_command(session: Session, *, is_approved: bool, backend: BackendName | None) -> None:
    """Record that a tree is one of `ramet ask`, before its question is asked. Raises StoreFailed."""
    if (journal := session.runtime.journal) is None:
        return
    await session.context.wait_persisted()
    facts = AskFacts(is_approved=is_approved, backend=backend)
    more: dict[str, Any] = {ASK_FACTS: msgspec.to_builtins(facts)}
    await change_tree(journal.store, session.id, as_owner=True, **more)


def ask_facts(tree: UnfinishedTree) -> AskFacts | None:
    """Return the facts of a tree of `ramet ask`, None for any other tree. Raises DamagedTree."""
    if (data := tree.about.get(ASK_FACTS)) is None:
        return None
    try:
        return msgspec.convert(data, AskFacts)
    except msgspec.ValidationError as problem:
        raise DamagedTree(tree.root, "the journal", f"the facts of its command are damaged ({problem})") from None


def resume_options(tree: UnfinishedTree, facts: AskFacts, *, attended: bool) -> ResumeOptions:
    """Return the objects of a tree of `ramet ask`: who answers its approvals, and its agent types.

    Without a person at the terminal all calls that need an approval are denied, unless `--yes` was given.
    """
    project = open_project(Path(tree.about["cwd"]))
    approver = (lambda _: True) if facts.is_approved else None if attended else (lambda _: False)
    return ResumeOptions(
        agents=list(project.values()),
        approver=approver,
    )
