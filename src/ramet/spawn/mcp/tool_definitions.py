"""The definition of a tool that a server of the Model Context Protocol lists, checked and bounded.

A server may lie. Its name, its description and its schema are parts of every request to a model, and a schema is read
by libraries of the model's provider. So a definition that is no plain, self-contained schema of an object is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ramet.agent.schemas.schema import JsonSchema
from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer
from ramet.models.request_codec import SchemaOnlyTool
from ramet.tools.agents.report_framing import neutralise
from ramet.tools.mcp.connection_port import ListedTool

MAX_NAME: Final = 64  #: characters of the name of a tool that every provider accepts
MAX_DESCRIPTION: Final = 4_000
#: Objects and lists of a schema once its references are replaced, and their levels.
MAX_PARTS, MAX_LEVELS = 2_000, 40
MAX_TOTAL_PARTS: Final = 25_000  #: of the tools that are looked at together, also of those that are left out then
_POINTERS: Final = ("#/$defs/", "#/definitions/")


class ServerTool(SchemaOnlyTool):
    """A tool of a server, of which only the definition is here."""

    timeout_s: float
    is_repeatable: bool = False  #: an interrupted call of it may begin again

    @property
    def size(self) -> int:
        """Return the bytes of the definition."""
        return len(msgspec.json.encode(self.as_data()))

    def shown_data(self) -> dict[str, Any]:
        """Return the definition as a model reads it."""
        return {"name": self.name, "description": self.description, "parameters": self.args_schema}

    def as_data(self) -> dict[str, Any]:
        """Return the definition as data, for the guest that calls the tool."""
        is_read_only = bool((self.metadata or {}).get("read_only"))
        return {**self.shown_data(), "timeout_s": self.timeout_s, "read_only": is_read_only}


class PartsBudget:
    """The parts of schemas that may be looked at together: each takes the host a tenth of a millisecond."""

    def __init__(self) -> None:
        self._left = MAX_TOTAL_PARTS

    def take(self) -> None:
        """Take one. Raises InvalidValue if none is left."""
        if not self._left:
            raise InvalidValue("schema", "its size", f"at most {MAX_TOTAL_PARTS} parts of all tools together")
        self._left -= 1


def definition_of(server: McpServer, listed: ListedTool, budget: PartsBudget) -> ServerTool:
    """Return the definition of a tool. Raises InvalidValue for one that no model can be shown."""
    name = server.tool_name(listed.name)
    if not listed.name or len(name) > MAX_NAME:
        accepted = f"a name of 1 to {MAX_NAME - len(server.tool_name(''))} characters"
        raise InvalidValue("name", listed.name[: 2 * MAX_NAME], accepted)
    if listed.schema.get("type") != "object" or not isinstance(listed.schema.get("properties", {}), Mapping):
        raise InvalidValue("schema", "its type", "the JSON schema of an object")
    schema = _Expansion(listed.schema, budget).expand()
    try:
        JsonSchema(schema)
    except InvalidValue as refusal:
        raise InvalidValue("schema", refusal.field, refusal.accepted) from None
    description, _ = neutralise(listed.description[: 2 * MAX_DESCRIPTION])
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[:MAX_DESCRIPTION]}…"
    parameters = {"properties": {}, **schema, "description": ""}
    return ServerTool(
        name=name,
        description=description,
        args_schema=parameters,
        timeout_s=server.timeout_s,
        is_repeatable=server.may_repeat(name, is_annotated=listed.is_repeatable),
    )


class _Expansion:
    """The replacement of a schema's references by what they refer to: libraries would do it without a bound."""

    def __init__(self, schema: Mapping[str, Any], budget: PartsBudget) -> None:
        self._schema, self._budget = schema, budget
        self._parts = 0

    def expand(self) -> dict[str, Any]:
        """Return the schema without references. Raises InvalidValue if it is too large, or refers to another place."""
        left_out = {pointer.split("/")[1] for pointer in _POINTERS}
        expanded: dict[str, Any] = self._expand({k: v for k, v in self._schema.items() if k not in left_out}, 0)
        return expanded

    def _expand(self, node: Any, level: int) -> Any:
        if not isinstance(node, dict | list | bool):
            return node
        self._budget.take()
        if isinstance(node, bool):
            return node
        self._parts += 1
        if self._parts > MAX_PARTS or level > MAX_LEVELS:
            raise InvalidValue("schema", "its size", f"at most {MAX_PARTS} parts and {MAX_LEVELS} levels")
        if isinstance(node, list):
            return [self._expand(each, level + 1) for each in node]
        reference = node.get("$ref")
        if isinstance(reference, str):
            others = {key: value for key, value in node.items() if key != "$ref"}
            target = self._find(reference)
            return self._expand({**target, **others} if isinstance(target, dict) else target, level + 1)
        return {key: self._expand(value, level + 1) for key, value in node.items()}

    def _find(self, reference: str) -> Any:
        for pointer in _POINTERS:
            if reference.startswith(pointer):
                definitions = self._schema.get(pointer.split("/")[1])
                name = reference.removeprefix(pointer)
                if isinstance(definitions, Mapping) and name in definitions:
                    return definitions[name]
        raise InvalidValue("schema", reference[:100], "references to its own $defs")
