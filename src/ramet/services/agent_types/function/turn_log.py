"""The persisted turns of a function agent, for the kernel that continues the agent. A turn is stored before its call.

The id of the call's run is stored before the run exists: a kernel that continues the agent knows which run to look for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import Conflict, Damaged
from ramet.core.outcome import NO_USAGE, ErrorInfo, Result, Status, Usage
from ramet.services.errors import TakenOver
from ramet.store.contract import Document, Store

KIND: Final = "function-turn"
#: A function gets at most this much of the newest part of the earlier conversation, as JSON.
HISTORY_BYTES: Final = 4 * 1024 * 1024
_DIGITS: Final = 12

Message = dict[str, str]


class FunctionTurn(Struct, frozen=True, kw_only=True):
    """A turn. The turn is active while it has no `status`."""

    number: int  #: position among all turns of the agent, from 1
    run: str  #: the run of its call: the root of the call's tree
    asked: str
    said: str = ""
    status: Status | None = None
    error: ErrorInfo | None = None
    used: Usage = NO_USAGE

    @property
    def result(self) -> Result:
        """Return the result that the turn ended with."""
        assert self.status is not None, "it is over"
        return Result(status=self.status, error=self.error, usage_subtree=self.used)


class _Messages(NamedTuple):
    """The messages of one turn."""

    number: int
    messages: tuple[Message, ...]
    size: int  #: bytes of the messages as JSON


class FunctionTurns:
    """The turns of one agent: their number, the active one (`active_turn`), and the newest ended ones.

    Memory holds only as many of the newest turns as `recent_history` may contain; the store holds all turns. Writing
    raises StoreFailed, and TakenOver if another kernel has written.
    """

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent
        self._version = (0, 0)  #: the number of the newest stored turn, and the version of its document
        self._recent: deque[_Messages] = deque()  #: the messages of ended turns, oldest first
        self._recent_size = 0
        self.newest_number = 0  #: the number of the newest turn
        self.active_turn: FunctionTurn | None = None

    async def read(self) -> Sequence[FunctionTurn]:
        """Load the turns that an earlier kernel stored; return those that have ended. Raises Damaged, StoreFailed."""
        ended = []
        for each in await self._store.list(KIND, prefix=f"{self._agent}/"):
            turn = _decode(each)
            self._version = (turn.number, each.version)
            self._add_turn(turn)
            if turn.status is not None:
                ended.append(turn)
        return ended

    async def write(self, turn: FunctionTurn) -> None:
        """Store the present state of the newest turn."""
        number, version = self._version
        try:
            document = await self._store.put(
                KIND,
                self._key(turn.number),
                msgspec.msgpack.encode(turn),
                expected=version if number == turn.number else 0,
            )
        except Conflict:
            raise TakenOver("agent", self._agent) from None
        self._version = (turn.number, document.version)
        self._add_turn(turn)

    async def forget(self, turn: FunctionTurn) -> None:
        """Delete a turn that never began; the next turn gets its number. Raises StoreFailed."""
        self.active_turn, self.newest_number = None, turn.number - 1
        if self._version[0] == turn.number:
            self._version = (0, 0)
            await self._store.delete(KIND, self._key(turn.number))

    def close(self) -> None:
        """Drop all turns from memory: ended trees are kept for a while, and they refer to this object."""
        self._recent.clear()
        self._recent_size = 0

    async def of(self, number: int) -> FunctionTurn | None:
        """Return the turn of that number if it has ended; otherwise None. Raises Damaged, StoreFailed."""
        document = await self._store.get(KIND, self._key(number))
        turn = _decode(document) if document is not None else None
        return turn if turn is not None and turn.status is not None else None

    async def history(self) -> Sequence[Message]:
        """Return `role` (user, assistant) and `content` of each message of the ended turns.

        Raises Damaged, StoreFailed.
        """
        turns = map(_decode, await self._store.list(KIND, prefix=f"{self._agent}/"))
        return [message for turn in turns if turn.status is not None for message in _messages_of(turn)]

    def recent_history(self) -> list[Message]:
        """Return the end of `history`: whole turns, at most HISTORY_BYTES as JSON."""
        return [message for turn in self._recent for message in turn.messages]

    @property
    def omitted_count(self) -> int:
        """Return the number of messages of `history` before the first one of `recent_history`."""
        ended_count = self.newest_number - (self.active_turn is not None)
        return 2 * (ended_count - len(self._recent))

    def _add_turn(self, turn: FunctionTurn) -> None:
        self.newest_number = turn.number
        if turn.status is None:
            self.active_turn = turn
            return
        self.active_turn = None
        if self._recent and self._recent[-1].number == turn.number:
            self._recent_size -= self._recent.pop().size
        messages = _messages_of(turn)
        newest = _Messages(turn.number, messages, len(msgspec.json.encode(messages)))
        self._recent.append(newest)
        self._recent_size += newest.size
        while self._recent_size > HISTORY_BYTES:
            self._recent_size -= self._recent.popleft().size

    def _key(self, number: int) -> str:
        return f"{self._agent}/{number:0{_DIGITS}d}"


def _messages_of(turn: FunctionTurn) -> tuple[Message, ...]:
    return {"role": "user", "content": turn.asked}, {"role": "assistant", "content": turn.said}


def _decode(document: Document) -> FunctionTurn:
    try:
        return msgspec.msgpack.decode(document.data, type=FunctionTurn)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise Damaged(document.kind, document.key, str(problem)) from None


async def clear(store: Store, agent: str) -> None:
    """Delete the turns of a removed agent."""
    for each in await store.list(KIND, prefix=f"{agent}/"):
        await store.delete(KIND, each.key)
