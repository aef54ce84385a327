"""The turns of one agent: answered one after the other, in the order of their requests, and kept for a while.

**A client that leaves.** The turn continues: an interrupted agent would leave its task unfinished, and the client may
only have lost its connection. The answer can be read again, from any number, until `keep_s` after the end of the turn,
as far as there is room for it. A turn with `on_leave="interrupt"` is ended instead, as soon as its last reader has
left; a waiting turn is then never begun. A turn that has never had a reader is not affected.

**The end of a turn.** The last chunk is `done` if the agent completed the turn; else it is `error`, after all other
chunks. The error is the agent's error; Aborted if the turn was interrupted; Gone if the agent ended meanwhile.

**The owner of a turn.** A waiting turn belongs to the key that requested it: if that key loses the right to turns
before the turn begins, the turn is withdrawn, with a chunk `error` (Withdrawn). A turn that has begun belongs to the
agent: it continues until it ends, or until a client with that right interrupts it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.core.errors import Aborted, BusyError, Gone, InvalidValue, OwnedElsewhere, RametError, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import ResumableAgent, RunningAgent
from ramet.services.errors import BodyTooLarge, Missed, TakenOver, ValuesMissing, Withdrawn
from ramet.services.turns.index import KnownTurns
from ramet.services.turns.log import LoggedTurn, RequestedTurn, TurnLog
from ramet.services.turns.log_writer import TurnWriter
from ramet.services.turns.turn import ON_LEAVE, OnLeave, ReplayBuffer, Turn

_log = logging.getLogger("ramet.services")

TurnPhase = Literal["begun", "answering", "over"]

#: Chunks, and bytes, that an agent may send before readers run on the event loop.
_BREATH, _BREATH_BYTES = 64, 64 * 1024
_ELSEWHERE = (OwnedElsewhere, TakenOver)


@dataclass(frozen=True, kw_only=True)
class TurnLimits:
    """The limits of one agent's conversation."""

    body_bytes: int = 8 * 1024 * 1024  #: size of one message
    waiting: int = 16  #: turns that wait while another is running
    waiting_bytes: int = 16 * 1024 * 1024  #: size of all waiting messages
    kept_bytes: int = 16 * 1024 * 1024  #: size of all answers, of running and ended turns
    kept_turns: int = 32  #: ended turns: more than can wait concurrently
    keep_s: float = 60.0  #: seconds since a turn's end
    patience_s: float = 5.0  #: seconds to wait for an agent that must interrupt its turn, or has ended in one


class TurnQueue:
    """The queue of turns of one agent. It needs `close`; when the agent ends, open turns end automatically."""

    def __init__(
        self,
        served: RunningAgent,
        clock: Clock,
        limits: TurnLimits | None = None,
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        heard: Callable[[TurnPhase], None] = lambda moment: None,
        log: TurnLog | None = None,
        holds: Callable[[str], bool] = lambda by: True,
    ) -> None:
        """Call `heard` for each turn when it begins, when it has its first chunk, and when it has ended.

        `holds` returns whether a key has the right to turns now; its argument is `Turn.by`. With a `log`, turns are
        recorded before they begin, and chunks before they are read.
        """
        self.limits = limits or TurnLimits()
        self.turns = 0  #: turns requested so far
        self._served, self._clock, self._heard, self._holds = served, clock, heard, holds
        self._life = f"turn-{entropy(6).hex()}-"  #: unique to this queue: a later queue of the agent has another prefix
        self._waiting: deque[Turn] = deque()
        self._buffer = ReplayBuffer(self.limits.kept_bytes)
        self._known = KnownTurns(
            clock, self.limits.keep_s, self.limits.kept_turns, f"ramet {self._life}forgets", self._gone
        )
        self._now: Turn | None = None
        self._answering: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._closed: RametError | None = None
        self._log, self._place = log, 0
        self._writer = TurnWriter(log, f"ramet {self._life}keeps", self.lose)
        self._others: set[asyncio.Task[None]] = set()
        self._begins_no_more = False  #: another kernel begins the next turns
        self._has_left = False  #: turns cannot be read here any more
        if served.ended.done():
            self._agent_ended(served.ended)
        else:
            served.ended.add_done_callback(self._agent_ended)

    @property
    def is_working(self) -> bool:
        """True if a turn is running."""
        return self._now is not None

    @property
    def waiting(self) -> int:
        """The number of waiting turns."""
        return len(self._waiting)

    @property
    def kept_bytes(self) -> int:
        """The present size of all readable answers in bytes."""
        return self._buffer.used

    # ---- turns

    def turn(self, body: bytes, format: str, on_leave: OnLeave = "go_on", by: str = "", id: str = "") -> Turn:
        """Request a turn: the agent receives `body` unchanged, after the earlier turns.

        `by` is the hash of the requesting key. A given `id` must be unique, and becomes the id of the turn. Raises
        BodyTooLarge, BusyError if too many turns wait, Gone if the agent has ended; nothing is kept then.
        """
        if on_leave not in ON_LEAVE:
            raise InvalidValue("on_leave", on_leave, " or ".join(ON_LEAVE))
        if len(body) > self.limits.body_bytes:
            raise BodyTooLarge("body", size=len(body), limit=self.limits.body_bytes)
        if self._closed is not None or self._served.ended.done():
            raise (
                self._closed
                if isinstance(self._closed, _ELSEWHERE)
                else Gone(str(self._closed or how_it_ended(self._served)))
            )
        if self._is_busy:
            self._check_room(body)
        self.turns += 1
        turn = self._new(id or f"{self._life}{self.turns}", body, format, on_leave, self._place + 1, by)
        self._waiting.append(turn)
        if self._log is not None:
            begins = not self._is_busy and self._waiting[0] is turn
            turn.recorded = self._begin(self._record(turn, begins))
        self._go_on()
        return turn

    def restore(self, kept: Sequence[LoggedTurn]) -> None:
        """Restore the turns of another kernel, before any other turn, and continue those that have not ended."""
        for asked, chunks in ((each.asked, each.chunks) for each in kept):
            turn = self._new(asked.id, asked.body, asked.format, asked.on_leave, asked.place, asked.by)
            turn.restore(chunks)
            if turn.is_over:
                self._known.over(turn)
                continue
            turn.has_begun = asked.began
            turn.before = (asked.taken + 1, [each.body for each in chunks]) if asked.began else None
            self._waiting.append(turn)
        self._go_on()

    def _new(self, id: str, body: bytes, format: str, on_leave: OnLeave, place: int, by: str) -> Turn:
        keep = self._writer.has_said if self._log is not None else None
        turn = Turn(id, body, format, on_leave, self._buffer, self._left, place=place, by=by, keep=keep)
        self._known.add(turn)
        self._place = place
        return turn

    def get(self, id: str) -> Turn:
        """Return the turn of that id. Raises Missed for a forgotten turn, and Unknown for a turn that never existed."""
        if (found := self._known.find(id)) is not None:
            return found
        number = re.fullmatch(re.escape(self._life) + "([1-9][0-9]{0,17})", id)
        if number is not None and int(number[1]) <= self.turns:
            raise Missed(id, after=0, first=None)
        raise Unknown("turn", id, self._known.ids)

    async def interrupt(self, id: str = "") -> bool:
        """End the running turn, and wait for its end; waiting turns follow. Return False if no turn is running.

        With an id, only that turn is ended: a waiting turn is never begun, and an ended turn gives False. If the agent
        does not end its turn within `patience_s`, the turn is cancelled. Raises like `get`, and raises OwnedElsewhere
        or TakenOver if another kernel has the turn by then.
        """
        turn = self.get(id) if id else self._now
        if turn is None or turn.is_over:
            return False
        is_ended = self._end_early(turn, Aborted("the turn was interrupted"))
        if self._stopping is not None and turn is self._now:
            await asyncio.wait({self._stopping})
        if is_ended:
            await turn.over()
            if turn.lost is not None:
                raise turn.lost
        return is_ended

    def review(self) -> None:
        """Withdraw the waiting turns whose keys have lost the right to turns, after a change of keys."""
        for turn in tuple(self._waiting):
            self._withdraw_if_lost(turn)
        self._go_on()

    async def close(self, reason: str = "the conversation was closed", *, leaves_turn: bool = False) -> None:
        """End every turn, and wait until none is running; idempotent. Readers can read the existing chunks to the end.

        With `leaves_turn`, the running turn is not ended if its agent continues it at the next start: the caller ends
        the process.
        """
        self._served.ended.remove_done_callback(self._agent_ended)
        self._known.shut()
        self._finish(Gone(reason))
        if (
            leaves_turn
            and isinstance(self._served, ResumableAgent)
            and self._now is not None
            and self._stopping is None
        ):
            self._has_left = True
            self._over_with(self._now, Gone(f"{reason}; the turn goes on at the next start"))
            await self._known.close()
            return
        ours = [task for task in (self._stopping, self._answering) if task is not None]
        for task in ours:
            task.cancel()
        if ours:
            await asyncio.wait(ours)
        await self._known.close()
        await self.written()

    async def written(self) -> None:
        """Wait until no write is running. For an agent that was closed, nothing more is written afterwards."""
        while self._others:
            await asyncio.wait(self._others)
        await self._writer.idle()

    async def leave(self, patience_s: float) -> None:
        """Leave the turns to another kernel: begin no turn, and end all readers with an error. They continue there.

        A turn that cannot move, or would be repeated, is waited for, up to `patience_s`. No turn is interrupted: the
        caller ends the process. Idempotent.
        """
        self._begins_no_more = True
        moves = isinstance(self._served, ResumableAgent) and not self._served.begins_anew
        if (ending := self._answering) is not None and not moves:
            await asyncio.wait({ending}, timeout=patience_s)
            if ending.done():  # Its last chunk must be readable.
                await self._writer.idle()
        self._has_left = True
        self._writer.end()
        await self._writer.idle()
        for turn in self._known:
            turn.lose(Gone("it goes on in another kernel"))

    # ---- records

    async def _record(self, turn: Turn, begins: bool) -> None:
        if self._log is None:
            return
        taken = self._served.turns_taken if isinstance(self._served, ResumableAgent) else 0
        asked = RequestedTurn(
            place=turn.place,
            id=turn.id,
            format=turn.format,
            on_leave=turn.on_leave,
            body=turn.body,
            began=begins,
            taken=taken,
            by=turn.by,
        )
        try:
            await self._log.asked(asked)
        except RametError as problem:
            self.lose(problem)
            raise
        turn.has_begun = turn.has_begun or begins
        self._go_on()

    def lose(self, why: RametError) -> None:
        """Stop, because another kernel has the conversation, or it cannot be recorded: readers receive nothing more.

        Idempotent.
        """
        _log.warning("the conversation of run %r does not go on here: %s", self._served.run, why)
        self._has_left = True
        self._closed = self._closed or (why if isinstance(why, _ELSEWHERE) else Gone(f"it does not go on here: {why}"))
        self._waiting.clear()
        self._writer.end()
        for turn in self._known:
            turn.lose(why)
        if self._answering is not None:
            self._answering.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # Retrieved; waiters still get it.
        return task

    # ---- one after the other

    @property
    def _is_busy(self) -> bool:
        return self._now is not None or self._stopping is not None

    def _check_room(self, body: bytes) -> None:
        most, bytes_most = self.limits.waiting, self.limits.waiting_bytes
        if len(self._waiting) >= most:
            raise BusyError(f"{most} turns wait already, which is all that may; try again when one is over")
        if sum(len(each.body) for each in self._waiting) + len(body) > bytes_most:
            raise BusyError(f"the turns that wait would take more than {bytes_most} bytes, which is all that they may")

    def _go_on(self) -> None:
        """Begin the next turn, unless a turn is running, or the agent is ending one."""
        while self._waiting and self._withdraw_if_lost(self._waiting[0]):
            pass
        if self._is_busy or not self._waiting or self._begins_no_more or self._has_left:
            return
        if not (following := self._waiting[0]).has_begun:
            if following.recorded is None or following.recorded.done():  # It is recorded as waiting.
                following.recorded = self._begin(self._record(following, True))
            return
        turn = self._now = self._waiting.popleft()
        self._answering = asyncio.create_task(self._answer(turn), name=f"ramet {turn.id}")
        self._answering.add_done_callback(partial(self._answered, turn))
        self._heard("begun")

    async def _answer(self, turn: Turn) -> None:
        body, turn.body = turn.body, b""
        if turn.before is None:
            pieces = self._served.turn(body, turn.format)
        elif isinstance(self._served, ResumableAgent):
            pieces = self._served.go_on(turn.before[0], body, turn.format, turn.before[1])
        else:
            raise Aborted("its kernel was lost in the middle of this turn, and nobody knows what it did")
        said = size = 0
        try:
            async for piece in pieces:
                if not turn.is_over or turn.lost is not None:  # Else its end was sent here: the rest is recorded.
                    turn.put(piece)
                    if turn.said == 1:
                        self._heard("answering")
                    if turn.unkept:
                        await self._writer.room(turn)
                said, size = said + 1, size + len(piece)
                if said >= _BREATH or size >= _BREATH_BYTES:  # An agent that never waits would block all readers.
                    said = size = 0
                    await asyncio.sleep(0)
        finally:
            if (leave := getattr(pieces, "aclose", None)) is not None:
                await leave()

    def _answered(self, turn: Turn, task: asyncio.Task[None]) -> None:
        problem: BaseException | None = Aborted("the turn was cut") if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, RametError):
            _log.error(
                "turn %s of run %r failed by a bug of its agent type", turn.id, self._served.run, exc_info=problem
            )
        # An agent that ended during a turn did not complete the turn, whatever its type reports.
        told = problem if isinstance(problem, RametError) and not task.cancelled() else None
        if not turn.is_over:
            self._over_with(turn, turn.stopped or told or self._closed or problem)
        self._now = self._answering = None
        self._heard("over")
        self._go_on()

    def _over_with(self, turn: Turn, error: BaseException | None) -> None:
        turn.end(error)
        self._known.over(turn)

    # ---- before its end

    def _end_early(self, turn: Turn, why: RametError) -> bool:
        """End the running turn, or remove a waiting one. Return False if the turn has ended by itself."""
        if turn is not self._now:
            self._waiting.remove(turn)
            self._over_with(turn, why)
            return True
        if self._answering is None or self._answering.done():
            return False
        if self._stopping is None:
            turn.stopped = why
            self._stop(partial(self._asked_to_end, self._answering))
        return True

    def _withdraw_if_lost(self, turn: Turn) -> bool:
        """Withdraw a waiting turn if its key has lost the right, unless the turn began elsewhere.

        Return whether it was withdrawn.
        """
        if self._has_left or turn.before is not None or self._holds(turn.by):
            return False
        turn.stopped = Withdrawn()
        return self._end_early(turn, turn.stopped)

    def _stop(self, end: Callable[[], Awaitable[object]]) -> None:
        """Let `end` end the running turn within the time limit, else cancel the turn."""
        self._stopping = asyncio.create_task(self._see_it_end(end), name=f"ramet {self._life}stops")

    async def _see_it_end(self, end: Callable[[], Awaitable[object]]) -> None:
        answering = self._answering
        try:
            await wait_with_timeout(end(), clock=self._clock, seconds=self.limits.patience_s)
        except TimeoutError:
            most = self.limits.patience_s
            _log.warning("the agent of run %r did not end its turn in %s s: it is left", self._served.run, most)
        except Exception:
            _log.exception("the agent of run %r could not interrupt its turn: it is left", self._served.run)
        finally:
            if answering is not None and not answering.done():
                answering.cancel()
                await asyncio.wait({answering})
            # Only now: an interrupt of this turn must not reach the next turn.
            self._stopping = None
            self._go_on()

    async def _asked_to_end(self, answering: asyncio.Task[None]) -> None:
        await self._served.interrupt()
        await asyncio.wait({answering})

    def _left(self, turn: Turn) -> None:
        """End a turn whose last reader has left, and that was requested with `on_leave="interrupt"`."""
        self._end_early(turn, Aborted("whoever asked for the turn has left"))

    def _agent_ended(self, ended: asyncio.Future[ErrorInfo | None]) -> None:
        was_closed = ended.cancelled() or (ended.exception() is None and ended.result() is None)
        if was_closed:  # No client has a key of the agent any more.
            self._known.shut()
            self._log = None  # The records are removed with its row: the rest is shown at once.
            self._writer.let_go()
        self._finish(how_it_ended(self._served))
        if self._answering is not None and self._stopping is None:
            self._stop(partial(asyncio.wait, {self._answering}))

    def _finish(self, why: RametError) -> None:
        """Begin no more turns, and end the waiting ones."""
        if self._closed is None:
            self._closed = why
        while self._waiting:
            self._over_with(self._waiting.popleft(), self._closed)

    def _gone(self, turn: Turn) -> None:
        self._buffer.remove(turn)
        if self._log is not None and not self._has_left:
            self._begin(self._log.forget(turn.place))


def how_it_ended(served: RunningAgent) -> RametError:
    """Return the error for a request to an agent that has ended, or that waits for its values."""
    if served.ended.cancelled():
        return Gone("the agent has ended")
    if isinstance(bug := served.ended.exception(), ValuesMissing):
        return ValuesMissing(bug.path, bug.missing)
    if bug is not None:
        return Gone(f"the agent has ended: {type(bug).__name__}")
    error = served.ended.result()
    return Gone("the agent has ended" + (f": {error.message} ({error.type})" if error else ""))
