"""The routes of the recorded conversations. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.schemas import Newest
from ramet.services.operator.contract import Paging, RemovedSession, SessionPage, ShownSession

OPERATIONS: Final = Operations()


@OPERATIONS.add(endpoints.LIST_SESSIONS, "List the recorded conversations, the newest first")
async def _list(call: RequestContext) -> SessionPage:
    return await call.kernel("session").sessions.page(call.query(Paging))


@OPERATIONS.add(
    endpoints.GET_SESSION, "Return a conversation with its messages, by the id of its session or of its root"
)
async def _get(call: RequestContext) -> ShownSession:
    return await call.kernel("session").sessions.get(call.path("session"), call.query(Newest).last)


@OPERATIONS.add(
    endpoints.REMOVE_SESSION,
    "Remove a conversation that is not open, with all records of its agents; its id can be used again",
    refuses=(403, 409),
)
async def _remove(call: RequestContext) -> RemovedSession:
    return await call.kernel("session").sessions.remove(call.path("session"))
