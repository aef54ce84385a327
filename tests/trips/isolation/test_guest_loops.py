"""Conversations whose loop runs in another process: the host's half and the guest's half together."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from pydantic import BaseModel, field_validator

from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.agent.history.pairing import INTERRUPTED
from ramet.agent.hooks.hooks import hook
from ramet.concurrency.mailbox import MAX_BYTES, Mail
from ramet.core.errors import Aborted
from ramet.core.events import (
    BudgetRefused,
    Compacted,
    MailDelivered,
    MessageRecorded,
    ToolEnded,
    ToolStarted,
    encode,
)
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import NO_USAGE, Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.dialogue import Call, Fail, Hang, Say
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.lifecycle import turn
from ramet.spawn.sandbox.conversation import SandboxedConversation
from ramet.tools.workspace import workspace_tools
from ramet.wire.guest_protocol.guest_to_host import AskModel, Record
from tests.support.guests import Guests, guests
from tests.support.waiting import alive, eventually
from tests.trips.kits.guest_loops import GuestLoops
from tests.trips.kits.sessions import (
    answers,
    background_call,
    fork_call,
    has_no_reservation,
    is_valid,
    of_kind,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)

WAIT = "until [ -e go ]; do sleep 0.01; done; cat go"


@pytest.fixture(scope="module")
def guest_source() -> Iterator[Guests]:
    """Yield the process that forks guests."""
    with guests() as source:
        yield source


@pytest.fixture
def guest_loops(guest_source: Guests, monkeypatch: pytest.MonkeyPatch) -> GuestLoops:
    """Give each later conversation of the test a guest."""
    guest_loop = GuestLoops(guest_source)
    monkeypatch.setattr(turn, "_converse", guest_loop.converse)
    return guest_loop


def session(script: Any, folder: pathlib.Path, **options: Any) -> Session:
    """Return a session of a scripted model with the tools of a workspace."""
    return Session(ScriptedModel(script), workspace_tools(), cwd=folder, **options)


async def test_an_answer_comes_from_a_loop_in_another_process(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The answer is the model's and is recorded, and its chunks arrive as they stream."""
    async with session(["The answer is 42."], tmp_path) as guest_session:
        items = [item async for item in guest_session.submit_message("What is it?")]

        assert guest_session.result is not None
        assert (guest_session.result.status, guest_session.result.value) == (Status.COMPLETED, "The answer is 42.")
        assert "".join(item.text for item in items if isinstance(item, AIMessageChunk)) == "The answer is 42."
        assert typed_texts(guest_session.messages) == [("human", "What is it?"), ("ai", "The answer is 42.")]
        messages = of_kind(session_events(guest_session), MessageRecorded)
        assert [each.message["type"] for each in messages] == ["human", "ai"]
        assert messages[1].usage is not None
        assert messages[1].usage.model_calls == 1
        assert guest_session.usage.model_calls == 1
    assert guest_loops.last_words[0] is not None


async def test_a_tool_runs_in_the_guest(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The call is recorded before its result with the host's copy of the arguments, and counted once."""
    (tmp_path / "note.txt").write_text("buy milk\n")
    script = [[Call("Bash", {"command": "echo $PPID"}), Call("Read", {"file_path": "note.txt"})], "You need milk."]
    async with session(script, tmp_path) as guest_session:
        result = await guest_session.ask("What do I need?")

        assert result.value == "You need milk."
        shell, file = (message for message in guest_session.messages if message.type == "tool")
        assert shell.text.split()[0] == str(guest_loops.guests[0].pid)
        assert "buy milk" in file.text
        tool_starts, tool_ends = (
            of_kind(session_events(guest_session), ToolStarted),
            of_kind(session_events(guest_session), ToolEnded),
        )
        assert [each.tool for each in tool_starts] == ["Bash", "Read"]
        assert tool_starts[1].args == {"file_path": "note.txt"}
        assert [each.status for each in tool_ends] == ["ok", "ok"]
        assert guest_session.usage.tool_calls == 2
        assert is_valid(guest_session.messages)


async def test_a_request_contains_the_hosts_own_message_objects(
    guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """The guest refers to messages by index, so that nothing is sent twice and a provider's cache holds."""
    model = ScriptedModel([Call("Bash", {"command": "echo one"}), "Done.", "Again."])
    async with Session(model, workspace_tools(), system_prompt="Be brief.", cwd=tmp_path) as session:
        await session.ask("Begin.")
        await session.ask("And now?")

        history = session.context.history
        assert [each.type for each in model.requests[2].messages] == ["system", "human", "ai", "tool", "ai", "human"]
        *asked_with, _ = history  # The last one is the answer.
        assert all(a is b for a, b in zip(model.requests[2].messages[1:], asked_with, strict=True))
        assert len(guest_loops.guests) == 2, "each turn has a guest of its own"
        assert {each.tools for each in model.requests} == {tuple(tool.name for tool in session.context.tools)}


# ---- other agents


async def test_a_child_of_a_guest_has_a_guest_of_its_own(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The child's report is the parent's tool result; the waiting parent does not hold the only slot."""
    script = {
        "investigate": [specialist_call("look at the logs", "logs"), "So it was the disk."],
        "look at": ["The disk is full."],
    }
    async with session(script, tmp_path, spawn_limits=SpawnLimits(running=1)) as guest_session:
        result = await guest_session.ask("investigate")

        assert result.value == "So it was the disk."
        (report,) = answers(guest_session.messages).values()
        assert "The disk is full." in report
        assert run_of(guest_session, "logs").result is not None
        assert guest_session.usage.agents == 1
        assert len(guest_loops.guests) == 2


async def test_agent_tools_of_a_guest_use_the_hosts_tree(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """Lists, outputs and refusals come from the host's tree."""
    steps = [
        background_call("wait here", "waiter"),
        [
            Call("ListAgents"),
            Call("TaskOutput", {"task_id": "waiter", "block": False}),
            Call("TaskStop", {"task_id": "nobody"}),
        ],
        Call("TaskStop", {"task_id": "waiter"}),
        "All said.",
    ]
    async with session({"take charge": steps, "wait here": [Hang()]}, tmp_path) as guest_session:
        result = await guest_session.ask("take charge")

        assert result.value == "All said."
        _, listing, output, refusal, stop_text = answers(guest_session.messages).values()
        assert "main/waiter" in listing
        assert "status: " in output
        assert "unknown" in refusal
        assert stop_text == "Stopped: main/waiter."


async def test_a_notice_wakes_a_run_into_a_new_conversation(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The new conversation has the history that the host kept, and the notice is read once."""
    script = {
        "take charge": [background_call("count", "counter"), "I wait.", "It counted to three."],
        "count": ["one two three"],
    }
    async with session(script, tmp_path) as guest_session:
        first = await guest_session.ask("take charge")
        await eventually(lambda: len(guest_loops.last_words) == 3 and guest_session.runs()[0].state == "idle")

        assert first.value == "I wait."
        assert guest_session.messages[-1].text == "It counted to three."
        assert "one two three" in guest_session.messages[-2].text
        assert len(of_kind(session_events(guest_session), MailDelivered)) == 1
        assert is_valid(guest_session.messages)


async def test_a_fork_of_a_guest_has_its_history_and_tools(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The fork's conversation begins with the parent's messages, and its tools are the parent's."""
    model = ScriptedModel(
        [Call("Bash", {"command": "echo the code is 17"}), fork_call("say the code"), "It is 17.", "My fork says 17."]
    )
    async with Session(model, workspace_tools(), cwd=tmp_path) as session:
        result = await session.ask("find the code")

        assert result.value == "My fork says 17."
        parent, child = model.requests[1], model.requests[2]
        assert child.messages[: len(parent.messages)] == parent.messages
        assert child.tools == parent.tools
        assert len(guest_loops.guests) == 2


async def test_mail_wakes_a_finished_guest_with_its_history(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """A message to the run starts another conversation with the earlier messages."""
    model = ScriptedModel(
        {
            "take charge": [
                specialist_call("remember 8", "clerk"),
                Call("SendMessage", {"to": "clerk", "message": "which?"}),
                "I asked.",
                "It was 8.",
            ],
            "remember 8": ["I remember 8.", "It was 8."],
        }
    )
    async with Session(model, workspace_tools(), cwd=tmp_path) as session:
        await session.ask("take charge")
        await eventually(lambda: session.messages[-1].text == "It was 8." and session.runs()[0].state == "idle")

        clerk = run_of(session, "clerk")
        assert [kind for kind, _ in typed_texts(clerk.context.history)] == ["human", "ai", "human", "ai"]
        assert "which?" in clerk.context.history[2].text


# ---- mail, hooks, people


async def test_mail_is_read_at_the_next_step(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """Mail waits while a tool runs; then it is in the conversation, and in no mailbox."""
    async with session([Call("Bash", {"command": WAIT}), "Both read."], tmp_path) as guest_session:

        async def write() -> None:
            await eventually(lambda: of_kind(session_events(guest_session), ToolStarted))
            guest_session.send("And mind the gap.")
            (tmp_path / "go").write_text("went")

        async for item in guest_session.submit_message("Wait for it."):
            if isinstance(item, ToolStarted):
                await write()

        assert [kind for kind, _ in typed_texts(guest_session.messages)] == ["human", "ai", "tool", "human", "ai"]
        assert guest_session.messages[3].text == "And mind the gap."
        assert len(of_kind(session_events(guest_session), MailDelivered)) == 1
        assert len(guest_session.context.mailbox) == 0


async def test_mail_of_any_characters_reaches_a_guest(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """Mail of maximal length, of the characters with the longest JSON form, arrives unchanged."""
    text = "\x01" * (MAX_BYTES - 10)
    # The guest may hear of it before it asks again, or when it has answered: then it asks once more.
    async with session([Call("Bash", {"command": WAIT}), "Read.", "Read."], tmp_path) as guest_session:
        async for item in guest_session.submit_message("Wait for it."):
            if isinstance(item, ToolStarted):
                guest_session.send(text)
                (tmp_path / "go").write_text("went")

        assert guest_session.result is not None
        assert guest_session.result.value == "Read."
        assert [message.text for message in guest_session.messages].count(text) == 1


async def test_another_attempt_begins_where_the_turn_began(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The history loses the first attempt's messages, except the mail that it read; its reservations are released."""
    calls = [Call("Bash", {"command": "true"}), Call("Bash", {"command": "true"})]
    async with session([calls], tmp_path, limits=Limits(tool_calls=9)) as guest_session:
        run = guest_session._root
        run.context.mailbox.push(Mail(id="mail-0", sender="user", text="Early.", kind="user"))
        conversation = SandboxedConversation(run, [HumanMessage("Begin.")])

        first, _ = await conversation.start()
        question = b'{"messages": [1, 2], "tools": []}'
        await conversation.ask_model(AskModel(id=1, step=f"{run.info.id}:1"), question, no_piece)
        assert run.context.budget.reserved_amount("tool_calls") == 2
        run.context.mailbox.push(Mail(id="mail-1", sender="user", text="Late.", kind="user"))
        second, body = await conversation.start()

        assert [each.text for each in run.context.history] == ["Begin.", "Early.", "Late."]
        assert [each["content"] for each in msgspec.json.decode(body[: second.json_size])["history"]] == [
            "Begin.",
            "Early.",
            "Late.",
        ]
        assert run.context.budget.reserved_amount("tool_calls") == 0
        assert (first.steps, second.steps) == (0, 1)


async def test_a_retry_after_compaction_begins_behind_the_summary(tmp_path: pathlib.Path) -> None:
    """Another attempt keeps the compacted history before the turn."""
    async with session(["never"], tmp_path) as guest_session:
        run = guest_session._root
        run.context.history[:] = [HumanMessage("Old."), AIMessage("Long, long answer."), HumanMessage("Older.")]
        run.turn_began_at = 3
        conversation = SandboxedConversation(run, [HumanMessage("New.")])
        await conversation.start()
        event = Compacted(**run.info.stamp, before_messages=4, after_messages=3, before_tokens=9, after_tokens=5)
        positions = [1, {"type": "human", "content": "a summary"}, 4]  # Position 0 is what the system says.

        conversation.record(Record(number=1), encode(event) + b"\n" + msgspec.json.encode(positions))
        assert [each.text for each in run.context.history] == ["Old.", "a summary", "New."]
        assert run.turn_began_at == 2

        await conversation.start()
        assert [each.text for each in run.context.history] == ["Old.", "a summary", "New."]


async def no_piece(piece: bytes) -> None:
    """Fail, since no caller asked for chunks."""
    raise AssertionError("a piece")


async def test_a_hook_of_the_host_stops_a_call_in_the_guest(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """A denied call neither runs nor is charged; a rewritten call runs and is recorded as rewritten."""
    votes: list[Any] = []

    @hook("PreToolUse", matcher="Bash")
    def gate(payload: dict[str, Any]) -> dict[str, Any] | None:
        votes.append((payload["tool_name"], payload["agent_path"], payload["tool_input"]["command"]))
        if "rm" in payload["tool_input"]["command"]:
            return {"decision": "block", "reason": "no removing here"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": {"command": "echo rewritten"}}}

    @hook("PostToolUse")
    def after(payload: dict[str, Any]) -> dict[str, Any]:
        return {"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "well done"}}

    calls = [Call("Bash", {"command": "rm -rf ."}), Call("Bash", {"command": "echo plain"})]
    async with session([calls, "Understood."], tmp_path, hooks=[gate, after]) as guest_session:
        result = await guest_session.ask("Clean up.")

        assert result.value == "Understood."
        denial, rewritten = answers(guest_session.messages).values()
        assert "no removing here" in denial
        assert "rewritten" in rewritten
        assert "well done" in rewritten
        assert votes == [("Bash", "main", "rm -rf ."), ("Bash", "main", "echo plain")]
        assert [each.args for each in of_kind(session_events(guest_session), ToolStarted)] == [
            {"command": "echo rewritten"}
        ]
        reply = guest_session.messages[1]
        assert isinstance(reply, AIMessage)
        assert reply.tool_calls[1]["args"] == {"command": "echo rewritten"}
        assert guest_session.usage.tool_calls == 1
        assert has_no_reservation(guest_session)


async def test_a_hook_can_end_a_guests_run_or_prolong_it(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """A Stop hook holds an answer back once; `continue: false` at a tool stops the guest."""
    states: list[bool] = []

    @hook("Stop")
    def more(payload: dict[str, Any]) -> dict[str, Any] | None:
        states.append(payload["stop_hook_active"])
        return {"decision": "block", "reason": "Say it louder."} if not payload["stop_hook_active"] else None

    @hook("PreToolUse")
    def enough(payload: dict[str, Any]) -> dict[str, Any]:
        return {"continue": False, "stopReason": "enough"}

    async with session(
        ["quiet", "LOUD", Call("Bash", {"command": "echo x"}), "never"], tmp_path, hooks=[more, enough]
    ) as guest_session:
        loud = await guest_session.ask("Speak.")
        result = await guest_session.ask("Work.")

        assert loud.value == "LOUD"
        assert states == [False, True]
        assert result.status is Status.CANCELLED
        assert not of_kind(session_events(guest_session), ToolStarted)


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_person_approves_a_guests_call_with_its_own_arguments(
    is_allowed: bool, guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """The question is the hook's, and the arguments are the reply's; a denied call is not charged."""
    requests: list[Any] = []

    @hook("PreToolUse")
    def ask(payload: dict[str, Any]) -> dict[str, Any]:
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "ask",
                "permissionDecisionReason": "Really?",
            }
        }

    def approver(pending: Any) -> bool:
        requests.append((pending.path, pending.tool, pending.question, pending.args))
        return is_allowed

    async with session(
        [Call("Bash", {"command": "echo done"}), "Finished."], tmp_path, hooks=[ask], approver=approver
    ) as guest_session:
        await guest_session.ask("Do it.")

        assert requests == [("main", "Bash", "Really?", {"command": "echo done"})]
        (answer,) = answers(guest_session.messages).values()
        assert ("done" in answer) is is_allowed
        assert ("not approved" in answer) is not is_allowed
        assert guest_session.usage.tool_calls == int(is_allowed)
        assert has_no_reservation(guest_session)


# ---- budgets


async def test_a_guest_runs_no_more_tool_calls_than_the_budget_has(
    guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """Two of three calls in one reply run; the third is refused, and the model writes its last word."""
    calls = [Call("Bash", {"command": f"echo {number} >> log"}) for number in range(3)]
    async with session([calls, "Two of three were done."], tmp_path, limits=Limits(tool_calls=2)) as guest_session:
        result = await guest_session.ask("Do all three.")

        assert result.status is Status.BUDGET_EXHAUSTED
        assert result.partial == "Two of three were done."
        assert (tmp_path / "log").read_text() == "0\n1\n"
        assert "tool_calls asked 1, left 0" in list(answers(guest_session.messages).values())[2]
        assert guest_session.usage.tool_calls == 2
        assert has_no_reservation(guest_session)
        assert [each.resource for each in of_kind(session_events(guest_session), BudgetRefused)] == ["tool_calls"]


async def test_a_spent_budget_of_model_calls_leaves_the_last_word(
    guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """The guest gets the refusal as BudgetExceeded, so that its loop asks once more from the reserve."""
    model = ScriptedModel(
        lambda messages: (
            "In short: nothing." if "used up" in messages[-1].text else Call("Bash", {"command": "echo more"})
        )
    )
    async with Session(model, workspace_tools(), cwd=tmp_path, limits=Limits(model_calls=3)) as session:
        result = await session.ask("Go on and on.")

        assert result.status is Status.BUDGET_EXHAUSTED
        assert result.error is not None
        assert result.error.scope == "main"
        assert result.partial == "In short: nothing."
        assert len(model.requests) == 3
        assert [each.resource for each in of_kind(session_events(session), BudgetRefused)] == ["model_calls"]
        assert has_no_reservation(session)


async def test_max_turns_ends_a_guests_loop(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The guest counts its turns; the error names the run as its scope."""
    async with session(lambda messages: Call("Bash", {"command": "true"}), tmp_path, max_turns=2) as guest_session:
        result = await guest_session.ask("Go on.")

        assert result.status is Status.BUDGET_EXHAUSTED
        assert result.error is not None
        assert "max_turns" in result.error.message
        assert result.error.scope == "main"


# ---- failures and ends


async def test_a_failed_provider_fails_the_turn_and_the_next_one_works(
    guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """The error is the host's own, not the guest's report of it."""
    async with session([Fail(401), "Better now."], tmp_path) as guest_session:
        failed_turn, second_turn = await guest_session.ask("One."), await guest_session.ask("Two.")

        assert failed_turn.status is Status.FAILED
        assert failed_turn.error is not None
        assert failed_turn.error.type == "ModelFailed"
        assert "401" in failed_turn.error.message
        assert second_turn.value == "Better now."


async def test_a_request_that_was_never_sent_is_refunded(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """A request that the host could not send costs nothing, and the guest does not learn the reason."""
    failure = Fail(ConnectionRefusedError(111, "Connection refused"))
    limits = Limits(tokens=200_000, model_calls=20)
    async with session(
        [failure] * 4 + ["Better now."], tmp_path, limits=limits, runtime=impatient_runtime()
    ) as guest_session:
        failed_turn, second_turn = await guest_session.ask("One."), await guest_session.ask("Two.")

        assert failed_turn.error is not None
        assert "Connection refused" in failed_turn.error.message
        assert failed_turn.usage == NO_USAGE
        assert (second_turn.value, second_turn.usage.model_calls, second_turn.usage.estimated) == (
            "Better now.",
            1,
            False,
        )
        assert has_no_reservation(guest_session)
    assert "refused" not in str(guest_loops.last_words[0])


def impatient_runtime() -> AgentRuntime:
    """Return a runtime that retries at once."""
    return AgentRuntime(retry=RetryPolicy(base_s=0))


async def test_a_failed_turn_keeps_the_text_of_its_last_reply(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """`partial` has the last reply alone; earlier replies were recorded already."""
    call = [{"name": "Bash", "args": {"command": "true"}, "id": "c"}]
    script = [AIMessage("One.", tool_calls=call), AIMessage("Two.", tool_calls=call), Fail(400)]
    async with session(script, tmp_path) as guest_session:
        result = await guest_session.ask("Count.")

        assert result.status is Status.FAILED
        assert result.partial == "Two."


async def test_aborting_a_run_stops_its_guest(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The guest gives up its call, and the host sends no further request to the model."""
    model = ScriptedModel([Call("Bash", {"command": "sleep 1000"}), "never"])
    async with Session(model, workspace_tools(), cwd=tmp_path) as session:
        async for item in session.submit_message("Begin."):
            if isinstance(item, ToolStarted):
                session.context.abort.abort("enough")

        assert session.result is not None
        assert session.result.status is Status.CANCELLED
        (last,) = guest_loops.last_words
        assert last is not None
        assert last.error is not None
        assert last.error.message == "enough"
        with pytest.raises(Aborted):
            await guest_loops.conversations[0].ask_model(
                AskModel(id=9, step=f"{session.id}:99"), b'{"messages": [0], "tools": []}', no_piece
            )
        assert len(model.requests) == 1


async def test_a_stopped_guest_reports_every_finished_call(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The host gets each result, also if they exceed the buffer of a channel."""
    (tmp_path / "long.txt").write_text("word\n" * 1_900)
    reads = [Call("Read", {"file_path": "long.txt"}) for _ in range(40)]
    async with session([[*reads, Call("Bash", {"command": "sleep 1000"})]], tmp_path) as guest_session:
        async with aclosing(guest_session.submit_message("Begin.")) as items:
            async for item in items:
                if isinstance(item, ToolStarted) and item.tool == "Bash":
                    break

        results = list(answers(guest_session.messages).values())
        assert len(results) == 41
        assert all(each.count("word") == 1_900 for each in results[:-1])
        assert results[-1] == INTERRUPTED


async def test_an_interrupted_guest_keeps_finished_calls(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """One of two parallel calls has its result, the other is answered as interrupted, and the guest ends."""
    (tmp_path / "note.txt").write_text("kept\n")
    script = [
        [Call("Read", {"file_path": "note.txt"}), Call("Bash", {"command": "echo in; sleep 1000"})],
        "Where was I?",
    ]
    async with session(script, tmp_path) as guest_session:
        async with aclosing(guest_session.submit_message("Begin.")) as items:
            async for item in items:
                if isinstance(item, ToolStarted) and item.tool == "Bash":
                    break
        result = await guest_session.ask("Go on.")

        file_text, shell = answers(guest_session.messages).values()
        assert "kept" in file_text
        assert shell == INTERRUPTED
        assert result.value == "Where was I?"
        assert is_valid(guest_session.messages)
        await eventually(lambda: not alive(guest_loops.guests[0].pid))


async def test_sigterm_stops_a_guest_in_order(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The guest reports finished calls and its last word; the run fails, since the host did not stop it."""
    (tmp_path / "note.txt").write_text("kept\n")
    calls = [Call("Read", {"file_path": "note.txt"}), Call("Bash", {"command": "sleep 1000"})]
    async with session([calls], tmp_path) as guest_session:
        async for item in guest_session.submit_message("Begin."):
            if isinstance(item, ToolStarted) and item.tool == "Bash":
                os.kill(guest_loops.guests[0].pid, signal.SIGTERM)

        (last,) = guest_loops.last_words
        assert last is not None
        assert last.error is not None
        assert (last.error.type, last.error.message) == ("Aborted", "it received SIGTERM")
        assert guest_session.result is not None
        assert guest_session.result.status is Status.FAILED
        file_text, shell = answers(guest_session.messages).values()
        assert "kept" in file_text
        assert shell == INTERRUPTED


async def test_cancelling_a_tree_ends_its_guests(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """Parent and child end, one in a tool and one in a reply."""
    script = {
        "take charge": [specialist_call("hang on", "child"), "never"],
        "hang on": [Hang(after_chars=4, text="half of it")],
    }
    async with session(script, tmp_path) as guest_session:
        reader = guest_session.submit_message("take charge")
        async for item in reader:
            if len(guest_loops.guests) == 2 and run_of(guest_session, "child").activity.streamed_text:
                break
            if isinstance(item, ToolStarted):
                await eventually(
                    lambda: len(guest_loops.guests) == 2 and run_of(guest_session, "child").activity.streamed_text
                )
                break
        receipt = await guest_session.cancel("enough")
        await reader.aclose()

        assert {"main", "main/child"} == set(receipt.stopped)
        child = run_of(guest_session, "child").result
        assert child is not None
        assert (child.status, child.partial) == (Status.CANCELLED, "half")
        await eventually(lambda: not any(alive(guest.pid) for guest in guest_loops.guests))
        assert has_no_reservation(guest_session)


async def test_a_guest_ends_when_its_channel_closes(guest_source: Guests) -> None:
    """The guest process exits once the host has closed the channel."""
    guest = guest_source.launch()
    guest.channel.close()
    await eventually(lambda: not alive(guest.pid))


# ---- room


async def test_compaction_applies_to_guest_and_host(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The kept messages are the host's own, and the next turn continues from them."""

    sizes: list[int] = []

    def answer(messages: list[BaseMessage]) -> Any:
        if "has become too long" in messages[-1].text:
            return "The file says much."
        if isinstance(messages[-1], HumanMessage) and messages[-1].text == "And?":
            return "That is all."
        sizes.append(len(messages))
        return (
            Call("Bash", {"command": f"head -c 6000 /dev/zero | tr '\\0' {len(sizes)}"}) if len(sizes) < 7 else "Read."
        )

    model = ScriptedModel(answer)
    compaction = Compaction(window_tokens=8_000, keep_last=2)
    async with Session(model, workspace_tools(), cwd=tmp_path, compaction=compaction) as session:
        texts = [
            item.text async for item in session.submit_message("Read all of it.") if isinstance(item, AIMessageChunk)
        ]
        second = await session.ask("And?")

        assert second.value == "That is all."
        assert "".join(texts) == "Read.", "a summary is no word of the conversation"
        compacted = of_kind(session_events(session), Compacted)
        assert compacted
        assert all(each.after_messages < each.before_messages for each in compacted)
        assert "The file says much." in session.messages[1].text
        assert is_valid(session.messages)
        assert list(model.requests[-1].messages[1:]) == session.messages[:-1]


async def test_a_guest_compacts_after_a_context_overflow(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The guest gets the provider's error, compacts, and asks again."""
    long = Call("Bash", {"command": "head -c 9000 /dev/zero | tr '\\0' x"})
    script = [long, long, long, Fail(ContextOverflowError("too long")), "They are all x.", "It fits now."]
    async with session(script, tmp_path, compaction=Compaction(window_tokens=100_000, keep_last=1)) as guest_session:
        result = await guest_session.ask("Read.")

        assert result.value == "It fits now."
        assert len(of_kind(session_events(guest_session), Compacted)) == 1


# ---- forms


class Finding(BaseModel):
    """A form that a JSON schema describes completely."""

    file: str
    lines: list[int]


class Even(BaseModel):
    """A form that a JSON schema describes only in part."""

    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, value: int) -> int:
        """Refuse odd numbers; only the host has this code."""
        if value % 2:
            raise ValueError("it is odd")
        return value


async def test_a_form_is_checked_in_the_guest_and_built_in_the_host(
    guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """The guest lets the model try again; the host builds the value of its own type."""
    agent = Agent(name="finder", output=Finding)
    script = ["It is in a.py.", '{"file": "a.py", "lines": "3"}', '{"file": "a.py", "lines": [3, 4]}']
    async with session(script, tmp_path, agent=agent) as guest_session:
        result = await guest_session.ask("Where is it?")

        assert result.value == Finding(file="a.py", lines=[3, 4])
        assert len(guest_loops.guests) == 1


async def test_the_host_refuses_an_answer_that_only_its_type_excludes(
    guest_loops: GuestLoops, tmp_path: pathlib.Path
) -> None:
    """An answer that fits the schema and not the type fails the run."""
    async with session(['{"number": 3}'], tmp_path, agent=Agent(name="counter", output=Even)) as guest_session:
        result = await guest_session.ask("Count.")

        assert result.status is Status.FAILED
        assert result.error is not None
        assert result.error.type == "OutputInvalid"
        assert "it is odd" in result.error.message


# ---- tools of the user's own


def own_tools(offset: int) -> list[BaseTool]:
    """Return a synchronous tool with a closure, and an asynchronous one that asks the run's model."""

    @tool
    def shift(number: int) -> str:
        """Shift a number."""
        return f"{number + offset} in {os.getpid()}"

    @tool
    async def consult(question: str) -> str:
        """Ask around."""
        from ramet.guest.ports import relay_model

        model = relay_model()
        pieces = [piece.text async for piece in model.astream(question)]
        reply_with_call = await model.bind_tools([shift]).ainvoke("call it")
        reply = await asyncio.to_thread(model.invoke, "from a thread")
        assert reply.usage_metadata is not None
        return f"{'|'.join(pieces)} / {reply_with_call.tool_calls[0]['name']} / {reply.text}"

    return [shift, consult]


async def test_the_users_tools_work_in_the_guest(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """Closures work; requests of a tool to the run's model are counted, and no reader sees their text."""
    script: list[Any] = [
        [Call("shift", {"number": 1}), Call("consult", {"question": "who?"})],
        Say("The two of us.", chunks=("The two ", "of us.")),
        Call("shift", {"number": 5}),
        "From a thread, too.",
        "All asked.",
    ]
    model = ScriptedModel(script)
    async with Session(model, own_tools(41), cwd=tmp_path, spawn=False) as session:
        texts = [item.text async for item in session.submit_message("Ask.") if isinstance(item, AIMessageChunk)]

        shifted, consulted = answers(session.messages).values()
        assert shifted == f"42 in {guest_loops.guests[0].pid}"
        assert consulted == "The two |of us.| / shift / From a thread, too."
        assert "".join(texts) == "All asked."
        assert model.requests[2].tools == ("shift",)
        assert (session.usage.model_calls, session.usage.tool_calls) == (5, 3), "the call beside it is counted, unseen"
        assert [each.type for each in session.messages] == ["human", "ai", "tool", "tool", "ai"]


async def test_a_tool_that_cannot_be_packed_fails_the_run(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The run fails with NotShippable before a request to a model."""
    lock = threading.Lock()

    @tool
    def guarded(number: int) -> str:
        """Wait for a lock."""
        with lock:
            return str(number)

    model = ScriptedModel(["never"])
    async with Session(model, [guarded], cwd=tmp_path, spawn=False) as session:
        result = await session.ask("Go.")

        assert result.error is not None
        assert result.error.type == "NotShippable"
        assert not model.requests


async def test_an_image_address_of_a_tool_becomes_an_error(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """A provider would fetch the address: the model reads an error instead, and the run continues."""

    @tool
    def look(at: str) -> list[dict[str, Any]]:
        """Look at something."""
        return [{"type": "image_url", "image_url": {"url": at}}]

    async with Session(
        ScriptedModel([Call("look", {"at": "https://example.org/x.png"}), "I cannot see it."]), [look]
    ) as session:
        result = await session.ask("Look.")

        assert result.value == "I cannot see it."
        (text_shown,) = answers(session.messages).values()
        assert "left out: an address" in text_shown


async def test_a_large_result_goes_to_a_file_of_the_guest(guest_loops: GuestLoops, tmp_path: pathlib.Path) -> None:
    """The guest reads the file, which is deleted with it."""

    def path_in(text: str) -> str:
        match = re.search(r"in (/\S+\.txt)", text)
        assert match is not None
        return match[1]

    script: list[Any] = [
        Call("Bash", {"command": "for i in $(seq 9000); do echo line $i; done"}),
        lambda messages: Call("Read", {"file_path": path_in(messages[-1].text), "offset": 8999}),
        "Seen.",
    ]
    async with session(script, tmp_path) as guest_session:
        result = await guest_session.ask("Count.")

        assert result.value == "Seen."
        first, second = answers(guest_session.messages).values()
        assert len(first) < 3_000
        assert "line 8999" in second
    assert not await asyncio.to_thread(pathlib.Path(path_in(first)).exists)
