"""Hooks as commands in real processes: JSON in, exit status out, and no process left."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from typing import Any

import pytest

from ramet.agent.hooks.hooks import HookRunner
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Aborted
from ramet.core.events import Event, HookFailed
from ramet.tools.context import ToolUseContext
from ramet.tools.decisions import HookDecision
from tests.support.context import make_context
from tests.support.waiting import alive, eventually, pid_in

CALL: dict[str, Any] = {"tool_name": "Bash", "tool_input": {"command": "rm -rf /"}}


def runner(command: str, event: str = "PreToolUse", **entry: Any) -> HookRunner:
    """Return a runner of one command."""
    environ = {"PATH": os.environ["PATH"], "SECRET_KEY": "k"}
    return HookRunner({event: [{"hooks": [{"type": "command", "command": command, **entry}]}]}, environ=environ)


def context_in(folder: pathlib.Path, events: list[Event] | None = None, **fields: Any) -> ToolUseContext:
    """Return a context in `folder` whose events are collected."""

    def record(event: Event) -> Event:
        if events is not None:
            events.append(event)
        return event

    return make_context(folder, record=record, **{"clock": FakeClock(), **fields})


async def ask(folder: pathlib.Path, command: str, event: str = "PreToolUse", **entry: Any) -> HookDecision:
    return await runner(command, event, **entry).fire(event, context_in(folder), CALL)


async def test_a_command_gets_the_payload_and_the_projects_folder(tmp_path: pathlib.Path) -> None:
    """The payload is JSON on stdin; the command runs in the run's directory with the allowed variables only."""
    await ask(tmp_path, "cat > payload; env > env; pwd > pwd")

    payload = json.loads((tmp_path / "payload").read_text())
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert (payload["hook_event_name"], payload["tool_input"]) == ("PreToolUse", CALL["tool_input"])
    own_names = {"CLAUDE_PROJECT_DIR", "RAMET_PROJECT_DIR", "RAMET_CALL"}
    assert set(env) - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH"} | own_names
    assert env["CLAUDE_PROJECT_DIR"] == (tmp_path / "pwd").read_text().strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("exit 0", HookDecision()),
        ("echo", HookDecision()),
        ("echo '{}'", HookDecision()),
        ("echo 'no rm here' >&2; exit 2", HookDecision("deny", "no rm here")),
        ('echo \'{"decision": "approve"}\'; echo no >&2; exit 2', HookDecision("deny", "no")),
        ('echo \'{"decision": "block", "reason": "no"}\'', HookDecision("deny", "no")),
        (
            'echo \'{"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"command": "ls"}}}\'',
            HookDecision("allow", "", {"command": "ls"}),
        ),
    ],
)
async def test_exit_0_decides_and_exit_2_denies(tmp_path: pathlib.Path, command: str, expected: HookDecision) -> None:
    """Status 0 makes stdout the answer; status 2 makes stderr the reason."""
    assert await ask(tmp_path, command) == expected


@pytest.mark.parametrize(
    "command",
    [
        "exit 1",
        "exit 3",
        "/no/such/hook",
        "kill -9 $$",
        "echo '{\"decision\": '",
        "echo fine",
        "echo '\"allow\"'",
        "echo '[]'",
        "head -c 2000000 /dev/zero | tr '\\0' ' '",
    ],
)
async def test_any_other_outcome_of_a_command_closes_only_its_gate(tmp_path: pathlib.Path, command: str) -> None:
    """A crash, another status, a missing file, bad JSON and too much output are no answer."""
    events: list[Event] = []
    context = context_in(tmp_path, events)

    gate = await runner(command).fire("PreToolUse", context, CALL)
    lenient = await runner(command, on_error="allow").fire("PreToolUse", context, CALL)
    other = await runner(command, "SubagentStop").fire("SubagentStop", context, {})

    assert gate.verdict == "deny"
    assert gate.reason.startswith("hook_failed: ")
    assert (lenient.verdict, other.verdict) == ("allow", "allow")
    assert all(isinstance(each, HookFailed) for each in events)
    assert len(events) >= 2


async def test_a_missing_folder_closes_the_gate(tmp_path: pathlib.Path) -> None:
    """The command cannot be started, and so cannot answer."""
    assert (await ask(tmp_path / "gone", "exit 0")).verdict == "deny"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("SubagentStop", HookDecision("continue", "go on")),
        ("Stop", HookDecision("continue", "go on")),
        ("UserPromptSubmit", HookDecision("deny", "go on")),
        ("PreCompact", HookDecision("deny", "go on")),
        ("PostToolUse", HookDecision("deny", "go on")),
    ],
)
async def test_exit_2_blocks_the_event(tmp_path: pathlib.Path, event: str, expected: HookDecision) -> None:
    """Blocking a stop event means to continue."""
    assert await ask(tmp_path, "echo go on >&2; exit 2", event) == expected


async def test_plain_output_becomes_context_at_events_for_the_model(tmp_path: pathlib.Path) -> None:
    """Claude Code limits this to SubagentStart, SessionStart and UserPromptSubmit, and so do we."""
    assert (await ask(tmp_path, "echo the branch is main", "SubagentStart")).context == "the branch is main"
    assert await ask(tmp_path, "echo the branch is main", "PostToolUse") == HookDecision()


@pytest.mark.parametrize("mode", ["timeout", "abort", "cancel"])
async def test_a_hanging_command_is_killed_with_its_children(tmp_path: pathlib.Path, mode: str) -> None:
    """A timeout makes the gate deny, and an abort ends the run; no process is left."""
    clock, child = FakeClock(), pid_in(tmp_path / "pid")
    context = context_in(tmp_path, clock=clock)
    hanging = runner("trap '' TERM; sleep 1000 & echo $! > pid; wait", timeout=9)
    deciding = asyncio.ensure_future(hanging.fire("PreToolUse", context, CALL))
    await eventually(lambda: child() and clock.sleeping)
    if mode == "timeout":
        await clock.advance(9)
        assert (await deciding).reason.startswith("hook_failed: ")
    elif mode == "abort":
        context.abort.abort("user")
        with pytest.raises(Aborted, match="user"):
            await deciding
    else:
        deciding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deciding

    assert not alive(child())
