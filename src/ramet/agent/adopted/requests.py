"""Read the facts of a request from a LangChain callback before it is sent: its model, its size, and its retries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage

from ramet.core.ids import StepId
from ramet.models.retries import no_retries_value
from ramet.tools.model_request import ForeignRequest

#: Providers' names for the maximum length of a reply.
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
#: Number of retries of an SDK without a setting.
_DEFAULT_RETRIES: Final = 2


def foreign_request(
    step: StepId, serialized: Mapping[str, Any], messages: Sequence[BaseMessage], callback_kwargs: Mapping[str, Any]
) -> ForeignRequest:
    """Return what is known of a request before it is sent. `callback_kwargs` has the callback's keyword arguments."""
    metadata, params = callback_kwargs.get("metadata") or {}, callback_kwargs.get("invocation_params") or {}
    model_kwargs = serialized.get("kwargs") or {}
    name = next(
        (
            candidate
            for candidate in (metadata.get("ls_model_name"), *(params.get(key) for key in ("model", "model_name")))
            if isinstance(candidate, str) and candidate
        ),
        str(callback_kwargs.get("name") or "unknown"),
    )
    limits = [
        *(params.get(key) for key in _LIMITS),
        metadata.get("ls_max_tokens"),
        *(model_kwargs.get(key) for key in _LIMITS),
    ]
    return ForeignRequest(
        model=name.removeprefix("models/"),
        messages=messages,
        step=step,
        schema_bytes=sum(len(json.dumps(each, default=str).encode()) for each in params.get("tools") or ()),
        max_tokens=next((limit for limit in limits if isinstance(limit, int) and limit > 0), None),
        requests=_requests(tuple(serialized.get("id") or ()), model_kwargs.get("max_retries", ...)),
    )


def _requests(class_id: tuple[str, ...], retries: object) -> int:
    """Return how many HTTP requests one call may send, including the retries of its client's SDK."""
    kind = _class_of(class_id)
    if retries is ...:
        field = kind.model_fields.get("max_retries") if kind is not None else None
        retries = field.get_default() if field is not None else 0
    if retries is None:
        retries = _DEFAULT_RETRIES
    if not isinstance(retries, int):
        return 1
    counts_attempts = kind is not None and no_retries_value(kind) == 1  # type: ignore[arg-type]  # any class has a module
    return max(1, retries if counts_attempts else 1 + retries)


@lru_cache(maxsize=256)
def _class_of(class_id: tuple[str, ...]) -> type[BaseLanguageModel[Any]] | None:
    """Return the model class with this LangChain id; None if there is none."""
    for kind in _subclasses(BaseLanguageModel):
        if tuple(kind.lc_id()) == class_id or (*kind.__module__.split("."), kind.__name__) == class_id:
            return kind
    return None


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
