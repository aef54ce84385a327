"""`ramet mcp list|test|prompts`: the MCP servers that a folder's files name, and what one of them offers."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from langchain_core.tools import BaseTool
from rich.text import Text

from ramet.agent.definition import Agent
from ramet.agent.files.definitions import Definitions
from ramet.agent.files.mcp_file import MCP_FILE, read_server_file
from ramet.agent.files.trust import is_trusted
from ramet.cli.paths import display_path, user_dir
from ramet.cli.project import load
from ramet.cli.render.console import console
from ramet.cli.render.sanitize import one_line
from ramet.core.errors import McpServerFailed, RametError, Unknown
from ramet.core.events import Notice
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.models.scripted.model import ScriptedModel

#: Memory of the sandbox in which a server is tried.
MEMORY_MB = 512
WAITS = "(waits for trust: ramet trust DIR)"


class _Row(NamedTuple):
    """A server, and where it is named."""

    server: McpServer
    place: str
    is_usable: bool = True  #: its folder is trusted


def mcp(options: Namespace) -> int:
    """Run the verb. Raises Unknown, and RametError for a server that has no tools."""
    definitions = load(options.dir)
    rows = list(_rows(options.dir, definitions))
    if options.verb == "test":
        return _test(options, rows)
    if options.verb == "prompts":
        return _prompts(options, rows)
    for row in rows:
        if options.json:
            data = {"name": row.server.name, "place": row.place, "usable": row.is_usable}
            print(json.dumps({**data, "command": [row.server.command, *row.server.args]}))
        else:
            command = shlex.join([row.server.command, *row.server.args])
            _print(row.server.name, row.place, command, *([] if row.is_usable else [WAITS]))
    return 0


def _rows(folder: Path, definitions: Definitions) -> Iterator[_Row]:
    trusted = is_trusted(folder, user_dir())
    servers = read_server_file(folder).servers
    yield from (_Row(server, MCP_FILE, trusted) for server in servers.values())
    for agent in definitions.values():
        yield from (
            _Row(server, f"agent {agent.name}") for server in agent.mcp_servers if servers.get(server.name) != server
        )


def _server(options: Namespace, rows: list[_Row]) -> McpServer:
    """Return the server of a name. Raises Unknown, and McpServerFailed for one that waits for trust."""
    row = next((each for each in rows if each.server.name == options.name), None)
    if row is None:
        raise Unknown("MCP server", options.name, tuple(dict.fromkeys(each.server.name for each in rows)))
    if not row.is_usable:
        raise McpServerFailed(options.name, f"not started: ramet trust {display_path(options.dir)}")
    return row.server


def _policy(options: Namespace) -> Policy:
    return Policy(readonly_mounts=(str(options.dir.resolve()),), memory_mb=MEMORY_MB)


def _prompts(options: Namespace, rows: list[_Row]) -> int:
    from ramet.cli.commands.mcp_prompts import as_data, cells, list_prompts, print_prompt

    server = _server(options, rows)
    if options.prompt is not None:
        print_prompt(options, server, _policy(options))
        return 0
    for each in list_prompts(server, _policy(options)):
        if options.json:
            print(json.dumps(as_data(each)))
        else:
            _print(*cells(each))
    return 0


def _test(options: Namespace, rows: list[_Row]) -> int:
    for tool in asyncio.run(_list_tools(_server(options, rows), _policy(options))):
        if options.json:
            print(json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.args_schema}))
        else:
            _print(tool.name, tool.description)
    return 0


async def _list_tools(server: McpServer, policy: Policy) -> list[BaseTool]:
    """Return the tools of a server, as an agent with this policy gets them. Raises RametError if there are none."""
    agent = Agent(
        name="test", model=ScriptedModel(["Done."]), mcp=[server], tools=[f"mcp__{server.name}"], policy=policy
    )
    with tempfile.TemporaryDirectory() as scratch:
        async with AgentRuntime(scratch) as runtime:
            handle = await runtime.spawn(agent, "List your tools.")
            result = await handle.result()
            notices = [each.text async for each in handle.events() if isinstance(each, Notice)]
            tools = [each for each in handle.run.context.tools if server.covers(each.name)]
    if not tools:
        reason = result.error.message if result.error is not None else "it has no tool that can be used"
        raise RametError("; ".join(notices) or str(McpServerFailed(server.name, reason)))
    if notices:
        _print("; ".join(notices), to_stderr=True)
    return tools


def _print(*cells: str, to_stderr: bool = False) -> None:
    out = console(sys.stderr if to_stderr else sys.stdout)
    out.print(Text("  ".join(one_line(each, 2_000) for each in cells)), soft_wrap=True)
