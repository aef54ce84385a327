"""The turns of an agent as its type records them: for the history, and for the kernel that continues the agent.

A turn of a function is stored before its call, with the id of the call's run: a kernel that continues the agent knows
which run to look for. A turn of a program is stored after its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import Conflict, Damaged, OutputTooLarge
from ramet.core.outcome import NO_USAGE, ErrorInfo, Result, Status, Usage
from ramet.services.errors import TakenOver
from ramet.store.contract import Document, Store

#: The kinds of the documents, one for each agent type that has a log.
FUNCTION_TURN: Final = "function-turn"
COMMAND_TURN: Final = "command-turn"
#: A function or a program gets at most this much of the newest part of the earlier conversation, as JSON.
HISTORY_BYTES: Final = 4 * 1024 * 1024
#: The characters of one answer: all of it is kept, for the history and for the next turn.
MAX_ANSWER_CHARS = 16 * 1024 * 1024
_DIGITS: Final = 12

Message = dict[str, str]


class AnswerText:
    """The text of one answer while it arrives. The text is kept, and so its size is limited."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, piece: str) -> None:
        """Append the next piece. Raises OutputTooLarge."""
        self._size += len(piece)
        if self._size > MAX_ANSWER_CHARS:
            raise OutputTooLarge("an answer, in characters", size=self._size, limit=MAX_ANSWER_CHARS)
        self._pieces.append(piece)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def ends_a_line(self) -> bool:
        """Return whether the next piece begins a line."""
        return not self._pieces or self._pieces[-1].endswith("\n")


class ConversationTurn(Struct, frozen=True, kw_only=True):
    """A turn. The turn is active while it has no `status`."""

    number: int  #: position among all turns of the agent, from 1
    run: str  #: the root of the tree that answered: of the call of a function, or of the program
    asked: str
    said: str = ""
    status: Status | None = None
    error: ErrorInfo | None = None
    used: Usage = NO_USAGE

    @property
    def result(self) -> Result:
        assert self.status is not None, "it is over"
        return Result(status=self.status, error=self.error, usage_subtree=self.used)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return `role` (user, assistant) and `content` of each message; nothing if the program got an empty body."""
        said = {"role": "assistant", "content": self.said}
        return ({"role": "user", "content": self.asked}, said) if self.asked else ()


class _CommandRow(Struct, frozen=True):
    """A turn of a program as it is stored: it has ended, and the key has its number and its run."""

    asked: str
    said: str


class _RecentTurn(NamedTuple):
    number: int
    messages: tuple[Message, ...]
    size: int  #: bytes of the messages as JSON


class ConversationLog:
    """The turns of one agent: their number, the active one (`active_turn`), and the newest ended ones.

    The store holds all turns. Memory holds the newest turns of a function up to HISTORY_BYTES, and all turns of a
    program. Writing raises StoreFailed. Writing a turn of a function raises TakenOver if another kernel has written.
    """

    def __init__(self, store: Store, agent: str, kind: str = FUNCTION_TURN) -> None:
        self._store, self._agent, self._kind = store, agent, kind
        self._version = (0, 0)  #: the number of the newest stored turn, and the version of its document
        self._recent: deque[_RecentTurn] = deque()  #: ended turns, oldest first
        self._recent_size = 0
        self.newest_number = 0  #: the number of the newest turn
        self.active_turn: ConversationTurn | None = None

    async def read(self) -> Sequence[ConversationTurn]:
        """Load the turns that an earlier kernel stored; return those that have ended. Raises Damaged, StoreFailed."""
        ended = []
        for each in await self._documents():
            turn = _decode(each)
            self._version = (turn.number, each.version)
            self.add(turn)
            if turn.status is not None:
                ended.append(turn)
        return ended

    async def write(self, turn: ConversationTurn) -> None:
        """Store the present state of the newest turn."""
        number, version = self._version
        if self._kind == COMMAND_TURN:
            # The key contains the run: late writes of a kernel that lost the agent then overwrite nothing.
            key, data = f"{self._key(turn.number)}/{turn.run}", msgspec.json.encode(_CommandRow(turn.asked, turn.said))
            expected = None
        else:
            key, data = self._key(turn.number), msgspec.msgpack.encode(turn)
            expected = version if number == turn.number else 0
        try:
            document = await self._store.put(self._kind, key, data, expected=expected)
        except Conflict:
            raise TakenOver("agent", self._agent) from None
        self._version = (turn.number, document.version)
        self.add(turn)

    def add(self, turn: ConversationTurn) -> None:
        """Take the present state of the newest turn into memory only."""
        self.newest_number = turn.number
        if turn.status is None:
            self.active_turn = turn
            return
        self.active_turn = None
        if self._kind == FUNCTION_TURN and self._recent and self._recent[-1].number == turn.number:
            self._recent_size -= self._recent.pop().size
        newest = _RecentTurn(turn.number, turn.messages, len(msgspec.json.encode(turn.messages)))
        self._recent.append(newest)
        self._recent_size += newest.size
        while self._kind == FUNCTION_TURN and self._recent_size > HISTORY_BYTES:
            self._recent_size -= self._recent.popleft().size

    async def forget(self, turn: ConversationTurn) -> None:
        """Delete a turn that never began; the next turn gets its number. Raises StoreFailed."""
        self.active_turn, self.newest_number = None, turn.number - 1
        if self._version[0] == turn.number:
            self._version = (0, 0)
            await self._store.delete(self._kind, self._key(turn.number))

    def close(self) -> None:
        """Drop all turns from memory: ended trees are kept for a while, and they refer to this object."""
        self._recent.clear()
        self._recent_size = 0

    async def of(self, number: int) -> ConversationTurn | None:
        """Return the turn of that number if it has ended; otherwise None. Raises Damaged, StoreFailed."""
        document = await self._store.get(self._kind, self._key(number))
        turn = _decode(document) if document is not None else None
        return turn if turn is not None and turn.status is not None else None

    async def history(self) -> Sequence[Message]:
        """Return the messages of all ended turns in the store. Raises Damaged, StoreFailed."""
        turns = map(_decode, await self._documents())
        return [message for turn in turns if turn.status is not None for message in turn.messages]

    def recent_history(self) -> list[Message]:
        """Return the messages of the ended turns in memory, oldest first."""
        return [message for turn in self._recent for message in turn.messages]

    @property
    def omitted_count(self) -> int:
        """Return the number of messages of `history` before the first one of `recent_history`."""
        ended_count = self.newest_number - (self.active_turn is not None)
        return 2 * (ended_count - len(self._recent))

    async def _documents(self) -> Sequence[Document]:
        return await self._store.list(self._kind, prefix=f"{self._agent}/")

    def _key(self, number: int) -> str:
        return f"{self._agent}/{number:0{_DIGITS}d}"


def _decode(document: Document) -> ConversationTurn:
    try:
        if document.kind == FUNCTION_TURN:
            return msgspec.msgpack.decode(document.data, type=ConversationTurn)
        row = msgspec.json.decode(document.data, type=_CommandRow)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise Damaged(document.kind, document.key, str(problem)) from None
    _, number, run = document.key.rsplit("/", 2)
    return ConversationTurn(number=int(number), run=run, asked=row.asked, said=row.said, status=Status.COMPLETED)
