"""The events of an agent's tree, for whoever has its key: from a cursor on, then as they come."""

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
from ramet.services.turns.grants import Grant
from ramet.store.contract import Store

PAGE = 1_000  #: events that are read at once
LOOK_S = 1.0  #: how often it is looked whether the agent has begun, or ended


class TreeEvent(NamedTuple):
    """An event as JSON; `cursor` is what a reader goes on by, and means nothing else."""

    cursor: int
    data: bytes


async def tree_events(
    served: RunningAgent, runtime: AgentRuntime, clock: Clock, after: int, grant: Grant
) -> AsyncGenerator[TreeEvent]:
    """What is on record of an agent's tree behind a cursor, and what comes, until the agent has ended.

    Raises NotYours as soon as the reader's key has lost the right: nothing that was recorded since is told. Raises Gone
    for events that are kept no more, which only a runtime without a journal forgets while the agent lives, and
    OwnedElsewhere where the agent has not ended, but goes on in another kernel.
    """
    lost = asyncio.Event()
    with grant.watched(lost.set):
        while not served.run:
            if served.ended.done():
                return
            grant.check()
            await _unless_ended(served, clock.sleep(LOOK_S), lost)
        if runtime.journal is not None:
            events = _on_record(served, await runtime.open_store(), after, grant, lost)
        elif (opened := {str(root): each for root, each in runtime.trees.items()}.get(served.run)) is not None:
            events = _kept(opened.recorder, after, grant)
        else:
            raise Gone(f"the events of the tree {served.run} were kept in memory only, and it is over")
        async with aclosing(events):
            async for event in events:
                yield event


async def see_that_it_is_not_elsewhere(store: Store, tree: str) -> None:
    """Raise OwnedElsewhere for a tree that another kernel, which lives, goes on with: its end here is none."""
    owner = await store.owner_of(tree)
    if owner is not None and owner.alive and owner.name != store.kernel:
        raise OwnedElsewhere(tree, owner.name, owner.address)


async def _on_record(
    served: RunningAgent, store: Store, after: int, grant: Grant, lost: asyncio.Event
) -> AsyncGenerator[TreeEvent]:
    while True:
        has_ended, head = served.ended.done(), await store.head()  # Before it is read: nothing is passed over.
        while page := await store.read(after, tree=served.run, limit=PAGE):
            grant.check()  # After it was read: nothing is told that was recorded since the right was lost.
            for each in page:
                yield TreeEvent(each.cursor, each.data)
            after = page[-1].cursor
        grant.check()
        if has_ended:
            await see_that_it_is_not_elsewhere(store, served.run)
            return
        await _unless_ended(served, store.wait(head, timeout_s=LOOK_S), lost)


async def _kept(recorder: Recorder, after: int, grant: Grant) -> AsyncGenerator[TreeEvent]:
    reader = recorder.subscribe()
    with grant.watched(reader.close):
        async with aclosing(reader.items()) as items:
            async for item in items:
                grant.check()
                if not isinstance(item, Event) or 0 < item.seq <= after:
                    continue
                if item.seq != after + 1:  # A notice says that some were lost; or the first were, before this began.
                    raise Gone(f"the events behind number {after} are not kept any more")
                after = item.seq
                yield TreeEvent(after, encode(item))
        grant.check()


async def _unless_ended(served: RunningAgent, news: Awaitable[Any], lost: asyncio.Event) -> None:
    """Wait for what may come, or until the agent has ended or the right to read is lost."""
    waiting, losing = asyncio.ensure_future(news), asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait({waiting, losing, served.ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (waiting, losing):
            each.cancel()
        await asyncio.wait({waiting, losing})
    if not waiting.cancelled():
        waiting.result()
