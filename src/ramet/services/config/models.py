"""The server's own names for models. A key is read from its source when its model is used, and is never shown."""

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
    """The models of `aliases`, by name: "provider:model" for an alias without a key, otherwise a model with its key.

    A lookup raises InvalidValue if the key does not exist or the model takes no key, MissingExtra, and ModelFailed if
    the model cannot be created. A changed key is used from the next lookup of its model on.
    """

    def __init__(self, aliases: Mapping[str, ModelAlias], environ: Mapping[str, str]) -> None:
        self._aliases, self._environ = aliases, environ
        self._models: dict[str, tuple[str, BaseChatModel]] = {}  #: each model with its key

    def __getitem__(self, name: str) -> str | BaseChatModel:
        alias = self._aliases[name]
        if alias.key is None:
            return alias.model
        key = alias.key.read(self._environ)
        model = self._models.get(name)
        if model is None or model[0] != key:
            model = self._models[name] = key, _create_model(name, alias, key)
        return model[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._aliases)

    def __len__(self) -> int:
        return len(self._aliases)


def _create_model(name: str, alias: ModelAlias, key: str) -> BaseChatModel:
    try:
        model = resolve(alias.model, api_key=key)
    except (MissingExtra, Unknown):  # raised before the key is looked at
        raise
    except Exception as problem:  # A provider's error text may contain the key or a part of it.
        reason = f"the model cannot be created with its key from {alias.key} ({type(problem).__name__})"
        raise ModelFailed(alias.model, reason) from None
    if not any("api_key" in _names(each, about) for each, about in type(model).model_fields.items()):
        raise InvalidValue(f"models.{name}.key", str(alias.key), f"none: {type(model).__name__} takes no key")
    return model


def _names(field: str, about: FieldInfo) -> tuple[object, ...]:
    """Return the names by which a field of a model may be set."""
    choices = getattr(about.validation_alias, "choices", ())
    return (field, about.alias, about.validation_alias, *choices)
