"""Bash: what comes out, and that nothing stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException

from ramet.tools.context import ToolUseContext
from ramet.tools.paths import locate
from ramet.tools.process import Capture, environment, run
from ramet.tools.shell import KEEP, execute, shell_tools
from tests.support.context import calling, make_context

(BASH,) = shell_tools()


@pytest.fixture
def context(tmp_path: Path) -> ToolUseContext:
    return make_context(tmp_path)


async def bash(context: ToolUseContext, command: str, **arguments: Any) -> str:
    with calling(context):
        result = await BASH.ainvoke({"command": command, **arguments})
    assert isinstance(result, str)
    return result


async def started(path: Path) -> int:
    """The pid that a command writes into a file, once it is there in full."""
    while not (text := content(path)).endswith("\n"):  # noqa: ASYNC110 - another process tells, by a file
        await asyncio.sleep(0)
    return int(text)


def content(path: Path) -> str:
    """What is in a file, nothing if there is none."""
    return path.read_text() if path.exists() else ""


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_output_and_exit_code(context: ToolUseContext) -> None:
    """Both streams, in the order written, then the exit code; a failure is a result, not an error."""
    assert await bash(context, "echo out; echo err >&2; exit 3") == "out\nerr\n[exit code 3]"
    assert await bash(context, "true") == "[exit code 0]"
    assert await bash(context, "kill -9 $$") == "[exit code -9: ended by SIGKILL]"


async def test_it_starts_in_the_workspace_without_input(context: ToolUseContext) -> None:
    """The directory is the run's, and reading input ends at once."""
    assert await bash(context, "pwd; cat") == f"{context.cwd.resolve()}\n[exit code 0]"


async def test_the_environment_has_no_secrets(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is allowed by name gets in: neither keys nor anything else that the host was given."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("BASH_ENV", "/canary")

    text = await bash(context, "env; cat /proc/$$/environ | tr '\\0' '\\n'")

    assert "LC_ALL=C.UTF-8" in text
    assert "canary" not in text


async def test_endless_output_is_bounded(context: ToolUseContext) -> None:
    """Hundreds of megabytes pass by; the beginning and the end are kept, and how much is missing."""
    text = await bash(context, "echo first; head -c 300000000 /dev/zero | tr '\\0' x; echo; echo last")

    assert text.startswith("first\nxxx")
    assert text.endswith("xxx\nlast\n[exit code 0]")
    assert "bytes left out here" in text
    assert len(text) < 2 * KEEP + 200


async def test_others_work_while_it_prints(context: ToolUseContext) -> None:
    """A command that prints without end does not keep the loop: this test goes on, and ends it."""
    task = asyncio.create_task(bash(context, "yes & echo $! > pid; wait"))
    pid = await started(context.cwd / "pid")
    for _ in range(100):
        await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)


async def test_output_that_is_not_text_is_made_text(context: ToolUseContext) -> None:
    """NUL and foreign bytes become something that every store can hold."""
    text = await bash(context, "printf 'a\\0b\\377c'")

    assert text == "a␀b\N{REPLACEMENT CHARACTER}c\n[exit code 0]"


async def test_a_background_job_does_not_outlive_its_call(context: ToolUseContext) -> None:
    """What a command leaves running is ended with it, and does not keep the call waiting."""
    text = await bash(context, "sleep 1000 & echo $!")

    assert text.endswith("[exit code 0]")
    assert not alive(int(text.split()[0]))


DETACH: dict[str, str] = {
    "child": "sleep 1000 & echo $! > pid; wait",
    "grandchild": "bash -c 'sleep 1000 & echo $! > pid; wait' & wait",
    "own session": "setsid bash -c 'echo $$ > pid; exec sleep 1000' & wait",
    "daemon": "(setsid bash -c 'echo $$ > pid; exec sleep 1000 >/dev/null 2>&1 </dev/null' &) ; sleep 1000",
    "stubborn": "trap '' TERM; echo $$ > pid; while :; do sleep 1000; done",
}


@pytest.mark.parametrize("command", DETACH.values(), ids=DETACH.keys())
async def test_cancelling_ends_everything(context: ToolUseContext, command: str) -> None:
    """When the cancelled call returns, nobody is left, wherever they had gone."""
    output = Capture(head=1000)
    task = asyncio.create_task(
        run(
            ["bash", "-c", command],
            cwd=str(context.cwd),
            env=environment(),
            take=output.take,
            timeout_s=600,
            grace_s=0.1,
        )
    )
    pid = await started(context.cwd / "pid")
    assert alive(pid)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)


async def test_a_second_cancel_ends_the_grace(context: ToolUseContext) -> None:
    """Whoever cannot wait for SIGTERM to work cancels again: SIGKILL follows at once."""
    command = DETACH["stubborn"]
    task = asyncio.create_task(
        run(
            ["bash", "-c", command],
            cwd=str(context.cwd),
            env=environment(),
            take=Capture(head=1000).take,
            timeout_s=600,
            grace_s=600,
        )
    )
    pid = await started(context.cwd / "pid")
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert alive(pid)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    while alive(pid):  # noqa: ASYNC110 - killed; the kernel may take a moment, and tells nobody
        await asyncio.sleep(0)


async def test_others_are_left_alone(context: ToolUseContext) -> None:
    """Ending a command, even one that has not quite begun, ends nobody who is not its own."""
    older = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    task = asyncio.create_task(bash(context, "sleep 1000"))
    await asyncio.sleep(0)  # it is being started
    younger = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    sibling = await asyncio.create_subprocess_exec("sleep", "1000")

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    for bystander in (older, younger, sibling):
        assert alive(bystander.pid)
        bystander.kill()
        await bystander.wait()


async def test_a_command_within_a_command_is_found(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that an inner run marked anew still carries the mark of the outer one."""
    monkeypatch.setenv("RAMET_CALL", ".outer")

    assert ".outer." in await bash(context, "echo $RAMET_CALL")


async def test_sigterm_comes_first(context: ToolUseContext) -> None:
    """A command may clean up before it goes."""
    command = "trap 'echo bye > said; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done"
    task = asyncio.create_task(execute(command, locate(context, "."), 600))
    await started(context.cwd / "pid")

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (context.cwd / "said").read_text() == "bye\n"


async def test_a_timeout_is_an_error_with_what_came_so_far(context: ToolUseContext) -> None:
    """The model gets the output up to then, and is told what happened."""
    with pytest.raises(ToolException, match=r"so far\n\[stopped after 1 s"):
        await bash(context, "echo so far; echo $$ > pid; sleep 1000", timeout=1_000)

    assert not alive(int((context.cwd / "pid").read_text()))


async def test_the_run_s_own_limit_comes_first(context: ToolUseContext) -> None:
    """A context that allows tools a little time gets the output, too, instead of a cut call."""
    context.tool_timeout_s = 3.5

    with pytest.raises(ToolException, match=r"so far\n\[stopped after 0.5 s"):
        await bash(context, "echo so far; sleep 1000")


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
async def test_what_cannot_be_run_is_refused_in_short(context: ToolUseContext, arguments: dict[str, Any]) -> None:
    """Bad arguments are words, however large they were."""
    with calling(context), pytest.raises(ToolException) as refusal:
        await BASH.ainvoke(arguments)

    assert len(str(refusal.value)) < 500


async def test_a_workspace_that_is_gone_is_said_to_be(context: ToolUseContext) -> None:
    """No traceback for a directory that somebody removed."""
    context.cwd = context.cwd / "gone"

    with pytest.raises(ToolException, match="no such"):
        await bash(context, "true")


async def test_a_machine_without_bash_is_told_so(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is named."""
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(ToolException, match="no bash"):
        await bash(context, "true")


@pytest.mark.parametrize(
    ("head", "tail", "pieces", "kept", "enough"),
    [
        (10, 0, [b"abc"], b"abc", False),
        (3, 0, [b"abc"], b"abc", False),
        (3, 0, [b"ab", b"cd"], b"abc", True),
        (3, 3, [b"abcdef"], b"abcdef", False),
        (3, 3, [b"abcd", b"efgh"], "abc\n… [2 bytes left out here] …\nfgh".encode(), False),
        (1, 2, [b"abcdefghij"] * 3, "a\n… [27 bytes left out here] …\nij".encode(), False),
    ],
)
def test_capture(head: int, tail: int, pieces: list[bytes], kept: bytes, enough: bool) -> None:
    """The beginning, the end, the size of the gap, and whether more would be thrown away."""
    capture = Capture(head=head, tail=tail)

    said = [capture.take(piece) for piece in pieces]

    assert (capture.data(), said[-1], capture.total) == (kept, enough, sum(map(len, pieces)))
