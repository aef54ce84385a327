"""Continuing a conversation whose server was stopped in order: its tree has ended, and a new tree gets its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from langchain_core.messages import BaseMessage

from ramet.core.errors import Damaged, Unknown
from ramet.core.outcome import NO_USAGE, Usage
from ramet.host.recovery.fork_points import fork_point
from ramet.host.recovery.resume import resolve_inputs
from ramet.host.safety.gate import SafetyGate
from ramet.services.contract import AgentSpec
from ramet.store.contract import Store

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

#: The kind of the documents with the usage of each ended tree of an agent, by the id of its root.
USED: Final = "agent used"


class PreviousUsage:
    """The usage of the ended trees of one agent."""

    def __init__(self, store: Store, agent: str, usage_by_root: Mapping[str, Usage], version: int) -> None:
        self._store, self._agent, self._usage_by_root, self._version = store, agent, dict(usage_by_root), version

    def used_before(self, run: str) -> Usage:
        """Return the usage of all ended trees, except the tree of that root."""
        return sum((usage for root, usage in self._usage_by_root.items() if root != run), NO_USAGE)

    async def record(self, run: str, usage: Usage) -> None:
        """Store the usage of another ended tree.

        Raises StoreFailed, and Conflict if another kernel has written the document.
        """
        if run not in self._usage_by_root:
            data = msgspec.json.encode({**self._usage_by_root, run: usage})
            self._version = (await self._store.put(USED, self._agent, data, expected=self._version)).version
            self._usage_by_root[run] = usage


async def previous_usage(spec: AgentSpec) -> PreviousUsage:
    """Return the stored usage of the agent's ended trees. Raises Damaged, StoreFailed."""
    store = await spec.runtime.open_store()
    document = await store.get(USED, spec.id) if spec.run else None  # A new agent has no earlier trees.
    try:
        usage_by_root = msgspec.json.decode(document.data, type=dict[str, Usage]) if document is not None else {}
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise Damaged(USED, spec.id, str(problem)) from None
    return PreviousUsage(store, spec.id, usage_by_root, document.version if document is not None else 0)


async def previous_messages(
    spec: AgentSpec,
    previous_usage: PreviousUsage,
    model: str | BaseChatModel,
    tools: Sequence[BaseTool],
    gate: SafetyGate | None,
) -> Sequence[BaseMessage]:
    """Return the messages of the ended tree, and store its usage. Raises Unknown if the tree is not in the journal."""
    journal = spec.runtime.journal
    if journal is None:
        raise Unknown("run", spec.run)
    await spec.runtime.open_store()
    llm = None if isinstance(model, str) else model
    inputs = resolve_inputs(llm=llm, tools=tools, gate=gate)
    point = await fork_point(journal, spec.run, None, inputs)
    await previous_usage.record(spec.run, point.used)  # The usage must outlive the result of the tree.
    return point.messages
