"""A conversation whose server was stopped in good order: its tree is over, and another goes on with what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from langchain_core.messages import BaseMessage

from ramet.core.budget import RESOURCES, Limits
from ramet.core.errors import Damaged, Unknown
from ramet.core.outcome import NOTHING_USED, Usage
from ramet.host.recovery.resume import fork_point, supplied_by
from ramet.host.safety.gate import SafetyGate
from ramet.services.agent_types.outcome import as_spent
from ramet.services.contract import AgentSpec
from ramet.store.contract import Store

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

#: Documents that hold what each tree of an agent that is over has used, by the id of its root: for any kernel.
KIND: Final = "agent used"


class PreviousUsage:
    """Those of one agent that are over."""

    def __init__(self, store: Store, agent: str, used: Mapping[str, Usage], version: int) -> None:
        self._store, self._agent, self._used, self._version = store, agent, dict(used), version

    def used_before(self, run: str) -> Usage:
        """What they have used, but for the tree of that root."""
        return sum((used for root, used in self._used.items() if root != run), NOTHING_USED)

    async def note(self, run: str, used: Usage) -> None:
        """One more is over. Raises Conflict where another kernel has written this, and StoreFailed."""
        if run not in self._used:
            data = msgspec.json.encode({**self._used, run: used})
            self._version = (await self._store.put(KIND, self._agent, data, expected=self._version)).version
            self._used[run] = used


async def trees_over(opening: AgentSpec) -> PreviousUsage:
    """What is on record of them. Raises Damaged, StoreFailed."""
    store = await opening.runtime.open_store()
    found = await store.get(KIND, opening.id) if opening.run else None  # An agent that is new has had none.
    try:
        used = msgspec.json.decode(found.data, type=dict[str, Usage]) if found is not None else {}
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise Damaged(KIND, opening.id, str(problem)) from None
    return PreviousUsage(store, opening.id, used, found.version if found is not None else 0)


async def clear(store: Store, agent: str) -> None:
    """Leave nothing of it."""
    await store.delete(KIND, agent)


async def said_before(
    opening: AgentSpec,
    over: PreviousUsage,
    model: str | BaseChatModel,
    tools: Sequence[BaseTool],
    gate: SafetyGate | None,
) -> Sequence[BaseMessage]:
    """What was said in the tree that is over; what it used is noted. Raises Unknown for one that is not on record."""
    journal = opening.runtime.journal
    if journal is None:
        raise Unknown("run", opening.run)
    await opening.runtime.open_store()
    llm = None if isinstance(model, str) else model
    supplied = supplied_by(llm=llm, tools=tools, gate=gate)
    point = await fork_point(journal, opening.run, None, supplied)
    await over.note(opening.run, point.used)  # However long its result was to be kept.
    return point.messages


def left_of(limits: Limits, used: Usage) -> Limits:
    """The limits of another tree, where so much is used for good. Time is each turn's."""
    spent = as_spent(used)
    given = {name: most for name in RESOURCES if (most := getattr(limits, name)) is not None}
    return Limits(seconds=limits.seconds, **{name: max(0, most - spent[name]) for name, most in given.items()})
