"""A stop with a short grace still waits for SIGKILL of processes: each call that it names really remains."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal

import pytest
from langchain_core.tools import StructuredTool

from ramet import AgentRuntime, Policy, ScriptedModel, Session, Status
from ramet.models.scripted.model import Call
from ramet.tools.context import require_current_call
from ramet.tools.spawn_request import SpawnRequest
from ramet.tools.workspace import workspace_tools
from tests.chaos.commands import NAMES
from tests.chaos.kernels import inheriting_orphans, start
from tests.support.waiting import alive, eventually, pid_in
from tests.trips.agents import isolated as agents
from tests.trips.isolation.test_tool_processes import deaf, marked_processes, session_with_tool_processes, workspace_of
from tests.trips.kits.isolated import marked_processes as marked_as
from tests.trips.kits.sessions import BlockingTool

#: Of a stop: shorter than anything that passes over SIGTERM takes to be killed.
GRACE_S = 0.01
DEAF = "trap '' TERM; echo $$ > pid; while :; do read -t 1000 < <(:) || sleep 1000; done"


async def test_cancel_ends_a_tool_process_and_does_not_name_it() -> None:
    """The tool ignores SIGTERM: SIGKILL ends its call a second after the grace of the stop."""
    tools = [StructuredTool.from_function(deaf)]
    async with (
        AgentRuntime(grace_s=GRACE_S) as runtime,
        session_with_tool_processes(tools, Call("deaf"), runtime=runtime) as session,
    ):
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((workspace_of(session) / "begun").exists)

        receipt = await session.cancel("enough")

        assert (receipt.left, marked_processes(session)) == ((), [])
        assert (await turn).status is Status.CANCELLED


@pytest.mark.parametrize("mode", ["cancel", "interrupt"])
async def test_cancel_and_interrupt_end_a_command_and_do_not_name_it(tmp_path: pathlib.Path, mode: str) -> None:
    """Bash has two seconds from SIGTERM to SIGKILL; an interrupt, too, returns only when the command has ended."""
    model = ScriptedModel([Call("Bash", {"command": DEAF}), "done"])
    async with Session(model, workspace_tools(), cwd=tmp_path, runtime=AgentRuntime(grace_s=GRACE_S)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        read_pid = pid_in(tmp_path / "pid")
        await eventually(read_pid)

        if mode == "cancel":
            assert (await session.cancel("enough")).left == ()
        else:
            await session.interrupt()

        assert not alive(read_pid())
        assert (await turn).status is Status.CANCELLED


async def test_cancel_ends_a_child_sandbox_and_names_neither_run(tmp_path: pathlib.Path) -> None:
    """The parent waits for the sandbox of its child, and the stop waits for both."""
    mark = f"stopped-{os.getpid()}"

    async def parent() -> None:
        context = require_current_call().context
        assert context.tree is not None
        await context.tree.spawn(context, SpawnRequest(agent=agents.deaf, args=(mark,), policy=Policy()))
        await asyncio.Event().wait()

    async with AgentRuntime(tmp_path, backend="local", grace_s=GRACE_S) as runtime:
        handle = await runtime.spawn(parent)
        await eventually(lambda: marked_as(mark))

        receipt = await handle.cancel("enough")

        assert (receipt.left, marked_as(mark)) == ((), [])
        assert (await handle.result()).status is Status.CANCELLED


async def test_cancel_names_a_stuck_thread_after_it_ended_a_process(tmp_path: pathlib.Path) -> None:
    """The receipt names the thread alone, which cannot be ended; the concurrent command has ended."""
    stuck = BlockingTool()
    model = ScriptedModel([[Call("stuck"), Call("Bash", {"command": DEAF})], "done"])
    tools = [stuck.tool, *workspace_tools()]
    for tool in tools:
        tool.metadata = {**(tool.metadata or {}), "concurrency_safe": True}
    async with Session(model, tools, cwd=tmp_path, runtime=AgentRuntime(grace_s=GRACE_S)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        read_pid = pid_in(tmp_path / "pid")
        await eventually(lambda: stuck.entered.is_set() and read_pid())

        receipt = await session.cancel("enough")

        assert (receipt.left, alive(read_pid())) == (("main: stuck",), False)
        stuck.free.set()
        await turn


async def test_background_commands_of_the_host_end_with_a_killed_kernel(tmp_path: pathlib.Path) -> None:
    """No process of a command in the background, or of a monitored one, is left after the kill of their kernel."""
    with inheriting_orphans() as orphans:
        kernel = await start("commands", tmp_path)
        await eventually(lambda: all((tmp_path / each).exists() for each in NAMES))
        kernel.kill()
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        await orphans.wait_ended()
