"""Bash: run one command in the workspace, bounded in time and output, without remaining processes.

The command starts in the workspace, but is not confined to it: it may read and write whatever this process may. Real
containment is the task of a sandbox around the whole agent.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from langchain_core.tools import ToolException
from pydantic import Field

from ramet.concurrency.background_commands import MAX_COMMANDS, BackgroundCommands, FileCapture
from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import CommandResult, environment, run_bash
from ramet.core.events import Notice
from ramet.tools.arguments import Arguments, BuiltinTool, workspace_tool
from ramet.tools.context import ToolUseContext
from ramet.tools.files.paths import ResolvedPath, current_context, directory, resolve
from ramet.tools.monitors.command_monitor import require_monitors

DEFAULT_MS, MAX_MS = 120_000, 600_000
MAX_MONITOR_MS = 3_600_000
OUTPUT_BYTES = 128 * 1024  #: bytes of output kept from the beginning, and as many from the end


class BashArguments(Arguments):
    command: str = Field(description="The command, for `bash -c`")
    timeout: int = Field(DEFAULT_MS, ge=1_000, le=MAX_MONITOR_MS, description="Time limit in milliseconds")
    monitor: bool = Field(False, description="Go on at once: each line of output comes as a message, until it ends")
    description: str = Field("", description="What the command does, in a few words")
    run_in_background: bool = Field(False, description="Return a handle at once; the output goes to a file")
    at_timeout: Literal["stop", "background"] = Field(
        "stop", description="At the time limit, stop the command, or let it go on in the background"
    )


async def bash(arguments: BashArguments) -> str:
    """Run a command; return its output, including stderr, and its exit code, or its handle in the background.

    Raises ToolException with the output so far after a timeout.
    """
    context = current_context()
    if arguments.monitor:
        if arguments.run_in_background or arguments.at_timeout == "background":
            raise ToolException(
                "monitor: goes on in the background already, without `run_in_background` or `at_timeout`"
            )
        return await monitor(arguments, context)
    if arguments.timeout > MAX_MS:
        raise ToolException(f"timeout: at most {MAX_MS} without `monitor`")
    if arguments.run_in_background or arguments.at_timeout == "background":
        return await _run_or_move(context, arguments)
    limit_s = arguments.timeout / 1000
    if context.tool_timeout_s is not None:
        limit_s = min(limit_s, max(0.1, context.tool_timeout_s - 3))
    output = Capture(head=OUTPUT_BYTES, tail=OUTPUT_BYTES)
    with context.track_process():
        exited = await execute(
            arguments.command, resolve(context, "."), limit_s, context.clock, context.environ, output
        )
    text = output.data().decode("utf-8", "replace").replace("\0", "␀").rstrip("\n")
    if exited.reason == "timeout":
        raise ToolException(
            f"{text}\n[stopped after {limit_s:g} s, with every process it had started; "
            f"`timeout` may be up to {MAX_MS} ms]".lstrip("\n")
        )
    return f"{text}\n[exit code {_exit_text(exited)}]".lstrip("\n")


async def monitor(arguments: BashArguments, context: ToolUseContext) -> str:
    """Start a command that goes on beside the agent; return the id of its monitor."""
    monitors, seconds = require_monitors(context), arguments.timeout / 1000
    if "\0" in arguments.command:
        raise ToolException("command: cannot hold a NUL character")
    env = environment() if context.environ is None else context.environ
    monitor_id = await monitors.start(arguments.command, resolve(context, ".").path, seconds, env)
    return (
        f"Started as {monitor_id}, for at most {seconds:g} s. Its lines come as messages, and wake you while you wait: "
        "end your reply to wait for them. TaskStop ends it, by this id."
    )


async def _run_or_move(context: ToolUseContext, arguments: BashArguments) -> str:
    """Start a command that may outlive this call; move it to the background at once, or at its time limit."""
    commands = context.commands
    if commands is None or not commands.has_room:
        raise ToolException(
            "no command can run in the background here"
            if commands is None
            else f"{MAX_COMMANDS} commands run in the background already; stop one, or wait for its end"
        )
    output = FileCapture(head=OUTPUT_BYTES, tail=OUTPUT_BYTES)
    working_dir, clock, environ = resolve(context, "."), context.clock, context.environ

    async def run_to_end() -> str:
        with context.track_process():
            exited = await execute(arguments.command, working_dir, None, clock, environ, output)
        return f"exit code {_exit_text(exited)}"

    task = asyncio.create_task(run_to_end(), name="a command in the background")
    limit_s = 0.0 if arguments.run_in_background else arguments.timeout / 1000
    try:
        if limit_s > 0:
            wait = asyncio.ensure_future(clock.sleep(limit_s))
            try:
                await asyncio.wait({task, wait}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                wait.cancel()
        if task.done():
            end = task.result()
            text = output.data().decode("utf-8", "replace").replace("\0", "␀").rstrip("\n")
            return f"{text}\n[{end}]".lstrip("\n")
        command = commands.add(output, task)
    except BaseException:
        task.cancel()
        await asyncio.wait([task])
        raise
    reason = "started in the background" if limit_s == 0 else f"moved to the background after {limit_s:g} s"
    return (
        f"{command.text()}\n[{reason}: task_id={command.id}. Its output is appended to {command.path}, which Read "
        "shows while it runs; TaskOutput waits for its end, TaskStop stops it. It is stopped when your turn ends.]"
    ).lstrip("\n")


async def execute(
    command: str,
    working_dir: ResolvedPath,
    limit_s: float | None,
    clock: Clock,
    environ: Mapping[str, str] | None,
    output: Capture,
) -> CommandResult:
    """Run `command` in a directory, in `environ`, or in an environment without secrets.

    It ends after `limit_s`. Without a limit, it is in the background, and ends if this process is killed.
    """
    if "\0" in command:
        raise ToolException("command: cannot hold a NUL character")
    with directory(working_dir):  # It gives a readable error if the workspace no longer exists.
        pass
    try:
        exited = await run_bash(
            command,
            clock=clock,
            timeout_s=limit_s,
            cwd=working_dir.path,
            env=environment() if environ is None else environ,
            stdout=output,
            is_watched=limit_s is None,
        )
    except FileNotFoundError:
        raise ToolException("there is no bash on this machine") from None
    except (OSError, UnicodeEncodeError) as error:
        raise ToolException(f"the command of {len(command)} characters could not be started: {error}") from None
    return exited


@asynccontextmanager
async def background_commands(context: ToolUseContext) -> AsyncGenerator[None]:
    """Let commands of this turn go on in the background while the context is open; end them with it.

    Without a folder for large results there is none for their output, and no command can.
    """
    if context.spill is None:
        yield
        return
    commands = BackgroundCommands(
        context.spill, lambda id: context.emit(Notice, text=f"the command {id} was stopped: its turn ended")
    )
    context.commands = commands
    try:
        yield
    finally:
        context.commands = None
        if not commands.is_empty:  # Most turns started none, and a wait for nothing would still cost a task.
            await run_shielded(commands.close())


def _exit_text(exited: CommandResult) -> str:
    if exited.code >= 0:
        return str(exited.code)
    try:
        return f"{exited.code}: ended by {signal.Signals(-exited.code).name}"
    except ValueError:
        return str(exited.code)


def shell_tools() -> list[BuiltinTool]:
    return [
        workspace_tool(
            "Bash",
            "Run a command with `bash -c` in the workspace root, without input. Returns output and exit code. Whatever "
            "is still running when the command ends, background jobs too, is stopped. `timeout` is in milliseconds "
            f"(default {DEFAULT_MS}, at most {MAX_MS}). With `run_in_background`, or `at_timeout` `background`, a long "
            "command goes on beside your work, until your turn ends.",
            BashArguments,
            bash,
            concurrency_safe=False,
            read_only=False,
            repeatable=False,
            timeout_s=MAX_MS / 1000 + 30,  # its own limit comes first, and keeps the output
        )
    ]
