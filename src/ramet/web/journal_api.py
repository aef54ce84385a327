"""The routes for reading a journal without a server: a part of a server's API, with the same paths and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ramet.services.http import endpoints, responses
from ramet.services.http.endpoints import Endpoint
from ramet.services.http.request import query_of, resume_position
from ramet.services.http.responses import Refusal
from ramet.services.http.router import Routes
from ramet.services.http.schemas import Newest
from ramet.services.http.sse import Streams, encode_events
from ramet.services.operator.changes import ChangeOptions
from ramet.services.operator.contract import EventOptions, Paging, PassageFilter, RunFilter
from ramet.web.journal_views import JournalViews


class _Call(NamedTuple):
    """A request, and what answers it."""

    views: JournalViews
    request: Request
    streams: Streams

    def path(self, name: str) -> str:
        value: str = self.request.path_params[name]
        return value


Handle = Callable[[_Call], Awaitable[Any]]


async def _runs(call: _Call) -> Any:
    return await call.views.runs.runs(query_of(call.request, RunFilter))


async def _run(call: _Call) -> Any:
    return await call.views.runs.run(call.path("run"))


async def _tree(call: _Call) -> Any:
    return await call.views.runs.tree(call.path("run"), query_of(call.request, Paging))


async def _diff(call: _Call) -> Any:
    return await call.views.diffs.get(call.path("run"))


async def _events(call: _Call) -> Any:
    options, run = query_of(call.request, EventOptions), call.path("run")
    options.after = resume_position(call.request, options.after)
    await call.views.runs.tree_of(run)  # Report errors before the stream begins.
    return call.streams.stream(encode_events(call.views.runs.events(run, options)))


async def _changes(call: _Call) -> Any:
    options = query_of(call.request, ChangeOptions)
    options.after = call.request.headers.get("last-event-id") or options.after
    return call.streams.stream(encode_events(await call.views.changes(options), "changes"))


async def _approvals(call: _Call) -> Any:
    return await call.views.approvals(query_of(call.request, Paging))


async def _schedules(call: _Call) -> Any:
    return await call.views.schedules(query_of(call.request, Paging))


async def _sessions(call: _Call) -> Any:
    return await call.views.sessions.page(query_of(call.request, Paging))


async def _session(call: _Call) -> Any:
    return await call.views.sessions.get(call.path("session"), query_of(call.request, Newest).last)


async def _kernels(call: _Call) -> Any:
    return call.views.kernels()


async def _boards(call: _Call) -> Any:
    return await call.views.boards.page(query_of(call.request, Paging))


async def _board(call: _Call) -> Any:
    return await call.views.boards.get(call.path("board"))


async def _keys(call: _Call) -> Any:
    return await call.views.keys.page(query_of(call.request, Paging))


async def _passages(call: _Call) -> Any:
    return await call.views.gates.list_events(query_of(call.request, PassageFilter))


_HANDLERS: Final[tuple[tuple[Endpoint[Any], Handle], ...]] = (
    (endpoints.LIST_RUNS, _runs),
    (endpoints.GET_RUN, _run),
    (endpoints.RUN_TREE, _tree),
    (endpoints.RUN_DIFF, _diff),
    (endpoints.RUN_EVENTS, _events),
    (endpoints.CHANGES, _changes),
    (endpoints.LIST_APPROVALS, _approvals),
    (endpoints.LIST_SCHEDULES, _schedules),
    (endpoints.LIST_SESSIONS, _sessions),
    (endpoints.GET_SESSION, _session),
    (endpoints.PASSAGES, _passages),
    (endpoints.LIST_KERNELS, _kernels),
    (endpoints.LIST_BOARDS, _boards),
    (endpoints.GET_BOARD, _board),
    (endpoints.LIST_KEYS, _keys),
)
_ROUTES: Final = Routes[Handle]({endpoint.path: handle for endpoint, handle in _HANDLERS})


class JournalApi:
    """The routes, and the streams that are open."""

    def __init__(self) -> None:
        self._streams = Streams()

    @property
    def open_streams(self) -> int:
        """The number of streams that are open."""
        return len(self._streams)

    def close(self) -> None:
        """Break off the streams, so that their readers ask again."""
        self._streams.move()

    async def answer(self, views: JournalViews, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET request from the views of a journal. Raises Refusal, RametError."""
        if (route := _ROUTES.find(scope["raw_path"].decode("latin-1"))) is None:
            raise Refusal(HTTPStatus.CONFLICT, "this needs a server, and none runs in this folder: run ramet serve")
        scope["path_params"] = route.names
        await views.activity.refresh()
        result = await route.target(_Call(views, Request(scope, receive), self._streams))
        response = result if callable(result) else responses.json(result)
        await response(scope, receive, send)
