"""Answers over HTTP: structures as JSON, and errors as problem documents."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from ramet.services.errors import RequestInProgress
from ramet.services.problems import MEDIA_TYPE, PREFIX, Problem, to_problem

_RETRY: Final = {"retry-after": "1"}
_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    HTTPStatus.UNAUTHORIZED: {"www-authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: _RETRY,
    HTTPStatus.SERVICE_UNAVAILABLE: _RETRY,
}
_encoder = msgspec.json.Encoder()


class Refusal(Exception):
    """The refusal of a request at the level of HTTP, before it reaches a service."""

    def __init__(self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> None:
        self.problem = Problem(
            type=PREFIX + status.phrase.lower().replace(" ", "-"),
            title=status.phrase.capitalize(),
            status=int(status),
            detail=detail,
        )
        self.headers = dict(headers or {})
        super().__init__(detail)


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client has left. The body of its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def json(value: Any, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status, media_type="application/json")


def problem(error: BaseException) -> Response:
    if isinstance(error, Refusal):
        return Response(error.problem.encode(), error.problem.status, error.headers, MEDIA_TYPE)
    document = to_problem(error)
    return Response(document.encode(), document.status, headers_of(error, document.status), MEDIA_TYPE)


def headers_of(error: BaseException, status: int) -> Mapping[str, str]:
    """Return the headers of an answer with this error, in any form."""
    if isinstance(error, Refusal):
        return error.headers
    return _RETRY if isinstance(error, RequestInProgress) else _HEADERS.get(status, {})
