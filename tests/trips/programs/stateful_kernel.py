"""A kernel whose agents keep state and which dies at a moment: `stateful_kernel.py PLACE WORK NTH`.

The process kills itself once the NTH write of a branch is durable, before the write returns.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from ramet import AgentRuntime, SpawnRequest
from ramet.store.contract import Document, DocumentWrite, Store
from ramet.sub_agent_client import agent_state
from ramet.tools.context import current
from tests.chaos.deadly import die
from tests.support.store_addresses import store_at


async def plans() -> str:
    """Commit a plan."""
    state = agent_state()
    await state.set("plan", "made")
    commit = await state.commit("a plan")
    return str(commit.id)


async def delegates() -> list[Any]:
    """Spawn a delegate on a branch, and merge it."""
    state, context = agent_state(), current()
    assert context.tree is not None
    await state.set("plan", "made")
    await state.commit("a plan")
    child = await context.tree.spawn(context, SpawnRequest(agent=answers, branch=True))
    result = await child.result()
    unseen = await state.get("answer")
    merge_commit = await state.merge(child.id)
    return [child.id, result.value, unseen, await state.get("answer"), merge_commit.message]


async def answers() -> int:
    """Commit an answer, as the delegate."""
    state = agent_state()
    assert await state.get("plan") == "made"
    await state.set("answer", 42)
    await state.commit("an answer")
    return 42


async def takes_over() -> dict[str, Any]:
    """Merge the branches after a crash, found by the id of the run."""
    state = agent_state()
    branches = await state.branches()
    for run in branches:
        await state.merge(run)
    return {"branches": list(branches), "answer": await state.get("answer")}


def make_deadly(store: Store, nth: int) -> None:
    """Let the store kill the process once so many branches were written."""
    together, put, count = store.put_together, store.put, 0

    def strike() -> None:
        nonlocal count
        count += 1
        if count == nth:
            die()

    async def deadly_together(blobs: Sequence[bytes], puts: Sequence[DocumentWrite]) -> Any:
        result = await together(blobs, puts)
        if any(each.kind == "state" for each in puts):
            strike()
        return result

    async def deadly_put(kind: str, key: str, data: bytes, **more: Any) -> Document:
        result = await put(kind, key, data, **more)
        if kind == "state":
            strike()
        return result

    store.put_together, store.put = deadly_together, deadly_put  # type: ignore[method-assign, assignment]


async def main(store_address: str, work: str, nth: int) -> None:
    """Work until killed."""
    store = store_at(store_address)
    make_deadly(store, nth)
    async with AgentRuntime(store=store) as runtime:
        await (await runtime.spawn(plans if work == "plans" else delegates)).result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
