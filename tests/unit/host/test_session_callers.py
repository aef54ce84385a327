"""Whom a question is for that a shared server asks without saying which request it is about."""

from __future__ import annotations

from contextlib import suppress

import mcp_types as types
from mcp import MCPError

from ramet.core.errors import McpServerFailed
from ramet.host.mcp.address_transport import NO_CONNECTION
from ramet.host.mcp.session_callers import SessionCallers
from ramet.tools.mcp.connection_port import McpCaller, ServerQuestion


async def _decline(_: ServerQuestion) -> None:
    return None


ONE, OTHER = (McpCaller(lambda question: _decline(question)) for _ in range(2))


def _asked_during_a_call(callers: SessionCallers) -> bool:
    with callers.open_call(OTHER) as other:
        return callers.find_asked() is other


def _asked_after(error: Exception) -> bool:
    callers = SessionCallers(None)
    with suppress(MCPError, McpServerFailed), callers.open_call(ONE):
        raise error
    return _asked_during_a_call(callers)


async def test_a_call_whose_connection_broke_may_go_on_at_its_server() -> None:
    """A question that follows may be about it, and nobody else is asked; an error that the server sent ends a call."""
    assert _asked_after(MCPError(code=types.INVALID_PARAMS, message="no"))
    assert not _asked_after(MCPError(code=NO_CONNECTION, message="it broke off"))
    assert not _asked_after(McpServerFailed("board", "it did not answer"))


async def test_a_question_may_be_about_a_request_that_is_no_call() -> None:
    """While an agent reads a resource, no other is asked, nor later if that got no answer."""
    callers = SessionCallers(None)
    with callers.open_query():
        assert not _asked_during_a_call(callers)
    assert _asked_during_a_call(callers)
    with suppress(TimeoutError), callers.open_query():
        raise TimeoutError
    assert not _asked_during_a_call(callers)
