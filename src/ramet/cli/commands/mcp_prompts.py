"""`ramet mcp prompts`: the prompts of an MCP server, and the text of one of them with its arguments."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from ramet.agent.files.mcp_lock import read_lock_file, write_lock_file
from ramet.cli.paths import user_dir
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import sanitize
from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.host.sessions.server_prompts import started_servers
from ramet.tools.mcp.connection_port import ListedPrompt, ServerPrompts


def list_prompts(server: McpServer, policy: Policy, folder: Path) -> tuple[ListedPrompt, ...]:
    """Return the prompts of a server of a folder, which runs in a sandbox for that. Raises RametError."""
    return asyncio.run(_list(server, policy, folder))


def print_prompt(options: Namespace, server: McpServer, policy: Policy) -> None:
    """Print the text of a prompt. Raises RametError."""
    text = asyncio.run(_render(options, server, policy))
    if options.json:
        print_json(json.dumps({"prompt": options.prompt, "text": text}))
    else:
        sys.stdout.write(f"{sanitize(text)}\n")


async def _list(server: McpServer, policy: Policy, folder: Path) -> tuple[ListedPrompt, ...]:
    async with _servers(server, policy, folder) as prompts:
        return await prompts.list_prompts(server.name)


async def _render(options: Namespace, server: McpServer, policy: Policy) -> str:
    arguments = _arguments(options.arguments)
    async with _servers(server, policy, options.dir) as prompts:
        return await prompts.render_prompt(server.name, options.prompt, arguments)


@asynccontextmanager
async def _servers(server: McpServer, policy: Policy, folder: Path) -> AsyncGenerator[ServerPrompts]:
    with tempfile.TemporaryDirectory() as scratch:
        write_lock_file(Path(scratch), read_lock_file(folder))  # Its tree works there, with the packages of the folder.
        async with AgentRuntime(scratch, user_dir=user_dir()) as runtime:
            async with started_servers(runtime, [server], policy) as prompts:
                yield prompts


def _arguments(words: list[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name or name in arguments:
            raise InvalidValue("argument", word[:100], "NAME=VALUE, each name once")
        arguments[name] = value
    return arguments


def cells(prompt: ListedPrompt) -> list[str]:
    """Return the name, the arguments and the description of a prompt, without empty ones."""
    arguments = " ".join(f"{each.name}=" if each.is_required else f"[{each.name}=]" for each in prompt.arguments)
    return [part for part in (prompt.name, arguments, prompt.description) if part]


def as_data(prompt: ListedPrompt) -> dict[str, object]:
    """Return a prompt as JSON data."""
    arguments = [
        {"name": each.name, "description": each.description, "required": each.is_required} for each in prompt.arguments
    ]
    return {"name": prompt.name, "description": prompt.description, "arguments": arguments}
