"""Trees that pause at a limit, for kernels that are killed, and the owner who raises the limit.

The owner works in the kernel's process: when nothing moves any more, the owner raises the limit with a key. A later
kernel repeats each raise that an earlier one began, answered or not. The model is a loopback server at the address in
the file `address`, asked by a real client.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import urllib.request
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI

from ramet import Agent, AgentRuntime, Limits, Policy
from ramet.core.errors import BudgetExceeded
from ramet.core.limits import SpawnLimits
from ramet.models.scripted.dialogue import Call, Script
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run
from tests.chaos import planned, talking

GIVEN, RAISE, REST, TOO_MUCH = 5, 3, 300, 10_000
PARTS = 100
NOTES = 11
#: What a tree of each trip is asked, and what it answers in the end.
ASKED = {"one": "tally notes", "talk": "tally notes", "nested": "have notes tallied", "hundred": "fan out to pieces"}
ANSWERED = {
    "one": "the notes are tallied",
    "talk": "the notes are tallied",
    "nested": "a child tallied the notes",
    "hundred": "all pieces are back",
}
#: How many requests each trip makes if no kill cuts one.
REQUESTS = {"one": NOTES + 1, "talk": NOTES + 1, "nested": NOTES + 3, "hundred": PARTS + 2}
TALLIER = "tallier"
SCRIPT: Script = {
    "have notes tallied": [
        Call("Agent", {"prompt": "tally notes", "subagent_type": TALLIER}),
        ANSWERED["nested"],
    ],
    "tally notes": [*(Call("note", {"text": f"note {number}"}) for number in range(NOTES)), ANSWERED["one"]],
    "fan out to pieces": [
        [
            Call("Agent", {"prompt": f"find piece {number}", "subagent_type": "general-purpose"})
            for number in range(PARTS)
        ],
        ANSWERED["hundred"],
    ],
    "find piece": ["a piece is found"],
}
PAUSING = Limits(model_calls=GIVEN, at_limit="pause")
#: Of the root above a child with a limit of its own: enough for all raises but one.
ABOVE = Limits(model_calls=GIVEN + RAISE + REST + 20)


class Raise(NamedTuple):
    """Raise of the limit: its key, how many calls it adds, and the limit before it."""

    key: str
    calls: int
    before: int


RAISES = (Raise("first", RAISE, GIVEN), Raise("last", REST, GIVEN + RAISE))


async def begin(runtime: AgentRuntime, folder: pathlib.Path, trip: str) -> Handle | None:
    """Resume or spawn the tree of a trip, and let its owner attend to it."""
    for handle in await runtime.resume(llm=model(folder), tools=tools(folder, trip), agents=[tallier()]):
        return attend(runtime, handle, folder, trip)
    if (folder / "begun").exists():
        return None
    handle = await runtime.spawn(
        Agent(name="lead", model=model(folder)),
        ASKED[trip],
        tools=tools(folder, trip),
        agents={**general(), TALLIER: tallier()},
        limits=ABOVE if trip == "nested" else PAUSING,
        spawn_limits=SpawnLimits(children=2 * PARTS, running=4),
        policy=Policy() if trip == "talk" else None,
    )
    return attend(runtime, handle, folder, trip)


async def take_over(runtime: AgentRuntime, folder: pathlib.Path, trip: str) -> Handle | None:
    """Wait until the tree of a dead kernel can be taken over, and let its owner attend to it here."""
    return attend(runtime, await adopted(runtime, folder, trip), folder, trip)


async def adopted(runtime: AgentRuntime, folder: pathlib.Path, trip: str) -> Handle:
    """Wait until the tree of a dead kernel can be taken over, and return it."""
    first = asyncio.get_running_loop().create_future()
    found = await runtime.adopt(first.set_result, llm=model(folder), tools=tools(folder, trip), agents=[tallier()])
    (folder / "standing by").touch()
    return found[0] if found else await first


def model(folder: pathlib.Path) -> ChatOpenAI:
    """Return a real client of the loopback server."""
    address = (folder / "address").read_text()
    fields: dict[str, Any] = {"model": "gpt-5.4-mini", "base_url": f"{address}/v1", "api_key": "test"}
    return ChatOpenAI(**fields)


def tools(folder: pathlib.Path, trip: str) -> list[BaseTool]:
    """Return the tool `note`. Only outside of a sandbox its effects are counted."""
    return talking.tools() if trip == "talk" else planned.tools(folder)


def tallier() -> Agent:
    """Return the child with a limit of its own, at which it pauses."""
    return Agent(name=TALLIER, description="Tallies notes.", limits=PAUSING)


def general() -> dict[str, Agent]:
    """Return the agents that every project has."""
    from ramet.host.trees.project import Project

    return dict(Project.open(None, user_dir=None))


# --- the owner

_owners = set[asyncio.Task[None]]()


def attend(runtime: AgentRuntime, handle: Handle, folder: pathlib.Path, trip: str) -> Handle:
    """Let the owner attend to a tree from now on, unless a file `alone` says that somebody else raises."""
    if not (folder / "alone").exists():
        keep(asyncio.create_task(_attend(runtime, handle, folder, trip)))
    return handle


def keep(owner: asyncio.Task[None]) -> None:
    """Keep the task of an owner until it is over; a failure is reported."""
    _owners.add(owner)
    owner.add_done_callback(_failed)


def _failed(task: asyncio.Task[None]) -> None:
    _owners.discard(task)
    if not task.cancelled() and (problem := task.exception()) is not None:
        asyncio.get_running_loop().call_exception_handler({"message": "the owner failed", "exception": problem})


async def _attend(runtime: AgentRuntime, handle: Handle, folder: pathlib.Path, trip: str) -> None:
    scope = await _scope(runtime, handle, trip)
    for each in RAISES:  # An earlier kernel was killed around these: its owner cannot know whether they count.
        if (folder / f"raising {each.key}").exists():
            await _raise(scope, each, folder)
    for each in RAISES:
        if (folder / f"raising {each.key}").exists():
            continue
        await _halted(runtime, handle, scope, each.before)
        await asyncio.to_thread(mark, folder, each.key)
        if each.key == "last" and (folder / "cancels").exists():
            await handle.cancel("the owner has seen enough")
            return
        if trip == "nested":
            await _raise_too_much(scope, folder)
        (folder / f"raising {each.key}").touch()
        await _raise(scope, each, folder)


async def _scope(runtime: AgentRuntime, handle: Handle, trip: str) -> Handle:
    """Wait for the run whose limit is raised: the root, or the child with a limit of its own."""
    if trip != "nested":
        return handle
    while True:
        for run in _runs(runtime, handle):
            if run.info.agent == TALLIER:
                return runtime.get(run.info.id)
        await asyncio.sleep(0.005)


async def _halted(runtime: AgentRuntime, handle: Handle, scope: Handle, limit: int) -> None:
    """Wait until the whole limit is used, nothing of it is reserved, and all that could go on is paused."""
    while True:
        budget = scope.run.context.budget
        if (budget.limit("model_calls"), budget.spent_amount("model_calls")) == (limit, limit):
            living = [str(run.state) for run in _runs(runtime, handle) if run.is_living]
            waiting = [state for state in living if state != "paused"]
            has_ancestors_only = waiting in ([], ["waiting"]) and budget.reserved_amount("model_calls") == 0
            if has_ancestors_only and "paused" in living:
                return
        await asyncio.sleep(0.005)


async def _raise(scope: Handle, this: Raise, folder: pathlib.Path) -> None:
    raised = await scope.raise_limits(Limits(model_calls=this.calls), key=this.key)
    note_line(folder / "answers", {"key": this.key, "model_calls": raised.model_calls, "at_limit": raised.at_limit})


async def _raise_too_much(scope: Handle, folder: pathlib.Path) -> None:
    try:
        await scope.raise_limits(Limits(model_calls=TOO_MUCH), key="too much")
    except BudgetExceeded as refusal:
        note_line(folder / "refusals", {"asked": refusal.asked, "left": refusal.left, "scope": refusal.scope})
    else:
        note_line(folder / "refusals", {"granted": TOO_MUCH})


def _runs(runtime: AgentRuntime, handle: Handle) -> list[Run]:
    return list(runtime.trees[handle.id].tree.register.runs.values())


def mark(folder: pathlib.Path, key: str) -> None:
    """Let the loopback server note how many requests it has seen."""
    with urllib.request.urlopen(f"{(folder / 'address').read_text()}/marks/{key}") as answer:
        answer.read()


def note_line(file: pathlib.Path, fields: dict[str, Any]) -> None:
    """Add a line of JSON to a file."""
    with file.open("a") as opened:
        opened.write(json.dumps(fields) + "\n")
