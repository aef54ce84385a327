"""Programs of other makers in the settings of a server: the operator's own, by name."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any, Final

from msgspec import Struct

from ramet.agent.external.external import External
from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name
from ramet.host.observability.redaction import STARS
from ramet.services.config import validators

_PLACEHOLDER: Final = re.compile(r"\$\{\w+\}")
_KEYS: Final = tuple(each.name for each in dataclasses.fields(External))


class ExternalSettings(Struct, frozen=True):
    """Settings of a program. The text form shows neither its variables nor its files."""

    external: External

    def __str__(self) -> str:
        program = self.external.preset or self.external.command[0]
        models = ", ".join(self.external.models)
        return f"{program}: {models}" if models else program

    def __repr__(self) -> str:
        return f"ExternalSettings({str(self)!r})"


def external_of(field: str, value: Any, base: pathlib.Path) -> ExternalSettings:
    """Return the settings of one program. Raises InvalidValue, which names the setting and shows no secret."""
    checked_name(field, field.partition(".")[2])
    if not isinstance(value, dict):
        raise InvalidValue(field, value, "a mapping with a command or a preset")
    validators.known_keys(field, value, _KEYS)
    given = {name: each for name, each in value.items() if each is not None}
    for name in ("env", "files"):
        for key, text in _texts_of(given.get(name)):
            if isinstance(text, str) and _shows_secret(text):
                accepted = "text without a secret in it: it is recorded, and visible in the sandbox"
                raise InvalidValue(f"{field}.{name}.{key}", STARS, accepted)
    try:
        return ExternalSettings(External(**given))
    except InvalidValue as problem:
        name = problem.field.removeprefix("external").removeprefix(".").removeprefix("policy.")
        raise InvalidValue(f"{field}.{name}" if name else field, problem.value, problem.accepted) from None


def _shows_secret(text: str) -> bool:
    own_text = _PLACEHOLDER.sub("", text)  # A program's own key is written as a placeholder.
    return bool(validators.redact(own_text) != own_text)


def _texts_of(value: object) -> list[tuple[object, object]]:
    return list(value.items()) if isinstance(value, dict) else []
