"""Routes for unmodified clients of OpenAI and Anthropic, with an agent as the model. The key selects the agent.

Such a client cannot resume a turn after its connection is lost, so a turn that its client leaves is interrupted.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from starlette.responses import Response

from ramet.core.errors import Bug, OutputTooLarge, RametError
from ramet.services.contract import Chunk
from ramet.services.formats import anthropic, openai
from ramet.services.formats.registry import Format, format_of
from ramet.services.formats.request import wants_stream
from ramet.services.http.endpoints import Endpoint
from ramet.services.http.error_forms import provider_problem, provider_refusal
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.routes.turns import begin_once
from ramet.services.http.sse import StreamMoved
from ramet.services.turns.turn import Batch, OnLeave, Turn

#: The largest answer without a stream.
WHOLE_BYTES = 16 * 1024 * 1024
#: The errors of reading chunks that an agent type wrote in none of the formats.
_NO_CHUNK = (msgspec.DecodeError, UnicodeError, RecursionError, LookupError, TypeError, AttributeError)
_EVENT_NAME = re.compile(r"[a-z_]*")
_CLOSING: Final = {openai.NAME: openai.CLOSING, anthropic.NAME: anthropic.CLOSING}


class Model(Struct):
    """An agent as clients of models list it; both kinds of clients find their fields."""

    id: str
    display_name: str
    created: int
    created_at: str
    type: str = "model"
    object: str = "model"
    owned_by: str = "ramet"


class ModelList(Struct):
    """The agent that the key is of."""

    data: Sequence[Model]
    first_id: str
    last_id: str
    has_more: bool = False
    object: str = "list"


def _completion_handler(name: str) -> Callable[[RequestContext], Any]:
    async def ask(call: RequestContext) -> Any:
        format = format_of(name)
        agent = call.parts.agent_of(call.key)
        body = await call.body(call.parts.message_bytes)
        if not call.parts.agents.reads_parameters(agent, call.key, name):
            format.check(body, files=call.parts.agents.reads_files(agent, call.key))
        is_stream = wants_stream(body)
        # A client that can request the same turn again may leave it and return.
        on_leave: OnLeave = "interrupt" if call.attempt is None else "go_on"
        turn = await begin_once(call, agent, body, format=name, on_leave=on_leave)
        batches = call.parts.agents.batches(agent, call.key, turn)
        if is_stream:
            return call.parts.streams.stream(_events(format, turn, batches, _CLOSING[name]), is_endless=False)
        return await call.or_disconnect(_collect_response(format, batches))

    return ask


async def _events(
    format: Format, turn: Turn, batches: AsyncGenerator[Batch, None], closing: bytes
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(batches):
            async for batch in batches:
                yield b"".join([_event(format, each) for each in batch])
                if batch[-1].kind == "error":
                    return
    except RametError as error:
        if turn.read_error is not None:
            raise StreamMoved from None
        problem = provider_problem(error)
        yield _encode_event(format, format.error(problem.detail, problem.status))
        return
    if closing:
        yield b"data: %s\n\n" % closing


def _event(format: Format, chunk: Chunk) -> bytes:
    match chunk.kind:
        case "chunk":
            return _encode_event(format, _one_line(chunk.body))
        case "error":
            return _encode_event(format, _error(format, chunk)[0])
        case "done":
            return b""


def _one_line(body: bytes) -> bytes:
    """Return an agent's chunk as one line of JSON, so that no part of it is read as lines of the stream. Raises Bug."""
    try:
        msgspec.json.decode(body, type=dict[str, Raw])
        return msgspec.json.format(body, indent=-1) if b"\n" in body or b"\r" in body else body
    except _NO_CHUNK as problem:
        raise Bug(f"an agent answered an API client with an invalid chunk: {problem}") from None


def _encode_event(format: Format, data: bytes) -> bytes:
    try:
        name = format.event_name(data)
    except _NO_CHUNK as problem:
        raise Bug(f"an agent answered an API client with an invalid event: {problem}") from None
    if not _EVENT_NAME.fullmatch(name):
        raise Bug(f"an agent answered an API client with an event of the type {name[:80]!r}")
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b"data: %s\n\n" % data


def _error(format: Format, chunk: Chunk) -> tuple[bytes, int]:
    """Return the problem document at the end of a turn in the client's format, and its status."""
    problem = msgspec.json.decode(chunk.body)
    return format.error(problem["detail"], problem["status"]), problem["status"]


async def _collect_response(format: Format, batches: AsyncGenerator[Batch, None]) -> Response:
    chunks: list[bytes] = []
    size = 0
    try:
        async with aclosing(batches):
            async for batch in batches:
                for chunk in batch:
                    if chunk.kind == "error":
                        body, status = _error(format, chunk)
                        return Response(body, status, media_type="application/json")
                    if chunk.kind == "chunk":
                        chunks.append(chunk.body)
                        size += len(chunk.body)
                    if size > WHOLE_BYTES:
                        raise OutputTooLarge(
                            "an answer that was requested without a stream", size=size, limit=WHOLE_BYTES
                        )
        return Response(_fold(format, chunks), media_type="application/json")
    except RametError as error:
        return provider_refusal(format, error)


def _fold(format: Format, chunks: Sequence[bytes]) -> bytes:
    try:
        return format.fold(chunks)
    except _NO_CHUNK as problem:
        raise Bug(f"an agent answered an API client with an invalid answer: {problem!r}") from None


OPERATIONS: Final = Operations()
_COMPLETION: Final[dict[str, Any]] = {
    "repetition": "found",
    "begins": True,
    "of": "key",
    "stream": True,
    "refuses": (403, 409, 410, 429, 501, 502),
    "own_error_form": True,
}
OPERATIONS.add(
    Endpoint("chat_completions", "POST", "/v1/chat/completions", dict[str, Any], takes=dict[str, Any]),
    "Send a message to the agent of the key, in the format of OpenAI clients",
    **_COMPLETION,
)(_completion_handler(openai.NAME))
OPERATIONS.add(
    Endpoint("messages", "POST", "/v1/messages", dict[str, Any], takes=dict[str, Any]),
    "Send a message to the agent of the key, in the format of Anthropic clients",
    **_COMPLETION,
)(_completion_handler(anthropic.NAME))


@OPERATIONS.add(
    Endpoint("models", "GET", "/v1/models", ModelList),
    "List the agent of the key as a model",
    of="key",
    own_error_form=True,
)
async def _models(call: RequestContext) -> Any:
    info = call.parts.agents.info(call.parts.agent_of(call.key), call.key)
    created = int(datetime.fromisoformat(info.created_at).timestamp())
    model = Model(id=info.id, display_name=info.path, created=created, created_at=info.created_at)
    return ModelList(data=[model], first_id=info.id, last_id=info.id)
