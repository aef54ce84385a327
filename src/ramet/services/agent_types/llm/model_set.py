"""The persisted name of the model that an agent was last set to: a kernel that continues the agent uses this model."""

from __future__ import annotations

from typing import Final

from ramet.services.contract import AgentSpec
from ramet.store.contract import Store

KIND: Final = "agent model"


async def read(spec: AgentSpec) -> str:
    """Return the name; "" if the model was never set."""
    document = await (await spec.runtime.open_store()).get(KIND, spec.id)
    return document.data.decode() if document is not None else ""


async def write(spec: AgentSpec, tree: str, name: str) -> None:
    """Store the name. Raises StoreFailed, and OwnedElsewhere if another kernel owns the agent's tree."""
    await (await spec.runtime.open_store()).put(KIND, spec.id, name.encode(), tree=tree)


async def clear(store: Store, agent: str) -> None:
    """Delete the stored name."""
    await store.delete(KIND, agent)
