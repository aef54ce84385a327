"""AgentService: conversations with one agent, for clients that have a key of it.

Only the agent's type reads the bodies. The data plane is `turn`, `read_turn` and `interrupt`; the mutation plane is
`control`, whose operations are the agent type's. Each method first checks the right of its own name; `read_turn` and
`interrupt` check the right `turn`. A key without that right raises NotYours, like an agent that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.equal_mail import checked_window
from ramet.core.errors import Bug, InvalidValue, RametError, Unknown
from ramet.services.contract import (
    AgentInfo,
    AgentSpec,
    AgentState,
    AgentType,
    Chunk,
    DeduplicatesMail,
    ReadsParameters,
    ResumableAgent,
    Right,
    RunningAgent,
    decoded,
    formats_of,
)
from ramet.services.errors import BodyTooLarge
from ramet.services.turns.grants import Grant, Granting
from ramet.services.turns.log import TurnLog
from ramet.services.turns.queue import TurnLimits, TurnPhase, TurnQueue, how_it_ended
from ramet.services.turns.tree_events import TreeEvent, tree_events
from ramet.services.turns.turn import Batch, OnLeave, Turn

_log = logging.getLogger("ramet.services")


class ActiveAgent(Granting, Protocol):
    """An agent in a team, as the team's table has it."""

    talk: Any  #: its TurnQueue, from the first turn on
    state: AgentState
    turns: int  #: begun, also by earlier servers

    @property
    def served(self) -> RunningAgent:
        """The running agent that answers."""

    @property
    def opening(self) -> AgentSpec | None:
        """The specification with which it was opened; None for an agent that could not be opened again."""

    def info(self) -> AgentInfo:
        """Return the description of the agent."""

    async def keep(self) -> None:
        """Record the changes."""


class AuthorizedAgent(Protocol):
    """An agent for the holder of a key; `by` identifies the key."""

    @property
    def living(self) -> ActiveAgent:
        """The agent."""

    @property
    def by(self) -> str:
        """The hash of the key, or OPERATOR for the operator's key."""


Admit = Callable[[str, str, Right], AuthorizedAgent]


class AgentService:
    """The turns, control operations and information of agents."""

    def __init__(
        self,
        admit: Admit,
        types: Mapping[str, AgentType],
        *,
        clock: Clock | None = None,
        limits: TurnLimits | None = None,
        log_of: Callable[[str, str], TurnLog] | None = None,
    ) -> None:
        """Get agents from `admit`, which takes an id, a key and a right, and raises NotYours.

        With `log_of`, which takes an agent's id and run, turns survive their kernel: another kernel continues them.
        """
        self._admitted, self._types = admit, types
        self._clock, self._limits = clock or SystemClock(), limits or TurnLimits()
        self._log_of = log_of
        self._talks: weakref.WeakSet[TurnQueue] = weakref.WeakSet()
        self._keeping: set[asyncio.Task[None]] = set()
        self._to_keep: set[ActiveAgent] = set()

    async def close(self, reason: str = "the server stops", *, leaves_turns: bool = False) -> None:
        """End all turns, but no agent, and wait until all changes are recorded; idempotent.

        With `leaves_turns`, turns that continue at the next start are not ended: the caller ends the process.
        """
        for talk in list(self._talks):
            await talk.close(reason, leaves_turn=leaves_turns)
        while self._keeping:
            await asyncio.wait(list(self._keeping))

    async def take_up(self, living: ActiveAgent) -> None:
        """Restore the turns of an agent that another kernel had, before any new turn is requested."""
        if self._log_of is not None and (kept := await (log := self._log(living)).read()):
            self._talk(living, log).restore(kept)

    async def leave(self, patience_s: float) -> None:
        """Leave all turns to other kernels; see `TurnQueue.leave`."""
        await asyncio.gather(*(talk.leave(patience_s) for talk in list(self._talks)))

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
        admitted = self._admitted(agent, key, "turn")
        living = self._alive(admitted.living)
        return self._talk(living).turn(body, self._format(living, format), on_leave, admitted.by, id)

    def reads_parameters(self, agent: str, key: str, format: str) -> bool:
        """Return whether an agent reads all parameters of a body in a format, and not only the messages."""
        living = self._alive(self._admit(agent, key, "turn"))
        kind = self._type(living)
        opening = living.opening
        assert opening is not None, "who lives was opened"
        return isinstance(kind, ReadsParameters) and kind.reads_parameters(opening.info, format)

    def read_turn(self, agent: str, key: str, turn: str, after: int = 0) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a turn after a number, then new chunks. Close the generator to stop reading.

        Raises at once: Unknown for the turn, InvalidValue for the number, Missed for chunks that are not kept any more.
        The iteration raises Missed if the reader is too slow, and NotYours or Withdrawn as `batches` does.
        """
        return self.turn_of(agent, key, turn).read(after, self._grant(agent, key, "turn"))

    def batches(self, agent: str, key: str, turn: Turn, after: int = 0) -> AsyncGenerator[Batch]:
        """Yield the chunks of a turn of this agent, as many at a time as are available, while the key has the right.

        Raises like `Turn.batches`.
        """
        return turn.batches(after, self._grant(agent, key, "turn"))

    def turn_of(self, agent: str, key: str, turn: str) -> Turn:
        """Return a turn that waits, is running, or is kept. Raises Unknown, Missed."""
        return self._talk(self._admit(agent, key, "turn")).get(turn)

    async def interrupt(self, agent: str, key: str, turn: str = "") -> bool:
        """End the running turn, and wait for its end. Return False if no turn is running. Waiting turns follow.

        With the id of a turn, only that running or waiting turn is ended. Raises Unknown, Missed.
        """
        return await self._talk(self._admit(agent, key, "turn")).interrupt(turn)

    # ---- the mutation plane

    async def control(self, agent: str, key: str, operation: bytes) -> bytes:
        """Execute `{"@type": name, …}`, an operation of the agent's type, and return its answer; both are JSON.

        Raises Undecodable, Unknown for an operation that the type does not have, InvalidValue for wrong fields,
        BodyTooLarge, Gone, StoreFailed, and the errors of the operation. If the key loses the right during an
        operation, the operation is completed, and NotYours is raised.
        """
        living, grant = self._alive(self._admit(agent, key, "control")), self._grant(agent, key, "control")
        if len(operation) > self._limits.body_bytes:
            raise BodyTooLarge("operation", size=len(operation), limit=self._limits.body_bytes)
        type = self._type(living)
        answer = await living.served.control(_operation(operation, type.operations))
        await _settled(living)
        grant.check()
        try:
            return msgspec.json.encode(answer)
        except (TypeError, ValueError) as problem:
            raise Bug(f"an operation of the agent type {type.name!r} answered with no data: {problem}") from None

    async def mail(self, agent: str, key: str, text: str, dedupe_s: float | None = None) -> None:
        """Send a message that the agent reads at its next step.

        If the agent has a record, the message is recorded first. With `dedupe_s`, a message that equals one of the last
        `dedupe_s` seconds is left out. Raises InvalidValue, also for a `dedupe_s` that the agent does not support,
        MailRefused, Gone, StoreFailed.
        """
        living = self._alive(self._admit(agent, key, "mail"))
        if not text:
            raise InvalidValue("text", text, "some text")
        window_s, served = checked_window(dedupe_s), living.served
        if window_s is None:
            await served.mail(text)
        elif isinstance(served, DeduplicatesMail):
            await served.mail_once(text, window_s)
        else:
            accepted = f"nothing: agents of type {living.info().agent_type!r} read every message"
            raise InvalidValue("dedupe_s", dedupe_s, accepted)
        await _settled(living)

    # ---- information

    def info(self, agent: str, key: str) -> AgentInfo:
        """Return the description and state of the agent."""
        return self._admit(agent, key, "info").info()

    async def history(self, agent: str, key: str, last: int | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the conversation so far, or its `last` messages: at least `role` and `content` of each.

        Raises InvalidValue for a `last` below 1.
        """
        if last is not None and last < 1:
            raise InvalidValue("last", last, "a whole number from 1")
        living, grant = self._admit(agent, key, "history"), self._grant(agent, key, "history")
        history = await living.served.history()
        grant.check()
        return history if last is None else history[-last:]

    def events(self, agent: str, key: str, after: int = 0) -> AsyncGenerator[TreeEvent]:
        """Yield the events of the agent's tree after a cursor, then new events, until it has ended.

        Close it to stop reading. If the reader's key loses the right, the iteration raises NotYours, and shows no more
        events. If the agent is killed, the reader receives its last events. Raises InvalidValue for the cursor. The
        iteration raises Gone for events that are not kept any more.
        """
        living = self._admit(agent, key, "events")
        if not 0 <= after < 2**63:
            raise InvalidValue("after", after, "a cursor that was given out, or 0")
        if living.opening is None:
            raise how_it_ended(living.served)
        grant = self._grant(agent, key, "events")
        return tree_events(living.served, living.opening.runtime, self._clock, after, grant)

    # ---- inside

    def _admit(self, agent: str, key: str, right: Right) -> ActiveAgent:
        return self._admitted(agent, key, right).living

    def _grant(self, agent: str, key: str, right: Right) -> Grant:
        living, by = (admitted := self._admitted(agent, key, right)).living, admitted.by
        return Grant(living, agent, by, right, self._clock)

    def _talk(self, living: ActiveAgent, log: TurnLog | None = None) -> TurnQueue:
        if living.state == "waiting":
            raise how_it_ended(living.served)
        if living.talk is None:
            note = partial(self._note, living)
            if log is None and self._log_of is not None:
                log = self._log(living)
            holds = partial(living.holds, right="turn")
            talk = TurnQueue(living.served, self._clock, self._limits, heard=note, log=log, holds=holds)
            living.talk = talk
            living.watchers.add(talk.review)
            self._talks.add(talk)
            return talk
        known: TurnQueue = living.talk
        return known

    def _log(self, living: ActiveAgent) -> TurnLog:
        assert self._log_of is not None, "looked at before"
        served = living.served
        return self._log_of(living.info().id, served.tree if isinstance(served, ResumableAgent) else "")

    def _note(self, living: ActiveAgent, moment: TurnPhase) -> None:
        """Update the state of the agent.

        Record it from the first chunk on: the agent then has a run, which a restart resumes.
        """
        if moment == "begun":
            living.turns += 1
        if living.state in ("idle", "working"):
            living.state = "idle" if moment == "over" else "working"
        if moment != "begun" and living not in self._to_keep:
            self._to_keep.add(living)
            task = asyncio.create_task(self._keep(living), name="ramet keeps an agent")
            self._keeping.add(task)
            task.add_done_callback(self._keeping.discard)

    async def _keep(self, living: ActiveAgent) -> None:
        self._to_keep.discard(living)
        try:
            await living.keep()
        except RametError as problem:
            _log.error("what became of agent %s could not be put on record: %s", living.info().id, problem)

    def _format(self, living: ActiveAgent, asked: str) -> str:
        opening = living.opening
        assert opening is not None, "who lives was opened"
        known = formats_of(self._type(living), opening.info)
        if asked and asked not in known:
            raise InvalidValue("format", asked, " or ".join(known))
        return asked or living.info().transport_format or known[0]

    def _type(self, living: ActiveAgent) -> AgentType:
        name = living.info().agent_type
        if name not in self._types:
            raise Unknown("agent type", name, tuple(self._types))
        return self._types[name]

    def _alive(self, living: ActiveAgent) -> ActiveAgent:
        if living.served.ended.done():
            raise how_it_ended(living.served)
        return living


async def _settled(living: ActiveAgent) -> None:
    """Wait until the request is in the record of the agent's tree. Raises StoreFailed."""
    if living.opening is not None:
        with suppress(Unknown):  # The agent has no tree.
            await living.opening.runtime.get(living.served.run).run.context.settled()


def _operation(data: bytes, known: Mapping[str, type]) -> Any:
    """Return the operation as the type's own structure, without "@type"."""
    fields: dict[str, Raw] = decoded(dict[str, Raw], data, "operation")
    if "@type" not in fields:
        raise InvalidValue("operation.@type", None, f"one of {', '.join(known) or 'none: there are no operations'}")
    name: str = decoded(str, fields.pop("@type"), "operation.@type")
    if name not in known:
        raise Unknown("operation", name, tuple(known))
    return decoded(known[name], msgspec.json.encode(fields), "operation")
