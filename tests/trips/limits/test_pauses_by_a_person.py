"""Pauses by a person: what is under way ends, nothing new begins, and the transcript is that of an unpaused tree."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from ramet import AgentRuntime, Policy, ScriptedModel, Session, workspace_tools
from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.hooks import hook
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Compacted,
    Event,
    ModelAsked,
    PauseEnded,
    RunPaused,
    RunSpawned,
    StateChanged,
    ToolStarted,
    TurnStarted,
)
from ramet.host.journal.subscription import listen
from ramet.models.scripted.dialogue import Call, ReplyStep
from tests.support.waiting import eventually
from tests.trips.kits.isolated import backend
from tests.trips.kits.pausing import paused, states
from tests.trips.kits.sessions import (
    Gate,
    brief_of,
    has_no_reservation,
    of_kind,
    open_tree_of,
    run_of,
    session_events,
    typed_texts,
)

__all__ = ["backend"]


async def test_a_call_under_way_ends_and_nothing_new_begins_before_the_end_of_the_pause() -> None:
    """The pause comes during a tool call: the call is recorded, and the next request waits without a slot."""
    gate = Gate()
    async with Session(ScriptedModel([Call("gate", {}), "done"]), [gate.tool]) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        receipt = await session.handle().pause("lunch")
        assert receipt == ((), ("main",))
        assert states(session) == {"main": "running"}
        gate.open.set()
        await paused(session)
        assert session.messages[-1].type == "tool"
        assert len(of_kind(session_events(session), ModelAsked)) == 1
        assert has_no_reservation(session)
        assert not session.context.slot.is_held
        await session.handle().resume()
        assert (await turn).value == "done"
        (began,) = of_kind(session_events(session), RunPaused)
        assert (began.path, began.reason, began.now) == ("main", "lunch", False)
        assert len(of_kind(session_events(session), PauseEnded)) == 1
        assert ("paused", "by a person: lunch") in [
            (each.state, each.why) for each in of_kind(session_events(session), StateChanged)
        ]


COMMAND = "head -c 6000 /dev/zero | tr '\\0' x"
#: The events at which a tree is paused: during the request of a model, a tool call, the wait for a child, the wait for
#: an approval, the start of a sandbox, and the shortening of a conversation.
MOMENTS: dict[str, Callable[[Event], bool]] = {
    "model call": lambda event: isinstance(event, ModelAsked) and event.path == "main",
    "tool": lambda event: isinstance(event, ToolStarted) and event.tool == "Bash",
    "child wait": lambda event: isinstance(event, StateChanged) and (event.path, event.state) == ("main", "waiting"),
    "approval": lambda event: isinstance(event, ApprovalAsked),
    "sandbox start": lambda event: isinstance(event, RunSpawned) and event.path == "main/digger",
    "compaction": lambda event: isinstance(event, Compacted),
}


@hook("PreToolUse")
def ask_a_person(payload: dict[str, Any]) -> dict[str, Any]:
    """Ask a person about each command."""
    if payload["tool_name"] != "Bash":
        return {}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask"}}


def reply(messages: list[BaseMessage]) -> ReplyStep:
    """Reply by what the conversation has: two long outputs, a child, a call that a person must approve, and an end."""
    if "has become too long" in messages[-1].text:
        return "Much was read."
    if brief_of(messages) == "dig":
        return Call("Glob", {"pattern": "*"}) if messages[-1].type == "human" else "dug"
    texts = " ".join(str(message.text) for message in messages)
    if "dug" in texts:
        return "done"
    if "Much was read." in texts:
        return Call("Agent", {"prompt": "dig", "subagent_type": "digger", "name": "digger"})
    return Call("Bash", {"command": COMMAND})


@pytest.mark.parametrize("place", ["host", "sandbox"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_tree_paused_at_any_moment_ends_with_the_transcript_of_an_unpaused_one(
    tmp_path: pathlib.Path, moment: str, place: str
) -> None:
    """Nothing begins during the pause, which holds no slot, no reservation and no time."""
    assert await transcripts_of(tmp_path / "paused", place, moment) == await transcripts_of(tmp_path / "free", place)


async def transcripts_of(folder: pathlib.Path, place: str, moment: str = "") -> dict[str, list[tuple[str, str]]]:
    """Return the conversations of a tree that was paused at this moment."""
    await asyncio.to_thread(folder.mkdir)
    async with (
        AgentRuntime(folder / "state", backend="local") as runtime,
        Session(
            ScriptedModel(reply),
            workspace_tools(),
            cwd=folder,
            agents=[Agent(name="digger", description="Digs.", policy=Policy())],
            hooks=[ask_a_person],
            runtime=runtime,
            approver=lambda _: True,
            root_policy=Policy(allow_sub_agents=True) if place == "sandbox" else None,
            compaction=Compaction(window_tokens=5_000, keep_last=2),
        ) as session,
    ):
        tree, loop, is_reached = open_tree_of(session), asyncio.get_running_loop(), asyncio.Event()

        def pause(event: Event) -> None:
            if moment and not is_reached.is_set() and MOMENTS[moment](event):
                is_reached.set()
                loop.call_soon(lambda: tree.tree.supervisor.pauses.pause(run_of(session, "main"), moment))

        listen(tree.recorder, pause)
        turn = asyncio.create_task(session.ask("Read."))
        if moment:
            await is_reached.wait()
            await eventually(lambda: tree.tree.register.is_paused)
            assert has_no_reservation(session)
            assert tree.tree.register.slots.in_use == 0
            await session.handle().resume()
        assert (await turn).value == "done"
        assert has_no_reservation(session)
        if moment:
            begun = of_pause(session_events(session))
            assert not begun, begun
        return {path: typed_texts(run_of(session, path).context.history) for path in ("main", "main/digger")}


def of_pause(events: list[Event]) -> list[Event]:
    """Return what began while the tree was paused.

    A sandbox reports the begin of a call after it: a call that was approved before the pause was under way.
    """
    began = next(at for at, event in enumerate(events) if isinstance(event, RunPaused))
    ended = next(at for at, event in enumerate(events) if isinstance(event, PauseEnded))
    before = events[:began]
    reported = sum(each.tool == "Bash" for each in of_kind(before, ToolStarted))
    late = [each for each in of_kind(events[began:ended], ToolStarted) if each.tool == "Bash"]
    under_way = late[: len(of_kind(before, ApprovalAnswered)) - reported]
    kinds = (ModelAsked, ToolStarted, RunSpawned, TurnStarted)
    return [event for event in events[began:ended] if isinstance(event, kinds) and event not in under_way]
