"""Payloads of requests with long conversations: encoded in a thread, and not scanned by the SDK of OpenAI.

For 1,100 messages LangChain takes 10 to 80 ms to create a payload. The SDK of OpenAI takes 300 to 900 ms to scan it for
names and dates to rewrite, which messages never have. Both would block the event loop for all other tasks.

So the payload is created in a thread, by the model's own method, with the arguments of the last call of this method. If
the model then passes other arguments, the payload is created again at once. The long parts of a payload for OpenAI go
into `extra_body`, which the SDK sends unchanged: the request has the same JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ramet.concurrency.threads import in_thread

LONG: Final = 32  #: messages; shorter conversations take less time than a thread would
_METHOD: Final = "_get_request_payload"
_OPENAI: Final = "langchain_openai."
_PACKAGES: Final = (_OPENAI, "langchain_anthropic.")
_LONG_FIELDS: Final = ("messages", "input")
#: In these cases the SDK itself modifies a payload before it is sent.
_PARSED_FIELDS: Final = ("response_format", "text_format")

_Payload = dict[str, Any]  # as the SDK takes it


class _ArgumentDifference(NamedTuple):
    """The difference between the arguments of the model's method and those of the request."""

    added_arguments: Mapping[str, Any]
    dropped_names: frozenset[str]


class Payloads:
    """An encoder of the payloads of one model."""

    def __init__(self) -> None:
        self._arguments_by_kind: dict[tuple[object, ...], _ArgumentDifference] = {}  #: by the kind of request

    async def encode(
        self, model: BaseChatModel, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any], *, streams: bool
    ) -> BaseChatModel:
        """Encode a request in a thread; return a model that sends the result for exactly this request.

        Returns `model` itself if the conversation is short, or if the model has no known method for encoding. A request
        that cannot be encoded fails later, when the model is asked.
        """
        if not _is_long(model, messages):
            return model
        kind = (streams, kwargs.get("stream_usage"), *sorted(kwargs))
        expected, ready_payload = None, None
        if (difference := self._arguments_by_kind.get(kind)) is not None:
            same = {name: value for name, value in kwargs.items() if name not in difference.dropped_names}
            expected = {**same, **difference.added_arguments}
            encode, arguments = getattr(model, _METHOD), dict(expected)
            work: Callable[[], _Payload] = lambda: _without_checks(model, encode(messages, stop=None, **arguments))  # noqa: E731
            try:
                ready_payload = await in_thread(work, name="ramet-encode")
            except Exception:  # The model raises the same error again when it is asked.
                ready_payload = None

        def learn(actual: Mapping[str, Any]) -> None:
            added_arguments = {
                name: value for name, value in actual.items() if name not in kwargs or kwargs[name] != value
            }
            self._arguments_by_kind[kind] = _ArgumentDifference(
                added_arguments, frozenset(kwargs.keys() - actual.keys())
            )

        return _with_payload(model, expected, ready_payload, learn)


def with_unchecked_payload(model: BaseChatModel, messages: Sequence[BaseMessage]) -> BaseChatModel:
    """Return a model whose SDK sends a long conversation unchanged; `model` itself if the conversation is short."""
    return _with_payload(model, None, None, lambda _: None) if _is_long(model, messages) else model


def _is_long(model: BaseChatModel, messages: Sequence[BaseMessage]) -> bool:
    if len(messages) < LONG:
        return False
    method = getattr(type(model), _METHOD, None)
    return method is not None and getattr(method, "__module__", "").startswith(_PACKAGES)


def _with_payload(
    model: BaseChatModel,
    expected: Mapping[str, Any] | None,
    ready_payload: _Payload | None,
    learn: Callable[[Mapping[str, Any]], None],
) -> BaseChatModel:
    """Return a copy of a model that uses the payload `ready_payload` instead of encoding with the
    arguments `expected`.
    """
    encode = getattr(model, _METHOD)

    def payload(messages: Any, *, stop: list[str] | None = None, **actual: Any) -> _Payload:
        if ready_payload is not None and stop is None and actual == expected:
            return dict(ready_payload)
        learn(actual)
        return _without_checks(model, encode(messages, stop=stop, **actual))

    # Clients that are created on first use belong to the model, not to a copy.
    for name in ("_client", "_async_client"):
        if isinstance(getattr(type(model), name, None), cached_property):
            getattr(model, name)
    copy = model.model_copy()
    vars(copy)[_METHOD] = payload
    return copy


def _without_checks(model: BaseChatModel, payload: _Payload) -> _Payload:
    """Move the long parts of a payload to where the SDK does not scan them."""
    if not any(cls.__module__.startswith(_OPENAI) for cls in type(model).__mro__):
        return payload
    extra = payload.get("extra_body") or {}
    if not isinstance(extra, Mapping) or any(payload.get(each) is not None for each in _PARSED_FIELDS):
        return payload
    moved_fields = {
        name: value
        for name in _LONG_FIELDS
        if isinstance(value := payload.get(name), list) and name not in extra and _is_json(value)
    }
    if not moved_fields:
        return payload
    return {**payload, **{name: [] for name in moved_fields}, "extra_body": {**extra, **moved_fields}}


def _is_json(value: object) -> bool:
    """Return whether the value has only JSON types, so that nothing must be rewritten before it is sent."""
    if isinstance(value, dict):
        return all(type(name) is str and _is_json(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float)
