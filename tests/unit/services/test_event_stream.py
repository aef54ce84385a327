"""services/http/sse.py: The end of an event stream tells its reader whether to reconnect."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from ramet.core.errors import OwnedElsewhere, RametError, StoreFailed, Unknown
from ramet.services.http.sse import StreamMoved, encode_events
from ramet.services.turns.tree_events import TreeEvent


async def one_event(error: RametError | None) -> AsyncGenerator[TreeEvent, None]:
    """Yield an event, and end or fail."""
    yield TreeEvent(1, b"{}")
    if error is not None:
        raise error


async def read(error: RametError | None) -> list[bytes]:
    """Return the names of the events that a reader gets."""
    return [each.split(b"\n")[0] for each in [piece async for piece in encode_events(one_event(error))]]


async def test_a_normal_end_and_an_error_end_the_stream_for_good() -> None:
    """Both are events, after which the reader does not reconnect."""
    assert await read(None) == [b"id: 1", b"event: done"]
    assert await read(Unknown("run", "run-1")) == [b"id: 1", b"event: error"]


@pytest.mark.parametrize(
    "error", [OwnedElsewhere("run-1", "two"), StoreFailed("journal", "the session of this kernel has ended")], ids=repr
)
async def test_a_stream_that_another_kernel_continues_breaks_off(error: RametError) -> None:
    """A kernel that lost its store does not know yet that it lost the tree: its reader must reconnect too."""
    with pytest.raises(StreamMoved):
        await read(error)
