"""The routes of the recorded conversations. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operation
from ramet.services.http.schemas import Newest
from ramet.services.operator.contract import Paging, RemovedSession, SessionPage, ShownSession
from ramet.services.operator.sessions import SessionViews


def _sessions(call: RequestContext) -> SessionViews:
    return call.parts.kernel.open(call.key, "session", call.request.path_params.get("session", "")).sessions


async def _list(call: RequestContext) -> SessionPage:
    return await _sessions(call).page(call.query(Paging))


async def _get(call: RequestContext) -> ShownSession:
    return await _sessions(call).get(call.path("session"), call.query(Newest).last)


async def _remove(call: RequestContext) -> RemovedSession:
    return await _sessions(call).remove(call.path("session"))


OPERATIONS: Final = (
    Operation(
        endpoint=endpoints.LIST_SESSIONS,
        summary="List the recorded conversations, the newest first",
        handle=_list,
    ),
    Operation(
        endpoint=endpoints.GET_SESSION,
        summary="Return a conversation with its messages, by the id of its session or of its root",
        handle=_get,
    ),
    Operation(
        endpoint=endpoints.REMOVE_SESSION,
        summary="Remove a conversation that is not open, with all records of its agents; its id can be used again",
        handle=_remove,
        refuses=(403, 409),
    ),
)
