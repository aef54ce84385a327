"""The table of all operations of the HTTP API, and the operations of the server itself: metrics, probes, OpenAPI."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from types import NoneType
from typing import Final

import msgspec
from starlette.responses import Response

from ramet.services.http.endpoints import Endpoint
from ramet.services.http.request import RequestContext
from ramet.services.http.responses import Refusal
from ramet.services.http.routes import (
    agents,
    chat_completions,
    images,
    openapi,
    records,
    runs,
    safety,
    schedules,
    sessions,
    states,
    teams,
    turns,
)
from ramet.services.http.routes.operation import Operation, Operations
from ramet.services.http.schemas import Health
from ramet.services.operator.prometheus import MEDIA_TYPE, exposition
from ramet.services.version import ramet_version


@cache
def document() -> bytes:
    """Return the OpenAPI document of this server."""
    return msgspec.json.encode(openapi.document(OPERATIONS, ramet_version()))


_OWN: Final = Operations()


@_OWN.add(
    Endpoint("metrics", "GET", "/metrics", NoneType),
    "Return metrics in the format of Prometheus; with the operator's key unless they are public",
    needs_key=False,
    refuses=(401, 404),
)
async def _metrics(call: RequestContext) -> Response:
    metrics = call.parts.metrics
    if not metrics.is_public:
        await call.check_key()
        call.kernel("metrics")
    text = exposition(metrics.families())
    return Response(text.encode("utf-8", "backslashreplace"), headers={"content-type": MEDIA_TYPE})


@_OWN.add(Endpoint("healthz", "GET", "/healthz", Health), "Report that the server is alive", needs_key=False)
async def _healthz(call: RequestContext) -> Health:
    return Health(status="ok", version=ramet_version())


@_OWN.add(
    Endpoint("readyz", "GET", "/readyz", Health),
    "Report whether the server accepts work: its store is open and available, and it is not shutting down",
    needs_key=False,
    refuses=(503,),
)
async def _readyz(call: RequestContext) -> Health:
    if why := call.parts.unready():
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, why, {"retry-after": "1"})
    return Health(status="ready", version=ramet_version())


@_OWN.add(Endpoint("openapi", "GET", "/openapi.json", dict), "This document", needs_key=False)
async def _openapi(call: RequestContext) -> Response:
    return Response(document(), media_type="application/json")


OPERATIONS: Final[tuple[Operation, ...]] = (
    *teams.OPERATIONS,
    *agents.OPERATIONS,
    *turns.OPERATIONS,
    *images.OPERATIONS,
    *chat_completions.OPERATIONS,
    *runs.OPERATIONS,
    *schedules.OPERATIONS,
    *sessions.OPERATIONS,
    *states.OPERATIONS,
    *safety.OPERATIONS,
    *records.OPERATIONS,
    *_OWN,
)
