"""The tools of the tree in a program's own configuration, for a program that gets no server with its session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ramet.wire.external_program import TREE_SERVER

_HEADERS: Final = {"Authorization": "Bearer ${key}"}
_CODEX: Final = f"""\

[mcp_servers.{TREE_SERVER}]
url = "${{mcp_url}}"
bearer_token_env_var = "RAMET_KEY"
startup_timeout_sec = 60
"""
#: By preset: the file, the key in it, and the server as the program takes it. See `tests/agents/README.md`.
_JSON_FILES: Final[Mapping[str, tuple[str, str, dict[str, Any]]]] = {
    "claude-code": (".claude.json", "mcpServers", {"type": "http", "url": "${mcp_url}", "headers": _HEADERS}),
    "gemini": (
        ".gemini/settings.json",
        "mcpServers",
        {"httpUrl": "${mcp_url}", "headers": _HEADERS, "trust": True},  # without: no tools where there is no terminal
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        "mcp",
        {"type": "remote", "url": "${mcp_url}", "headers": _HEADERS},
    ),
}


def with_tree_tools(preset: str, files: Mapping[str, str], *, has_user: bool = True) -> dict[str, str]:
    """Return the files of a known program, with the server of the tools of the tree in them.

    Without a user whom it can ask, Claude Code denies itself each tool of a server that its settings do not allow.
    """
    if preset == "codex":
        return {**files, ".codex/config.toml": files[".codex/config.toml"] + _CODEX}
    name, key, server = _JSON_FILES[preset]
    offered = _with_member(files, name, key, TREE_SERVER, server)
    if preset == "claude-code" and not has_user:
        return _with_member(offered, ".claude/settings.json", "permissions", "allow", [f"mcp__{TREE_SERVER}"])
    return offered


def _with_member(files: Mapping[str, str], name: str, key: str, member: str, value: object) -> dict[str, str]:
    """Return the files, with a member of an object of a file in JSON."""
    settings: dict[str, Any] = json.loads(files.get(name, "{}"))
    settings[key] = {**settings.get(key, {}), member: value}
    return {**files, name: json.dumps(settings)}
