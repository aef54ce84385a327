"""The error for an id that is no run's."""

from __future__ import annotations

import pytest

from ramet.core.errors import Unknown
from ramet.host import session_ids
from ramet.host.control.run_queries import JournalReader
from ramet.store.memory import MemoryStore


async def test_the_id_of_a_session_leads_to_its_root() -> None:
    """A user has the id of a session at hand, and the commands take that of a run."""
    store = MemoryStore()
    await store.open()
    try:
        await session_ids.register(store, "chat", "run-1")
        with pytest.raises(Unknown, match=r"unknown run 'chat'; known: run-1"):
            await JournalReader(store).tree_of("chat")
        with pytest.raises(Unknown, match="unknown run 'other'; there are none"):
            await JournalReader(store).tree_of("other")
    finally:
        await store.close()
