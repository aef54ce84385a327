"""Models whose SDK retries by itself: a copy that does not, or the number of requests that one call may make."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from langchain_core.language_models import BaseChatModel

#: Google's SDK counts attempts, not retries, takes 0 for "as often as usual", and is told the figure with each call.
_COUNTS_ATTEMPTS: Final = ("langchain_google_genai",)


class Attempts(NamedTuple):
    """A model, and how many HTTP requests one call of it may make: what must be charged for."""

    model: BaseChatModel
    requests: int


@runtime_checkable
class _Client(Protocol):
    """What the SDKs of Anthropic, OpenAI, Groq and others have in common (they come from one generator)."""

    max_retries: int

    def with_options(self, *, max_retries: int) -> Any:
        """The same client, HTTP connections included, with other settings."""


def off(cls: type[BaseChatModel]) -> int:
    """The `max_retries` that makes a model of this class ask once."""
    return 1 if cls.__module__.startswith(_COUNTS_ATTEMPTS) else 0


def without_retries(model: BaseChatModel) -> Attempts:
    """A copy of `model` that asks once per call; where none can be made, the model itself and 1 + its retries.

    The model given is never changed: it is its owner's, and may be in use elsewhere.
    """
    if type(model).__module__.startswith(_COUNTS_ATTEMPTS):
        return Attempts(model.model_copy(update={"max_retries": off(type(model))}), 1)
    found = {name: client for name, value in vars(model).items() if (client := _client(value)) is not None}
    own = getattr(model, "max_retries", None)
    retries = max((*(client.max_retries for client in found.values()), own if isinstance(own, int) else 0))
    if retries <= 0:
        return Attempts(model, 1)
    if not found and not _makes_clients_later(model):
        return Attempts(model, 1 + retries)
    copy = model.model_copy(update={"max_retries": 0})
    for name in vars(model):
        if name not in found and isinstance(getattr(type(model), name, None), cached_property):
            vars(copy).pop(name, None)  # made again when needed, from max_retries=0
    for name, client in found.items():
        vars(copy)[name] = _replaced(vars(model)[name], client.with_options(max_retries=0))
    return Attempts(copy, 1)


def _client(value: object) -> _Client | None:
    """The SDK client that `value` is, or that it is a part of (`client.chat.completions`)."""
    for candidate in (value, getattr(value, "_client", None)):
        if (
            hasattr(candidate, "max_retries")  # a Protocol's isinstance costs a hundred times as much
            and isinstance(candidate, _Client)
            and not isinstance(candidate, type)
            and isinstance(candidate.max_retries, int)
        ):
            return candidate
    return None


def _replaced(value: object, client: object) -> object:
    """`client` where the value was a client; the same part of it where the value was a part."""
    if isinstance(value, _Client):
        return client
    return type(value)(client)  # type: ignore[call-arg]  # resources of these SDKs are made of their client


def _makes_clients_later(model: BaseChatModel) -> bool:
    """Whether the model's clients come from its fields on first use, as ChatAnthropic's do."""
    return any(isinstance(getattr(type(model), name, None), cached_property) for name in ("_client", "_async_client"))
