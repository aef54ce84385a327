"""Events with cursors as server-sent events: `event` with its cursor as id, then `done`, or `error` with a problem.

A stream whose tree moved to another kernel breaks off. Its reader reconnects for the rest, and finds it there. So does
a stream whose store cannot be read now: a kernel that loses its store is about to lose its trees as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ramet.core.errors import OwnedElsewhere, RametError, StoreFailed
from ramet.services.http.sse import StreamMoved
from ramet.services.problems import to_problem
from ramet.services.turns.tree_events import TreeEvent
from ramet.wire.sse import encode


async def encode_events(events: AsyncGenerator[TreeEvent, None]) -> AsyncGenerator[bytes, None]:
    """Yield all events, encoded; an error becomes the last event."""
    try:
        async with aclosing(events):
            async for each in events:
                yield encode("event", each.data, str(each.cursor))
        yield encode("done", b"")
    except (OwnedElsewhere, StoreFailed):
        raise StreamMoved from None
    except RametError as error:
        yield encode("error", to_problem(error).encode())
