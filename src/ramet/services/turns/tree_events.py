"""The events of an agent's tree, for clients that have its key: recorded events after a cursor, then new ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, NamedTuple

from ramet.concurrency.clock import Clock
from ramet.core.errors import Gone, OwnedElsewhere
from ramet.core.events import Event, encode
from ramet.host.journal.recorder import Recorder
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import RunningAgent
from ramet.services.teams.agents import AgentAccess
from ramet.store.contract import Store

PAGE = 1_000  #: events that are read at a time
POLL_S = 1.0  #: seconds between checks whether the agent has begun, or ended


class TreeEvent(NamedTuple):
    """An event as JSON. `cursor` is for continued reading only, and has no other meaning."""

    cursor: int
    data: bytes


async def tree_events(
    running_agent: RunningAgent, runtime: AgentRuntime, clock: Clock, after: int, access: AgentAccess
) -> AsyncGenerator[TreeEvent]:
    """Yield the recorded events of an agent's tree after a cursor, then new events, until the agent has ended.

    Raises NotYours as soon as the reader's key has lost the right: no later event is shown. Raises Gone for events that
    are not kept any more, which happens for a running agent only without a journal. Raises OwnedElsewhere if the agent
    has not ended, but continues in another kernel.
    """
    right_lost = asyncio.Event()
    with access.watch(right_lost.set):
        while not running_agent.run:
            if running_agent.end.done():
                return
            access.check()
            await _wait_unless_ended(running_agent, clock.sleep(POLL_S), right_lost)
        if runtime.journal is not None:
            events = _recorded_events(running_agent, await runtime.open_store(), after, access, right_lost)
        elif (tree := {str(root): each for root, each in runtime.trees.items()}.get(running_agent.run)) is not None:
            events = _recent_events(tree.recorder, after, access)
        else:
            raise Gone(f"the events of the tree {running_agent.run} were stored in memory only, and it has ended")
        async with aclosing(events):
            async for event in events:
                yield event


async def require_local_owner(store: Store, tree: str) -> None:
    """Raise OwnedElsewhere if another living kernel continues the tree: then the tree ended only here."""
    owner = await store.owner_of(tree)
    if owner is not None and owner.alive and owner.name != store.kernel:
        raise OwnedElsewhere(tree, owner.name, owner.address)


async def _recorded_events(
    running_agent: RunningAgent, store: Store, after: int, access: AgentAccess, right_lost: asyncio.Event
) -> AsyncGenerator[TreeEvent]:
    while True:
        # Read before the events, so that no event is missed.
        has_ended, head = running_agent.end.done(), await store.head()
        while page := await store.read(after, tree=running_agent.run, limit=PAGE):
            access.check()  # After the read: no event is shown that was recorded after the right was lost.
            for each in page:
                yield TreeEvent(each.cursor, each.data)
            after = page[-1].cursor
        access.check()
        if has_ended:
            await require_local_owner(store, running_agent.run)
            return
        await _wait_unless_ended(running_agent, store.wait(head, timeout_s=POLL_S), right_lost)


async def _recent_events(recorder: Recorder, after: int, access: AgentAccess) -> AsyncGenerator[TreeEvent]:
    reader = recorder.subscribe()
    with access.watch(reader.close):
        async with aclosing(reader.items()) as items:
            async for item in items:
                access.check()
                if not isinstance(item, Event) or 0 < item.seq <= after:
                    continue
                if item.seq != after + 1:  # Some events were lost, now or before this subscription.
                    raise Gone(f"the events after number {after} are not stored any more")
                after = item.seq
                yield TreeEvent(after, encode(item))
        access.check()


async def _wait_unless_ended(running_agent: RunningAgent, change: Awaitable[Any], right_lost: asyncio.Event) -> None:
    """Wait for `news`, or until the agent has ended or the right to read is lost."""
    change_task, lost_task = asyncio.ensure_future(change), asyncio.ensure_future(right_lost.wait())
    try:
        await asyncio.wait({change_task, lost_task, running_agent.end}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (change_task, lost_task):
            each.cancel()
        await asyncio.wait({change_task, lost_task})
    if not change_task.cancelled():
        change_task.result()
