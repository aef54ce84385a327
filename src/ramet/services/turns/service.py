"""AgentService: conversations with one agent, for clients that have a key of it.

Only the agent's type reads the bodies. The data plane is `turn`, `turn_of`, `batches` and `interrupt`; the mutation
plane is `control`, whose operations are the agent type's. Each method first checks the right of its own name; those of
the data plane check the right `turn`. A key without that right raises NotYours, like an agent that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.equal_mail import checked_window
from ramet.core.errors import Bug, InvalidValue, RametError, Unknown
from ramet.services.contract import (
    AgentInfo,
    AgentType,
    DeduplicatesMail,
    ReadsFiles,
    ReadsParameters,
    ResumableAgent,
    Right,
    decode,
    formats_of,
)
from ramet.services.errors import BodyTooLarge
from ramet.services.teams.agents import AgentAccess, AgentEntry, wait_persisted
from ramet.services.turns.log import TurnLog
from ramet.services.turns.queue import TurnLimits, TurnPhase, TurnQueue, end_error
from ramet.services.turns.tree_events import TreeEvent, tree_events
from ramet.services.turns.turn import Batch, OnLeave, Turn

_log = logging.getLogger("ramet.services")


class AgentService:
    """The turns, control operations and information of agents."""

    def __init__(
        self,
        admit: Callable[[str, str, Right], AgentAccess],
        types: Mapping[str, AgentType],
        *,
        clock: Clock | None = None,
        limits: TurnLimits | None = None,
        log_of: Callable[[str, str], TurnLog] | None = None,
    ) -> None:
        """Get agents from `admit`, which takes an id, a key and a right, and raises NotYours.

        With `log_of`, which takes an agent's id and run, turns survive their kernel: another kernel continues them.
        """
        self._authorize, self._types = admit, types
        self._clock, self._limits = clock or SystemClock(), limits or TurnLimits()
        self._log_of = log_of
        self._queues: weakref.WeakSet[TurnQueue] = weakref.WeakSet()
        self._save_tasks: set[asyncio.Task[None]] = set()
        self._unsaved_agents: set[AgentEntry] = set()

    async def close(self, reason: str = "the server stops", *, leaves_turns: bool = False) -> None:
        """End all turns, but no agent, and wait until all changes are recorded; idempotent.

        With `leaves_turns`, turns that continue at the next start are not ended: the caller ends the process.
        """
        for queue in list(self._queues):
            await queue.close(reason, leaves_turn=leaves_turns)
        while self._save_tasks:
            await asyncio.wait(list(self._save_tasks))

    async def restore(self, entry: AgentEntry) -> None:
        """Restore the turns of an agent that another kernel had, before any new turn is requested."""
        if self._log_of is not None and (logged := await (log := self._log(entry)).read()):
            self._queue_of(entry, log).restore(logged)

    async def drain(self, patience_s: float) -> None:
        """Leave all turns to other kernels; see `TurnQueue.drain`."""
        await asyncio.gather(*(queue.drain(patience_s) for queue in list(self._queues)))

    # ---- the data plane

    def turn(
        self, agent: str, key: str, body: bytes, *, format: str = "", on_leave: OnLeave = "go_on", id: str = ""
    ) -> Turn:
        """Request a turn of an agent. The answer can be read from the returned turn, also by other readers.

        The agent receives `body` unchanged, in the transport format of its spawn, or in `format`, which its type must
        declare. `ramet.services.turns.queue` describes `on_leave`. A given `id` must be unique, and becomes the id of
        the turn. Raises InvalidValue for a format, BodyTooLarge, BusyError if too many turns wait, Gone for an agent
        that has ended.
        """
        access = self._authorize(agent, key, "turn")
        entry = self._require_alive(access.entry)
        return self._queue_of(entry).turn(body, self._format(entry, format), on_leave, access.requester, id)

    def reads_parameters(self, agent: str, key: str, format: str) -> bool:
        """Return whether an agent reads all parameters of a body in a format, and not only the messages."""
        entry = self._require_alive(self._authorize(agent, key, "turn").entry)
        kind = self._type(entry)
        spec = entry.spec
        assert spec is not None, "a live agent was opened"
        return isinstance(kind, ReadsParameters) and kind.reads_parameters(spec.info, format)

    def reads_files(self, agent: str, key: str) -> bool:
        """Return whether an agent reads the images and documents of a message."""
        kind = self._type(self._require_alive(self._authorize(agent, key, "turn").entry))
        return isinstance(kind, ReadsFiles) and kind.reads_files

    def batches(self, agent: str, key: str, turn: Turn, after: int = 0) -> AsyncGenerator[Batch]:
        """Yield the chunks of a turn of this agent, as many at a time as are available, while the key has the right.

        Raises like `Turn.batches`.
        """
        return turn.batches(after, self._authorize(agent, key, "turn"))

    def turn_of(self, agent: str, key: str, turn: str) -> Turn:
        """Return a turn that waits, is running, or is kept. Raises Unknown, Missed."""
        return self._queue_of(self._authorize(agent, key, "turn").entry).get(turn)

    async def interrupt(self, agent: str, key: str, turn: str = "") -> bool:
        """End the running turn, and wait for its end. Return False if no turn is running. Waiting turns follow.

        With the id of a turn, only that running or waiting turn is ended. Raises Unknown, Missed.
        """
        return await self._queue_of(self._authorize(agent, key, "turn").entry).interrupt(turn)

    # ---- the mutation plane

    async def control(self, agent: str, key: str, operation: bytes) -> bytes:
        """Execute `{"@type": name, …}`, an operation of the agent's type, and return its answer; both are JSON.

        Raises Undecodable, Unknown for an operation that the type does not have, InvalidValue for wrong fields,
        BodyTooLarge, Gone, StoreFailed, and the errors of the operation. If the key loses the right during an
        operation, the operation is completed, and NotYours is raised.
        """
        access = self._authorize(agent, key, "control")
        entry = self._require_alive(access.entry)
        if len(operation) > self._limits.body_bytes:
            raise BodyTooLarge("operation", size=len(operation), limit=self._limits.body_bytes)
        type = self._type(entry)
        answer = await entry.running_agent.control(_operation(operation, type.operations))
        await wait_persisted(entry)
        access.check()
        try:
            return msgspec.json.encode(answer)
        except (TypeError, ValueError) as problem:
            raise Bug(
                f"an operation of the agent type {type.name!r} answered with a value that is not data: {problem}"
            ) from None

    async def mail(self, agent: str, key: str, text: str, dedupe_s: float | None = None) -> None:
        """Send a message that the agent reads at its next step.

        If the agent has a record, the message is recorded first. With `dedupe_s`, a message that equals one of the last
        `dedupe_s` seconds is left out. Raises InvalidValue, also for a `dedupe_s` that the agent does not support,
        MailRefused, Gone, StoreFailed.
        """
        entry = self._require_alive(self._authorize(agent, key, "mail").entry)
        if not text:
            raise InvalidValue("text", text, "some text")
        window_s, running_agent = checked_window(dedupe_s), entry.running_agent
        if window_s is None:
            await running_agent.mail(text)
        elif isinstance(running_agent, DeduplicatesMail):
            await running_agent.mail_once(text, window_s)
        else:
            accepted = f"nothing: agents of type {entry.info().agent_type!r} read every message"
            raise InvalidValue("dedupe_s", dedupe_s, accepted)
        await wait_persisted(entry)

    # ---- information

    def info(self, agent: str, key: str) -> AgentInfo:
        return self._authorize(agent, key, "info").entry.info()

    async def history(self, agent: str, key: str, last: int | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the conversation so far, or its `last` messages: at least `role` and `content` of each.

        Raises InvalidValue for a `last` below 1.
        """
        if last is not None and last < 1:
            raise InvalidValue("last", last, "a whole number from 1")
        access = self._authorize(agent, key, "history")
        history = await access.entry.running_agent.history()
        access.check()
        return history if last is None else history[-last:]

    def events(self, agent: str, key: str, after: int = 0) -> AsyncGenerator[TreeEvent]:
        """Yield the events of the agent's tree after a cursor, then new events, until it has ended.

        Close it to stop reading. If the reader's key loses the right, the iteration raises NotYours, and shows no more
        events. If the agent is killed, the reader receives its last events. Raises InvalidValue for the cursor. The
        iteration raises Gone for events that are not kept any more.
        """
        access = self._authorize(agent, key, "events")
        entry = access.entry
        if not 0 <= after < 2**63:
            raise InvalidValue("after", after, "a cursor that was given out, or 0")
        if entry.spec is None:
            raise end_error(entry.running_agent)
        return tree_events(entry.running_agent, entry.spec.runtime, self._clock, after, access)

    # ---- internal

    def _queue_of(self, entry: AgentEntry, log: TurnLog | None = None) -> TurnQueue:
        if entry.state == "waiting":
            raise end_error(entry.running_agent)
        if entry.queue is None:
            note = partial(self._on_phase, entry)
            if log is None and self._log_of is not None:
                log = self._log(entry)
            holds = partial(entry.has_right, right="turn")
            queue = TurnQueue(entry.running_agent, self._clock, self._limits, on_phase=note, log=log, has_right=holds)
            entry.queue = queue
            entry.watchers.add(queue.withdraw_unauthorized)
            self._queues.add(queue)
            return queue
        existing: TurnQueue = entry.queue
        return existing

    def _log(self, entry: AgentEntry) -> TurnLog:
        assert self._log_of is not None, "checked before"
        running_agent = entry.running_agent
        return self._log_of(entry.info().id, running_agent.tree if isinstance(running_agent, ResumableAgent) else "")

    def _on_phase(self, entry: AgentEntry, phase: TurnPhase) -> None:
        """Update the state of the agent.

        Record it from the first chunk on: the agent then has a run, which a restart resumes.
        """
        if phase == "begun":
            entry.turns += 1
        if entry.state in ("idle", "working"):
            entry.state = "idle" if phase == "over" else "working"
        if phase != "begun" and entry not in self._unsaved_agents:
            self._unsaved_agents.add(entry)
            task = asyncio.create_task(self._save(entry), name="ramet keeps an agent")
            self._save_tasks.add(task)
            task.add_done_callback(self._save_tasks.discard)

    async def _save(self, entry: AgentEntry) -> None:
        self._unsaved_agents.discard(entry)
        try:
            await entry.save()
        except RametError as problem:
            _log.error("the state of agent %s could not be recorded: %s", entry.info().id, problem)

    def _format(self, entry: AgentEntry, requested_format: str) -> str:
        spec = entry.spec
        assert spec is not None, "a live agent was opened"
        formats = formats_of(self._type(entry), spec.info)
        if requested_format and requested_format not in formats:
            raise InvalidValue("format", requested_format, " or ".join(formats))
        return requested_format or entry.info().transport_format or formats[0]

    def _type(self, entry: AgentEntry) -> AgentType:
        name = entry.info().agent_type
        if name not in self._types:
            raise Unknown("agent type", name, tuple(self._types))
        return self._types[name]

    def _require_alive(self, entry: AgentEntry) -> AgentEntry:
        if entry.running_agent.end.done():
            raise end_error(entry.running_agent)
        return entry


def _operation(data: bytes, types: Mapping[str, type]) -> Any:
    """Return the operation as the type's own structure, without "@type"."""
    fields: dict[str, Raw] = decode(dict[str, Raw], data, "operation")
    if "@type" not in fields:
        raise InvalidValue("operation.@type", None, f"one of {', '.join(types) or 'none: there are no operations'}")
    name: str = decode(str, fields.pop("@type"), "operation.@type")
    if name not in types:
        raise Unknown("operation", name, tuple(types))
    return decode(types[name], msgspec.json.encode(fields), "operation")
