"""Reports to the host of a program: each call begins and ends once, and the reply is kept within a bound."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ramet.core.errors import TaskFailed
from ramet.guest.external.program_host import CallStatus, ProgramHost

#: Calls that are open at the same time, and ids that are remembered.
MAX_OPEN_CALLS, MAX_KNOWN_CALLS = 1_000, 10_000
#: Characters of a reply, and of a part of a reply that is held back until more has arrived.
MAX_REPLY_CHARS: Final = 4 * 2**20
MAX_HELD_CHARS: Final = 16 * 1024
MAX_PREVIEW_CHARS: Final = 2_000
_TEXT_MEMBERS: Final = (
    "text",
    "content",
    "output",
    "formatted_output",
    "aggregated_output",
    "error",
    "message",
    "path",
)


class CallReports:
    """The calls of a program, reported to the host one at a time."""

    def __init__(self, host: ProgramHost) -> None:
        self._host, self._lock, self._turn = host, asyncio.Lock(), 0
        self._open: dict[str, str] = {}  #: the host's id of a call, by the program's
        self._known: dict[str, int] = {}  #: the turn in which an id was used

    def begin_turn(self) -> None:
        """Begin a turn: ids of calls may come again, for other calls."""
        self._turn += 1

    def is_open(self, call: str) -> bool:
        """Return whether a call has begun and not ended."""
        return call in self._open

    def has_ended(self, call: str) -> bool:
        """Return whether a call has begun and ended in this turn."""
        return call not in self._open and self._known.get(call) == self._turn

    async def start(self, call: str, tool: str, args: dict[str, Any]) -> str | None:
        """Report that a call begins, unless it has begun. Return the host's id of it; None for a call that has ended.

        Raises BudgetExceeded, and TaskFailed beyond the bound of open calls.
        """
        async with self._lock:
            if call in self._open or self.has_ended(call):
                return self._open.get(call)
            if len(self._open) >= MAX_OPEN_CALLS:
                raise TaskFailed(f"the program has {MAX_OPEN_CALLS} calls open")
            reported = call if call not in self._known else f"{call[:150]}#{self._turn}"
            self._known.pop(call, None)
            self._known[call] = self._turn
            if len(self._known) > MAX_KNOWN_CALLS:
                del self._known[next(iter(self._known))]
            await self._host.start_call(reported, tool, args)
            self._open[call] = reported
            return reported

    async def end(self, call: str, status: CallStatus, preview: str = "") -> None:
        """Report the end of a call, if it is open."""
        async with self._lock:
            reported = self._open.pop(call, None)
            if reported is not None:
                await self._host.end_call(reported, status, preview[:MAX_PREVIEW_CHARS])

    async def end_all(self, status: CallStatus) -> None:
        """Report the end of all open calls."""
        for call in tuple(self._open):
            await self.end(call, status)


class Reply:
    """The reply of one turn. Its answer is the last part that has text: what follows the last call."""

    def __init__(self, host: ProgramHost) -> None:
        self._host = host
        self._parts: list[str] = []  #: of the newest part
        self._answer = ""  #: the newest part before it that has text
        self._held: list[str] = []
        self._size = self._held_size = self._cut = 0

    async def add(self, text: str) -> None:
        """Add text to the newest part."""
        self._held.append(text)
        self._held_size += len(text)
        free = MAX_REPLY_CHARS - self._size
        self._cut += max(0, len(text) - free)
        self._parts.append(text[:free])
        self._size += len(self._parts[-1])
        if self._held_size >= MAX_HELD_CHARS:
            await self.flush()

    def divide(self) -> None:
        """Begin another part, if the newest has text."""
        if self._size:
            self._answer, self._parts = self.text, []
            self._size = self._cut = 0

    async def flush(self) -> None:
        """Pass on to the host what is held back."""
        if self._held:
            text, self._held, self._held_size = "".join(self._held), [], 0
            await self._host.report_text(text)

    @property
    def has_newest_text(self) -> bool:
        """Return whether the newest part has text."""
        return any(each.strip() for each in self._parts)

    @property
    def text(self) -> str:
        """Return the answer."""
        newest = "".join(self._parts)
        if not newest.strip():
            return self._answer
        return f"{newest}\n[cut: {self._cut} characters more]" if self._cut else newest


def arguments_of(value: object) -> dict[str, Any]:
    """Return the arguments of a call as an object."""
    if isinstance(value, dict):
        return value
    return {} if value is None else {"input": value}


def preview_of(value: object, depth: int = 4) -> str:
    """Return the beginning of the output of a call as text, found in the members that programs put it into."""
    if isinstance(value, str):
        return value[:MAX_PREVIEW_CHARS]
    if isinstance(value, list) and depth:
        return "\n".join(filter(None, (preview_of(each, depth - 1) for each in value[:20])))[:MAX_PREVIEW_CHARS]
    if isinstance(value, dict) and depth:
        found = next((value[name] for name in _TEXT_MEMBERS if value.get(name)), None)
        return preview_of(found, depth - 1)
    return ""
