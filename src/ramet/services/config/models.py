"""The server's own names for models. A key is read where it lies when a model is asked for, and is never shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ramet.core.errors import InvalidValue, MissingExtra, ModelFailed, Unknown
from ramet.models.resolve import resolve
from ramet.services.config.settings import ModelAlias

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from pydantic.fields import FieldInfo


class ModelAliases(Mapping[str, "str | BaseChatModel"]):
    """Models by the names of `aliases`: "provider:model" where no key is named, else a model that has its key.

    Asking for one raises InvalidValue for a key that is not there and for a model that takes none, MissingExtra, and
    ModelFailed where it cannot be made. A key that has changed is in use from the next question for its model on.
    """

    def __init__(self, aliases: Mapping[str, ModelAlias], environ: Mapping[str, str]) -> None:
        self._aliases, self._environ = aliases, environ
        self._made: dict[str, tuple[str, BaseChatModel]] = {}  #: with the key that each has

    def __getitem__(self, name: str) -> str | BaseChatModel:
        alias = self._aliases[name]
        if alias.key is None:
            return alias.model
        key = alias.key.read(self._environ)
        known = self._made.get(name)
        if known is None or known[0] != key:
            known = self._made[name] = key, _made(name, alias, key)
        return known[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._aliases)

    def __len__(self) -> int:
        return len(self._aliases)


def _made(name: str, alias: ModelAlias, key: str) -> BaseChatModel:
    try:
        model = resolve(alias.model, api_key=key)
    except (MissingExtra, Unknown):  # raised before the key is looked at
        raise
    except Exception as problem:  # What a provider's package says may hold the key, or a part of it.
        why = f"it cannot be made with its key from {alias.key} ({type(problem).__name__})"
        raise ModelFailed(alias.model, why) from None
    if not any("api_key" in _names(each, about) for each, about in type(model).model_fields.items()):
        raise InvalidValue(f"models.{name}.key", str(alias.key), f"none: {type(model).__name__} takes no key")
    return model


def _names(field: str, about: FieldInfo) -> tuple[object, ...]:
    """What a field of a model may be called when it is made."""
    choices = getattr(about.validation_alias, "choices", ())
    return (field, about.alias, about.validation_alias, *choices)
