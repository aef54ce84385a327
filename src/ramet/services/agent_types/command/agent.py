"""An agent of the type "command": a conversation with a program that speaks frames (`ramet.wire.command_protocol`)."""

from __future__ import annotations

import asyncio
import codecs
import logging
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any

import msgspec
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
    StoreFailed,
    TaskFailed,
    Unknown,
)
from ramet.core.outcome import NO_USAGE, ErrorInfo, Status
from ramet.services.agent_types.command.process import StartedProgram
from ramet.services.agent_types.command.process_calls import Calls
from ramet.services.agent_types.command.process_end import NOT_STARTED, end_error, status_of, stderr_tail
from ramet.services.agent_types.command.replies import TurnReply
from ramet.services.agent_types.conversation_log import (
    HISTORY_BYTES,
    AnswerText,
    ConversationLog,
    ConversationTurn,
    Message,
)
from ramet.services.agent_types.outcome import resource_amounts
from ramet.services.contract import AgentSpec
from ramet.services.formats.registry import format_of
from ramet.services.formats.request import read_text
from ramet.spawn.masking import masked_error
from ramet.wire import command_protocol
from ramet.wire.frames import Frame

_log = logging.getLogger("ramet.services")

#: The time that a program has to end by itself after its stdin was closed.
LEAVE_S = 1.0


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
        self, spec: AgentSpec, turns: ConversationLog, program: StartedProgram, isolation: str, seconds: float | None
    ):
        """Serve a program that was started. `turns` are the earlier turns; `seconds` limits the time of one turn."""
        self.isolation, self.run = isolation, program.handle.id
        self._spec, self._clock, self._turns, self._seconds = spec, spec.runtime.clock, turns, seconds
        self._handle, self._line, self._log = program
        self._mask = program.mask
        self._declared_formats = frozenset(spec.info.formats)
        self._name = pathlib.PurePath(spec.info.argv[0]).name
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[command_protocol.Ready] = loop.create_future()
        self._reply: TurnReply | None = None
        self._number = 0  #: the number of the newest turn
        self._calls = Calls(self._line, self._clock, self._mask)
        self._closing = False
        self._failure: TaskFailed | None = None  #: set once the program has ended
        self._start_task: asyncio.Task[None] | None = None
        self.end: asyncio.Future[ErrorInfo | None] = loop.create_future()
        self._serve_task = asyncio.create_task(self._serve(), name=f"ramet hears {spec.path}")

    async def begin(self) -> None:
        """Send the program its start message, and wait until it is ready.

        Raises InvalidValue if the program cannot be started, and SpawnRefused if it is not ready in time.
        """
        try:
            self._send_start()
            await wait_with_timeout(self._wait_ready_or_ended(), clock=self._clock, seconds=self._spec.info.start_s)
            if not self._ready.done():
                raise self._start_error(self._serve_task.result())
        except TimeoutError:
            await run_shielded(self.close("it was not ready in time"))
            why = f"the program {self._not_ready_text()}{stderr_tail(self._log())}"
            raise SpawnRefused("spawn_info.start_s", why) from None
        except BaseException:
            await run_shielded(self.close("the program could not be started"))
            raise

    def restart(self) -> None:
        """Send the start message after a restart, without waiting: turns wait for the program.

        A program that is not ready in time has failed.
        """
        self._send_start()
        self._start_task = asyncio.create_task(self._end_unless_ready(), name=f"ramet waits for {self._spec.path}")

    # ---- turns

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Have the program answer a message. Leaving the iteration interrupts the turn.

        A body in a format that the program declared is passed unchanged. For other formats the program gets the newest
        text, and answers with text. Raises InvalidValue for an invalid body, and BusyError if the program does not
        read. After the text that was sent, raises Aborted if the turn was interrupted, TaskFailed if the turn failed or
        the program ended, and OutputTooLarge if the answer is too long.
        """
        is_unchanged = format in self._declared_formats
        text = body.decode(errors="replace") if is_unchanged else read_text(body)
        if self.end.done():
            raise RametError("this agent has ended")
        await self._ready_message()
        number = self._number + 1
        request = command_protocol.Turn(turn=number, format=format if is_unchanged else "text")
        self._line.send(request, body if is_unchanged else text.encode())
        self._number, text_log = number, AnswerText()
        reply = self._reply = TurnReply(number)
        timer = None if self._seconds is None else asyncio.create_task(self._time_out(reply, self._seconds))
        try:
            async with aclosing(self._pieces(reply, None if is_unchanged else format, text_log)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            if timer is not None:
                timer.cancel()
            self._reply = None
            reply.abandon()
            if not reply.is_over:
                self._send_interrupt(reply)
            await run_shielded(self._record(text, text_log.text))

    async def interrupt(self) -> None:
        """Ask the program to end the active turn. The program and its history remain."""
        if self._reply is not None:
            self._send_interrupt(self._reply)

    async def mail(self, text: str) -> None:
        """Send a message, which the program may read at any time.

        Raises MailRefused if the program does not read mail.
        """
        if self.end.done() or not (await self._ready_message()).mail:
            raise MailRefused(self._spec.path, "its program reads no mail" if not self.end.done() else "it ended")
        self._line.send(command_protocol.Mail(), text.encode())

    async def close(self, reason: str) -> None:
        """Close the program's stdin, terminate the rest of its tree after `LEAVE_S` seconds, and wait for its end.

        Idempotent.
        """
        self._closing = True
        if self._reply is not None:
            self._reply.abandon()
        self._line.abort()
        try:
            await wait_with_timeout(asyncio.shield(self._serve_task), clock=self._clock, seconds=LEAVE_S)
        except TimeoutError:
            await self._handle.cancel(reason)
            await asyncio.shield(self._serve_task)
        if self._start_task is not None:
            await asyncio.wait({self._start_task})

    # ---- state

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Return `role` (user, assistant) and `content` of each message, as this host received them."""
        return self._turns.recent_history()

    def usage(self) -> Mapping[str, float]:
        """Return the usage of the program's tree. The program's own usage is unknown."""
        return resource_amounts(self._handle.run.subtree)

    # ---- operations

    async def control(self, operation: Any) -> Any:
        """Call an operation of the program, or read its log.

        Raises TaskFailed, and Unknown for an undeclared operation.
        """
        match operation:
            case Log():
                return {"stderr": self._log()}
            case CallProgram():
                operations = (await self._ready_message()).operations
                if operation.operation not in operations:
                    raise Unknown("operation of the program", operation.operation, tuple(map(self._mask, operations)))
                return await self._calls.ask(operation.operation, bytes(operation.arguments), operation.timeout_s)
        raise Bug(f"an operation that was not declared: {type(operation).__name__}")

    # ---- messages of the program

    async def _serve(self) -> ErrorInfo | None:
        """Read from the program until it ends, and report its end to all waiters.

        Return the reason; None if it was closed.
        """
        read_task, result_task = asyncio.create_task(self._read_frames()), asyncio.ensure_future(self._handle.result())
        await asyncio.wait({read_task, result_task}, return_when=asyncio.FIRST_COMPLETED)
        if not read_task.done():  # Its last output may arrive. Another holder of its stdout does not count.
            await asyncio.wait({read_task}, timeout=LEAVE_S)
            read_task.cancel()
            await asyncio.wait({read_task})
        frame_error = None if read_task.cancelled() else read_task.exception()
        if frame_error is None:
            await asyncio.wait({result_task}, timeout=LEAVE_S)
        elif not isinstance(frame_error, ProtocolError):  # A defect of ramet: waiters must not wait forever.
            _log.error("the output of a program cannot be read any more", exc_info=frame_error)
        reason = self._mask(f"it violated the protocol: {frame_error}") if frame_error else "it closed its stdout"
        await self._handle.cancel(reason)
        result = await result_task
        self._line.close()
        error = None if self._closing else masked_error(self._handle.run, end_error(result, frame_error, self._log()))
        message = f"{error.message} ({error.type})" if error is not None else "the agent was closed"
        self._failure = failure = TaskFailed(message, status=status_of(result), run=self.run)
        if self._reply is not None:
            self._reply.end(failure)
        self._calls.fail(failure)
        self.end.set_result(error)
        return error

    async def _read_frames(self) -> None:
        async with aclosing(self._line.frames(self._mask)) as frames:
            async for frame in frames:
                await self._handle_frame(frame)

    async def _handle_frame(self, frame: Frame) -> None:
        message = command_protocol.decode(frame, self._mask)
        if not self._ready.done() and not isinstance(message, command_protocol.Ready):
            raise ProtocolError("it sent a message before its ready message")
        match message:
            case command_protocol.Ready():
                if self._ready.done():
                    raise ProtocolError("it sent a second ready message")
                self._ready.set_result(message)
            case command_protocol.Chunk() | command_protocol.Done() | command_protocol.Error():
                await self._handle_reply(message, frame.body)
            case command_protocol.Answer() | command_protocol.Refusal():
                self._calls.receive(message, frame.body)

    async def _handle_reply(
        self, message: command_protocol.Chunk | command_protocol.Done | command_protocol.Error, body: bytes
    ) -> None:
        if message.turn > self._number:
            raise ProtocolError(f"it answers turn {message.turn}, which was never requested")
        reply = self._reply
        if reply is None or message.turn != reply.number:
            return  # A late answer to a turn that its reader left.
        match message:
            case command_protocol.Chunk():
                await reply.put(body)
            case command_protocol.Done():
                reply.end(Aborted("it was interrupted") if reply.is_interrupted else None)
            case command_protocol.Error():
                why = self._mask(command_protocol.error_text(body))
                reply.end(TaskFailed(why, status=str(Status.FAILED), run=self.run))

    async def _pieces(self, reply: TurnReply, format: str | None, text_log: AnswerText) -> AsyncGenerator[bytes]:
        """Yield the answer for the reader: unchanged, or written in a format. Its text is appended to `text_log`."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if format is None:
            while (piece := await reply.next()) is not None:
                text_log.add(decoder.decode(piece))
                yield piece
            return
        created = int(self._clock.now().timestamp())
        answer = format_of(format).Writer(f"{self.run}-{reply.number}", self._name, created)
        for chunk in answer.begin():
            yield chunk
        while (piece := await reply.next()) is not None:
            text = decoder.decode(piece)
            text_log.add(text)
            for chunk in answer.text(text):
                yield chunk
        for chunk in answer.end(NO_USAGE):
            yield chunk

    async def _record(self, asked: str, said: str) -> None:
        """Record a turn that has ended. A turn that cannot be stored stays in memory only, and is logged."""
        number = self._turns.newest_number + 1
        turn = ConversationTurn(number=number, run=self.run, asked=asked, said=said, status=Status.COMPLETED)
        try:
            await self._turns.write(turn)
        except StoreFailed as problem:
            _log.error("a turn of agent %s could not be recorded: %s", self._spec.id, problem)
            self._turns.add(turn)

    # ----

    def _send_start(self) -> None:
        spec = self._spec
        start = command_protocol.Start(protocol=command_protocol.VERSION, agent=spec.id, name=spec.name, path=spec.path)
        self._line.send(start, _newest(self._turns.recent_history(), HISTORY_BYTES))

    async def _wait_ready_or_ended(self) -> None:
        waits: set[asyncio.Future[Any]] = {self._ready, self._serve_task}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)

    async def _ready_message(self) -> command_protocol.Ready:
        """Return the program's ready message. Raises TaskFailed if the program ended before it was ready."""
        if not self._ready.done():
            await self._wait_ready_or_ended()
            if not self._ready.done():
                assert self._failure is not None, "it is over"
                raise self._failure
        return self._ready.result()

    async def _end_unless_ready(self) -> None:
        try:
            await wait_with_timeout(self._wait_ready_or_ended(), clock=self._clock, seconds=self._spec.info.start_s)
        except TimeoutError:
            await self._handle.cancel(f"it {self._not_ready_text()}")

    def _not_ready_text(self) -> str:
        return f"did not send its ready message within {self._spec.info.start_s:g} s"

    def _send_interrupt(self, reply: TurnReply) -> None:
        if not reply.is_interrupted:
            reply.is_interrupted = True
            with suppress(RametError):  # The program does not read.
                self._line.send(command_protocol.Interrupt(turn=reply.number))

    async def _time_out(self, reply: TurnReply, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._send_interrupt(reply)
        reply.end(TaskFailed(f"its time of {seconds:g} s is over", status=str(Status.TIMEOUT), run=self.run))

    def _start_error(self, error: ErrorInfo | None) -> RametError:
        """Return the error to raise for a program that ended before it was ready."""
        message = error.message if error is not None else "it was closed"
        if error is not None and error.type == NOT_STARTED:
            return InvalidValue(
                "spawn_info.argv", self._spec.info.argv[0], f"a program that can be started ({message})"
            )
        return SpawnRefused("spawn_info.argv", f"the program did not become ready: {message}")


def _newest(messages: Sequence[Message], limit: int) -> bytes:
    """Return the end of the messages as JSON: whole messages, at most `limit` bytes."""
    parts, size = [msgspec.json.encode(each) for each in messages], 2
    first = len(parts)
    while first and size + len(parts[first - 1]) + 1 <= limit:
        first -= 1
        size += len(parts[first]) + 1
    return b"[" + b",".join(parts[first:]) + b"]"
