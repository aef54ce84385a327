"""Functions that start a program of another maker inside their sandbox, with the tools of their tree over MCP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from ramet.sub_agent_client import ModelEndpoint, model_endpoint
from tests.support.acp_client import acp_agent
from tests.support.agent_programs import KEY, Program, installed

WIRES = {"claude": "anthropic", "codex": "openai", "gemini": "google", "opencode": "openai"}
SERVER = "tree"


def lead_over_acp(name: str, prompt: str) -> dict[str, Any]:
    """Give a program one prompt over ACP, in a session with the tools; return how it ended."""

    async def lead(program: Program, endpoint: ModelEndpoint, home: Path, folder: Path) -> dict[str, Any]:
        assert program.acp is not None
        env = _prepare(program, endpoint, home)
        authorization = {"name": "Authorization", "value": f"Bearer {endpoint.key}"}
        server = {"type": "http", "name": SERVER, "url": endpoint.mcp_url, "headers": [authorization]}
        command = [*program.command, *program.acp]
        async with acp_agent(command, env, folder, decide=lambda _: "allow_once") as agent:
            session = await agent.new_session(folder, [server])
            ended = await agent.prompt(session, prompt)
            return {"text": agent.text, "stop_reason": ended["stopReason"], "stderr": agent.stderr[-2_000:]}

    program, home, folder = _folders(name)
    with model_endpoint(tree_tools=True) as endpoint:
        return asyncio.run(lead(program, endpoint, home, folder))


def lead_by_prompt(name: str, prompt: str) -> dict[str, Any]:
    """Give a program one prompt as an argument, with the tools in its configuration; return how it ended."""
    program, home, folder = _folders(name)
    with model_endpoint(tree_tools=True) as endpoint:
        env = _prepare(program, endpoint, home)
        env["TREE_KEY"] = endpoint.key
        options = _offer_tools(name, endpoint, home)
        process = subprocess.Popen(
            [*program.command, *program.prompt(prompt), *options],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stdout, stderr = process.communicate()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return {"text": stdout, "code": process.returncode, "stderr": stderr[-2_000:]}


def _folders(name: str) -> tuple[Program, Path, Path]:
    program, home, folder = installed(name), Path("home").absolute(), Path("work").absolute()
    assert program is not None
    home.mkdir()
    folder.mkdir()
    return program, home, folder


def _prepare(program: Program, endpoint: ModelEndpoint, home: Path) -> dict[str, str]:
    """Write the configuration of a program that asks its models at the endpoint; return its environment."""
    url = endpoint.url(next(wire for name, wire in WIRES.items() if program.name.startswith(name)))
    env = program.prepare(home, url)
    for name in program.configuration(url):
        path = home / name
        path.write_text(path.read_text().replace(KEY, endpoint.key))
    return {name: value.replace(KEY, endpoint.key) for name, value in env.items()}


def _offer_tools(name: str, endpoint: ModelEndpoint, home: Path) -> list[str]:
    """Write the server of the tools into the configuration of a program; return further arguments."""
    server: dict[str, Any] = {"headers": {"Authorization": f"Bearer {endpoint.key}"}}
    match name:
        case "claude-code":
            server |= {"type": "http", "url": endpoint.mcp_url}
            servers = json.dumps({"mcpServers": {SERVER: server}})
            return ["--mcp-config", servers, "--allowedTools", f"mcp__{SERVER}"]
        case "codex":
            with (home / ".codex/config.toml").open("a") as config:
                config.write(f'\n[mcp_servers.{SERVER}]\nurl = "{endpoint.mcp_url}"\n')
                config.write('bearer_token_env_var = "TREE_KEY"\n')
        case "gemini-cli":
            server |= {"httpUrl": endpoint.mcp_url, "trust": True}
            _merge(home / ".gemini/settings.json", {"mcpServers": {SERVER: server}})
        case "opencode":
            server |= {"type": "remote", "url": endpoint.mcp_url}
            _merge(home / ".config/opencode/opencode.json", {"mcp": {SERVER: server}})
    return []


def _merge(path: Path, more: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
