"""The message format of Anthropic's clients: bodies are requests, chunks are the events of a stream.

All text is one block, even if it consists of several replies of a model: clients read only the first block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ramet.core.outcome import NO_USAGE, Usage
from ramet.services.formats import parameters
from ramet.services.formats.request import Stop

NAME: Final = "anthropic"
#: The end of a stream: nothing, as the event `message_stop` ends it.
CLOSING: Final = b""

_REASONS: Final[dict[Stop, str]] = {"end": "end_turn", "length": "max_tokens"}
_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class Writer:
    """A writer for the events of one answer: call `begin`, then `text` any number of times, then `end`."""

    def __init__(self, id: str, model: str, created: int) -> None:
        """Begin an answer. `created` is not used in this format."""
        self._id, self._model = f"msg_{id}", model

    def begin(self) -> Sequence[bytes]:
        """Return the events that begin an answer. The usage follows at the end."""
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage_fields(NO_USAGE),
        }
        return (
            _event("message_start", message=message),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        )

    def text(self, delta: str) -> Sequence[bytes]:
        return (_event("content_block_delta", index=0, delta={"type": "text_delta", "text": delta}),) if delta else ()

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        delta = {"stop_reason": _REASONS[stop], "stop_sequence": None}
        return (
            _event("content_block_stop", index=0),
            _event("message_delta", delta=delta, usage=_usage_fields(usage)),
            _event("message_stop"),
        )


def check(body: bytes, *, files: bool) -> None:
    parameters.check(body, parameters.ANTHROPIC, files=files)


def fold(chunks: Iterable[bytes]) -> bytes:
    message: dict[str, Any] = {}
    texts: list[str] = []
    for chunk in chunks:
        event = msgspec.json.decode(chunk)
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_delta":
                texts.append(event["delta"]["text"])
            case "message_delta":
                message = {**message, **event["delta"], "usage": {**message["usage"], **event["usage"]}}
    return msgspec.json.encode({**message, "content": [{"type": "text", "text": "".join(texts)}]})


def text_of(chunk: bytes) -> str:
    event = msgspec.json.decode(chunk)
    return str(event["delta"]["text"]) if event["type"] == "content_block_delta" else ""


def writer_of(chunk: bytes) -> Writer:
    message = msgspec.json.decode(chunk)["message"]
    return Writer(message["id"].removeprefix("msg_"), message["model"], 0)


def event_name(chunk: bytes) -> str:
    """Return the name of the chunk in a stream of events: its type."""
    return str(msgspec.json.decode(chunk)["type"])


def error(message: str, status: int, parameter: str = "") -> bytes:
    """Return a problem in the clients' format. `parameter` appears in the message only."""
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return _event("error", error={"type": kind, "message": message})


def _event(kind: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"type": kind, **fields})


def _usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens),
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": 0,
    }
