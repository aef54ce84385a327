"""The turns of a function agent on record, for whichever kernel goes on with it: each from before its call.

The id of the call's run is written down before there is such a run: whoever goes on knows what to look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ramet.core.errors import Conflict, Damaged
from ramet.core.outcome import NOTHING_USED, ErrorInfo, Result, Status, Usage
from ramet.services.refusals import TakenOver
from ramet.store.contract import Store

KIND: Final = "function-turn"
_DIGITS: Final = 12


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


class FunctionTurns:
    """Those of one agent: `over`, oldest first, and the one that is `under_way`.

    Writing raises TakenOver where another kernel has written, and StoreFailed.
    """

    def __init__(self, store: Store, agent: str) -> None:
        self._store, self._agent = store, agent
        self._versions: dict[int, int] = {}
        self.over: list[FunctionTurn] = []
        self.under_way: FunctionTurn | None = None

    @property
    def taken(self) -> int:
        """The number of the newest."""
        newest = self.under_way or (self.over[-1] if self.over else None)
        return newest.number if newest is not None else 0

    async def read(self) -> None:
        """Take up what an earlier kernel wrote. Raises Damaged, StoreFailed."""
        for each in await self._store.list(KIND, prefix=f"{self._agent}/"):
            try:
                turn = msgspec.msgpack.decode(each.data, type=FunctionTurn)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
                raise Damaged(each.kind, each.key, str(problem)) from None
            self._versions[turn.number] = each.version
            self._place(turn)

    async def write(self, turn: FunctionTurn) -> None:
        """Put the newest one on record, as it is now."""
        version = self._versions.get(turn.number, 0)
        try:
            written = await self._store.put(
                KIND, self._key(turn.number), msgspec.msgpack.encode(turn), expected=version
            )
        except Conflict:
            raise TakenOver("agent", self._agent) from None
        self._versions[turn.number] = written.version
        self._place(turn)

    async def forget(self, turn: FunctionTurn) -> None:
        """It never began: nothing is left of it, and the next one has its number. Raises StoreFailed."""
        self.under_way = None
        if self._versions.pop(turn.number, None) is not None:
            await self._store.delete(KIND, self._key(turn.number))

    def of(self, number: int) -> FunctionTurn | None:
        """The one of that number, if it is over."""
        return next((each for each in reversed(self.over) if each.number == number), None)

    def history(self) -> Sequence[dict[str, str]]:
        """What was said in those that are over: `role` (user, assistant) and `content` of each message."""
        return [
            {"role": role, "content": content}
            for turn in self.over
            for role, content in (("user", turn.asked), ("assistant", turn.said))
        ]

    def _place(self, turn: FunctionTurn) -> None:
        if turn.status is None:
            self.under_way = turn
            return
        self.under_way = None
        if self.over and self.over[-1].number == turn.number:
            self.over.pop()
        self.over.append(turn)

    def _key(self, number: int) -> str:
        return f"{self._agent}/{number:0{_DIGITS}d}"


async def clear(store: Store, agent: str) -> None:
    """Leave nothing of the turns of an agent that is gone."""
    for each in await store.list(KIND, prefix=f"{agent}/"):
        await store.delete(KIND, each.key)
