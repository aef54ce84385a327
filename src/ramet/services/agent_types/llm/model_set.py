"""The name of the model that an agent was set to last, on record: whichever kernel goes on with it asks that one."""

from __future__ import annotations

from typing import Final

from ramet.services.contract import AgentSpec
from ramet.store.contract import Store

KIND: Final = "agent model"


async def read(opening: AgentSpec) -> str:
    """The name; "" for an agent that was set to none."""
    found = await (await opening.runtime.open_store()).get(KIND, opening.id)
    return found.data.decode() if found is not None else ""


async def write(opening: AgentSpec, tree: str, name: str) -> None:
    """Note it. Raises OwnedElsewhere where another kernel has the agent's tree, and StoreFailed."""
    await (await opening.runtime.open_store()).put(KIND, opening.id, name.encode(), tree=tree)


async def clear(store: Store, agent: str) -> None:
    """Leave nothing of it."""
    await store.delete(KIND, agent)
