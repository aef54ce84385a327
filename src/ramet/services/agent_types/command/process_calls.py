"""Operations that a program was asked to do and has not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.core.errors import ProtocolError, RametError, TaskFailed
from ramet.core.outcome import Status
from ramet.services.agent_types.command.process import Line
from ramet.wire.command_protocol import Answer, Control, Refusal, error_text


class Calls:
    """The open operations of one program."""

    def __init__(self, line: Line, clock: Clock, mask: Callable[[str], str]) -> None:
        """Send operations over `line`. `mask` removes private values from the text of a refusal."""
        self._line, self._clock, self._mask = line, clock, mask
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._last = 0

    async def ask(self, operation: str, arguments: bytes, timeout_s: float) -> Any:
        """Return the program's answer.

        Raises BusyError if it does not read, TaskFailed if it refuses or is too late.
        """
        number = self._last + 1
        self._line.send(Control(id=number, operation=operation), arguments)
        self._last = number
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            return await wait_with_timeout(answer, clock=self._clock, seconds=timeout_s)
        except TimeoutError:
            message = f"{operation!r} was not answered within {timeout_s:g} s"
            raise TaskFailed(message, status=str(Status.TIMEOUT)) from None
        finally:
            del self._open[number]

    def receive(self, message: Answer | Refusal, body: bytes) -> None:
        """Take an answer of the program. Raises ProtocolError if its number was never asked."""
        if message.id > self._last:
            raise ProtocolError(f"it answers operation {message.id}, which was never requested")
        answer = self._open.get(message.id)
        if answer is None or answer.done():
            return  # Too late.
        if isinstance(message, Refusal):
            answer.set_exception(TaskFailed(self._mask(error_text(body))))
            return
        try:
            answer.set_result(msgspec.json.decode(body or b"null"))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            answer.set_exception(TaskFailed(f"the answer of the program is not JSON: {problem}"))

    def fail(self, error: RametError) -> None:
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(error)
