"""A process that is killed at the gate: `safety_gate.py PLACE FOLDER voting|asking|committed|running`.

The process kills itself while a voter has the call, while a person is asked, when the call is committed and has not
begun, or while the call is active.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys

from langchain_core.tools import BaseTool, StructuredTool

from ramet import Agent, AgentRuntime, ScriptedModel
from ramet.core.events import IntentionRecorded
from ramet.core.safety import Rule, SafetyPolicy, VoterAnswer
from ramet.host.safety.gate import SafetyGate
from ramet.models.scripted.dialogue import Call
from ramet.store.contract import Entry, Store
from tests.support.store_addresses import store_at

#: Allows, but for a policy that wants a person.
ALLOWS = SafetyPolicy(otherwise="allow")
ASKS = SafetyPolicy(rules=(Rule(tool="pay", verdict="ask", reason="Really?"),))


def die() -> None:
    """Kill the process, like a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


class Second:
    """A voter beside the rules, which may kill the process before its vote."""

    name = "second"

    def __init__(self, dies: bool = False) -> None:
        self._dies = dies

    async def vote(self, intention: IntentionRecorded, policy: SafetyPolicy) -> VoterAnswer:
        if self._dies:
            die()
        return VoterAnswer("allow")


def kill_at_start(store: Store) -> Store:
    """Return the store, which kills its process once each event before the first `tool_started` is recorded."""
    append, durable, newest = store.append, store.durable, 0
    dying = False

    def up_to_the_start(entry: Entry) -> int:
        nonlocal newest, dying
        dying = dying or entry.type == "tool_started"
        if not dying:
            newest = append(entry)
        return newest

    async def no_further(ticket: int) -> None:
        await durable(ticket)
        if dying:
            die()

    store.append, store.durable = up_to_the_start, no_further  # type: ignore[method-assign]
    return store


def model() -> ScriptedModel:
    """Return a model that pays once."""
    return ScriptedModel({"": [Call("pay", {"amount": 50}, id="c1"), "it is settled"]})


def payer() -> Agent:
    """Return the root."""
    return Agent(name="payer", model=model())


def tools(folder: pathlib.Path, *, dies: bool = False) -> list[BaseTool]:
    """Return one tool; each call appends a line."""

    async def pay(amount: int) -> str:
        with (folder / "effects").open("a") as file:
            file.write("pay\n")
        if dies:
            die()
        return "paid"

    return [StructuredTool.from_function(coroutine=pay, name="pay", description="Pays.")]


async def main(store_address: str, folder: pathlib.Path, kill_point: str) -> None:
    """Work until the chosen moment, and be killed there."""
    store = store_at(store_address)
    if kill_point == "committed":
        store = kill_at_start(store)
    gate = SafetyGate(ASKS if kill_point == "asking" else ALLOWS, [Second(dies=kill_point == "voting")])
    async with AgentRuntime(store=store, grace_s=1.0) as runtime:
        handle = await runtime.spawn(payer(), "Go.", tools=tools(folder, dies=kill_point == "running"), gate=gate)
        if kill_point == "asking":
            inbox = runtime.trees[handle.id].inbox
            while not inbox.pending:  # noqa: ASYNC110 - until it waits
                await asyncio.sleep(0.002)
            await handle.run.context.wait_persisted()
            die()
        await handle.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]))
