"""Run a program of another maker in its sandbox: the function that the host packs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.errors import InvalidValue
from ramet.guest.external.acp import drive_acp
from ramet.guest.external.channel_host import ChannelHost
from ramet.guest.external.home_files import SCRATCH_FOLDER, is_path_below, write_home
from ramet.guest.external.process import started_program
from ramet.guest.external.program_host import ProgramHost
from ramet.guest.external.stream_json import drive_stream_json
from ramet.guest.external.text import drive_text
from ramet.guest.models.model_endpoint import ModelEndpoint, model_endpoint
from ramet.guest.thread_channel import ThreadChannel, stream_channel
from ramet.wire.external_program import HOME_FOLDER, PROTOCOLS, TREE_SERVER, ProgramStart

_ENDPOINT: Final = ("anthropic_url", "openai_url", "google_url", "mcp_url", "key")
_PLACEHOLDER: Final = re.compile(rf"\$\{{({'|'.join(_ENDPOINT)}|home|prompt)\}}")
#: Variables of the sandbox that a program gets: how it finds commands, and the way out if there is one.
_INHERITED: Final = ("PATH", "LANG", "USER", "http_proxy", "https_proxy", "all_proxy")
_LOCAL: Final = "127.0.0.1,localhost"


async def run_program(start: ProgramStart) -> str:
    """Run a program to its end, and return the text of its last reply.

    Raises TaskFailed if it fails, BudgetExceeded and Aborted as its host does, and OSError where the sandbox has no
    loopback address for its model requests.
    """
    channel = stream_channel()
    assert isinstance(channel, ThreadChannel)
    with contextlib.ExitStack() as stack:
        values: dict[str, str] = {}
        if start.tree_tools or _names_endpoint(start):
            values = endpoint_values(stack.enter_context(model_endpoint(tree_tools=start.tree_tools)))
        host = ChannelHost(channel)
        stack.callback(host.close)
        return await drive_program(start, host, workspace=Path.cwd(), values=values)


async def drive_program(
    start: ProgramStart,
    host: ProgramHost,
    *,
    workspace: Path,
    values: Mapping[str, str],
    clock: Clock | None = None,
) -> str:
    """Run a program for a host, with the values of the placeholders that an endpoint for models has.

    Without `${prompt}` in its command, a program that does not speak ACP reads its prompt from its standard input. A
    further prompt starts such a program anew. Raises as `run_program` does, and InvalidValue.
    """
    if start.protocol not in PROTOCOLS:
        raise InvalidValue("protocol", start.protocol, " | ".join(PROTOCOLS))
    if not start.command:
        raise InvalidValue("command", start.command, "a program and its arguments")
    values = {**values, "home": str(workspace / HOME_FOLDER)}
    home = write_home(workspace, {path: _fill(text, values) for path, text in start.files.items()})
    env = _environment(home) | {name: _fill(text, values) for name, text in start.env.items()}
    cwd = _working_folder(workspace, start.cwd)
    if start.protocol == "acp":
        command = [_fill(each, values) for each in start.command]
        async with started_program(command, env=env, cwd=cwd, has_input=True) as program:
            servers = [tree_server(values)] if start.tree_tools else []
            return await drive_acp(
                start, host, program, cwd=cwd, clock=clock or SystemClock(), mcp_servers=servers, home=home
            )
    has_input = not any("${prompt}" in each for each in start.command)
    text, prompt = "", start.prompt or None
    while prompt is not None:
        command = [_fill(each, {**values, "prompt": prompt}) for each in start.command]
        async with started_program(command, env=env, cwd=cwd, has_input=has_input) as program:
            if has_input:
                program.write_input(prompt)
            drive = drive_text if start.protocol == "text" else drive_stream_json
            text = await drive(program, host)
        prompt = await host.take_prompt()
    return text


def endpoint_values(endpoint: ModelEndpoint) -> dict[str, str]:
    """Return the values of the placeholders that stand for an endpoint for models."""
    urls = {f"{wire}_url": endpoint.url(wire) for wire in ("anthropic", "openai", "google")}
    tools = {"mcp_url": endpoint.mcp_url} if endpoint.has_tree_tools else {}
    return {**urls, **tools, "key": endpoint.key}


def tree_server(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the server of the tools of the tree, as a session of the Agent Client Protocol takes it."""
    authorization = {"name": "Authorization", "value": f"Bearer {values['key']}"}
    return {"type": "http", "name": TREE_SERVER, "url": values["mcp_url"], "headers": [authorization]}


def _names_endpoint(start: ProgramStart) -> bool:
    texts = (*start.command, *start.env.values(), *start.files.values())
    return any("${" + name + "}" in text for text in texts for name in _ENDPOINT)


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of its placeholders, and nothing else changed.

    A prompt that would be an option of the command gets a space before it.
    """
    filled = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
    return f" {filled}" if filled.startswith("-") and text.startswith("${prompt}") else filled


def _environment(home: Path) -> dict[str, str]:
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env |= {name.upper(): value for name, value in env.items() if name.endswith("_proxy")}
    return env | {"HOME": str(home), "TMPDIR": str(home / SCRATCH_FOLDER), "NO_PROXY": _LOCAL, "no_proxy": _LOCAL}


def _working_folder(workspace: Path, cwd: str) -> Path:
    if not cwd or cwd == ".":
        return workspace
    if not is_path_below(cwd) or not (workspace / cwd).is_dir():
        raise InvalidValue("cwd", cwd, "a folder of the workspace")
    return workspace / cwd
