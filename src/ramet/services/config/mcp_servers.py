"""MCP servers in the settings of a server: the operator's own, which agents of the type "llm" name."""

from __future__ import annotations

import pathlib
from typing import Any

from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer, as_server
from ramet.host.observability.redaction import STARS
from ramet.services.config import validators

SETTING = "mcpServers"


class McpServerSettings(Struct, frozen=True):
    """Settings of an MCP server. The text form does not show its arguments and variables."""

    server: McpServer

    def __str__(self) -> str:
        return self.server.endpoint or self.server.command

    def __repr__(self) -> str:
        return f"McpServerSettings({str(self)!r})"


def mcp_server_of(field: str, value: Any, base: pathlib.Path) -> McpServerSettings:
    """Return the settings of one server. Raises InvalidValue, which names the setting and shows no secret."""
    if not isinstance(value, dict):
        raise InvalidValue(field, value, "a mapping with a command, as an entry of .mcp.json")
    if "name" in value:
        raise InvalidValue(f"{field}.name", value["name"], "nothing: its name is its key")
    name = field.partition(".")[2]
    try:
        server = as_server({**{str(key): each for key, each in value.items() if each is not None}, "name": name})
    except InvalidValue as problem:
        place = problem.field.removeprefix("mcp_server.").removeprefix("mcp.").removeprefix(f"{name}.")
        is_own = problem.field in ("mcp", "mcp.name")
        raise InvalidValue(field if is_own else f"{field}.{place}", problem.value, problem.accepted) from None
    accepted = "text without a secret in it: an agent of the sandbox reads it. Write ${NAME} for a secret of its policy"
    for number, text in enumerate(server.args):
        if validators.redact(text) != text:
            raise InvalidValue(f"{field}.args.{number}", STARS, accepted)
    for key, text in server.env.items():
        if validators.redact(text) != text:
            raise InvalidValue(f"{field}.env.{key}", STARS, accepted)
    for key, text in server.headers.items():
        if validators.redact(text) != text:
            raise InvalidValue(f"{field}.headers.{key}", STARS, accepted)
    return McpServerSettings(server)
