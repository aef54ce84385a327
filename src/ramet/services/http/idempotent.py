"""Execution of a POST with an `Idempotency-Key`: it is executed once, and a repetition gets the first answer again."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import (
    Aborted,
    Conflict,
    Gone,
    OutputInvalid,
    OutputTooLarge,
    RametError,
    TaskFailed,
)
from ramet.services.errors import KeyReused, OutcomeUnknown
from ramet.services.http import responses
from ramet.services.http.endpoints import TAR
from ramet.services.http.request import JSON_BYTES, RequestContext
from ramet.services.http.responses import Refusal
from ramet.services.http.routes.operation import Operation
from ramet.services.idempotency.attempts import Attempt, Sender
from ramet.services.idempotency.ledger import Ledger
from ramet.services.idempotency.records import StoredAnswer
from ramet.services.problems import to_problem

REPLAYED: Final = "idempotent-replayed"
_STORED_HEADERS: Final = ("content-type", "location")
#: Statuses above 499 of requests that had no effect.
_NO_EFFECT_STATUSES: Final = frozenset(
    {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE}
)
#: Failures after the start of an operation that is not repeated: such a failure is stored as the first answer.
_STORED_FAILURES: Final = (TaskFailed, Aborted, OutputInvalid, OutputTooLarge)


async def answer_once(call: RequestContext, operation: Operation, sender: Sender) -> Any:
    """Return the answer to a POST with an `Idempotency-Key`: that of `operation` once, then the stored one."""
    if operation.own_error_form:  # Otherwise the key was checked before.
        call.parts.agent_of(call.key)
    digest, hasher = "", sender.hasher(call.request.scope["query_string"])
    if operation.endpoint.media == TAR:  # Too large to be read in advance.
        call.hasher = hasher
    else:
        hasher.update(await call.read_whole(max(JSON_BYTES, call.parts.message_bytes)))
        digest = hasher.hexdigest()
    ledger = call.parts.ledger
    result = await ledger.claim(sender, call.parts.spawner.owner_of(call.key), digest)
    if isinstance(result, StoredAnswer):
        return await _replay(call, result, sender)
    return await _attempt(call, operation, ledger, result, digest)


async def _attempt(call: RequestContext, operation: Operation, ledger: Ledger, attempt: Attempt, digest: str) -> Any:
    if attempt.is_repeated and not attempt.has_begun_turn and operation.repetition == "refused":
        ledger.release(attempt)
        raise OutcomeUnknown(operation.look_at)
    call.attempt = attempt
    is_repeated = attempt.is_repeated
    try:
        try:
            result = await operation.handle(call)
        except BaseException as error:
            if operation.repetition == "refused" and isinstance(error, _STORED_FAILURES):
                await run_shielded(_store_answer(ledger, attempt, digest, responses.problem(error)))
            elif not attempt.has_begun_turn and _is_refusal(error):
                await run_shielded(ledger.drop(attempt))
            raise
        response = _response(result, operation)
        if response is None or (response.status_code >= 400 and attempt.has_begun_turn):
            return result
        await run_shielded(_store_answer(ledger, attempt, digest or await _read_digest(call), response))
    finally:
        ledger.release(attempt)
    if is_repeated:
        response.headers[REPLAYED] = "true"
    return response


async def _store_answer(ledger: Ledger, attempt: Attempt, digest: str, response: Response) -> None:
    headers = {name: response.headers[name] for name in _STORED_HEADERS if name in response.headers}
    try:
        await ledger.answer(attempt, digest, response.status_code, headers, bytes(response.body))
    except Conflict:  # Another kernel answers it, too, with the same turn.
        if not attempt.has_begun_turn:
            raise


async def _replay(call: RequestContext, answer: StoredAnswer, sender: Sender) -> Response:
    record, body = answer
    if call.hasher is not None:
        if await _read_digest(call) != record.digest:
            raise KeyReused(sender.key)
    if body is None:
        raise Gone("the request was executed, but its first answer was too large to be stored for a repetition")
    return Response(body, record.status, {**record.headers, REPLAYED: "true"})


def _response(answer: Any, operation: Operation) -> Response | None:
    """Return an answer as a response that can be stored; None for a stream."""
    if answer is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    if isinstance(answer, Response):
        return answer
    return None if callable(answer) else responses.json(answer, operation.status)


def _is_refusal(error: BaseException) -> bool:
    """Return whether an error means that nothing was done."""
    if isinstance(error, OutcomeUnknown | asyncio.CancelledError):
        return False
    if isinstance(error, ClientDisconnect):  # Its work was undone.
        return True
    if isinstance(error, Refusal):
        status = error.problem.status
    else:
        status = to_problem(error).status if isinstance(error, RametError) else 500
    return status < 500 or status in _NO_EFFECT_STATUSES


async def _read_digest(call: RequestContext) -> str:
    """Return the digest of a streamed body, up to the upload limit; reads the rest of the body."""
    if call.hasher is None:
        return ""
    size = 0
    async with aclosing(call.pieces(is_held=False)) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size > call.parts.packaging.upload_bytes:
                break
    return call.hasher.hexdigest()
