"""The chat completion format of OpenAI's clients: bodies are requests, chunks are `chat.completion.chunk` objects.

The usage is in the chunk with the finish reason, so that every chunk has a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ramet.core.outcome import Usage
from ramet.services.formats import parameters
from ramet.services.formats.request import Stop

NAME: Final = "openai"
#: The end of a stream.
CLOSING: Final = b"[DONE]"

_REASONS: Final[dict[Stop, str]] = {"end": "stop", "length": "length"}


class Writer:
    """A writer for the chunks of one answer: call `begin`, then `text` any number of times, then `end`."""

    def __init__(self, id: str, model: str, created: int) -> None:
        self._envelope = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def begin(self) -> Sequence[bytes]:
        return (self._chunk({"role": "assistant", "content": ""}),)

    def text(self, delta: str) -> Sequence[bytes]:
        return (self._chunk({"content": delta}),) if delta else ()

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        return (self._chunk({}, finish_reason=_REASONS[stop], usage=_usage_fields(usage)),)

    def _chunk(self, delta: dict[str, Any], *, finish_reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return msgspec.json.encode({**self._envelope, "choices": [choice], **more})


def check(body: bytes, *, files: bool) -> None:
    parameters.check(body, parameters.OPENAI, files=files)


def fold(chunks: Iterable[bytes]) -> bytes:
    completion: dict[str, Any] = {}
    texts: list[str] = []
    reason = None
    for chunk in chunks:
        piece = msgspec.json.decode(chunk)
        completion = {**completion, **piece}
        for choice in piece["choices"]:
            texts.append(choice["delta"].get("content") or "")
            reason = choice["finish_reason"] or reason
    message = {"role": "assistant", "content": "".join(texts), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason or "stop"}
    return msgspec.json.encode({**completion, "object": "chat.completion", "choices": [choice]})


def text_of(chunk: bytes) -> str:
    return "".join(each["delta"].get("content") or "" for each in msgspec.json.decode(chunk)["choices"])


def writer_of(chunk: bytes) -> Writer:
    piece = msgspec.json.decode(chunk)
    return Writer(piece["id"].removeprefix("chatcmpl-"), piece["model"], piece["created"])


def event_name(chunk: bytes) -> str:
    """Return "": chunks have no name in a stream of events."""
    return ""


def error(message: str, status: int, parameter: str = "") -> bytes:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": parameter or None, "code": code}})


def _usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
