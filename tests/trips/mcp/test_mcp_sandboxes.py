"""The sandboxes of MCP servers: their rights, and their end."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
import uuid
from typing import Any

import pytest

import ramet
from ramet.agent.history.pairing import INTERRUPTED
from ramet.core.events import ApprovalAsked
from ramet.core.outcome import Status
from ramet.models.scripted.dialogue import Call
from ramet.tools.context import ToolUseContext
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BACKENDS, BackendName, marked_processes
from tests.trips.kits.mcp import POLICY, agent, server, talk

FOUND = ("calc", "own", "board")
ROOT = pathlib.Path(__file__).parents[3]


def tool_results(context: ToolUseContext) -> list[str]:
    return [each.text for each in context.history if each.type == "tool"]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_has_a_sandbox_of_its_own(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A policy gives it less than its agent has; it takes a part of the agent's memory, and never more rights."""
    rights: dict[str, Any] = {"secrets": {"KEY": "k-12345", "OTHER": "o-12345"}, "env_vars": {"UNIT": "metres"}}
    policy = ramet.Policy(readonly_mounts=POLICY.readonly_mounts, memory_mb=512, **rights)
    own = server("plain", "describes", "${KEY}", "${UNIT:-none}", "${OTHER:-none}", name="own")
    own["policy"] = {"secrets": ["KEY"], "allowed_env_vars": [], "env_vars": {}, "memory_mb": 128, "cpu_cores": 0.2}
    large = server("plain", "describes", name="large", policy={"memory_mb": 450, "cpu_cores": 0.2})
    broken = {"name": "broken", "command": "no-such-program", "policy": {"memory_mb": 64, "cpu_cores": 0.2}}
    inside = server("plain", "describes", "${OTHER}", name="inside")
    show = {each: Call(f"mcp__{each}__work", {"value": "/"}) for each in ("own", "inside")}
    user = agent(own, inside, large, broken, policy=policy, tools=None)
    done = await talk(tmp_path, backend, user, show["own"], show["inside"])

    assert done.result.status is Status.COMPLETED, done.result.error
    shown, shown_inside = (json.loads(each.removeprefix("ok: ")) for each in done.outputs)
    assert shown["arguments"] == ["***", "none", "none"], "a secret, masked, and nothing else"
    assert shown_inside["arguments"] == ["***"]
    assert shown["folder"] != shown_inside["folder"]
    notices = "\n".join(done.notices)
    assert "the MCP server 'large' failed: spawn refused (memory_mb): the living children of main/1 share" in notices
    assert "the MCP server 'broken' failed: the program 'no-such-program' could not be started" in notices


@pytest.mark.parametrize("backend", BACKENDS)
async def test_no_process_of_a_server_outlives_its_turn(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A run that is stopped during a call, or a killed kernel, leaves no process that its servers had started.

    The next kernel goes on from the journal, and does not repeat the call, nor what the server had asked a person.
    """
    mark = uuid.uuid4().hex
    script: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "user", "prompt": "Play.", "run_in_background": True}), "Done."],
        "Play.": [Call("mcp__own__work", {"value": "answer"}), Call("mcp__calc__work", {}), "Never."],
    }
    user = agent(
        server("plain", "leaves", mark), server("plain", "leaves", mark, name="own", policy={"memory_mb": 128})
    )
    async with ramet.Session(
        ramet.ScriptedModel(script=script), agents=[user], cwd=tmp_path, backend=backend, unattended=True
    ) as session:
        await session.ask("Begin!")
        await eventually(lambda: len(marked_processes(mark)) == 4)
        await session.handle("main/1").cancel()

        assert marked_processes(mark) == []

    mark = uuid.uuid4().hex
    command = (sys.executable, "-m", "tests.trips.programs.mcp_kernel", str(tmp_path / "work"), backend, mark)
    kernel = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert kernel.stdout is not None
        assert await asyncio.wait_for(kernel.stdout.readline(), 180) == b"asked\n"
        await eventually(lambda: len(marked_processes(mark)) == 5)
    finally:
        kernel.kill()
        await kernel.wait()
    await eventually(lambda: not marked_processes(mark))

    async with ramet.AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        model = ramet.ScriptedModel([Call("mcp__board__work", {"value": "show"}), "It was cut off."])
        [handle] = await runtime.resume(llm=model)
        assert (await handle.result()).value == "It was cut off."
        interrupted, shown = tool_results(handle.run.context)[2:]
        assert (interrupted, shown.endswith(f"# {mark}")) == (INTERRUPTED, True), "the shared server was started again"
        assert not [each async for each in handle.events() if isinstance(each, ApprovalAsked)], "asked again"
        assert model.requests[0].tools[-4:] == ("ToolSearch", *(f"mcp__{each}__work" for each in FOUND)), (
            "a tool that was found before the kill"
        )
