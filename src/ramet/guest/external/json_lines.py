"""JSON on lines of a program's output, and JSON-RPC over such lines.

The program may be broken or hostile. A line is bounded, and so are the requests that the program has open and the bytes
that it does not read. Messages are received in their order, one at a time: a receiver that waits stops the program.
Lines that are no messages, such as a log, are passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.core.errors import TaskFailed

Json = dict[str, Any]
MAX_LINE_BYTES: Final = 16 * 2**20
#: Requests of a program that are open at the same time, and bytes for a program that does not read them.
MAX_REQUESTS, MAX_UNREAD_BYTES = 32, 2**20
#: Lines in a row that are no messages.
MAX_STRAY_LINES: Final = 1_000
METHOD_NOT_FOUND: Final = -32601
#: Seconds for the message that is applied when the connection is closed.
STOP_S: Final = 5.0
_CHUNK_BYTES: Final = 64 * 1024


class RequestFailed(Exception):
    """An error in the answer to a request, of the program or for it."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


class ConnectionClosed(Exception):
    """The end of a program's output."""


class Receiver(Protocol):
    """A receiver of what a program says by itself."""

    async def receive(self, method: str, params: Json) -> None:
        """Apply a notification, before any later message is read."""

    async def answer(self, method: str, params: Json) -> Json:
        """Return the result of a request. Raises RequestFailed. A cancelled answer returns a result as well."""

    async def flush(self) -> None:
        """Pass on what was held back: no further message has arrived yet."""


class LineReader:
    """Lines of a stream, each of a bounded length."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream, self._buffer, self._searched = stream, bytearray(), 0

    @property
    def has_line(self) -> bool:
        """Return whether the next line has arrived in full."""
        return self._buffer.find(b"\n", self._searched) >= 0

    async def read(self) -> bytes | None:
        """Return the next line, None at the end. Raises TaskFailed if it is too long."""
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > MAX_LINE_BYTES:
                raise TaskFailed(f"the program wrote a line of more than {MAX_LINE_BYTES} bytes")
            data = await self._stream.read(_CHUNK_BYTES)
            if not data:
                rest, self._buffer, self._searched = bytes(self._buffer), bytearray(), 0
                return rest or None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line


class MessageReader:
    """JSON objects of a stream, one on each line."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._lines, self._stray_lines = LineReader(stream), 0

    @property
    def has_line(self) -> bool:
        """Return whether the next line has arrived in full."""
        return self._lines.has_line

    async def read(self) -> Json | None:
        """Return the next object, None at the end. Raises TaskFailed for a broken message and for too many others."""
        while (line := await self._lines.read()) is not None:
            message = decode_object(line)
            if message is not None:
                self._stray_lines = 0
                return message
            if b'"jsonrpc"' in line[:1_000]:  # It may be an answer, for which somebody waits.
                raise TaskFailed("the program wrote a message that is no JSON")
            self._stray_lines += 1
            if self._stray_lines > MAX_STRAY_LINES:
                raise TaskFailed(f"the program wrote {self._stray_lines} lines in a row that are no messages")
        return None


def decode_object(line: bytes) -> Json | None:
    """Return the JSON object of a line, with invalid Unicode replaced; None if the line holds no object."""
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        try:  # Invalid UTF-8, a half of a surrogate pair, a number that is out of range.
            value = _replace_surrogates(json.loads(line.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_replace_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(each) for name, each in value.items()}
    return value


class RpcConnection:
    """A JSON-RPC connection with a program, over its standard input and output."""

    def __init__(self, output: asyncio.StreamReader, input: asyncio.StreamWriter, receiver: Receiver) -> None:
        self._messages, self._input, self._receiver = MessageReader(output), input, receiver
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._problem: BaseException | None = None
        self._is_applying = self._is_stopped = False

    async def run(self) -> None:
        """Receive messages until the output ends. All requests fail then, with ConnectionClosed or the error."""
        try:
            while not self._is_stopped and (message := await self._messages.read()) is not None:
                self._is_applying = True
                await self._receive(message)
                if not self._messages.has_line:
                    await self._receiver.flush()
                self._is_applying = False
            self._fail(ConnectionClosed("the program closed its output"))
        except BaseException as problem:
            self._fail(problem if isinstance(problem, Exception) else ConnectionClosed("nothing more is read"))
            raise

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result of a request.

        Raises RequestFailed, ConnectionClosed, and TaskFailed for a program that breaks the protocol.
        """
        if self._problem is not None:
            raise self._problem
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "method": method, "params": params}, is_bounded=False)
            return await answer
        finally:
            self._pending.pop(number, None)

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def cancel_answers(self) -> None:
        """Cancel the answers to the open requests of the program: each sends what its receiver returns then."""
        for task in self._answers:
            task.cancel()

    async def close(self, running: asyncio.Future[None], clock: Clock) -> None:
        """Stop `run` behind the message that it applies, after a few seconds anyway, and cancel the open answers."""
        self._is_stopped = True
        if not self._is_applying:
            running.cancel()
        with contextlib.suppress(TimeoutError):
            await wait_with_timeout(asyncio.wait({running}), clock=clock, seconds=STOP_S)
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # Every request had it.
        self.cancel_answers()
        if self._answers:
            await asyncio.wait(self._answers)

    async def _receive(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str):
            self._resolve(message)
        elif "id" in message:
            self._begin_answer(message["id"], method, params if isinstance(params, dict) else {})
        else:
            await self._receiver.receive(method, params if isinstance(params, dict) else {})

    def _resolve(self, message: Json) -> None:
        number = message.get("id")
        answer = self._pending.pop(number, None) if type(number) is int else None  # True is no number.
        if answer is None or answer.done():
            return
        error = message.get("error")
        if error is None:
            answer.set_result(message.get("result"))
        else:
            answer.set_exception(_error_of(error))

    def _begin_answer(self, number: object, method: str, params: Json) -> None:
        if not isinstance(number, str | int | float | None):
            raise TaskFailed("the program sent a request whose id is no text or number")
        if len(self._answers) >= MAX_REQUESTS:
            self._send_error(number, RequestFailed(-32000, f"{MAX_REQUESTS} requests are open"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(number, method, params))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, number: object, method: str, params: Json) -> None:
        try:
            try:
                self._send({"id": number, "result": await self._receiver.answer(method, params)})
            except RequestFailed as error:
                self._send_error(number, error)
        except Exception as problem:  # Requests wait for this connection: none may wait for ever.
            self._fail(problem)

    def _send_error(self, number: object, error: RequestFailed) -> None:
        self._send({"id": number, "error": {"code": error.code, "message": error.message}})

    def _send(self, message: Mapping[str, Any], *, is_bounded: bool = True) -> None:
        # Without waiting: a program that waits for us to read must not be waited for.
        if is_bounded and self._input.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            raise TaskFailed(f"the program has left more than {MAX_UNREAD_BYTES} bytes of its input unread")
        if not self._input.is_closing():
            self._input.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    def _fail(self, problem: BaseException) -> None:
        if self._problem is None:
            self._problem = problem
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self._problem)


def _error_of(error: object) -> RequestFailed:
    fields = error if isinstance(error, dict) else {}
    code, message = fields.get("code"), fields.get("message")
    text = message if isinstance(message, str) and message else "an error without a message"
    return RequestFailed(code if type(code) is int else 0, text[:4_000])
