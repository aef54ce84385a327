"""Chat completions as OpenAI's clients speak them: bodies are requests, chunks are `chat.completion.chunk` objects.

What is used comes with the chunk that says why the answer ends, so that every chunk has a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ramet.core.outcome import Usage
from ramet.services.formats import parameters
from ramet.services.formats.request import Stop
from ramet.services.formats.request import read as read
from ramet.services.formats.request import wants_stream as wants_stream

NAME: Final = "openai"
#: What a stream of events says last.
CLOSING: Final = b"[DONE]"

_REASONS: Final[dict[Stop, str]] = {"end": "stop", "length": "length"}


class Writer:
    """Makes the chunks of one answer: `begin`, then `text` as often as there is some, then `end`."""

    def __init__(self, id: str, model: str, created: int) -> None:
        """`created` is in seconds since 1970."""
        self._envelope = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def begin(self) -> Sequence[bytes]:
        """An answer begins."""
        return (self._chunk({"role": "assistant", "content": ""}),)

    def text(self, delta: str) -> Sequence[bytes]:
        """The next piece of it."""
        return (self._chunk({"content": delta}),)

    def end(self, usage: Usage, stop: Stop = "end") -> Sequence[bytes]:
        """It is over, and this was used for it."""
        return (self._chunk({}, finish_reason=_REASONS[stop], usage=_used(usage)),)

    def _chunk(self, delta: dict[str, Any], *, finish_reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return msgspec.json.encode({**self._envelope, "choices": [choice], **more})


def check(body: bytes) -> None:
    """Refuse a request for what no agent does. Raises InvalidValue, which names the parameter."""
    parameters.check(body, parameters.OPENAI)


def fold(chunks: Iterable[bytes]) -> bytes:
    """The chunks of one answer as one `chat.completion`, as who asks for no stream gets it."""
    whole: dict[str, Any] = {}
    texts: list[str] = []
    reason = None
    for chunk in chunks:
        said = msgspec.json.decode(chunk)
        whole = {**whole, **said}
        for choice in said["choices"]:
            texts.append(choice["delta"].get("content") or "")
            reason = choice["finish_reason"] or reason
    message = {"role": "assistant", "content": "".join(texts), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason or "stop"}
    return msgspec.json.encode({**whole, "object": "chat.completion", "choices": [choice]})


def text_of(chunk: bytes) -> str:
    """What a chunk says of the answer's text; "" for one that begins or ends it."""
    return "".join(each["delta"].get("content") or "" for each in msgspec.json.decode(chunk)["choices"])


def writer_of(chunk: bytes) -> Writer:
    """Goes on with the answer that this was the first chunk of."""
    said = msgspec.json.decode(chunk)
    return Writer(said["id"].removeprefix("chatcmpl-"), said["model"], said["created"])


def event_name(chunk: bytes) -> str:
    """What a stream of events calls this chunk: nothing."""
    return ""


def error(message: str, status: int, parameter: str = "") -> bytes:
    """A problem as the clients read it, of a request or in the middle of a stream; `status` is HTTP's.

    `parameter` is what of the request is wrong.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": parameter or None, "code": code}})


def _used(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
