"""Bash: run one command in the workspace, bounded in time and output, without remaining processes.

The command starts in the workspace, but is not confined to it: it may read and write whatever this process may. Real
containment is the task of a sandbox around the whole agent.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from langchain_core.tools import ToolException
from pydantic import Field

from ramet.concurrency.clock import Clock
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import CommandResult, environment, run
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


async def bash(arguments: BashArguments) -> str:
    """Run a command; return its output, including stderr, and its exit code.

    Raises ToolException with the output so far after a timeout.
    """
    context = current_context()
    if arguments.monitor:
        return await monitor(arguments, context)
    if arguments.timeout > MAX_MS:
        raise ToolException(f"timeout: at most {MAX_MS} without `monitor`")
    limit_s = arguments.timeout / 1000
    if context.tool_timeout_s is not None:
        limit_s = min(limit_s, max(0.1, context.tool_timeout_s - 3))
    with context.track_process():
        output, exited = await execute(
            arguments.command, resolve(context, "."), limit_s, context.clock, context.environ
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


async def execute(
    command: str, working_dir: ResolvedPath, limit_s: float, clock: Clock, environ: Mapping[str, str] | None = None
) -> tuple[Capture, CommandResult]:
    """Run `command` in a directory, for at most `limit_s`, in `environ`, or in an environment without secrets."""
    if "\0" in command:
        raise ToolException("command: cannot hold a NUL character")
    output = Capture(head=OUTPUT_BYTES, tail=OUTPUT_BYTES)
    with directory(working_dir):  # It gives a readable error if the workspace no longer exists.
        pass
    try:
        exited = await run(
            ["bash", "--noprofile", "--norc", "-c", command],
            clock=clock,
            timeout_s=limit_s,
            cwd=working_dir.path,
            env=environment() if environ is None else environ,
            stdout=output,
        )
    except FileNotFoundError:
        raise ToolException("there is no bash on this machine") from None
    except (OSError, UnicodeEncodeError) as error:
        raise ToolException(f"the command of {len(command)} characters could not be started: {error}") from None
    return output, exited


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
            f"(default {DEFAULT_MS}, at most {MAX_MS}).",
            BashArguments,
            bash,
            concurrency_safe=False,
            read_only=False,
            repeatable=False,
            timeout_s=MAX_MS / 1000 + 30,  # its own limit comes first, and keeps the output
        )
    ]
