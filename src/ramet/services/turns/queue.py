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
from ramet.services.turns.log import LoggedTurn, RequestedTurn, TurnLog, TurnWriter
from ramet.services.turns.turn import ON_LEAVE, KeptTurns, OnLeave, Turn

_log = logging.getLogger("ramet.services")

TurnPhase = Literal["begun", "answering", "over"]

#: Chunks, and bytes, that an agent may send before readers run on the event loop. The time counts after 64 chunks.
_YIELD_CHUNKS, _YIELD_BYTES, _LOOK_CHUNKS, _YIELD_S = 256, 64 * 1024, 64, 0.001
_MOVED_ERRORS = (OwnedElsewhere, TakenOver)


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
        running_agent: RunningAgent,
        clock: Clock,
        limits: TurnLimits | None = None,
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        on_phase: Callable[[TurnPhase], None] = lambda moment: None,
        log: TurnLog | None = None,
        has_right: Callable[[str], bool] = lambda by: True,
    ) -> None:
        """Call `on_phase` for each turn when it begins, when it has its first chunk, and when it has ended.

        `has_right` returns whether a key has the right to turns now; its argument is `Turn.requester`. With a `log`,
        turns are recorded before they begin, and chunks before they are read.
        """
        self.limits = limits or TurnLimits()
        self.turns = 0  #: turns requested so far
        self._running_agent, self._clock, self._on_phase, self._has_right = running_agent, clock, on_phase, has_right
        self._id_prefix = (
            f"turn-{entropy(6).hex()}-"  #: unique to this queue: a later queue of the agent has another prefix
        )
        self._waiting_turns: deque[Turn] = deque()
        self._kept_turns = KeptTurns(
            clock,
            limit_bytes=self.limits.kept_bytes,
            ended_limit=self.limits.kept_turns,
            keep_s=self.limits.keep_s,
            name=f"ramet {self._id_prefix}forgets",
            on_forget=self._on_forgotten,
        )
        self._current: Turn | None = None
        self._answer_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._close_error: RametError | None = None
        self._log, self._last_position = log, 0
        self._writer = TurnWriter(log, f"ramet {self._id_prefix}keeps", self.fence)
        self._record_tasks: set[asyncio.Task[None]] = set()
        self._is_draining = False  #: another kernel begins the next turns
        self._is_detached = False  #: turns cannot be read here any more
        if running_agent.end.done():
            self._on_agent_ended(running_agent.end)
        else:
            running_agent.end.add_done_callback(self._on_agent_ended)

    @property
    def waiting(self) -> int:
        return len(self._waiting_turns)

    @property
    def kept_bytes(self) -> int:
        """The present size of all readable answers in bytes."""
        return self._kept_turns.used_bytes

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
        if self._close_error is not None or self._running_agent.end.done():
            raise (
                self._close_error
                if isinstance(self._close_error, _MOVED_ERRORS)
                else Gone(str(self._close_error or end_error(self._running_agent)))
            )
        if self._is_busy:
            self._check_capacity(body)
        self.turns += 1
        turn = self._add_turn(
            id or f"{self._id_prefix}{self.turns}", body, format, on_leave, self._last_position + 1, by
        )
        self._waiting_turns.append(turn)
        if self._log is not None:
            starts = not self._is_busy and self._waiting_turns[0] is turn
            turn.record_task = self._begin(self._record(turn, starts))
        self._start_next()
        return turn

    def restore(self, logged_turns: Sequence[LoggedTurn]) -> None:
        """Restore the turns of another kernel, before any other turn, and continue those that have not ended."""
        for request, chunks in ((each.request, each.chunks) for each in logged_turns):
            turn = self._add_turn(request.id, request.body, request.format, request.on_leave, request.place, request.by)
            turn.restore(chunks)
            if turn.is_over:
                self._kept_turns.mark_ended(turn)
                continue
            turn.has_begun = request.began
            turn.resume_from = (request.taken + 1, [each.body for each in chunks]) if request.began else None
            self._waiting_turns.append(turn)
        self._start_next()

    def _add_turn(self, id: str, body: bytes, format: str, on_leave: OnLeave, position: int, by: str) -> Turn:
        on_chunk = self._writer.schedule if self._log is not None else None
        turn = Turn(
            id,
            body,
            format,
            on_leave,
            self._kept_turns,
            self._on_reader_gone,
            position=position,
            requester=by,
            on_chunk=on_chunk,
        )
        self._kept_turns.add(turn)
        self._last_position = position
        return turn

    def get(self, id: str) -> Turn:
        """Return the turn of that id. Raises Missed for a forgotten turn, and Unknown for a turn that never existed."""
        if (turn := self._kept_turns.find(id)) is not None:
            return turn
        number = re.fullmatch(re.escape(self._id_prefix) + "([1-9][0-9]{0,17})", id)
        if number is not None and int(number[1]) <= self.turns:
            raise Missed(id, after=0, first=None)
        raise Unknown("turn", id, self._kept_turns.ids)

    async def interrupt(self, id: str = "") -> bool:
        """End the running turn, and wait for its end; waiting turns follow. Return False if no turn is running.

        With an id, only that turn is ended: a waiting turn is never begun, and an ended turn gives False. If the agent
        does not end its turn within `patience_s`, the turn is cancelled. Raises like `get`, and raises OwnedElsewhere
        or TakenOver if another kernel has the turn by then.
        """
        turn = self.get(id) if id else self._current
        if turn is None or turn.is_over:
            return False
        is_ended = self._stop_turn(turn, Aborted("the turn was interrupted"))
        if self._stop_task is not None and turn is self._current:
            await asyncio.wait({self._stop_task})
        if is_ended:
            await turn.wait_ended()
            if turn.read_error is not None:
                raise turn.read_error
        return is_ended

    def withdraw_unauthorized(self) -> None:
        """Withdraw the waiting turns whose keys have lost the right to turns, after a change of keys."""
        for turn in tuple(self._waiting_turns):
            self._withdraw_if_lost(turn)
        self._start_next()

    async def close(self, reason: str = "the conversation was closed", *, leaves_turn: bool = False) -> None:
        """End every turn, and wait until none is running; idempotent. Readers can read the existing chunks to the end.

        With `leaves_turn`, the running turn is not ended if its agent continues it at the next start: the caller ends
        the process.
        """
        self._running_agent.end.remove_done_callback(self._on_agent_ended)
        self._kept_turns.stop()
        self._close_waiting(Gone(reason))
        if (
            leaves_turn
            and isinstance(self._running_agent, ResumableAgent)
            and self._current is not None
            and self._stop_task is None
        ):
            self._is_detached = True
            self._end_turn(self._current, Gone(f"{reason}; the turn is resumed at the next start"))
            await self._kept_turns.close()
            return
        tasks = [task for task in (self._stop_task, self._answer_task) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._kept_turns.close()
        await self.wait_written()

    async def wait_written(self) -> None:
        """Wait until no write is running. For an agent that was closed, nothing more is written afterwards."""
        while self._record_tasks:
            await asyncio.wait(self._record_tasks)
        await self._writer.wait_idle()

    async def drain(self, patience_s: float) -> None:
        """Leave the turns to another kernel: begin no turn, and end all readers with an error. They continue there.

        A turn that cannot move, or would be repeated, is waited for, up to `patience_s`. No turn is interrupted: the
        caller ends the process. Idempotent.
        """
        self._is_draining = True
        moves = isinstance(self._running_agent, ResumableAgent) and not self._running_agent.restarts_turn
        if (answer_task := self._answer_task) is not None and not moves:
            await asyncio.wait({answer_task}, timeout=patience_s)
            if answer_task.done():  # Its last chunk must be readable.
                await self._writer.wait_idle()
        self._is_detached = True
        self._writer.close()
        await self._writer.wait_idle()
        for turn in self._kept_turns:
            turn.fence(Gone("it is resumed by another kernel"))

    # ---- records

    async def _record(self, turn: Turn, starts: bool) -> None:
        if self._log is None:
            return
        turns_taken = self._running_agent.turns_taken if isinstance(self._running_agent, ResumableAgent) else 0
        request = RequestedTurn(
            place=turn.position,
            id=turn.id,
            format=turn.format,
            on_leave=turn.on_leave,
            body=turn.body,
            began=starts,
            taken=turns_taken,
            by=turn.requester,
        )
        try:
            await self._log.record_request(request)
        except RametError as problem:
            self.fence(problem)
            raise
        turn.has_begun = turn.has_begun or starts
        self._start_next()

    def fence(self, error: RametError) -> None:
        """Stop, because another kernel has the conversation, or it cannot be recorded: readers receive nothing more.

        Idempotent.
        """
        _log.warning("the conversation of run %r does not continue in this kernel: %s", self._running_agent.run, error)
        self._is_detached = True
        self._close_error = self._close_error or (
            error if isinstance(error, _MOVED_ERRORS) else Gone(f"it does not continue in this kernel: {error}")
        )
        self._waiting_turns.clear()
        self._writer.close()
        for turn in self._kept_turns:
            turn.fence(error)
        if self._answer_task is not None:
            self._answer_task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._record_tasks.add(task)
        task.add_done_callback(self._record_tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # Retrieved; waiters still get it.
        return task

    # ---- one turn at a time

    @property
    def _is_busy(self) -> bool:
        return self._current is not None or self._stop_task is not None

    def _check_capacity(self, body: bytes) -> None:
        limit, bytes_limit = self.limits.waiting, self.limits.waiting_bytes
        if len(self._waiting_turns) >= limit:
            raise BusyError(f"{limit} turns wait already, which is the limit; try again when a turn has ended")
        if sum(len(each.body) for each in self._waiting_turns) + len(body) > bytes_limit:
            raise BusyError(f"the waiting turns would take more than {bytes_limit} bytes, which is the limit")

    def _start_next(self) -> None:
        """Begin the next turn, unless a turn is running, or the agent is ending one."""
        while self._waiting_turns and self._withdraw_if_lost(self._waiting_turns[0]):
            pass
        if self._is_busy or not self._waiting_turns or self._is_draining or self._is_detached:
            return
        if not (next_turn := self._waiting_turns[0]).has_begun:
            if next_turn.record_task is None or next_turn.record_task.done():  # It is recorded as waiting.
                next_turn.record_task = self._begin(self._record(next_turn, True))
            return
        turn = self._current = self._waiting_turns.popleft()
        self._answer_task = asyncio.create_task(self._answer(turn), name=f"ramet {turn.id}")
        self._answer_task.add_done_callback(partial(self._on_answered, turn))
        self._on_phase("begun")

    async def _answer(self, turn: Turn) -> None:
        body, turn.body = turn.body, b""
        if turn.resume_from is None:
            pieces = self._running_agent.turn(body, turn.format)
        elif isinstance(self._running_agent, ResumableAgent):
            pieces = self._running_agent.resume_turn(turn.resume_from[0], body, turn.format, turn.resume_from[1])
        else:
            raise Aborted("its kernel was lost in the middle of this turn, and the outcome of the turn is unknown")
        loop, count, size = asyncio.get_running_loop(), 0, 0
        yielded_at = loop.time()
        try:
            async for piece in pieces:
                if not turn.is_over or turn.read_error is not None:  # Else its end was sent here: the rest is recorded.
                    turn.put(piece)
                    if turn.newest_number == 1:
                        self._on_phase("answering")
                    if turn.unsaved_chunks:
                        await self._writer.wait_for_space(turn)
                count, size = count + 1, size + len(piece)
                is_long = not count % _LOOK_CHUNKS and (count >= _YIELD_CHUNKS or loop.time() - yielded_at >= _YIELD_S)
                if is_long or size >= _YIELD_BYTES:  # An agent that never waits would block all readers.
                    await asyncio.sleep(0)
                    count, size, yielded_at = 0, 0, loop.time()
        finally:
            if (aclose := getattr(pieces, "aclose", None)) is not None:
                await aclose()

    def _on_answered(self, turn: Turn, task: asyncio.Task[None]) -> None:
        problem: BaseException | None = Aborted("the turn was cancelled") if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, RametError):
            _log.error(
                "turn %s of run %r failed by a bug of its agent type",
                turn.id,
                self._running_agent.run,
                exc_info=problem,
            )
        # An agent that ended during a turn did not complete the turn, whatever its type reports.
        reported = problem if isinstance(problem, RametError) and not task.cancelled() else None
        if not turn.is_over:
            self._end_turn(turn, turn.stop_error or reported or self._close_error or problem)
        self._current = self._answer_task = None
        self._on_phase("over")
        self._start_next()

    def _end_turn(self, turn: Turn, error: BaseException | None) -> None:
        turn.end(error)
        self._kept_turns.mark_ended(turn)

    # ---- early end of a turn

    def _stop_turn(self, turn: Turn, error: RametError) -> bool:
        """End the running turn, or remove a waiting one. Return False if the turn has ended by itself."""
        if turn is not self._current:
            self._waiting_turns.remove(turn)
            self._end_turn(turn, error)
            return True
        if self._answer_task is None or self._answer_task.done():
            return False
        if self._stop_task is None:
            turn.stop_error = error
            self._stop(partial(self._interrupt_answer, self._answer_task))
        return True

    def _withdraw_if_lost(self, turn: Turn) -> bool:
        """Withdraw a waiting turn if its key has lost the right, unless the turn began elsewhere.

        Return whether it was withdrawn.
        """
        if self._is_detached or turn.resume_from is not None or self._has_right(turn.requester):
            return False
        turn.stop_error = Withdrawn()
        return self._stop_turn(turn, turn.stop_error)

    def _stop(self, end: Callable[[], Awaitable[object]]) -> None:
        """Let `end` end the running turn within the time limit, else cancel the turn."""
        self._stop_task = asyncio.create_task(self._wait_stopped(end), name=f"ramet {self._id_prefix}stops")

    async def _wait_stopped(self, end: Callable[[], Awaitable[object]]) -> None:
        answer_task = self._answer_task
        try:
            await wait_with_timeout(end(), clock=self._clock, seconds=self.limits.patience_s)
        except TimeoutError:
            patience_s = self.limits.patience_s
            _log.warning(
                "the agent of run %r did not end its turn in %s s; its turn is abandoned",
                self._running_agent.run,
                patience_s,
            )
        except Exception:
            _log.exception(
                "the agent of run %r could not interrupt its turn; the turn is abandoned", self._running_agent.run
            )
        finally:
            if answer_task is not None and not answer_task.done():
                answer_task.cancel()
                await asyncio.wait({answer_task})
            # Only now: an interrupt of this turn must not reach the next turn.
            self._stop_task = None
            self._start_next()

    async def _interrupt_answer(self, answer_task: asyncio.Task[None]) -> None:
        await self._running_agent.interrupt()
        await asyncio.wait({answer_task})

    def _on_reader_gone(self, turn: Turn) -> None:
        """End a turn whose last reader has left, and that was requested with `on_leave="interrupt"`."""
        self._stop_turn(turn, Aborted("the client of the turn has disconnected"))

    def _on_agent_ended(self, end: asyncio.Future[ErrorInfo | None]) -> None:
        was_closed = end.cancelled() or (end.exception() is None and end.result() is None)
        if was_closed:  # No client has a key of the agent any more.
            self._kept_turns.stop()
            self._log = None  # The records are removed with its row: the rest is shown at once.
            self._writer.stop_recording()
        self._close_waiting(end_error(self._running_agent))
        if self._answer_task is not None and self._stop_task is None:
            self._stop(partial(asyncio.wait, {self._answer_task}))

    def _close_waiting(self, error: RametError) -> None:
        """Begin no more turns, and end the waiting ones."""
        if self._close_error is None:
            self._close_error = error
        while self._waiting_turns:
            self._end_turn(self._waiting_turns.popleft(), self._close_error)

    def _on_forgotten(self, turn: Turn) -> None:
        if self._log is not None and not self._is_detached:
            self._begin(self._log.forget(turn.position))


def end_error(running_agent: RunningAgent) -> RametError:
    """Return the error for a request to an agent that has ended, or that waits for its values."""
    if running_agent.end.cancelled():
        return Gone("the agent has ended")
    if isinstance(problem := running_agent.end.exception(), ValuesMissing):
        return ValuesMissing(problem.path, problem.missing)
    if problem is not None:
        return Gone(f"the agent has ended: {type(problem).__name__}")
    error = running_agent.end.result()
    return Gone("the agent has ended" + (f": {error.message} ({error.type})" if error else ""))
