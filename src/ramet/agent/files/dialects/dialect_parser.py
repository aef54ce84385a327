"""Read an agent's file in the dialect of its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from ramet.agent.definition import Scope
from ramet.agent.files.agent_file import AgentFile, parse_agent
from ramet.agent.files.dialects import codex, deepagents, opencode
from ramet.agent.files.search_paths import Dialect
from ramet.core.mcp.server_entry import McpServer

_PARSERS: Mapping[Dialect, Callable[[str, Path, Scope], AgentFile]] = {
    "codex": codex.parse,
    "deepagents": deepagents.parse,
    "opencode": opencode.parse,
}


def parse_file(
    text: str,
    *,
    source: Path,
    scope: Scope,
    dialect: Dialect,
    trusted: bool = False,
    servers: Mapping[str, McpServer] = MappingProxyType({}),
) -> AgentFile:
    """Parse one file's text; `servers` are those that it may name.

    Raises InvalidValue, with the file, the key, the value and the accepted values.
    """
    if dialect == "claude":
        return parse_agent(text, source=source, scope=scope, trusted=trusted, servers=servers)
    return _PARSERS[dialect](text, source, scope)
