"""The effort that a model spends on reasoning, by the names that providers and agent files share."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from langchain_core.language_models import BaseChatModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
_FIELD: Final = "reasoning_effort"


def with_effort(model: BaseChatModel, effort: Effort) -> BaseChatModel | None:
    """Return a copy of the model with this effort; None if models of its class do not take it.

    The given model is never changed: it belongs to its owner.
    """
    field = type(model).model_fields.get(_FIELD)
    if field is None:
        return None
    accepted = _literals(field.annotation)
    return model.model_copy(update={_FIELD: effort}) if not accepted or effort in accepted else None


def _literals(annotation: Any) -> frozenset[object]:
    """Return the values of every Literal in a type; empty where any text is accepted."""
    parts = get_args(annotation)
    return frozenset(part for each in parts for part in (_literals(each) or ({each} if isinstance(each, str) else ())))
