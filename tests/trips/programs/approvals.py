"""A process that is killed while a question waits, or once its answer is recorded and nothing was done.

`approvals.py PLACE FOLDER asked|allowed|denied`: the process spawns the tree or resumes it, and kills itself.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool

from ramet import Agent, AgentRuntime, ScriptedModel
from ramet.concurrency.clock import Clock
from ramet.host.approvals import Inbox
from ramet.host.trees.project import Project
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle
from ramet.store.contract import Entry, Store
from tests.support.store_addresses import store_at


def kill_when_answered(store: Store) -> Store:
    """Return the store, which kills its process once an answer is recorded, and none of its effects."""
    append, durable = store.append, store.durable
    newest, is_answered = 0, False
    dying: asyncio.Task[None] | None = None

    async def die() -> None:
        await durable(newest)
        os.kill(os.getpid(), signal.SIGKILL)

    def up_to_the_answer(entry: Entry) -> int:
        nonlocal newest, is_answered, dying
        if is_answered:
            dying = dying or asyncio.get_running_loop().create_task(die())
            return newest
        is_answered = entry.type == "approval_answered"
        newest = append(entry)
        return newest

    async def no_further(ticket: int) -> None:
        if dying is not None:
            await dying
        await durable(ticket)

    store.append, store.durable = up_to_the_answer, no_further  # type: ignore[method-assign]
    return store


def model() -> ScriptedModel:
    """Return the model of a lead with two concurrent children: one pays after an approval, one takes a note."""

    def child(name: str, prompt: str) -> Call:
        return Call("Agent", {"prompt": prompt, "name": name, "subagent_type": "general-purpose"})

    return ScriptedModel(
        {
            "settle the bill": [Call("pay", {"amount": 50}), "the bill is settled"],
            "write it down": [Call("note"), "it is written down"],
            "lead both": [[child("payer", "settle the bill"), child("writer", "write it down")], "both are done"],
        }
    )


def tools(folder: pathlib.Path) -> list[BaseTool]:
    """Return two tools; each call appends a line."""

    async def pay(amount: int) -> str:
        return leave("pay")

    async def note() -> str:
        return leave("note")

    def leave(word: str) -> str:
        with (folder / "effects").open("a") as file:
            file.write(word + "\n")
        return f"{word}: done"

    return [
        StructuredTool.from_function(coroutine=each, name=each.__name__, description="Does it.") for each in (pay, note)
    ]


def ask_about_payments(payload: dict[str, Any]) -> str | None:
    """Ask a person before a payment."""
    return "ask" if payload["tool_name"] == "pay" else None


def lead(llm: ScriptedModel) -> Agent:
    """Return the root, whose gate binds every run below it."""
    return Agent(name="lead", model=llm, hooks={"PreToolUse": [ask_about_payments]})


async def resumed_root(runtime: AgentRuntime, folder: pathlib.Path, llm: ScriptedModel) -> Handle:
    """Return the root of the tree that the first process left."""
    (handle,) = await runtime.resume(llm=llm, tools=tools(folder), agents=[lead(llm)])
    return handle


def runtime_of(store_address: str, clock: Clock | None = None) -> AgentRuntime:
    """Return the runtime of another process on the store of the first."""
    return AgentRuntime(store=store_at(store_address), clock=clock, grace_s=1.0)


async def question(inbox: Inbox) -> str:
    """Return the id of the waiting question."""
    while not inbox.pending:  # noqa: ASYNC110 - what is waited for may be in the journal
        await asyncio.sleep(0.002)
    return inbox.pending[0].id


async def main(store_address: str, folder: pathlib.Path, kill_point: str) -> None:
    """Work until the chosen moment, and be killed there."""
    llm = model()
    async with AgentRuntime(store=kill_when_answered(store_at(store_address)), grace_s=1.0) as runtime:
        if (folder / "question").exists():
            handle = await resumed_root(runtime, folder, llm)
        else:
            agents = Project.open(None, user_dir=None)
            handle = await runtime.spawn(lead(llm), "lead both", tools=tools(folder), agents=agents)
        inbox = runtime.trees[handle.id].inbox
        id = await question(inbox)
        while "note" not in effects(folder) or len(living_paths(runtime, handle)) > 2:  # noqa: ASYNC110 - until the other has ended
            await asyncio.sleep(0.002)
        await handle.run.context.wait_persisted()
        with (folder / "question").open("a") as file:
            file.write(id + "\n")
        if kill_point == "asked":
            os.kill(os.getpid(), signal.SIGKILL)
        inbox.answer(id, kill_point == "allowed", "by somebody")
        await handle.result()


def effects(folder: pathlib.Path) -> list[str]:
    """Return the effects so far."""
    file = folder / "effects"
    return file.read_text().split() if file.exists() else []


def living_paths(runtime: AgentRuntime, handle: Handle) -> list[str]:
    """Return the paths of the tree's runs that have not ended."""
    return [run.info.path for run in runtime.trees[handle.id].tree.register.living()]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]))
