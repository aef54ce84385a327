"""Scripts of model servers for programs of other makers: what each program calls its tools, and asks besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.http import Request
from tests.support.providers import Call, Step

ANSWERS = ("claude-code", "codex", "gemini-cli", "opencode")  #: answer a prompt that is an argument
SPEAKS_ACP = ("claude-agent-acp", "codex-acp", "gemini-cli", "opencode")

#: The titles of sessions, which programs ask models for. Each has a sentence that is in no other request.
TITLES: Mapping[str, Sequence[Step]] = {
    "You are naming a coding session": ['{"title": "A title"}'],
    "generate a very short title": ['{"title": "A title"}'],
}


def each(names: Sequence[str]) -> pytest.MarkDecorator:
    """Return the mark that runs a test with each of these programs, as the fixture `program`."""
    return pytest.mark.parametrize(
        "program", [pytest.param(name, marks=pytest.mark.agents(name)) for name in names], indirect=True
    )


def write_call(name: str, path: Path, text: str) -> Call:
    """Return the call by which a program writes a file, and for which it asks."""
    match name:
        case "claude-code" | "claude-agent-acp":
            return Call("Write", {"file_path": str(path), "content": text})
        case "codex":
            return Call("exec_command", {"cmd": f"printf %s {text!r} > {path}"})
        case "codex-acp":
            asked = {"sandbox_permissions": "require_escalated", "justification": "May I write?"}
            return Call("exec_command", {"cmd": f"printf %s {text!r} > {path}", **asked})
        case "gemini-cli":
            return Call("write_file", {"file_path": str(path), "content": text})
        case "opencode":
            return Call("write", {"filePath": str(path), "content": text})
    raise ValueError(name)


def mcp_tool(name: str, server: str, tool: str) -> str:
    """Return what a program calls a tool of an MCP server."""
    return {
        "claude-agent-acp": f"mcp__{server}__{tool}",
        "claude-code": f"mcp__{server}__{tool}",
        "codex": f"mcp__{server}/{tool}",
        "codex-acp": f"mcp__{server}/{tool}",  # a tool in a namespace
        "gemini-cli": f"mcp_{server}_{tool}",
        "opencode": f"{server}_{tool}",
    }[name]


def turns(requests: Sequence[Request]) -> list[Request]:
    """Return the requests of an agent's turns: those that offer tools. Titles offer none."""
    return [request for request in requests if request.body.get("tools")]
