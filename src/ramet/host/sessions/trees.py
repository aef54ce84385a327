"""The tree of a session: begun, or resumed if the session's id is recorded.

A session id is the name of one conversation. Closing a session does not end the conversation: it stays recorded, until
it is opened again or removed.
"""

from __future__ import annotations

import dataclasses
import difflib
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

from ramet.agent.definition import Agent
from ramet.core.errors import BusyError, Denied, OwnedElsewhere, Unknown
from ramet.core.limits import Limits
from ramet.disk.state_folder import state_folder
from ramet.host import session_ids
from ramet.host.control.run_queries import JournalReader
from ramet.host.journal.journal import TREES, Journal
from ramet.host.journal.ttl import lifetime_of
from ramet.host.recovery.fork_points import share_files
from ramet.host.recovery.resume import ResumeOptions, resolve_inputs, unfinished_trees
from ramet.host.retention.sweep import TreeDeleter
from ramet.host.sessions.rows import OPEN, session_row
from ramet.host.trees.factory import OpenTree, TreeOptions
from ramet.spawn.birth.plan import Plan
from ramet.spawn.run import Run
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool

    from ramet.host.runtime import AgentRuntime

_MAX_SIMILAR = 5  #: ids that an error names


class Conversation(NamedTuple):
    """An open tree and its root, with which a session talks."""

    open_tree: OpenTree
    root: Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beginning:
    """The settings with which a session begins or resumes a conversation."""

    runtime: AgentRuntime
    plan: TreeOptions
    agent: Agent
    tools: Sequence[BaseTool]
    limits: Limits
    request: SpawnRequest
    resume_options: ResumeOptions
    history: Sequence[BaseMessage] = ()  #: the initial history of the conversation

    @property
    def can_begin_now(self) -> bool:
        """Return whether a conversation can begin without waiting.

        A recorded conversation of its id, a policy adapter, or a clone of a repository would need waiting.
        """
        may_be_on_record = self.plan.session is not None and self.runtime.journal is not None
        is_sandboxed = self.request.policy is not None or self.agent.external is not None
        needs_clone = is_sandboxed and self.agent.isolation == "worktree"
        return not may_be_on_record and not self.runtime.has_policy_adapter and not needs_clone

    def begin(self) -> Conversation:
        """Begin a conversation at once, without a policy adapter.

        Raises like `AgentRuntime.open_tree`, and like the spawn of a root.
        """
        opened = self.runtime.open_tree(self.plan)
        return self._spawn_root(opened, opened.tree.spawner.plan_root_now(*self._root, tools=self.tools, cwd=self._cwd))

    async def _begin(self) -> Conversation:
        """Begin a conversation, once the policy adapter has answered. Also raises as `Spawner.plan_root`."""
        opened, session = self.runtime.open_tree(self.plan), self.plan.session
        plan = await opened.tree.spawner.plan_root(
            *self._root, tools=self.tools, cwd=self._cwd, session=session, isolation=self.agent.isolation
        )
        self.runtime.check_open()
        return self._spawn_root(opened, plan)

    @property
    def _root(self) -> tuple[Agent, SpawnRequest, Limits]:
        return self.agent, self.request, self.limits

    @property
    def _cwd(self) -> pathlib.Path:
        return self.plan.cwd or pathlib.Path.cwd()

    def _spawn_root(self, opened: OpenTree, plan: Plan) -> Conversation:
        root = opened.tree.spawner.root(plan, session=self.plan.session, history=self.history)
        self.runtime.keep(opened, root)
        return Conversation(opened, root)

    async def share_files(self, conversation: Conversation) -> None:
        """Give a tree the images and documents of the history that it began with: another tree may have them."""
        journal = self.runtime.journal
        if journal is None or not self.history:
            return
        await self.runtime.open_store()
        await share_files(journal, conversation.root.info.id, self.history)

    async def open(self) -> Conversation:
        """Resume the conversation of the session id, or begin it.

        Raises BusyError or OwnedElsewhere if the conversation is open already, and DefinitionMissing.
        """
        session, journal = self.plan.session, self.runtime.journal
        if session is None or journal is None:
            return await self._begin()
        await self.runtime.open_store()
        if self.history and await _is_recorded(journal, session):
            raise BusyError(f"the conversation {session!r} is recorded already: it has a history of its own")
        while True:
            # Read before the look at the tree: what another kernel registers after that is a conflict.
            _, version = await session_ids.root_of(journal.store, session)
            if (resumed := await _resume_tree(self.runtime, journal, session, **self.resume_options)) is not None:
                return resumed
            conversation = await self._begin()
            if conversation.open_tree.recorder.durable is not None:
                # Before its id is registered: an id without a tree then always means that the tree was removed.
                await conversation.open_tree.recorder.durable()
            root = conversation.root.info.id
            if await session_ids.register(journal.store, session, root, expected=version):
                return conversation
            await self.runtime.close_tree(root, "another process began this conversation at the same time")


async def resume(
    runtime: AgentRuntime,
    session: str,
    *,
    prepare: Callable[[Run], None] | None = None,
    **brought: Unpack[ResumeOptions],
) -> Conversation:
    """Resume the conversation of a session id, or of a root's id.

    Raises Unknown, which names similar ids, BusyError or OwnedElsewhere if it is open already, DefinitionMissing.
    """
    resolve_inputs(**brought)  # Refuse wrong types before a session is looked up.
    journal = runtime.journal
    conversation = None
    if journal is not None:
        conversation = await _resume_tree(runtime, journal, session, prepare, **brought)
    if conversation is None:
        raise Unknown("session", session, await _similar_ids(journal, session))
    return conversation


async def _resume_tree(
    runtime: AgentRuntime,
    journal: Journal,
    session: str,
    prepare: Callable[[Run], None] | None = None,
    **brought: Unpack[ResumeOptions],
) -> Conversation | None:
    await runtime.open_store()
    for tree in await unfinished_trees(journal, session):
        if tree.is_alive:
            raise BusyError(f"the conversation {session!r} is open in this process already")
        handles = await runtime.resume(only=tree.root, prepare=prepare, **brought)
        for handle in handles:
            return Conversation(runtime.trees[handle.run.info.id], handle.run)
        owner = await journal.store.owner_of(tree.root)
        if owner is not None and owner.alive and owner.name != journal.store.kernel:
            raise OwnedElsewhere(tree.root, owner.name, owner.address)
    return None


async def _is_recorded(journal: Journal, session: str) -> bool:
    """Return whether there is a conversation of a session id; a tree whose root was never recorded is none."""
    for tree in await unfinished_trees(journal, session):
        if tree.is_alive or (await tree.replay()).runs:
            return True
    return False


async def remove(records: JournalReader, working_dir: pathlib.Path | None, session: str) -> str:
    """Remove a conversation that no kernel has open, with all files of its tree; return the id of its root.

    Raises Unknown, BusyError for a conversation that is open, and Denied for one that is marked to be kept.
    """
    row, _ = await session_row(records, session)
    if row.state == OPEN:
        raise BusyError(f"the conversation {session!r} is open: close it first")
    transcripts = state_folder(working_dir) / "transcripts" if working_dir is not None else None
    removal = TreeDeleter(records.store, working_dir, transcripts)
    document = await records.store.get(TREES, row.root)
    rows, transcript_folders = await records.rows(row.root), await removal.index()
    if (
        document is None
        or lifetime_of(document.data).keep
        or await removal.remove(row.root, rows, transcript_folders, dry_run=True) is None
    ):
        raise Denied("removal", f"the tree of {session!r} is marked to be kept (ramet keep --off {row.root})")
    if not await removal.mark(document):  # From here on no kernel opens it.
        raise BusyError(f"the conversation {session!r} was opened meanwhile: close it first")
    await removal.remove(row.root, rows, transcript_folders)
    return row.root


async def _similar_ids(journal: Journal | None, session: str) -> tuple[str, ...]:
    """Return recorded ids that are similar to this one; if there are none, the newest ids."""
    if journal is None:
        return ()
    ids = [each.key for each in await journal.store.list(session_ids.SESSIONS)]
    return tuple(difflib.get_close_matches(session, ids, _MAX_SIMILAR, 0.5) or ids[-_MAX_SIMILAR:])
