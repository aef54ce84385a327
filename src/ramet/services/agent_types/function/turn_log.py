"""The turns of a function agent on record, for whichever kernel goes on with it: each from before its call.

The id of the call's run is written down before there is such a run: whoever goes on knows what to look for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import Conflict, Damaged
from ramet.core.outcome import NOTHING_USED, ErrorInfo, Result, Status, Usage
from ramet.services.errors import TakenOver
from ramet.store.contract import Document, Store

KIND: Final = "function-turn"
#: Of the conversation before its turn a function is told this much of the newest, as JSON.
HISTORY_BYTES: Final = 4 * 1024 * 1024
_DIGITS: Final = 12

Message = dict[str, str]


class FunctionTurn(Struct, frozen=True, kw_only=True):
    """One turn. It is under way while it has no `status`."""

    number: int  #: of all that the agent has had, from 1
    run: str  #: of its call: the root of its tree
    asked: str
    said: str = ""
    status: Status | None = None
    error: ErrorInfo | None = None
    used: Usage = NOTHING_USED

    @property
    def result(self) -> Result:
        """How it ended."""
        assert self.status is not None, "it is over"
        return Result(status=self.status, error=self.error, usage_subtree=self.used)


class _Messages(NamedTuple):
    """The messages of one turn."""

    number: int
    messages: tuple[Message, ...]
    size: int  #: of the messages, as JSON


class FunctionTurns:
    """The turns of one agent: how many, the one that is `under_way`, and the newest of those that are over.

    In memory are as many of the newest as `recent_history` may have; the store has all of them.
    Writing raises TakenOver where another kernel has written, and StoreFailed.
    """

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent
        self._version = (0, 0)  #: the number of the newest turn on record, and the version of its document
        self._recent: deque[_Messages] = deque()  #: of turns that are over, oldest first
        self._recent_size = 0
        self.taken = 0  #: the number of the newest
        self.under_way: FunctionTurn | None = None

    async def read(self) -> Sequence[FunctionTurn]:
        """Take up what an earlier kernel wrote; return those that are over. Raises Damaged, StoreFailed."""
        over = []
        for each in await self._store.list(KIND, prefix=f"{self._agent}/"):
            turn = _decoded(each)
            self._version = (turn.number, each.version)
            self._place(turn)
            if turn.status is not None:
                over.append(turn)
        return over

    async def write(self, turn: FunctionTurn) -> None:
        """Put the newest one on record, as it is now."""
        number, version = self._version
        try:
            written = await self._store.put(
                KIND,
                self._key(turn.number),
                msgspec.msgpack.encode(turn),
                expected=version if number == turn.number else 0,
            )
        except Conflict:
            raise TakenOver("agent", self._agent) from None
        self._version = (turn.number, written.version)
        self._place(turn)

    async def forget(self, turn: FunctionTurn) -> None:
        """It never began: nothing is left of it, and the next one has its number. Raises StoreFailed."""
        self.under_way, self.taken = None, turn.number - 1
        if self._version[0] == turn.number:
            self._version = (0, 0)
            await self._store.delete(KIND, self._key(turn.number))

    def close(self) -> None:
        """Keep none in memory: trees that are over are kept for a while, and they know of this."""
        self._recent.clear()
        self._recent_size = 0

    async def of(self, number: int) -> FunctionTurn | None:
        """The one of that number, if it is over. Raises Damaged, StoreFailed."""
        found = await self._store.get(KIND, self._key(number))
        turn = _decoded(found) if found is not None else None
        return turn if turn is not None and turn.status is not None else None

    async def history(self) -> Sequence[Message]:
        """Return the messages of the turns that are over: `role` (user, assistant) and `content` of each message.

        Raises Damaged, StoreFailed.
        """
        turns = map(_decoded, await self._store.list(KIND, prefix=f"{self._agent}/"))
        return [message for turn in turns if turn.status is not None for message in _messages_of(turn)]

    def recent_history(self) -> list[Message]:
        """The end of `history`, of at most HISTORY_BYTES as JSON: whole turns."""
        return [message for turn in self._recent for message in turn.messages]

    @property
    def omitted(self) -> int:
        """How many messages `history` has before the first one of `recent_history`."""
        over = self.taken - (self.under_way is not None)
        return 2 * (over - len(self._recent))

    def _place(self, turn: FunctionTurn) -> None:
        self.taken = turn.number
        if turn.status is None:
            self.under_way = turn
            return
        self.under_way = None
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


def _decoded(document: Document) -> FunctionTurn:
    try:
        return msgspec.msgpack.decode(document.data, type=FunctionTurn)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise Damaged(document.kind, document.key, str(problem)) from None


async def clear(store: Store, agent: str) -> None:
    """Leave nothing of the turns of an agent that is gone."""
    for each in await store.list(KIND, prefix=f"{agent}/"):
        await store.delete(KIND, each.key)
