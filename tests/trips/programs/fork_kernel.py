"""A kernel with a conversation, and a tree whose delegate is a fork of it: `fork_kernel.py PLACE`.

The process kills itself inside a tool call of the delegate, once the delegate's commit is durable.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ramet import Agent, AgentRuntime, Limits, Session, SpawnRequest
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.sub_agent_client import agent_state
from ramet.tools.context import current
from tests.chaos.deadly import die
from tests.support.store_addresses import store_at


async def remember(note: str) -> str:
    """Commit a note; return the note before."""
    state = agent_state()
    before = await state.get("note")
    await state.set("note", note)
    await state.commit(note)
    if note == "forked":
        die()
    return f"it was {before}"


async def recall() -> str:
    """Return the note."""
    return str(await agent_state().get("note"))


async def leads(source: str, at: int) -> list[Any]:
    """Spawn a delegate that begins as the source was at an event."""
    context = current()
    assert context.tree is not None
    model = ScriptedModel([[Call("remember", {"note": "forked"})]])
    delegate = Agent(name="delegate", model=model)
    request = SpawnRequest(
        agent=delegate, prompt="what else?", fork_of=source, fork_at=at, limits=Limits(tokens=50_000)
    )
    child = await context.tree.spawn(context, request)
    return [child.id, (await child.result()).value]


async def main(store_address: str) -> None:
    """Work until killed."""
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        notes = (text for each in ("first", "second") for text in ([Call("remember", {"note": each})], each))
        session = Session(ScriptedModel(list(notes)), [remember], runtime=runtime, session_id="source")
        await session.ask("one")
        at = max(event.seq for event in session._open_tree.recorder.recent_events)
        await session.ask("two")
        lead = await runtime.spawn(leads, args=(session.id, at), tools=[remember, recall], limits=Limits(tokens=80_000))
        await lead.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
