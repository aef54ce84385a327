"""Hooks as functions: veto, rewrite, merge, and gates that fail closed."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ramet.agent.hooks.config import gates_of
from ramet.agent.hooks.hooks import HookRunner, hook
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Aborted, InvalidValue, Unknown
from ramet.core.events import Event, HookFailed, Notice
from ramet.tools.context import ToolUseContext
from ramet.tools.decisions import HookDecision
from tests.support.context import make_context, run_info
from tests.support.waiting import eventually

Payload = dict[str, Any]
CALL: Payload = {"tool_name": "Write", "tool_input": {"path": "a", "text": "b"}, "tool_use_id": "call-7"}


def context_with(events: list[Event] | None = None, **fields: Any) -> ToolUseContext:
    """Return a context whose events are collected in `events`."""

    def record(event: Event) -> Event:
        if events is not None:
            events.append(event)
        return event

    return make_context(record=record, **fields)


async def ask(
    config: Any, event: str = "PreToolUse", *, context: ToolUseContext | None = None, payload: Payload | None = None
) -> HookDecision:
    """Fire one event at a runner made of `config`."""
    request = CALL if payload is None else payload
    return await HookRunner(config).fire(event, context or context_with(), request)


def hook_output(**fields: Any) -> Payload:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, HookDecision()),
        ({}, HookDecision()),
        ("allow", HookDecision("allow")),
        ({"decision": "approve", "reason": "fine"}, HookDecision("allow", "fine")),
        ({"decision": "block", "reason": "no"}, HookDecision("deny", "no")),
        (hook_output(permissionDecision="deny", permissionDecisionReason="no"), HookDecision("deny", "no")),
        (hook_output(permissionDecision="ask", permissionDecisionReason="ok?"), HookDecision("ask", "ok?")),
        (hook_output(permissionDecision="allow", updatedInput={"path": "x"}), HookDecision("allow", "", {"path": "x"})),
        (hook_output(updatedInput={"path": "x"}), HookDecision("allow", "", {"path": "x"})),
        (
            hook_output(permissionDecision="deny", updatedInput={"path": "x"}),
            HookDecision("deny", "blocked by the hook h"),
        ),
        (hook_output(additionalContext="mind"), HookDecision(context="mind")),
        (HookDecision("deny", "no"), HookDecision("deny", "no")),
    ],
)
async def test_every_form_of_an_answer_is_accepted(answer: Any, expected: HookDecision) -> None:
    """The forms are None, words, Claude Code's dicts and HookDecision."""

    def h(payload: Payload) -> Any:
        return answer

    h.__qualname__ = "h"

    assert await ask({"PreToolUse": [h]}) == expected


@pytest.mark.parametrize(
    "answer",
    [
        7,
        True,
        "maybe",
        {"decision": "perhaps"},
        {"permissionDecision": "allow"},
        hook_output(updatedInpt={"path": "x"}),
        hook_output(updatedInput=["x"]),
        hook_output(permissionDecision=None, updatedInput={1: 2}),
        {"hookSpecificOutput": {"hookEventName": "Stop", "permissionDecision": "allow"}},
        {"hookSpecificOutput": "allow"},
        {"decision": "approve", "reason": 7},
        {"continue": "no"},
        HookDecision("continue"),
    ],
)
async def test_an_invalid_answer_closes_the_gate_and_is_recorded(answer: Any) -> None:
    """A typing error in a safety hook must not open the gate."""
    events: list[Event] = []

    decision = await ask({"PreToolUse": [lambda payload: answer]}, context=context_with(events))

    assert decision.verdict == "deny"
    assert decision.reason.startswith("hook_failed: ")
    (failure,) = events
    assert isinstance(failure, HookFailed)
    assert (failure.event, failure.call_id, failure.run) == ("PreToolUse", "call-7", "run-00")


def _raises(payload: Payload) -> None:
    raise KeyError("lost")


def _exits(payload: Payload) -> None:
    sys.exit(0)


async def _raises_later(payload: Payload) -> None:
    await asyncio.sleep(0)
    raise KeyError("lost")


async def _cancels(payload: Payload) -> None:
    raise asyncio.CancelledError


async def _aborts(payload: Payload) -> None:
    raise Aborted("by itself")


@pytest.mark.parametrize("hook", [_raises, _exits, _raises_later, _cancels, _aborts])
async def test_a_failing_function_denies_at_a_gate_and_passes_elsewhere(hook: Callable[[Payload], Any]) -> None:
    """The kind of failure does not matter; both failures are recorded."""
    events: list[Event] = []
    context = context_with(events)

    at_the_gate = await ask({"PreToolUse": [hook]}, context=context)
    afterwards = await ask({"PostToolUse": [hook]}, "PostToolUse", context=context)

    assert (at_the_gate.verdict, afterwards) == ("deny", HookDecision())
    assert [type(each) for each in events] == [HookFailed, HookFailed]


async def test_on_error_allow_opens_the_gate() -> None:
    """The failure is still recorded."""
    events: list[Event] = []
    lenient = hook("PreToolUse", on_error="allow")(_raises_later)

    assert await ask([lenient], context=context_with(events)) == HookDecision()
    assert len(events) == 1


@pytest.mark.parametrize("event", ["PreToolUse", "PermissionRequest"])
async def test_a_hook_beyond_its_timeout_closes_the_gate(event: str) -> None:
    """The timeout is that of the hook's entry."""
    clock, slow = FakeClock(), asyncio.Event()

    async def never(payload: Payload) -> None:
        await slow.wait()

    deciding = asyncio.ensure_future(ask([hook(event, timeout=7)(never)], event, context=context_with(clock=clock)))
    await eventually(lambda: clock.sleeping)
    await clock.advance(7)

    assert await deciding == HookDecision("deny", f"hook_failed: {never.__qualname__}: not done within 7 s")


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    """Synchronous hooks run in a thread."""
    free = threading.Event()

    def blocks(payload: Payload) -> str:
        assert free.wait(180)
        return "allow"

    deciding = asyncio.ensure_future(ask({"PreToolUse": [blocks]}))
    await asyncio.sleep(0)
    free.set()  # reached only because the loop is not blocked

    assert (await deciding).verdict == "allow"


async def test_hooks_run_in_order_and_see_earlier_rewrites() -> None:
    """The last rewrite applies to the call."""
    inputs: list[Payload] = []

    def first(payload: Payload) -> Payload:
        inputs.append(payload["tool_input"])
        return hook_output(updatedInput={"path": "first"}, additionalContext="one")

    async def second(payload: Payload) -> Payload:
        inputs.append(payload["tool_input"])
        return hook_output(updatedInput={**payload["tool_input"], "more": 1}, additionalContext="two")

    decision = await ask({"PreToolUse": [first, second]})

    assert inputs == [CALL["tool_input"], {"path": "first"}]
    assert decision == HookDecision("allow", "", {"path": "first", "more": 1}, context="one\ntwo")


async def test_a_change_of_the_payload_in_place_has_no_effect() -> None:
    """The returned value alone counts; neither the caller nor the next hook sees the change."""

    def scribbles(payload: Payload) -> None:
        payload["tool_input"]["path"] = "/etc/passwd"

    def reads(payload: Payload) -> str:
        return "allow" if payload["tool_input"] == {"path": "a", "text": "b"} else "deny"

    payload = {**CALL, "tool_input": {"path": "a", "text": "b"}}

    assert (await ask({"PreToolUse": [scribbles, reads]}, payload=payload)) == HookDecision()
    assert payload["tool_input"]["path"] == "a"


@pytest.mark.parametrize(
    ("words", "verdict", "ask_count"),
    [
        (["allow", "deny", "ask"], "deny", 2),
        (["ask", "allow"], "ask", 2),
        (["allow", "ask"], "ask", 2),
        (["ask", "deny"], "deny", 2),
        (["allow", None], "allow", 2),
    ],
)
async def test_deny_goes_before_ask_and_ask_before_allow(words: list[str | None], verdict: str, ask_count: int) -> None:
    """The first deny ends the round."""
    answers = iter(words)
    count = 0

    async def next_word(payload: Payload) -> str | None:
        nonlocal count
        count += 1
        return next(answers)

    decision = await ask({"PreToolUse": [next_word] * len(words)})

    assert (decision.verdict, count) == (verdict, ask_count)


@pytest.mark.parametrize(
    ("matcher", "tool", "fits"),
    [
        ("", "Write", True),
        ("*", "Write", True),
        ("Write", "Write", True),
        ("Write", "WriteAll", False),
        ("write", "Write", False),
        ("Bash|Write", "Write", True),
        ("Bash | Write", "Write", True),
        ("mcp__.*", "mcp__memory__save", True),
        ("Wr", "Write", False),
        ("Task", "Agent", True),
        ("Agent", "Task", True),
        ("a.b(c", "a.b(c", None),
    ],
)
async def test_a_matcher_is_a_name_alternatives_or_a_whole_regex(matcher: str, tool: str, fits: bool | None) -> None:
    """An invalid regex is refused at once, since it could leave a gate open."""
    config = {"PreToolUse": [{"matcher": matcher, "hooks": [lambda payload: "deny"]}]}
    if fits is None:
        with pytest.raises(InvalidValue, match="matcher"):
            HookRunner(config)
        return

    decision = await HookRunner(config).fire("PreToolUse", context_with(), CALL, matcher=tool)

    assert decision.verdict == ("deny" if fits else "allow")


@pytest.mark.parametrize("event", ["Stop", "SubagentStop", "TeammateIdle"])
async def test_a_block_at_a_stop_event_means_to_continue(event: str) -> None:
    """The loop gets `continue` with the reason."""
    assert await ask({event: [lambda payload: {"decision": "block", "reason": "tests fail"}]}, event) == HookDecision(
        "continue", "tests fail"
    )


async def test_a_permission_request_without_an_answer_stays_with_a_person() -> None:
    """An explicit allow is needed for a yes: no answer and no matching hook leave `ask`."""
    context = context_with()

    silent = await ask({"PermissionRequest": [lambda payload: None]}, "PermissionRequest", context=context)
    unmatched = await ask({}, "PermissionRequest", context=context)
    yes = {"hookSpecificOutput": {"decision": {"behavior": "allow"}}}
    explicit = await ask({"PermissionRequest": [lambda payload: yes]}, "PermissionRequest", context=context)

    assert (silent.verdict, unmatched.verdict, explicit.verdict) == ("ask", "ask", "allow")


async def test_a_hook_can_rewrite_what_the_model_sees_of_a_result() -> None:
    """PostToolUse may replace the output and add context."""
    answer = {"hookSpecificOutput": {"updatedToolOutput": {"masked": 1}, "additionalContext": "masked"}}

    decision = await ask({"PostToolUse": [lambda payload: answer]}, "PostToolUse")

    assert (decision.updated_output, decision.context) == ('{"masked": 1}', "masked")


async def test_continue_false_aborts_an_active_run_and_ends_a_stopping_one() -> None:
    """An active run is aborted with the reason; at its end, no other hook can keep it going."""
    stop = {"continue": False, "stopReason": "enough"}
    context = context_with()

    at_the_end = await ask({"Stop": [lambda p: stop, lambda p: {"decision": "block"}]}, "Stop", context=context)
    aborted_by_the_end = context.abort.aborted
    at_work = await ask([hook("PreToolUse")(lambda payload: stop)], context=context)

    assert (at_the_end.verdict, aborted_by_the_end) == ("allow", False)
    assert (at_work.verdict, at_work.reason) == ("deny", "enough")
    assert "enough" in (context.abort.reason or "")


async def test_an_aborted_run_closes_gates_but_still_fires_its_end() -> None:
    """SessionEnd fires after an abort; PreToolUse raises Aborted."""
    calls: list[str] = []
    config = {"SessionEnd": [lambda p: calls.append("end")], "PreToolUse": [lambda p: calls.append("gate")]}
    context = context_with()
    context.abort.abort("user")

    await ask(config, "SessionEnd", context=context)
    with pytest.raises(Aborted, match="user"):
        await ask(config, context=context)

    assert calls == ["end"]


async def test_a_payload_names_the_run_of_its_event() -> None:
    """The field names are those of Claude Code, with the ids of parent and root."""
    payloads: list[Payload] = []
    runner = HookRunner({"PostToolUse": [payloads.append]}, transcript=lambda run: f"/t/{run.id}.jsonl")
    context = make_context(run=run_info(2, path="main/searcher", agent="explore", depth=1))

    await runner.fire("PostToolUse", context, {**CALL, "tool_response": "ok"}, matcher="Write")

    assert payloads == [
        {
            "hook_event_name": "PostToolUse",
            "session_id": "run-00",
            "transcript_path": "/t/run-02.jsonl",
            "cwd": str(context.cwd),
            "permission_mode": "default",
            "agent_id": "run-02",
            "agent_type": "explore",
            "agent_path": "main/searcher",
            "parent_agent_id": "run-00",
            "depth": 1,
            "root_id": "run-00",
            **CALL,
            "tool_response": "ok",
        }
    ]


async def test_a_system_message_is_a_notice_for_people() -> None:
    """The message does not reach the model."""
    events: list[Event] = []

    decision = await ask({"PreToolUse": [lambda p: {"systemMessage": "slow today"}]}, context=context_with(events))

    assert (decision, [each.text for each in events if isinstance(each, Notice)]) == (HookDecision(), ["slow today"])


async def test_a_decorated_method_is_called_on_its_object() -> None:
    """The hook's marks stay on a bound method."""

    class Guard:
        word = "deny"

        @hook("PreToolUse", matcher="Write")
        async def check(self, payload: Payload) -> str:
            return self.word

    assert (await ask([Guard().check])).verdict == "deny"


def test_a_definitions_stop_hook_fires_at_its_end_as_a_child() -> None:
    """The hooks of the parent stay and come first."""
    runner = HookRunner({"PreToolUse": [_raises]}).with_hooks({"Stop": [_raises]}, child=True)

    assert [event for event in ("PreToolUse", "Stop", "SubagentStop") if runner.listens(event)] == [
        "PreToolUse",
        "SubagentStop",
    ]


def test_a_whole_settings_file_may_be_given() -> None:
    """The `hooks` key is read, and other keys are ignored."""
    command = {"type": "command", "command": "true", "timeout": 5}

    assert len(HookRunner({"hooks": {"Stop": [{"hooks": [command]}]}, "env": {}})) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"PreToolUse": "true"},
        {"PreToolUse": ["true"]},
        {"PreToolUse": [{"matcher": "Bash"}]},
        {"PreToolUse": [{"matcher": 7, "hooks": [_raises]}]},
        {"PreToolUse": [{"matchers": "Bash", "hooks": [_raises]}]},
        {"PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "ok?"}]}]},
        {"PreToolUse": [{"hooks": [{"type": "command", "command": ""}]}]},
        {"PreToolUse": [{"hooks": [{"type": "command", "command": "a\0b"}]}]},
        {"PreToolUse": [{"hooks": [{"type": "command", "command": "true", "timeout": 0}]}]},
        {"PreToolUse": [{"hooks": [{"type": "command", "command": "true", "timeout": float("nan")}]}]},
        {"PreToolUse": [{"hooks": [{"type": "command", "command": "true", "on_error": "pass"}]}]},
        {"PreToolUse": [{"hooks": [{"type": "command", "command": "true", "async": True}]}]},
        {"Stop": [{"hooks": [{"type": "command", "command": "true", "on_error": "deny"}]}]},
        [_raises],
        "PreToolUse",
    ],
)
def test_an_invalid_hook_is_refused_at_once(config: Any) -> None:
    """A hook that could never run is an error before anything runs."""
    with pytest.raises(InvalidValue, match="hooks"):
        HookRunner(config)


async def test_an_unknown_event_is_refused_by_name() -> None:
    """A configuration, the decorator and the firing of an event refuse it."""
    with pytest.raises(Unknown, match="PreToolUs'; known: PreToolUse"):
        HookRunner({"PreToolUs": []})
    with pytest.raises(Unknown):
        hook("PreToolUs")(_raises)
    with pytest.raises(Unknown):
        await HookRunner().fire("PreToolUs", context_with(), {})


def test_gates_among_marked_functions_apply_to_children() -> None:
    """A definition's other hook functions do not."""

    @hook("PreToolUse")
    def gate(_: object) -> None: ...

    @hook("PostToolUse")
    def watcher(_: object) -> None: ...

    assert gates_of([gate, watcher]) == ((gate,),)
    assert gates_of([watcher]) == ()
