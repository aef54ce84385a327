"""The turns of a program's conversation that are over, on record: whichever kernel goes on with it tells them."""

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
MOST_SAID = 16 * 1024 * 1024  #: characters of one answer: all of it is kept, for the history and for the next turn


class Said:
    """The text of one answer while it comes, to be kept: so it has an end."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def take(self, piece: str) -> None:
        """Its next piece. Raises OutputTooLarge."""
        self._size += len(piece)
        if self._size > MOST_SAID:
            raise OutputTooLarge("an answer, in characters", size=self._size, limit=MOST_SAID)
        self._pieces.append(piece)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def ends_a_line(self) -> bool:
        """Whether what is said next begins a line."""
        return not self._pieces or self._pieces[-1].endswith("\n")


class CommandTurn(Struct, frozen=True, kw_only=True):
    """One that is over, as it is kept."""

    asked: str
    said: str


class CommandTurnLog:
    """Those of one agent, oldest first."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent
        self.turns: list[CommandTurn] = []

    async def read(self) -> None:
        """Take up what an earlier kernel kept. Raises Damaged, StoreFailed."""
        for each in await self._store.list(KIND, prefix=f"{self._agent}/"):
            try:
                self.turns.append(msgspec.json.decode(each.data, type=CommandTurn))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
                raise Damaged(each.kind, each.key, str(problem)) from None

    async def keep(self, turn: CommandTurn, run: str) -> None:
        """Put one on record, of a program that is that run; one that cannot be is known here only, and logged."""
        self.turns.append(turn)
        # By its run, too: what a kernel that has lost the agent still writes is in the way of nobody.
        key = f"{self._agent}/{len(self.turns):0{_DIGITS}d}/{run}"
        try:
            await self._store.put(KIND, key, msgspec.json.encode(turn))
        except StoreFailed as problem:
            _log.error("a turn of agent %s is not on record: %s", self._agent, problem)

    def newest(self, most: int) -> bytes:
        """The end of `history` as JSON, of at most so many bytes: whole messages."""
        messages, size = [msgspec.json.encode(each) for each in self.history()], 2
        first = len(messages)
        while first and size + len(messages[first - 1]) + 1 <= most:
            first -= 1
            size += len(messages[first]) + 1
        return b"[" + b",".join(messages[first:]) + b"]"

    def history(self) -> Sequence[dict[str, str]]:
        """What was said: `role` (user, assistant) and `content` of each message."""
        return [
            {"role": role, "content": content}
            for turn in self.turns
            if turn.asked
            for role, content in (("user", turn.asked), ("assistant", turn.said))
        ]


async def clear(store: Store, agent: str) -> None:
    """Leave nothing of the turns of an agent that is gone."""
    for each in await store.list(KIND, prefix=f"{agent}/"):
        await store.delete(KIND, each.key)
