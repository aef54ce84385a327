"""Switch off the retries of a model's SDK: a copy without retries, or the number of requests that one call may make."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from langchain_core.language_models import BaseChatModel

#: Google's SDK counts attempts, not retries, takes 0 for its default, and gets the number with each call.
_COUNTS_ATTEMPTS: Final = ("langchain_google_genai",)


class Attempts(NamedTuple):
    """A model, and the number of HTTP requests that one of its calls may make: all of them must be charged."""

    model: BaseChatModel
    requests: int


@runtime_checkable
class _Client(Protocol):
    """The common interface of the SDKs of Anthropic, OpenAI, Groq and others (they come from one generator)."""

    max_retries: int

    def with_options(self, *, max_retries: int) -> Any:
        """Return the same client, including its HTTP connections, with other settings."""


def no_retries_value(cls: type[BaseChatModel]) -> int:
    """Return the `max_retries` with which a model of this class sends one request."""
    return 1 if cls.__module__.startswith(_COUNTS_ATTEMPTS) else 0


def without_retries(model: BaseChatModel) -> Attempts:
    """Return a copy of `model` that sends one request per call; if impossible, the model itself and 1 + its retries.

    The given model is never changed: it belongs to its owner, and may be in use elsewhere.
    """
    if type(model).__module__.startswith(_COUNTS_ATTEMPTS):
        return Attempts(model.model_copy(update={"max_retries": no_retries_value(type(model))}), 1)
    clients = {name: client for name, value in vars(model).items() if (client := _client(value)) is not None}
    model_retries = getattr(model, "max_retries", None)
    retries = max(
        (*(client.max_retries for client in clients.values()), model_retries if isinstance(model_retries, int) else 0)
    )
    if retries <= 0:
        return Attempts(model, 1)
    if not clients and not _creates_clients_lazily(model):
        return Attempts(model, 1 + retries)
    copy = model.model_copy(update={"max_retries": 0})
    for name in vars(model):
        if name not in clients and isinstance(getattr(type(model), name, None), cached_property):
            vars(copy).pop(name, None)  # created again on use, from max_retries=0
    for name, client in clients.items():
        vars(copy)[name] = _replace(vars(model)[name], client.with_options(max_retries=0))
    return Attempts(copy, 1)


def _client(value: object) -> _Client | None:
    """Return the SDK client that `value` is, or that it is a part of (`client.chat.completions`)."""
    for candidate in (value, getattr(value, "_client", None)):
        if (
            hasattr(candidate, "max_retries")  # a Protocol's isinstance costs a hundred times as much
            and isinstance(candidate, _Client)
            and not isinstance(candidate, type)
            and isinstance(candidate.max_retries, int)
        ):
            return candidate
    return None


def _replace(value: object, client: object) -> object:
    """Return `client` if the value was a client, or the same part of `client` if the value was a part."""
    if isinstance(value, _Client):
        return client
    return type(value)(client)  # type: ignore[call-arg]  # resources of these SDKs are created from their client


def _creates_clients_lazily(model: BaseChatModel) -> bool:
    """Return whether the model creates its clients from its fields on first use, as ChatAnthropic does."""
    return any(isinstance(getattr(type(model), name, None), cached_property) for name in ("_client", "_async_client"))
