"""Acts on the runs of a kernel that is no server, such as that of `ramet ask`, through its control socket."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ramet.core import errors
from ramet.host.control import socket
from ramet.host.journal.ttl import Keep
from ramet.services.contract import decode
from ramet.services.http import endpoints, responses
from ramet.services.http.endpoints import Endpoint
from ramet.services.http.responses import Refusal
from ramet.services.http.router import Routes
from ramet.services.http.schemas import Mail
from ramet.services.operator.contract import AnswerApproval, KeepTree, PauseRun, RaiseLimits, StopRun
from ramet.web.forwarding_api import read_body

Build = Callable[[str, bytes], socket.Request]


def _body(kind: type, data: bytes) -> Any:
    return decode(kind, data, "body", within="")


def _send(run: str, data: bytes) -> socket.Request:
    mail = _body(Mail, data)
    return socket.Send(run=run, text=mail.text, dedupe_s=mail.dedupe_s)


def _stop(run: str, data: bytes) -> socket.Request:
    return socket.Stop(run=run, reason=_body(StopRun, data).reason or "stopped by its user")


def _raise_limits(run: str, data: bytes) -> socket.Request:
    request = _body(RaiseLimits, data)
    return socket.RaiseLimits(run=run, add=request.add, key=request.key)


def _pause(run: str, data: bytes) -> socket.Request:
    request = _body(PauseRun, data)
    return socket.Pause(run=run, reason=request.reason, now=request.now)


def _resume(run: str, data: bytes) -> socket.Request:
    return socket.EndPause(run=run)


def _keep(run: str, data: bytes) -> socket.Request:
    return Keep(run=run, on=_body(KeepTree, data).on)


def _answer(approval: str, data: bytes) -> socket.Request:
    answer = _body(AnswerApproval, data)
    return socket.Answer(approval=approval, allowed=answer.allowed, reason=answer.reason, for_run=answer.for_run)


_ACTS: Final[tuple[tuple[Endpoint[Any], Build], ...]] = (
    (endpoints.SEND_RUN, _send),
    (endpoints.STOP_RUN, _stop),
    (endpoints.RAISE_LIMITS, _raise_limits),
    (endpoints.PAUSE_RUN, _pause),
    (endpoints.RESUME_RUN, _resume),
    (endpoints.KEEP_RUN, _keep),
    (endpoints.ANSWER_APPROVAL, _answer),
)
_ROUTES: Final = Routes[Endpoint[Any]]({endpoint.path: endpoint for endpoint, _ in _ACTS})
_BUILDERS: Final = {endpoint.id: build for endpoint, build in _ACTS}
_STATUS_BY_ERROR: Final = {
    errors.Unknown.__name__: HTTPStatus.NOT_FOUND,
    errors.InvalidValue.__name__: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.Gone.__name__: HTTPStatus.GONE,
}


class ActTarget(NamedTuple):
    """The target of a request: a run, or an approval."""

    endpoint: Endpoint[Any]
    name: str


def target_of(scope: Scope) -> ActTarget | None:
    """Return what a request acts on; None for a request that only a server answers."""
    route = _ROUTES.find(scope["raw_path"].decode("latin-1"))
    if route is None or scope["method"] != route.target.method:
        return None
    (name,) = route.names.values()
    return ActTarget(route.target, name)


async def answer_act(folder: Path, scope: Scope, receive: Receive, send: Send) -> None:
    """Ask the kernel of a folder for an act. Raises Refusal, InvalidValue."""
    if (target := target_of(scope)) is None:
        detail = "the kernel of this folder is no server, and does not do this: end it, and run ramet serve"
        raise Refusal(HTTPStatus.CONFLICT, detail)
    request = _BUILDERS[target.endpoint.id](target.name, await read_body(receive))
    try:
        outcome = await socket.send_request(folder, request)
    except socket.NoKernel as problem:
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(problem)) from None
    except socket.Refused as refusal:
        raise Refusal(_STATUS_BY_ERROR.get(refusal.kind, HTTPStatus.CONFLICT), str(refusal)) from None
    has_answer = target.endpoint.answers is not type(None)
    await (responses.json(outcome) if has_answer else Response(status_code=204))(scope, receive, send)


@cache
def _server_routes() -> Routes[frozenset[str]]:
    methods: dict[str, set[str]] = {}
    for each in vars(endpoints).values():
        if isinstance(each, Endpoint):
            methods.setdefault(each.path, set()).add(each.method)
    return Routes({path: frozenset(names) for path, names in methods.items()})


def check_route(scope: Scope) -> None:
    """Check that a server has the path and the method of a request. Raises Refusal."""
    route = _server_routes().find(scope["raw_path"].decode("latin-1"))
    if route is None:
        raise Refusal(HTTPStatus.NOT_FOUND, "the API has no such path")
    if scope["method"] not in route.target:
        allow = {"allow": ", ".join(sorted(route.target))}
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{scope['method']!a} is not possible here", allow)
