"""The servers that a project names in `.mcp.json`, for the agents whose files name them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.agent.files.search_paths import Problem
from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer, as_server

MCP_FILE = ".mcp.json"
MAX_BYTES = 1024 * 1024
MAX_ENTRIES = 200


class ServerFile(NamedTuple):
    """The servers of a file by name, and its entries that cannot be used."""

    servers: Mapping[str, McpServer] = {}
    problems: tuple[Problem, ...] = ()


def read_server_file(folder: Path) -> ServerFile:
    """Return the servers that a project names; none without a file. Never raises for its content."""
    path = folder / MCP_FILE
    if not os.path.lexists(path):
        return ServerFile()
    try:
        entries = _entries(read_text(path, limit=MAX_BYTES, fence=folder).text)
    except (Unreadable, InvalidValue) as error:
        return ServerFile(problems=(Problem(path, f"{error}; skipped"),))
    servers: dict[str, McpServer] = {}
    problems: list[Problem] = []
    for name, entry in entries.items():
        try:
            servers[name] = as_server({**entry, "name": name} if isinstance(entry, dict) else entry)
        except InvalidValue as error:
            problems.append(Problem(path, f"{error}; skipped"))
    return ServerFile(servers, tuple(problems))


def _entries(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValue(MCP_FILE, "its text", "JSON") from None
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise InvalidValue(MCP_FILE, "its content", 'an object with "mcpServers": an object of servers by name')
    if len(entries) > MAX_ENTRIES:
        raise InvalidValue(MCP_FILE, f"{len(entries)} servers", f"at most {MAX_ENTRIES}")
    return entries
