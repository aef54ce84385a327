"""An agent of the type "command": a conversation with a program that speaks frames (`ramet.wire.command_protocol`)."""

from __future__ import annotations

import asyncio
import codecs
import logging
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from ramet.concurrency.deadline import run_shielded, wait_with_timeout
from ramet.core.errors import (
    Aborted,
    Bug,
    InvalidValue,
    MailRefused,
    ProtocolError,
    RametError,
    SpawnRefused,
    TaskFailed,
    Unknown,
)
from ramet.core.outcome import NOTHING_USED, ErrorInfo, Status
from ramet.services.agent_types.command.process import Started
from ramet.services.agent_types.command.process_calls import Calls
from ramet.services.agent_types.command.process_end import NOT_STARTED, how_it_ended, last_words, status_of
from ramet.services.agent_types.command.replies import Answering
from ramet.services.agent_types.kept_turns import CommandTurn, CommandTurnLog, Said
from ramet.services.agent_types.outcome import as_spent
from ramet.services.contract import AgentSpec
from ramet.services.formats.registry import format_of
from ramet.spawn.masking import masked_error
from ramet.wire import command_protocol
from ramet.wire.frames import Frame

_log = logging.getLogger("ramet.services")

#: The time that a program has to end by itself after its stdin was closed.
LEAVE_S = 1.0
#: The start message contains at most this much of the newest part of the earlier conversation.
_TOLD_BYTES = 4 * 1024 * 1024


class CallProgram(Struct, forbid_unknown_fields=True):
    """Call an operation that the program named when it became ready. The program defines the answer."""

    operation: str
    arguments: Raw = Raw(b"null")
    timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 30.0


class Log(Struct, forbid_unknown_fields=True):
    """Return the newest part of the program's stderr, as `stderr`."""


class CommandAgent:
    """A conversation with one program. Call `begin` first; call `close` in the end, also if `begin` raises."""

    def __init__(
        self, opening: AgentSpec, turns: CommandTurnLog, started: Started, isolation: str, seconds: float | None
    ):
        """Serve a program that was started. `turns` are the earlier turns; `seconds` limits the time of one turn."""
        self.isolation, self.run = isolation, started.handle.id
        self._opening, self._clock, self._turns, self._seconds = opening, opening.runtime.clock, turns, seconds
        self._handle, self._line, self._log = started
        self._masked = started.masked
        self._passes = frozenset(opening.info.formats)
        self._name = pathlib.PurePath(opening.info.argv[0]).name
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[command_protocol.Ready] = loop.create_future()
        self._answering: Answering | None = None
        self._number = 0  #: the number of the newest turn
        self._calls = Calls(self._line, self._clock, self._masked)
        self._closing = False
        self._failure: TaskFailed | None = None  #: set once the program has ended
        self._beginning: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[ErrorInfo | None] = loop.create_future()
        self._living = asyncio.create_task(self._live(), name=f"ramet hears {opening.path}")

    async def begin(self) -> None:
        """Send the program its start message, and wait until it is ready.

        Raises InvalidValue if the program cannot be started, and SpawnRefused if it is not ready in time.
        """
        try:
            self._tell_start()
            await wait_with_timeout(self._ready_or_over(), clock=self._clock, seconds=self._opening.info.start_s)
            if not self._ready.done():
                raise self._refusal(self._living.result())
        except TimeoutError:
            await run_shielded(self.close("it was not ready in time"))
            why = f"the program {self._not_ready()}{last_words(self._log())}"
            raise SpawnRefused("spawn_info.start_s", why) from None
        except BaseException:
            await run_shielded(self.close("it could not be begun with"))
            raise

    def begin_again(self) -> None:
        """Send the start message after a restart, without waiting: turns wait for the program.

        A program that is not ready in time has failed.
        """
        self._tell_start()
        self._beginning = asyncio.create_task(self._end_unless_ready(), name=f"ramet waits for {self._opening.path}")

    # ---- talking

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Have the program answer a message. Leaving the iteration interrupts the turn.

        A body in a format that the program declared is passed unchanged. For other formats the program gets the newest
        text, and answers with text. Raises InvalidValue for an invalid body, and BusyError if the program does not
        read. After the text that was sent, raises Aborted if the turn was interrupted, TaskFailed if the turn failed or
        the program ended, and OutputTooLarge if the answer is too long.
        """
        passes = format in self._passes
        text = body.decode(errors="replace") if passes else format_of(format).read(body)
        if self.ended.done():
            raise RametError("this agent has ended")
        await self._said_ready()
        number = self._number + 1
        told = command_protocol.Turn(turn=number, format=format if passes else "text")
        self._line.say(told, body if passes else text.encode())
        self._number, said = number, Said()
        answering = self._answering = Answering(number)
        timing = None if self._seconds is None else asyncio.create_task(self._time_out(answering, self._seconds))
        try:
            async with aclosing(self._pieces(answering, None if passes else format, said)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            if timing is not None:
                timing.cancel()
            self._answering = None
            answering.leave()
            if not answering.is_over:
                self._tell_interrupt(answering)
            await run_shielded(self._turns.keep(CommandTurn(asked=text, said=said.text), self.run))

    async def interrupt(self) -> None:
        """Ask the program to end the active turn. The program and its history remain."""
        if self._answering is not None:
            self._tell_interrupt(self._answering)

    async def mail(self, text: str) -> None:
        """Send a message, which the program may read at any time.

        Raises MailRefused if the program does not read mail.
        """
        if self.ended.done() or not (await self._said_ready()).mail:
            raise MailRefused(self._opening.path, "its program reads no mail" if not self.ended.done() else "it ended")
        self._line.say(command_protocol.Mail(), text.encode())

    async def close(self, reason: str) -> None:
        """Close the program's stdin, terminate the rest of its tree after `LEAVE_S` seconds, and wait for its end.

        Idempotent.
        """
        self._closing = True
        if self._answering is not None:
            self._answering.leave()
        self._line.hang_up()
        try:
            await wait_with_timeout(asyncio.shield(self._living), clock=self._clock, seconds=LEAVE_S)
        except TimeoutError:
            await self._handle.cancel(reason)
            await asyncio.shield(self._living)
        if self._beginning is not None:
            await asyncio.wait({self._beginning})

    # ---- looking

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Return `role` (user, assistant) and `content` of each message, as this host received them."""
        return self._turns.history()

    def spent(self) -> Mapping[str, float]:
        """Return the usage of the program's tree. The program's own usage is unknown."""
        return as_spent(self._handle.run.subtree)

    # ---- changing

    async def control(self, operation: Any) -> Any:
        """Call an operation of the program, or read its log.

        Raises TaskFailed, and Unknown for an undeclared operation.
        """
        match operation:
            case Log():
                return {"stderr": self._log()}
            case CallProgram():
                known = (await self._said_ready()).operations
                if operation.operation not in known:
                    raise Unknown("operation of the program", operation.operation, tuple(map(self._masked, known)))
                return await self._calls.ask(operation.operation, bytes(operation.arguments), operation.timeout_s)
        raise Bug(f"an operation that was not declared: {type(operation).__name__}")

    # ---- messages of the program

    async def _live(self) -> ErrorInfo | None:
        """Read from the program until it ends, and report its end to all waiters.

        Return the reason; None if it was closed.
        """
        hearing, ending = asyncio.create_task(self._hear()), asyncio.ensure_future(self._handle.result())
        await asyncio.wait({hearing, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not hearing.done():  # Its last output may arrive. Another holder of its stdout does not count.
            await asyncio.wait({hearing}, timeout=LEAVE_S)
            hearing.cancel()
            await asyncio.wait({hearing})
        broken = None if hearing.cancelled() else hearing.exception()
        if broken is None:
            await asyncio.wait({ending}, timeout=LEAVE_S)
        elif not isinstance(broken, ProtocolError):  # A defect of ramet: waiters must not wait forever.
            _log.error("a program cannot be heard any more", exc_info=broken)
        reason = self._masked(f"it broke the rules: {broken}") if broken else "it closed its stdout"
        await self._handle.cancel(reason)
        result = await ending
        self._line.close()
        why = None if self._closing else masked_error(self._handle.run, how_it_ended(result, broken, self._log()))
        told = f"{why.message} ({why.type})" if why is not None else "the agent was closed"
        self._failure = failure = TaskFailed(told, status=status_of(result), run=self.run)
        if self._answering is not None:
            self._answering.end(failure)
        self._calls.fail(failure)
        self.ended.set_result(why)
        return why

    async def _hear(self) -> None:
        async with aclosing(self._line.frames(self._masked)) as frames:
            async for frame in frames:
                await self._take(frame)

    async def _take(self, frame: Frame) -> None:
        said = command_protocol.decode(frame, self._masked)
        if not self._ready.done() and not isinstance(said, command_protocol.Ready):
            raise ProtocolError("it said something before it said that it is ready")
        match said:
            case command_protocol.Ready():
                if self._ready.done():
                    raise ProtocolError("it said twice that it is ready")
                self._ready.set_result(said)
            case command_protocol.Chunk() | command_protocol.Done() | command_protocol.Error():
                await self._take_answer(said, frame.body)
            case command_protocol.Answer() | command_protocol.Refusal():
                self._calls.take(said, frame.body)

    async def _take_answer(
        self, said: command_protocol.Chunk | command_protocol.Done | command_protocol.Error, body: bytes
    ) -> None:
        if said.turn > self._number:
            raise ProtocolError(f"it answers turn {said.turn}, which nobody has asked")
        answering = self._answering
        if answering is None or said.turn != answering.number:
            return  # A late answer to a turn that its reader left.
        match said:
            case command_protocol.Chunk():
                await answering.put(body)
            case command_protocol.Done():
                answering.end(Aborted("it was interrupted") if answering.is_interrupted else None)
            case command_protocol.Error():
                why = self._masked(command_protocol.error_text(body))
                answering.end(TaskFailed(why, status=str(Status.FAILED), run=self.run))

    async def _pieces(self, answering: Answering, format: str | None, said: Said) -> AsyncGenerator[bytes]:
        """Yield the answer for the reader: unchanged, or written in a format. Its text is appended to `said`."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if format is None:
            while (piece := await answering.next()) is not None:
                said.take(decoder.decode(piece))
                yield piece
            return
        created = int(self._clock.now().timestamp())
        writer = format_of(format).Writer(f"{self.run}-{answering.number}", self._name, created)
        for chunk in writer.begin():
            yield chunk
        while (piece := await answering.next()) is not None:
            if text := decoder.decode(piece):
                said.take(text)
                for chunk in writer.text(text):
                    yield chunk
        for chunk in writer.end(NOTHING_USED):
            yield chunk

    # ----

    def _tell_start(self) -> None:
        opening = self._opening
        start = command_protocol.Start(
            protocol=command_protocol.VERSION, agent=opening.id, name=opening.name, path=opening.path
        )
        self._line.say(start, self._turns.newest(_TOLD_BYTES))

    async def _ready_or_over(self) -> None:
        waits: set[asyncio.Future[Any]] = {self._ready, self._living}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)

    async def _said_ready(self) -> command_protocol.Ready:
        """Return the program's ready message. Raises TaskFailed if the program ended before it was ready."""
        if not self._ready.done():
            await self._ready_or_over()
            if not self._ready.done():
                assert self._failure is not None, "it is over"
                raise self._failure
        return self._ready.result()

    async def _end_unless_ready(self) -> None:
        try:
            await wait_with_timeout(self._ready_or_over(), clock=self._clock, seconds=self._opening.info.start_s)
        except TimeoutError:
            await self._handle.cancel(f"it {self._not_ready()}")

    def _not_ready(self) -> str:
        return f"did not say that it is ready within {self._opening.info.start_s:g} s"

    def _tell_interrupt(self, answering: Answering) -> None:
        if not answering.is_interrupted:
            answering.is_interrupted = True
            with suppress(RametError):  # The program does not read.
                self._line.say(command_protocol.Interrupt(turn=answering.number))

    async def _time_out(self, answering: Answering, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._tell_interrupt(answering)
        answering.end(TaskFailed(f"its time of {seconds:g} s is over", status=str(Status.TIMEOUT), run=self.run))

    def _refusal(self, why: ErrorInfo | None) -> RametError:
        """Return the error to raise for a program that ended before it was ready."""
        told = why.message if why is not None else "it was closed"
        if why is not None and why.type == NOT_STARTED:
            return InvalidValue("spawn_info.argv", self._opening.info.argv[0], f"what can be started ({told})")
        return SpawnRefused("spawn_info.argv", f"the program was never ready: {told}")
