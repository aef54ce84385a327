"""Whether a streamed reply is asked for its usage, which ChatOpenAI leaves out for any address but OpenAI's own.

Chat Completions have a field for that, `stream_options`. Not every endpoint that speaks their format knows the field,
and some refuse what they do not know. So what an endpoint did is remembered for the life of the process. The Responses
API reports usage unasked, and its client fails over an argument for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableBinding

from ramet.core.errors import ModelFailed
from ramet.models.errors import is_overflow
from ramet.models.resolve import model_name

#: Endpoints that are remembered; the oldest is forgotten first.
MAX_REMEMBERED: Final = 1_000
#: Words by which an endpoint names the field.
_WORDS: Final = ("stream_options", "stream_usage", "include_usage")
#: Statuses of requests that are refused for what is in them.
_REFUSALS: Final = frozenset({400, 422})


class Endpoint(NamedTuple):
    """A model at an address."""

    model: str
    address: str


#: Whether an endpoint takes the field; one that is not here has not shown it yet.
_known: dict[Endpoint, bool] = {}


class UsageRefused(ModelFailed):
    """A request that asked for usage was refused, perhaps for that: the same may be granted without."""


def is_asked(model: BaseChatModel, kwargs: Mapping[str, Any], runnable: Runnable[Any, Any] | None = None) -> bool:
    """Whether `stream_usage` goes with a call of this model with these keywords, by way of `runnable` if there is one.

    Never where the model's owner has decided it, nor where the Responses API is asked.
    """
    if getattr(model, "stream_usage", False) is not None:
        return False
    if runnable is not None:
        bound = _bound_kwargs(runnable)
        if bound is None:
            return False  # Nobody knows which API will be asked.
        kwargs = {**bound, **kwargs}
    sent = {**kwargs, **(getattr(model, "model_kwargs", None) or {})}
    if "stream_options" in sent:
        return False
    chooses = getattr(model, "_use_responses_api", None)
    if chooses is not None and chooses(sent):
        return False
    return _known.get(endpoint_of(model), True)


def endpoint_of(model: BaseChatModel) -> Endpoint:
    """Where this model is asked."""
    for name in ("root_async_client", "root_client"):
        address = getattr(getattr(model, name, None), "base_url", None)
        if address is not None:
            return Endpoint(model_name(model), str(address))
    return Endpoint(model_name(model), str(getattr(model, "openai_api_base", None) or ""))


def refusal(endpoint: Endpoint, error: Exception, failed: ModelFailed) -> UsageRefused | None:
    """`failed`, which came of `error`, as the refusal of a request that asked for usage; None if it is another failure.

    An endpoint that names the field is remembered. One that does not is given the benefit of the doubt once a request,
    until it has answered one.
    """
    said = str(error).lower()
    if any(word in said for word in _WORDS):
        _known.pop(endpoint, None)
        note(endpoint, is_taken=False)
    elif failed.status not in _REFUSALS or endpoint in _known or is_overflow(error):
        return None
    return UsageRefused(failed.model, failed.reason, status=failed.status)


def note(endpoint: Endpoint, *, is_taken: bool) -> None:
    """Remember of an endpoint that has answered whether it was asked for usage; its first answer counts."""
    if endpoint not in _known:
        _known[endpoint] = is_taken
        if len(_known) > MAX_REMEMBERED:
            _known.pop(next(iter(_known)), None)


def _bound_kwargs(runnable: Runnable[Any, Any]) -> dict[str, Any] | None:
    """The keywords that bindings around a model add to its calls; None where there is more than bindings."""
    kwargs: dict[str, Any] = {}
    while isinstance(runnable, RunnableBinding):
        kwargs = {**runnable.kwargs, **kwargs}
        runnable = runnable.bound
    return kwargs if isinstance(runnable, BaseChatModel) else None
