"""Messages of other sessions to the root of a tree: delivered as data, held until a person decides, or refused.

A held message is a question in the inbox of the tree, and is recorded as one. Its id is computed from the sender and
the id of the message. A message that a person lets through has the same id in the mailbox of the root, so that it is
delivered once, whenever a process is killed.
"""

from __future__ import annotations

import hashlib
from collections import deque

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, MailRefused
from ramet.core.events import ApprovalAnswered, ApprovalAsked
from ramet.core.ids import Path, RunId
from ramet.core.policy.session_access import INBOUND_MESSAGE, SESSION_PREFIX, Inbound, SessionMessage
from ramet.core.replay.run_replay import RunReplay
from ramet.host.approvals import Pending
from ramet.spawn.run import Run
from ramet.spawn.tree import RunTree
from ramet.tools.agents.report_framing import session_message

MAX_HELD = 20
MAX_UNREAD = 20  #: delivered messages of other sessions that the root has not read
WINDOW_S = 60.0
MAX_PER_SENDER, MAX_PER_WINDOW = 20, 60  #: messages in one window: of one sender, and of all
_MAX_REMEMBERED = 4_096  #: ids of messages that were delivered or answered

DELIVERED = "delivered: its agent reads it as data, and not as an instruction"
HELD = "held until a person there lets it through or refuses it; you are not told which"
KNOWN = "not delivered again: it has this message"


class InboundMessages:
    """The messages of other sessions to one tree; the `held` messages of its inbox."""

    def __init__(self, mode: Inbound, tree: RunTree, clock: Clock, *, session: str | None, unattended: bool) -> None:
        self._mode: Inbound = mode
        self._tree, self._clock, self._session, self._is_unattended = tree, clock, session, unattended
        self._held: dict[str, Pending] = {}
        self._known: dict[str, None] = {}  #: ids of delivered and answered messages, the oldest first
        self._arrivals: deque[tuple[float, str]] = deque()  #: times and senders, of the newest window

    @property
    def is_open(self) -> bool:
        """True unless every message is refused."""
        return self._mode != "refuse"

    def is_addressed(self, session: str) -> bool:
        """Return whether messages to a session id come here; an empty id addresses every session."""
        root = self._root
        return root is not None and (not session or session in (self._session, root.info.id))

    async def receive(self, message: SessionMessage) -> str:
        """Deliver or hold a message, record that, and return what happened to it.

        Raises InvalidValue for a message that is no valid one, and MailRefused, which names the reason.
        """
        message.check()
        root, id = self._checked_root(message), message_id(message)
        if id in self._known or id in self._held:
            await root.context.wait_persisted()
            return KNOWN
        self._count(message.sender)
        if self._mode == "accept":
            self._deliver(root, id, message.sender, message.text)
        else:
            self._hold(root, id, message)
        await root.context.wait_persisted()
        return DELIVERED if self._mode == "accept" else HELD

    def restore(self, replay: RunReplay) -> None:
        """Restore what another process knew: the held messages, and the ids of the others.

        A message that a process had delivered when it was killed is not held: its answer is recorded now.
        """
        delivered = (each for each in replay.mail_ids if each.startswith(SESSION_PREFIX))
        for id in (*replay.answered_messages, *(each.removeprefix(SESSION_PREFIX) for each in delivered)):
            self._remember(id)
        root = self._root
        for event in replay.held_messages.values():
            if event.approval_id in self._known and root is not None:
                root.context.emit(ApprovalAnswered, approval_id=event.approval_id, allowed=True, reason="")
            else:
                self._held[event.approval_id] = _entry(event)

    def entries(self) -> list[Pending]:
        """Return the held messages, the oldest first."""
        return list(self._held.values()) if self._root is not None else []

    def answer(self, id: str, allowed: bool, reason: str) -> bool:
        """Deliver or refuse a held message, and record that; return False if there is none of this id."""
        root, entry = self._root, self._held.get(id)
        if root is None or entry is None:
            return False
        if allowed:  # First: after a kill in between, the next process finds the message in the mailbox.
            self._deliver(root, id, str(entry.args["from"]), str(entry.args["message"]))
        root.context.emit(ApprovalAnswered, approval_id=id, allowed=allowed, reason=reason)
        del self._held[id]
        self._remember(id)
        return True

    @property
    def _root(self) -> Run | None:
        roots = (run for run in self._tree.register.runs.values() if run.parent is None)
        return next((run for run in roots if run.is_living and run.context.mailbox.closed_reason is None), None)

    def _checked_root(self, message: SessionMessage) -> Run:
        to, root = message.session or "the session", self._root
        if self._mode == "refuse":
            raise MailRefused(to, "it takes no messages of other sessions (inbound: refuse)")
        if root is None or not root.agent.takes_prompt:
            raise MailRefused(to, "it has no agent that reads messages")
        if message.sender in (self._session, root.info.id):
            raise MailRefused(to, "that is the sender itself")
        if self._mode == "hold" and self._is_unattended:
            raise MailRefused(to, "it holds messages for a person, and no person is available to answer")
        return root

    def _count(self, sender: str) -> None:
        """Count a message in the present window. Raises MailRefused if there are too many."""
        now = self._clock.monotonic()
        while self._arrivals and now - self._arrivals[0][0] >= WINDOW_S:
            self._arrivals.popleft()
        own = sum(each == sender for _, each in self._arrivals)
        if own >= MAX_PER_SENDER or len(self._arrivals) >= MAX_PER_WINDOW:
            limit = MAX_PER_SENDER if own >= MAX_PER_SENDER else MAX_PER_WINDOW
            raise MailRefused("the session", f"{limit} messages in {WINDOW_S:g} s; try again later")
        self._arrivals.append((now, sender))

    def _deliver(self, root: Run, id: str, sender: str, text: str) -> None:
        mail_id = f"{SESSION_PREFIX}{id}"
        unread = sum(each.id.startswith(SESSION_PREFIX) for each in root.context.mailbox.unread)
        if unread >= MAX_UNREAD:
            raise MailRefused("the session", f"it has {MAX_UNREAD} unread messages of other sessions; try again later")
        framed = session_message(text, sender=sender, mail_id=mail_id)
        self._tree.post.notify(root, framed, mail_id=mail_id, sender=f"{SESSION_PREFIX}{sender}")
        self._remember(id)

    def _hold(self, root: Run, id: str, message: SessionMessage) -> None:
        if len(self._held) >= MAX_HELD:
            raise MailRefused("the session", f"it holds {MAX_HELD} messages for a person; try again later")
        event = root.context.emit(
            ApprovalAsked,
            approval_id=id,
            tool=INBOUND_MESSAGE,
            question="Another session sends this. May the agent read it?",
            args={"from": message.sender, "message": message.text},
        )
        assert isinstance(event, ApprovalAsked), "it is recorded as it is"
        self._held[id] = _entry(event)

    def _remember(self, id: str) -> None:
        self._known[id] = None
        if len(self._known) > _MAX_REMEMBERED:
            del self._known[next(iter(self._known))]


def message_id(message: SessionMessage) -> str:
    """Return the id under which a message is recorded: senders cannot use the ids of each other."""
    return hashlib.sha256(f"session message\0{message.sender}\0{message.id}".encode()).hexdigest()[:16]


def _entry(event: ApprovalAsked) -> Pending:
    if event.at is None or not {"from", "message"} <= event.args.keys():
        raise InvalidValue("approval_asked", event.args, "a held message with its sender and text")
    return Pending(
        id=event.approval_id,
        run=RunId(event.run),
        path=Path(event.path),
        agent=event.agent,
        depth=event.depth,
        tool=event.tool,
        question=event.question,
        args=event.args,
        asked_at=event.at,
        deadline=None,
    )
