"""The persisted turns of a command agent that have ended: any kernel that continues the conversation can show them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ramet.core.errors import Damaged, OutputTooLarge, StoreFailed
from ramet.store.contract import Store

_log = logging.getLogger("ramet.serve")
KIND: Final = "command-turn"
_DIGITS: Final = 12
MAX_ANSWER_CHARS = (
    16 * 1024 * 1024
)  #: characters of one answer: all of it is kept, for the history and for the next turn


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
        """Return the whole text."""
        return "".join(self._pieces)

    @property
    def ends_a_line(self) -> bool:
        """Return whether the next piece begins a line."""
        return not self._pieces or self._pieces[-1].endswith("\n")


class CommandTurn(Struct, frozen=True, kw_only=True):
    """A turn that has ended, as it is stored."""

    asked: str
    said: str


class CommandTurnLog:
    """The turns of one agent, oldest first."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent
        self.turns: list[CommandTurn] = []

    async def read(self) -> None:
        """Load the turns that an earlier kernel stored. Raises Damaged, StoreFailed."""
        for each in await self._store.list(KIND, prefix=f"{self._agent}/"):
            try:
                self.turns.append(msgspec.json.decode(each.data, type=CommandTurn))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
                raise Damaged(each.kind, each.key, str(problem)) from None

    async def append(self, turn: CommandTurn, run: str) -> None:
        """Store a turn of the program that runs as `run`.

        A turn that cannot be stored stays in memory only, and is logged.
        """
        self.turns.append(turn)
        # The key contains the run: late writes of a kernel that lost the agent then overwrite nothing.
        key = f"{self._agent}/{len(self.turns):0{_DIGITS}d}/{run}"
        try:
            await self._store.put(KIND, key, msgspec.json.encode(turn))
        except StoreFailed as problem:
            _log.error("a turn of agent %s could not be recorded: %s", self._agent, problem)

    def newest(self, limit: int) -> bytes:
        """Return the end of `history` as JSON: whole messages, at most `limit` bytes."""
        messages, size = [msgspec.json.encode(each) for each in self.history()], 2
        first = len(messages)
        while first and size + len(messages[first - 1]) + 1 <= limit:
            first -= 1
            size += len(messages[first]) + 1
        return b"[" + b",".join(messages[first:]) + b"]"

    def history(self) -> Sequence[dict[str, str]]:
        """Return `role` (user, assistant) and `content` of each message."""
        return [
            {"role": role, "content": content}
            for turn in self.turns
            if turn.asked
            for role, content in (("user", turn.asked), ("assistant", turn.said))
        ]


async def clear(store: Store, agent: str) -> None:
    """Delete the turns of a removed agent."""
    for each in await store.list(KIND, prefix=f"{agent}/"):
        await store.delete(KIND, each.key)
