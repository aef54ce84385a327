"""The rows of one tree, kept current by its events: an event costs as much as the rows that it changes.

The replay behind the rows keeps no conversation, no argument of a call and no text of mail: only what rows show.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from msgspec.structs import replace

from ramet.core.errors import InvalidValue
from ramet.core.events import (
    Compacted,
    Event,
    LimitsRaised,
    MailPushed,
    ModelAsked,
    ModelCharged,
    RunEnded,
    RunResumed,
    RunSpawned,
    ToolStarted,
)
from ramet.core.outcome import Result
from ramet.core.replay import codec
from ramet.core.replay.codec import ReplayEvent, ReplayMessage, StoredMessage
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.run_replay import RunReplay
from ramet.host.control.limit_use import ReservedAmounts
from ramet.host.control.run_queries import EMPTY, SandboxUsage, row_of
from ramet.host.journal.stored_events import damage_error, stored_pages
from ramet.services.operator.changes import ChangedRow
from ramet.store.contract import Store, StoredEvent

PAGE = 1_000  #: events that are read at a time
#: Events that may change what a run uses or reserves, and so all rows above it; a reply may as well.
_OF_SUBTREE = (LimitsRaised, ModelAsked, ModelCharged, RunEnded, RunResumed, RunSpawned, ToolStarted)
#: What is kept of messages, by their kinds: a conversation keeps its length only.
_EMPTY_MESSAGES = {kind: StoredMessage(kind, None, {}) for kind in ("human", "ai", "tool", "system")}
_OTHER_MESSAGE = StoredMessage("", None, {})
_KEPT_OF_BIRTH = ("limits", "persistent")
_PROMPT = 500  #: characters that a row shows where an agent has no description


class TreeRows:
    """The rows of one tree."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.cursor = 0  #: of the newest applied event
        self.is_active = False  #: a kernel has the tree active
        self.agent_path = ""  #: of the agent of a server whose tree it is
        self.number = self.shown = 0  #: its number among the trees of a feed, and the number of its runs shown there
        self._replay = TreeReplay()
        self._reserved = ReservedAmounts(self._replay.runs)

    @property
    def is_over(self) -> bool:
        """True if every run has ended."""
        return self._replay.is_over

    @property
    def is_closed(self) -> bool:
        """True if every run has ended, and no kernel has the tree active."""
        return not self.is_active and self.is_over

    @property
    def runs(self) -> dict[str, RunReplay]:
        """The runs, in the order of their spawns."""
        return self._replay.runs

    async def load(self, store: Store) -> dict[str, int]:
        """Apply the recorded events; return the cursor of the newest change of each run. Raises DamagedTree."""
        changes = dict[str, int]()
        async for page in stored_pages(store, self.root, after=self.cursor, page=PAGE):
            for each in page:
                changes.update(dict.fromkeys(self.apply(store, each), each.cursor))
        return changes

    def apply(self, store: Store, stored: StoredEvent) -> tuple[str, ...]:
        """Apply a recorded event of the tree; return the ids of the runs whose rows it may change, if any.

        An event that was applied before changes nothing. Raises DamagedTree.
        """
        if stored.cursor <= self.cursor:
            return ()
        self.cursor = stored.cursor
        if stored.type in codec.IGNORED_TAGS:
            self._replay.skip(stored.seq)
            return ()
        run = self._replay.runs.get(stored.run)
        generation = run.generation if run is not None else 0
        try:
            event = codec.decode(stored.data)
            self._replay.apply(event)
        except InvalidValue as problem:
            raise damage_error(store, stored, problem) from None
        run = self._replay.runs.get(event.run)
        if run is None:
            return ()
        self._shorten(run, event)
        is_reply = isinstance(event, ReplayMessage) and event.usage is not None
        if not (is_reply or isinstance(event, _OF_SUBTREE) or run.generation != generation):
            return (run.id,)
        upwards = list(self.upwards(run.id))
        self._reserved.update(upwards)
        return tuple(each.id for each in upwards)

    def upwards(self, run: str) -> Iterator[RunReplay]:
        """Yield a run, and the runs above it."""
        each = self._replay.runs.get(run)
        while each is not None:
            yield each
            each = self._replay.runs.get(each.ancestor_id)

    def row(self, run: str, streamed_at: datetime | None, sample: SandboxUsage | None = None) -> ChangedRow:
        """Return the row of a run.

        `streamed_at` is the time of the newest part of a reply that streams, `sample` the usage of its process.
        """
        streaming = EMPTY if streamed_at is None else {run: streamed_at}
        row = row_of(
            self._replay.runs[run],
            self._reserved,
            is_active=self.is_active,
            streaming=streaming,
            sample=sample,
            kind=ChangedRow,
        )
        return replace(row, result=None, agent_path=self.agent_path)

    def _shorten(self, run: RunReplay, event: Event | ReplayEvent) -> None:
        """Drop what the replay kept of an event, and no row shows."""
        del self._replay.ledger[:-1]
        match event:
            case RunSpawned():
                birth = {name: event.birth[name] for name in _KEPT_OF_BIRTH if name in event.birth}
                run.spawn_event = replace(event, prompt=event.prompt[:_PROMPT], birth=birth, tools=())
                run.conversation = [_EMPTY_MESSAGES.get(each.kind, _OTHER_MESSAGE) for each in run.conversation]
            case ReplayMessage():
                run.conversation[-1] = _EMPTY_MESSAGES.get(event.message.kind, _OTHER_MESSAGE)
            case Compacted():
                run.conversation = [_EMPTY_MESSAGES.get(each.kind, _OTHER_MESSAGE) for each in run.conversation]
            case ToolStarted() if event.call_id in run.started_calls:
                run.started_calls[event.call_id] = replace(event, args={})
            case MailPushed():
                run.recent_mail = None
                run.mail_ids.clear()
                if event.mail_id in run.unread:
                    run.unread[event.mail_id] = run.unread[event.mail_id]._replace(text="")
            case RunEnded():
                run.result = Result(status=event.result.status)
