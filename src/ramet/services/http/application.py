"""The ASGI application: find the operation of a request, answer it, and log it. No key is ever logged."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramet.core.errors import InvalidValue, RametError, StoreFailed
from ramet.host.observability.counters import OTHER
from ramet.services.http import responses
from ramet.services.http.connections import ANSWERED
from ramet.services.http.dependencies import AppDependencies
from ramet.services.http.error_forms import provider_of, provider_refusal
from ramet.services.http.idempotent import answer_once
from ramet.services.http.request import RequestContext
from ramet.services.http.responses import Refusal
from ramet.services.http.router import Routes
from ramet.services.http.routes.operation import Operation
from ramet.services.http.routes.table import OPERATIONS
from ramet.services.problems import to_problem

HEAD_BYTES = 64 * 1024  #: the size of all headers and the path
_REASON_CHARS = 300  #: characters of a refusal's reason in the log
PROBES = ("/healthz", "/readyz")
_log = logging.getLogger("ramet.serve")


class _ProblemSummary(msgspec.Struct):
    """The parts of a problem document that are logged."""

    detail: str = ""
    field: str = ""
    accepted: str = ""


class Application:
    """The ASGI application of the services."""

    def __init__(self, parts: AppDependencies) -> None:
        self.parts = parts
        by_path: dict[str, dict[str, Operation]] = {}
        for each in OPERATIONS:
            each = replace(each, handle=_without_query(each))
            if each.endpoint.method == "POST":
                each = replace(each, handle=_once(each))
            by_path.setdefault(each.endpoint.path, {})[each.endpoint.method] = each
        self._routes = Routes({path: _Endpoint(path, methods, parts) for path, methods in by_path.items()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request. Raises RuntimeError for any other scope."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        start_time, status, why = time.perf_counter(), 0, ""
        requests, route = self.parts.metrics.requests, (OTHER, OTHER)

        async def record_and_send(message: Message) -> None:
            nonlocal status, why
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and not why:
                why = _reason(message.get("body", b""))
            await send(message)

        requests.under_way += 1
        try:
            if sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["raw_path"]) > HEAD_BYTES:
                large = Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"headers are at most {HEAD_BYTES} bytes")
                await responses.problem(large)(scope, receive, record_and_send)
            elif (operation := self._routes.find(scope["raw_path"].decode("latin-1"))) is None:
                await _not_found(self.parts, scope, receive, record_and_send)
            else:
                scope["path_params"] = operation.names
                route = operation.target.route(scope["method"])
                await operation.target(scope, receive, record_and_send)
        finally:
            requests.under_way -= 1
            requests.record(*route, status, time.perf_counter() - start_time)
            level = logging.INFO if 0 < status < 400 else logging.ERROR if status == 500 else logging.WARNING
            if level == logging.INFO and scope["path"] in PROBES:  # Probes come every other second.
                level = logging.DEBUG
            if _log.isEnabledFor(level):
                took_ms = (time.perf_counter() - start_time) * 1000
                request = f"{scope['method']} {ascii(scope['path'])[1:-1]}"
                _log.log(level, "%s %s %.1f ms%s", request, status or "its client disconnected", took_ms, why)


class _Endpoint:
    """The operations of one path."""

    def __init__(self, path: str, operations: Mapping[str, Operation], parts: AppDependencies) -> None:
        self._path, self._operations, self._parts = path, operations, parts

    def route(self, method: str) -> tuple[str, str]:
        """Return method and path as labels of a metric.

        Their number is bounded by the operations, whatever clients send.
        """
        return method if method in self._operations else OTHER, self._path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = RequestContext(Request(scope, receive), self._parts)
        response: ASGIApp
        try:
            response = await self._answer(call, scope["method"])
            if self._operations[scope["method"]].needs_key and getattr(response, "status_code", 200) < 400:
                await call.drain_body()  # So that the client can reuse the connection.
        except ClientDisconnect:
            return  # The client has left.
        except Exception as error:
            response = _build_refusal(call, error, self._operations.get(scope["method"]))
        finally:
            call.release()
        await _send(response, call, scope, receive, send)

    async def _answer(self, call: RequestContext, method: str) -> Response:
        operation = self._operations.get(method)
        if operation is None:
            allowed: Sequence[str] = sorted(self._operations)
            refusal = f"{method!a} is not possible here; {', '.join(allowed)} is"
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, refusal, {"allow": ", ".join(allowed)})
        if operation.needs_key:
            _ = call.key
            if operation.ends_key:
                with contextlib.suppress(InvalidValue):  # Only a valid key gets this error.
                    sender = call.idempotency_sender()
                    # A repetition with an `Idempotency-Key` that cannot be guessed needs no rights of the sender's key.
                    call.sender = sender if sender is not None and sender.is_secret else None
        router = self._parts.router
        if router is None or not operation.needs_key:
            if operation.needs_key and not operation.own_error_form:
                await call.check_key()
            result = await operation.handle(call)
        elif (result := await router.forward(call, operation)) is None:
            result = await router.handle_locally(call, operation)
        if result is None:
            return Response(status_code=204)
        if callable(result):
            return result  # type: ignore[no-any-return]  # a response
        return responses.json(result, operation.status)


async def _send(response: ASGIApp, call: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer at once, even if an unread request body has not arrived.

    The connection is closed after such an answer: otherwise the body would be taken for the next request. Until then
    the body is read and discarded, since its sender may read the answer only after sending. Meanwhile the connection
    may be cut to make room for others.
    """
    try:
        is_read = await call.drain_body(0)  # the part that has arrived
    except ClientDisconnect:
        is_read = True

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif not message.get("more_body"):
            await send({**message, "more_body": True})
            if (on_answered := scope.get("state", {}).get(ANSWERED)) is not None:
                on_answered()
            with contextlib.suppress(ClientDisconnect):
                await call.drain_body()
            message = {"type": "http.response.body"}
        await send(message)

    await response(scope, receive, send if is_read else send_and_close)


def _without_query(operation: Operation) -> Callable[[RequestContext], Awaitable[Any]]:
    """Return the handler of an operation; it refuses a query if the operation has none.

    Operations for providers' clients accept a query, since these clients send some.
    """

    async def handle(call: RequestContext) -> Any:
        for name, value in call.request.query_params.items():
            raise InvalidValue(name[:_REASON_CHARS], value[:_REASON_CHARS], "no parameter in the query of this path")
        return await operation.handle(call)

    is_refused = operation.needs_key and operation.endpoint.query is None and not operation.own_error_form
    return handle if is_refused else operation.handle


def _once(operation: Operation) -> Callable[[RequestContext], Awaitable[Any]]:
    """Return the handler of a POST, which executes a request with an `Idempotency-Key` once."""

    async def handle(call: RequestContext) -> Any:
        if (sender := call.idempotency_sender()) is None:
            return await operation.handle(call)
        return await answer_once(call, operation, sender)

    return handle


def _build_refusal(call: RequestContext, error: Exception, operation: Operation | None = None) -> Response:
    is_ours = operation is not None and not operation.own_error_form
    format = None if is_ours else provider_of(call.request)
    if format is not None:
        return provider_refusal(format, error)
    if isinstance(error, StoreFailed):  # A traceback would not help, and every request would log it.
        _log.error("an answer failed: %s", error)
    elif not isinstance(error, RametError | Refusal) or (
        isinstance(error, RametError) and to_problem(error).status == 500
    ):
        _log.error("an answer failed", exc_info=error)
    return responses.problem(error)


def _reason(body: bytes) -> str:
    """Return the reason of a refusal for the log, without the value of a field: a client's data must not be logged."""
    try:
        document = msgspec.json.decode(body, type=_ProblemSummary)
    except (msgspec.DecodeError, UnicodeError):
        return ""
    text = (
        document.detail
        if not document.field
        else f"{document.field}: expected {document.accepted}"
        if document.accepted
        else document.field
    )
    return f": {ascii(text)[1:-1][:_REASON_CHARS]}" if text else ""


async def _not_found(parts: AppDependencies, scope: Scope, receive: Receive, send: Send) -> None:
    call = RequestContext(Request(scope, receive), parts)
    refusal = Refusal(HTTPStatus.NOT_FOUND, "there is nothing at this path; see /openapi.json")
    await _send(_build_refusal(call, refusal), call, scope, receive, send)
