"""The paths and methods of a server: a kernel is only started for a request that it can answer."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus

from starlette.types import Scope

from ramet.services.http import endpoints
from ramet.services.http.endpoints import Endpoint
from ramet.services.http.responses import Refusal
from ramet.services.http.router import Routes


@cache
def _routes() -> Routes[frozenset[str]]:
    methods: dict[str, set[str]] = {}
    for each in vars(endpoints).values():
        if isinstance(each, Endpoint):
            methods.setdefault(each.path, set()).add(each.method)
    return Routes({path: frozenset(names) for path, names in methods.items()})


def check_route(scope: Scope) -> None:
    """Check that a server has the path and the method of a request. Raises Refusal."""
    route = _routes().find(scope["raw_path"].decode("latin-1"))
    if route is None:
        raise Refusal(HTTPStatus.NOT_FOUND, "the API has no such path")
    if scope["method"] not in route.target:
        allow = {"allow": ", ".join(sorted(route.target))}
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{scope['method']!a} is not possible here", allow)
