"""Agents that are programs of other makers: in sandboxes, under the budget of their tree, with one inbox."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import ramet
from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    MailDelivered,
    PlanStep,
    PlanUpdated,
    SandboxFrozen,
    SandboxStarted,
    SubAgentReported,
    ToolEnded,
    ToolStarted,
    TurnEnded,
)
from ramet.core.ids import RunId
from ramet.core.lifecycle import State
from ramet.core.outcome import Status
from tests.support.providers import Call, provider
from tests.support.waiting import eventually
from tests.trips.kits.external import script, scripted
from tests.trips.kits.forwarding import host_key, use_server
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "host_key", "runtime"]

COMMAND = {"command": "make test"}


async def events_of(handle: Any) -> list[Event]:
    return [each async for each in handle.events()]


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [each for each in events if isinstance(each, kind)]


async def test_its_reply_is_the_result(runtime: ramet.AgentRuntime) -> None:
    """The prompt reaches the program, and the text of its turn is the output."""
    result = await runtime.run_agent(scripted(), prompt=script(["say", "It is "], ["say", "done."]))

    assert (result.status, result.output) == (Status.COMPLETED, "It is done."), (result.error, result.stderr)
    assert result.artifacts == ()


async def test_files_that_it_writes_are_artifacts_and_its_home_is_not(runtime: ramet.AgentRuntime) -> None:
    """Its sessions and configuration are in its home, which is no result."""
    prompt = script(["remember", "nothing of interest"], ["write", "note.txt", "hello"], ["say", "Written."])
    result = await runtime.run_agent(scripted(files={".config/x.json": "{}"}), prompt=prompt)

    assert [each.name for each in result.artifacts] == ["note.txt"], (result.error, result.stderr)


async def test_its_calls_its_plan_and_its_own_agents_are_events(runtime: ramet.AgentRuntime) -> None:
    """Each call is counted and recorded from its begin to its end; a plan that stays the same is recorded once."""
    prompt = script(
        ["plan", ["look", "write"]],
        ["plan", ["look", "write"]],
        ["call", "1", "Read", {"path": "a.txt"}],
        ["end", "1", "completed"],
        ["call", "2", "Bash", COMMAND],
        ["end", "2", "failed"],
        ["sub_agent", "x", "a look around", "running"],
        ["sub_agent", "x", "a look around", "completed"],
        ["call", "3", "Read", {"path": "b.txt"}],
        ["say", "Done."],
    )
    handle = await runtime.start_agent(scripted(), prompt=prompt)
    result = await handle.result()
    events = await events_of(handle)

    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    started, ended = of_kind(events, ToolStarted), of_kind(events, ToolEnded)
    assert [(each.tool, each.args) for each in started[:2]] == [("Read", {"path": "a.txt"}), ("Bash", COMMAND)]
    assert [each.status for each in ended] == ["ok", "error", "cancelled"]
    assert [each.call_id for each in ended] == [each.call_id for each in started]
    assert result.usage.tool_calls == 3
    assert [each.steps for each in of_kind(events, PlanUpdated)] == [
        (PlanStep(text="look", status="pending"), PlanStep(text="write", status="pending"))
    ]
    assert [(each.title, each.state) for each in of_kind(events, SubAgentReported)] == [
        ("a look around", "running"),
        ("a look around", "completed"),
    ]


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_question_is_in_the_inbox_with_the_arguments_of_its_call(
    runtime: ramet.AgentRuntime, allowed: bool
) -> None:
    """The answer reaches the program, for this one call: never an "always" that it offers, too."""
    prompt = script(["call", "1", "Bash", COMMAND], ["ask", "1", "Bash", COMMAND], ["end", "1", "completed"])
    handle = await runtime.start_agent(scripted(), prompt=prompt)
    opened = runtime.trees[RunId(handle.id)]
    await eventually(lambda: opened.inbox.pending)
    (entry,) = opened.inbox.pending
    opened.inbox.answer(entry.id, allowed)
    result = await handle.result()
    events = await events_of(handle)

    assert (entry.tool, entry.args, entry.path) == ("Bash", COMMAND, "main")
    assert result.output == ("allowed" if allowed else "rejected"), (result.error, result.stderr)
    assert len(of_kind(events, ApprovalAsked)) == len(of_kind(events, ApprovalAnswered)) == 1


async def test_without_questions_its_sandbox_alone_bounds_it(runtime: ramet.AgentRuntime) -> None:
    """`permission_mode="allow"`: each question is answered in the sandbox, once, and nobody is asked."""
    agent = scripted(permission_mode="allow")
    result = await runtime.run_agent(agent, prompt=script(["ask", "1", "Bash", COMMAND]))

    assert result.output == "allowed", (result.error, result.stderr)


@pytest.mark.usefixtures("host_key")
async def test_a_limit_of_n_model_calls_is_n_requests_and_the_outcome(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request is refused, and whatever the program makes of it, the run ended at its limit."""
    async with provider(["one", "two", "three"]) as server:
        use_server(monkeypatch, server.url)
        prompt = script(*[["model", "hello"]] * 3)
        result = await runtime.run_agent(scripted(), prompt=prompt, limits=ramet.Limits(model_calls=2))

    assert result.status is Status.BUDGET_EXHAUSTED, (result.error, result.stderr)
    assert result.usage.model_calls == server.count == 2


async def test_a_limit_of_tool_calls_ends_it(runtime: ramet.AgentRuntime) -> None:
    """The call beyond the limit is not counted, and the run ends with the limit."""
    prompt = script(*[["call", str(each), "Read", {"n": each}] for each in range(3)], ["hang"])
    result = await runtime.run_agent(scripted(), prompt=prompt, limits=ramet.Limits(tool_calls=2))

    assert result.status is Status.BUDGET_EXHAUSTED, (result.error, result.stderr)
    assert result.usage.tool_calls == 2


async def test_a_message_is_a_further_prompt_of_the_same_session(
    runtime: ramet.AgentRuntime, backend: str, tmp_path: pathlib.Path
) -> None:
    """A run that has ended works again, in a new process, with its session."""
    async with ramet.Session(agent=scripted(), cwd=tmp_path, runtime=runtime) as session:
        first = await session.ask(script(["remember", "sorrel"], ["say", "Noted."]))
        second = await session.ask(script(["recall"]))

    assert (first.value, second.value) == ("Noted.", "sorrel"), (first.error, second.error)


async def test_a_stop_leaves_no_process(runtime: ramet.AgentRuntime) -> None:
    """The program does not answer any more, and is gone with its sandbox."""
    handle = await runtime.start_agent(scripted(), prompt=script(["say", "I wait"], ["wait", "never.txt"]))
    run = runtime.get(handle.id).run
    await eventually(lambda: run.activity.streamed_text)
    await handle.cancel()
    result = await handle.result()

    assert result.status is Status.CANCELLED
    assert run.sandbox.current is None


async def test_what_a_program_does_not_get_is_refused_before_it_starts(runtime: ramet.AgentRuntime) -> None:
    """Less memory or fewer processes than it needs, or arguments of a function: typed errors, nothing started."""
    for policy, limit in ((ramet.Policy(memory_mb=64), "policy.memory_mb"), (ramet.Policy(pids=8), "policy.pids")):
        with pytest.raises(SpawnRefused, match=limit):
            await runtime.run_agent(scripted(), policy, prompt="[]")
    with pytest.raises(InvalidValue, match="args"):
        await runtime.run_agent(scripted(), args=("x",), prompt="[]")
    with pytest.raises(InvalidValue, match="prompt"):
        await runtime.run_agent(scripted())


async def test_a_model_chooses_it_as_a_type(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """As `subagent_type` of a conversation, it works below it, and its usage is in the subtree."""
    model = ramet.ScriptedModel(
        [
            Call(
                "Agent",
                {
                    "subagent_type": "coder",
                    "description": "write",
                    "prompt": script(["call", "1", "Read", {}], ["say", "written"]),
                },
            ),
            "It says: written",
        ]
    )
    async with ramet.Session(model, agents=[scripted(description="writes")], cwd=tmp_path, runtime=runtime) as session:
        result = await session.ask("please")

    assert result.value == "It says: written", result.error
    assert result.usage_subtree.tool_calls == 1


async def test_mail_of_a_parent_is_a_further_prompt_of_a_child_that_has_ended(
    runtime: ramet.AgentRuntime, tmp_path: pathlib.Path
) -> None:
    """`SendMessage` to it begins another turn in its session; the prompts and replies are on record."""
    ask, recall = script(["remember", "sorrel"], ["say", "noted"]), script(["recall"])
    model = ramet.ScriptedModel(
        [
            Call("Agent", {"subagent_type": "coder", "description": "note", "prompt": ask, "name": "clerk"}),
            Call("SendMessage", {"to": "clerk", "message": recall}),
            Call("TaskOutput", {"task_id": "clerk", "block": True, "timeout": 300}),
            "done",
        ]
    )
    async with ramet.Session(model, agents=[scripted(description="notes")], cwd=tmp_path, runtime=runtime) as session:
        result = await session.ask("please")
        messages = str([message.content for message in session.messages])

    assert result.value == "done", result.error
    assert "sorrel" in messages.rpartition("continues with your message")[2]


async def test_a_message_while_it_works_is_the_next_prompt_of_the_same_process(runtime: ramet.AgentRuntime) -> None:
    """It waits until the turn under way has ended, and the reply to it is the result."""
    # The answer to its call comes behind the message, on the same channel. A call without arguments would not be sent.
    call = ["call", "1", "Read", {"path": "a.txt"}]
    first = script(["remember", "sorrel "], ["say", "I wait"], ["wait", "go.txt"], call)
    handle = await runtime.start_agent(scripted(), prompt=first)
    run = runtime.get(handle.id).run
    await eventually(lambda: run.activity.streamed_text)
    runtime.get(handle.id).send(script(["remember", "twice"], ["recall"]))
    folder = run.sandbox.folder
    assert folder is not None
    (folder.workspace / "go.txt").touch()
    result = await handle.result()
    events = await events_of(handle)

    assert result.output == "sorrel twice", (result.error, result.stderr)
    assert len(of_kind(events, MailDelivered)) == 1
    kinds = [type(each) for each in events]
    assert kinds.index(ToolStarted) < kinds.index(MailDelivered) < kinds.index(TurnEnded)
    assert len(of_kind(events, SandboxStarted)) == 1


async def test_a_pause_freezes_it_and_a_resume_lets_it_go_on(runtime: ramet.AgentRuntime) -> None:
    """Nothing of it works meanwhile: what it waits for came during the pause, and it has not seen it."""
    handle = await runtime.start_agent(
        scripted(), prompt=script(["say", "I wait"], ["wait", "go.txt"], ["say", " no more"])
    )
    run = runtime.get(handle.id).run
    await eventually(lambda: run.activity.streamed_text)
    inner = runtime.get(handle.id)
    await inner.pause("a break", now=True)
    await eventually(lambda: run.sandbox.is_frozen)
    assert run.sandbox.folder is not None
    (run.sandbox.folder.workspace / "go.txt").touch()
    assert run.state is State.PAUSED
    assert not run.turn.verdict
    await inner.resume()
    result = await handle.result()

    assert result.output == "I wait no more", (result.error, result.stderr)
    assert of_kind(await events_of(handle), SandboxFrozen)
