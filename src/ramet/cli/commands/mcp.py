"""`ramet mcp list|install|test|prompts|login|logout`: the MCP servers of a folder's files, and what they offer."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool
from rich.text import Text

from ramet.agent.definition import Agent
from ramet.agent.files.definitions import Definitions
from ramet.agent.files.mcp_file import MCP_FILE, read_server_file
from ramet.agent.files.mcp_lock import read_lock_file, write_lock_file
from ramet.agent.files.trust import is_trusted
from ramet.cli.commands.mcp_install import install_packages
from ramet.cli.commands.mcp_login import login, logout
from ramet.cli.errors import print_error
from ramet.cli.paths import display_path, user_dir
from ramet.cli.project import load
from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
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
    server_file = read_server_file(options.dir)
    for problem in server_file.problems:
        print_error(f"{problem.path}: {problem.sentence}")
    rows = list(_rows(options.dir, definitions, server_file.servers))
    match options.verb:
        case "test":
            return _test(options, rows)
        case "install":
            return install_packages(options, [each.server for each in _chosen(rows, options.names)])
        case "prompts":
            return _prompts(options, rows)
        case "login":
            return login(_usable(options, rows).server, has_browser=options.browser)
        case "logout":
            return logout(_named(options, rows).server)
    if not (rows or server_file.problems or options.json):
        print_note(f"no MCP server is named here, neither in {MCP_FILE} nor by an agent")
    for row in rows:
        if options.json:
            data = {"name": row.server.name, "place": row.place, "usable": row.is_usable}
            print_json(json.dumps({**data, **_reach(row.server)}))
        else:
            reach = row.server.url or shlex.join([row.server.command, *row.server.args])
            _print(row.server.name, row.place, reach, *([] if row.is_usable else [WAITS]))
    return 1 if server_file.problems else 0


def _reach(server: McpServer) -> dict[str, Any]:
    return {"url": server.url} if server.url else {"command": [server.command, *server.args]}


def _rows(folder: Path, definitions: Definitions, servers: Mapping[str, McpServer]) -> Iterator[_Row]:
    trusted = is_trusted(folder, user_dir())
    yield from (_Row(server, MCP_FILE, trusted) for server in servers.values())
    for agent in definitions.values():
        yield from (
            _Row(server, f"agent {agent.name}") for server in agent.mcp_servers if servers.get(server.name) != server
        )


def _chosen(rows: list[_Row], names: list[str]) -> list[_Row]:
    """Return the servers of these names, or all. Raises Unknown."""
    for name in names:
        if all(each.server.name != name for each in rows):
            raise Unknown("MCP server", name, tuple(dict.fromkeys(each.server.name for each in rows)))
    return [each for each in rows if not names or each.server.name in names]


def _named(options: Namespace, rows: list[_Row]) -> _Row:
    return _chosen(rows, [options.name])[0]


def _usable(options: Namespace, rows: list[_Row]) -> _Row:
    row = _named(options, rows)
    if not row.is_usable:
        raise McpServerFailed(options.name, f"not started: ramet trust {display_path(options.dir)}")
    return row


def _policy(options: Namespace, server: McpServer) -> Policy:
    endpoints = (server.endpoint,) if server.url else ()  # It was named by who typed the command.
    return Policy(
        readonly_mounts=(str(options.dir.resolve()),), memory_mb=MEMORY_MB, allowed_endpoints=endpoints or None
    )


def _prompts(options: Namespace, rows: list[_Row]) -> int:
    from ramet.cli.commands.mcp_prompts import as_data, cells, list_prompts, print_prompt

    server = _usable(options, rows).server
    policy = _policy(options, server)
    if options.prompt is not None:
        print_prompt(options, server, policy)
        return 0
    for each in list_prompts(server, policy, options.dir):
        if options.json:
            print_json(json.dumps(as_data(each)))
        else:
            _print(*cells(each))
    return 0


def _test(options: Namespace, rows: list[_Row]) -> int:
    server = _usable(options, rows).server
    for tool in asyncio.run(_list_tools(server, _policy(options, server), options.dir)):
        if options.json:
            print_json(json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.args_schema}))
        else:
            _print(tool.name, tool.description)
    return 0


async def _list_tools(server: McpServer, policy: Policy, folder: Path) -> list[BaseTool]:
    """Return the tools of a server, as an agent with this policy gets them. Raises RametError if there are none."""
    agent = Agent(
        name="test", model=ScriptedModel(["Done."]), mcp=[server], tools=[f"mcp__{server.name}"], policy=policy
    )
    with tempfile.TemporaryDirectory() as scratch:
        write_lock_file(Path(scratch), read_lock_file(folder))  # Its tree works there, with the packages of the folder.
        async with AgentRuntime(scratch, user_dir=user_dir()) as runtime:
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
