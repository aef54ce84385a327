"""Check before any request whether a model has its key."""

from __future__ import annotations

from typing import Final

from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from ramet.core.errors import ModelFailed
from ramet.models.resolve import model_name

#: Headers that replace a key.
_HEADERS: Final = frozenset({"authorization", "x-api-key"})
#: Attributes of models that hold the client of their SDK.
_CLIENTS: Final = ("root_async_client", "_async_client")


def check_key(model: BaseChatModel) -> None:
    """Raise ModelFailed for a model whose key is empty. Most clients refuse an empty key; ChatAnthropic does not."""
    for field, variable in model.lc_secrets.items():
        key = getattr(model, field, None)
        if not isinstance(key, SecretStr) or key.get_secret_value().strip() or not field.endswith("api_key"):
            continue
        if not _has_header(model):
            raise ModelFailed(
                model_name(model), f"it has no API key; set {variable}, or create the model with api_key=…"
            )


def _has_header(model: BaseChatModel) -> bool:
    """Return whether the model's client sends a key in a configured header, from any source."""
    for name in _CLIENTS:
        headers = getattr(getattr(model, name, None), "default_headers", None) or {}
        for header, value in headers.items():
            if str(header).lower() in _HEADERS and isinstance(value, str) and value.removeprefix("Bearer").strip():
                return True
    return False
