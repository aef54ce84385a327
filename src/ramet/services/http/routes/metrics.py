"""The route of the metrics, for monitoring."""

from __future__ import annotations

from types import NoneType
from typing import Final

from starlette.responses import Response

from ramet.services.http.endpoints import Endpoint
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.operator.prometheus import MEDIA_TYPE, exposition

OPERATIONS: Final = Operations()


@OPERATIONS.add(
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
