"""Decide whether to request usage with a stream, which ChatOpenAI omits for any address but OpenAI's own.

Chat Completions have a field for this, `stream_options`. Not every compatible endpoint knows the field, and some refuse
unknown fields. So the behaviour of each endpoint is remembered for the lifetime of the process. The Responses API
reports usage without a request, and its client fails with an argument for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableBinding

from ramet.core.errors import ModelFailed
from ramet.models.errors import is_overflow
from ramet.models.resolve import model_name

#: Maximum number of remembered endpoints; the oldest is dropped first.
MAX_REMEMBERED: Final = 1_000
#: Words with which an endpoint names the field.
_FIELD_NAMES: Final = ("stream_options", "stream_usage", "include_usage")
#: Statuses of requests that are refused for their content.
_REFUSALS: Final = frozenset({400, 422})


class Endpoint(NamedTuple):
    """A model at an address."""

    model: str
    address: str


#: Whether an endpoint accepts the field; an endpoint that is not here has not shown it yet.
_accepts_usage: dict[Endpoint, bool] = {}


class UsageRefused(ModelFailed):
    """The error for a refused request with usage: the refusal may have been for that field alone."""


def needs_request(model: BaseChatModel, kwargs: Mapping[str, Any], runnable: Runnable[Any, Any] | None = None) -> bool:
    """Return whether to pass `stream_usage` with a call of this model, through `runnable` if given.

    Never if the model's owner has decided it, nor if the call uses the Responses API.
    """
    if getattr(model, "stream_usage", False) is not None:
        return False
    if runnable is not None:
        bound = _bound_kwargs(runnable)
        if bound is None:
            return False  # It is unknown which API will be used.
        kwargs = {**bound, **kwargs}
    request = {**kwargs, **(getattr(model, "model_kwargs", None) or {})}
    if "stream_options" in request:
        return False
    chooses = getattr(model, "_use_responses_api", None)
    if chooses is not None and chooses(request):
        return False
    return _accepts_usage.get(endpoint_of(model), True)


def endpoint_of(model: BaseChatModel) -> Endpoint:
    for name in ("root_async_client", "root_client"):
        address = getattr(getattr(model, name, None), "base_url", None)
        if address is not None:
            return Endpoint(model_name(model), str(address))
    return Endpoint(model_name(model), str(getattr(model, "openai_api_base", None) or ""))


def refusal(endpoint: Endpoint, error: Exception, failure: ModelFailed) -> UsageRefused | None:
    """Return `failure`, caused by `error`, as the refusal of a request for usage; None for any other failure.

    An endpoint that names the field is remembered. For any other endpoint, a refusal is assumed once per request, until
    the endpoint has answered one.
    """
    text = str(error).lower()
    if any(name in text for name in _FIELD_NAMES):
        _accepts_usage.pop(endpoint, None)
        remember_answer(endpoint, is_accepted=False)
    elif failure.status not in _REFUSALS or endpoint in _accepts_usage or is_overflow(error):
        return None
    return UsageRefused(failure.model, failure.reason, status=failure.status)


def remember_answer(endpoint: Endpoint, *, is_accepted: bool) -> None:
    """Remember whether an endpoint has answered a request with usage; only its first answer counts."""
    if endpoint not in _accepts_usage:
        _accepts_usage[endpoint] = is_accepted
        if len(_accepts_usage) > MAX_REMEMBERED:
            _accepts_usage.pop(next(iter(_accepts_usage)), None)


def _bound_kwargs(runnable: Runnable[Any, Any]) -> dict[str, Any] | None:
    """Return the keywords that bindings around a model add to its calls; None if there is more than bindings."""
    kwargs: dict[str, Any] = {}
    while isinstance(runnable, RunnableBinding):
        kwargs = {**runnable.kwargs, **kwargs}
        runnable = runnable.bound
    return kwargs if isinstance(runnable, BaseChatModel) else None
