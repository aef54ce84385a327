"""The routes of the kernel's safety gates: their policies and their events. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.sse import EventStream, encode_events
from ramet.services.operator.contract import (
    GatePolicy,
    GatePolicyPage,
    Paging,
    PassageFilter,
    PassagePage,
    PutGatePolicy,
    WhichVersion,
)

OPERATIONS: Final = Operations()


@OPERATIONS.add(endpoints.LIST_POLICIES, "The safety policies of the server, by name")
async def _list(call: RequestContext) -> GatePolicyPage:
    return await call.kernel("safety policy", "policy").gates.page(call.query(Paging))


@OPERATIONS.add(endpoints.GET_POLICY, "Return a safety policy: its newest version, or the version with a number")
async def _get(call: RequestContext) -> GatePolicy:
    return await call.kernel("safety policy", "policy").gates.get(call.path("policy"), call.query(WhichVersion).version)


@OPERATIONS.add(
    endpoints.PUT_POLICY,
    "Store a new version of a safety policy, after the expected version",
    repetition="again",
    refuses=(409,),
)
async def _put(call: RequestContext) -> GatePolicy:
    gates = call.kernel("safety policy", "policy").gates
    return await gates.put(call.path("policy"), await call.json(PutGatePolicy))


@OPERATIONS.add(endpoints.PASSAGES, "List the events of the safety gates after a cursor")
async def _list_passages(call: RequestContext) -> PassagePage:
    return await call.kernel("safety policy", "policy").gates.list_events(call.query(PassageFilter))


@OPERATIONS.add(
    endpoints.FOLLOW_PASSAGES,
    "Stream the events of the safety gates after a cursor, without an end",
    stream=True,
    resumes=True,
)
async def _follow_passages(call: RequestContext) -> EventStream:
    gates, query = call.kernel("safety policy", "policy").gates, call.query(PassageFilter)
    query.after = call.after(query.after)
    return call.parts.streams.stream(encode_events(gates.follow_events(query)))
