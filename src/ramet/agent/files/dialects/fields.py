"""The keys of one file of another program, read one by one: what nobody asked for is named in a note."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramet.agent.definition import Agent, Scope
from ramet.agent.files.agent_file import AgentFile
from ramet.core.errors import InvalidValue


class FileFields:
    """The keys of a file, and the notes on it. Each key is taken once; `agent_file` notes the keys that are left."""

    def __init__(self, keys: Mapping[str, Any], source: Path, program: str, notes: tuple[str, ...] = ()) -> None:
        self._keys, self.source, self._program, self.notes = dict(keys), source, program, [*notes]

    def take(self, key: str) -> Any:
        """Return the value of a key; None without it."""
        return self._keys.pop(key, None)

    def text(self, key: str, *, required: bool = False) -> str:
        """Return the text of a key. Raises InvalidValue."""
        value = self.take(key)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or (required and not value.strip()):
            raise self.refusal(key, value, "text" if not required else "text; every agent file must have it")
        return value.strip()

    def choice(self, key: str, *accepted: str) -> str:
        """Return one of the accepted values; empty without the key. Raises InvalidValue."""
        value = self.take(key)
        if value is not None and value not in accepted:
            raise self.refusal(key, value, " or ".join(accepted))
        return value or ""

    def flag(self, key: str) -> bool:
        """Return true or false; false without the key. Raises InvalidValue."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(key, value, "true or false")
        return bool(value)

    def note(self, key: str, reason: str) -> None:
        """Add a note on a key that is not honoured, or not as its program does."""
        self.notes.append(f"{key}: {reason}")

    def refusal(self, key: str, value: object, accepted: str) -> InvalidValue:
        return InvalidValue(f"{self.source}: {key}", value, accepted)

    def agent_file(self, scope: Scope, **fields: Any) -> AgentFile:
        """Return the definition with these fields. Raises InvalidValue."""
        for key in self._keys:
            self.note(key[:100], f"not honoured: it is for {self._program}")
        try:
            agent = Agent(**fields, scope=scope, source=self.source)
        except InvalidValue as error:
            raise self.refusal(error.field, error.value, error.accepted) from None
        return AgentFile(agent, tuple(self.notes))
