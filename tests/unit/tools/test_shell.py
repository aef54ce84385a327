"""Bash: its output, and that no process is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException

from ramet.concurrency.clock import FakeClock
from ramet.tools.context import ToolUseContext
from ramet.tools.shell import OUTPUT_BYTES, shell_tools
from tests.support.context import calling, make_context
from tests.support.waiting import alive, eventually, pid_in

(BASH,) = shell_tools()


@pytest.fixture
def context(tmp_path: Path) -> ToolUseContext:
    return make_context(tmp_path)


async def bash(context: ToolUseContext, command: str, **arguments: Any) -> str:
    with calling(context):
        result = await BASH.ainvoke({"command": command, **arguments})
    assert isinstance(result, str)
    return result


async def test_output_and_exit_code_are_returned(context: ToolUseContext) -> None:
    """Both streams come in the order of writing, then the exit code; a failure is a result, not an error."""
    assert await bash(context, "echo out; echo err >&2; exit 3") == "out\nerr\n[exit code 3]"
    assert await bash(context, "true") == "[exit code 0]"
    assert await bash(context, "kill -9 $$") == "[exit code -9: ended by SIGKILL]"


async def test_a_command_starts_in_the_workspace_without_input(context: ToolUseContext) -> None:
    """The directory is that of the run, and reading input ends at once."""
    assert await bash(context, "pwd; cat") == f"{context.cwd.resolve()}\n[exit code 0]"


async def test_the_environment_has_no_secrets(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables pass if they are allowed by name: neither keys nor other values of the host do."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("BASH_ENV", "/canary")

    text = await bash(context, "env; cat /proc/$$/environ | tr '\\0' '\\n'")

    assert "LC_ALL=C.UTF-8" in text
    assert "canary" not in text


async def test_endless_output_is_bounded(context: ToolUseContext) -> None:
    """The result keeps the beginning and the end of hundreds of megabytes, and says how much is missing."""
    text = await bash(context, "echo first; head -c 300000000 /dev/zero | tr '\\0' x; echo; echo last")

    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast\n[exit code 0]")
    assert "bytes left out here" in text
    assert len(text) < 2 * OUTPUT_BYTES + 200


async def test_others_run_while_a_command_prints(context: ToolUseContext) -> None:
    """A command that prints without end does not block the loop: this test continues, and ends it."""
    pid = pid_in(context.cwd / "pid")
    task = asyncio.create_task(bash(context, "yes & echo $! > pid; wait"))
    await eventually(pid)
    for _ in range(100):
        await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid())


async def test_binary_output_becomes_text(context: ToolUseContext) -> None:
    """NUL and foreign bytes become characters that every store can hold."""
    text = await bash(context, "printf 'a\\0b\\377c'")

    assert text == "a␀b\N{REPLACEMENT CHARACTER}c\n[exit code 0]"


async def test_a_background_job_ends_with_its_call(context: ToolUseContext) -> None:
    """A process that a command leaves running is ended with it, and does not delay the call."""
    text = await bash(context, "sleep 1000 & echo $!")

    assert text.endswith("[exit code 0]")
    assert not alive(int(text.split()[0]))


async def test_sigterm_comes_first(context: ToolUseContext) -> None:
    """A command may clean up before it ends."""
    command = "trap 'echo bye > said; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done"
    task = asyncio.create_task(bash(context, command))
    await eventually(pid_in(context.cwd / "pid"))

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (context.cwd / "said").read_text() == "bye\n"


@pytest.mark.parametrize(("tools_may_take_s", "limit_s"), [(None, 1), (3.5, 0.5)])
async def test_a_timeout_is_an_error_with_the_output_so_far(
    context: ToolUseContext, tools_may_take_s: float | None, limit_s: float
) -> None:
    """The model also gets the reason; the run's own limit comes first."""
    context.clock = clock = FakeClock()
    context.tool_timeout_s = tools_may_take_s
    pid = pid_in(context.cwd / "pid")
    task = asyncio.create_task(bash(context, "echo so far; echo $$ > pid; sleep 1000", timeout=1_000))
    await eventually(lambda: pid() and clock.sleeping)

    await clock.advance(limit_s)

    with pytest.raises(ToolException, match=rf"so far\n\[stopped after {limit_s:g} s"):
        await task
    assert not alive(pid())


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "a\0b"},
        {"command": "x" * 3_000_000},
        {"command": "true", "timeout": 30},
        {"command": "true", "timeout": 700_000},
        {"command": "true", "run_in_background": True},
    ],
)
async def test_invalid_arguments_get_a_short_error(context: ToolUseContext, arguments: dict[str, Any]) -> None:
    """The error stays short for arguments of any size."""
    with calling(context), pytest.raises(ToolException) as refusal:
        await BASH.ainvoke(arguments)

    assert len(str(refusal.value)) < 500


async def test_a_missing_workspace_is_reported(context: ToolUseContext) -> None:
    """A removed directory gives no traceback."""
    context.cwd = context.cwd / "gone"

    with pytest.raises(ToolException, match="no such"):
        await bash(context, "true")


async def test_a_missing_bash_is_reported(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing program."""
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(ToolException, match="no bash"):
        await bash(context, "true")
