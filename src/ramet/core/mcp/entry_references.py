"""References in the entry of a server: `${NAME}`, and `${NAME:-text}`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from ramet.core.errors import InvalidValue

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)(?::-([^}]*))?\}")


def fill_references(field: str, text: str, value_of: Callable[[str], str | None]) -> str:
    """Return the text with the values of its references. Raises InvalidValue for a name without value and default."""

    def fill(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = value_of(name)
        if value is None and default is None:
            accepted = "a variable or a secret of its sandbox (policy.env_vars, policy.secrets)"
            raise InvalidValue(field, match[0], accepted)
        return str(default) if value is None else value

    end = text.rfind("}") + 1  # Behind it no reference ends: many that begin there would each be read to the end.
    return _REFERENCE.sub(fill, text[:end]) + text[end:]
