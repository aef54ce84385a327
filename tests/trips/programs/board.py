"""A process that works on a board, and is killed at the n-th write of its store or while an agent works on a task.

`board.py PLACE before|after N` or `board.py PLACE agent`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from langchain_core.tools import BaseTool, StructuredTool

from ramet import Agent, AgentRuntime, ScriptedModel
from ramet.host.board.board import Board, boards
from ramet.models.scripted.dialogue import Call
from ramet.tools.agents.board import Owner, board_tools
from tests.support.store_addresses import kill_at_put, store_at

ME = Owner("run-me", "main")
#: What is done to the board, one after the other.
STEPS = ["create", "create", "claim 1", "complete 1", "claim 2", "complete 2", "delete 1"]


async def do(board: Board, step: str) -> None:
    """Do one step."""
    act, _, id = step.partition(" ")
    if act == "create":
        await board.create("a task", blocked_by=[task.id for task in await board.list()])
    elif act == "claim":
        await board.claim(id, ME)
    elif act == "complete":
        await board.complete(id, ME)
    else:
        await board.delete(id, ME)


async def steps(store_address: str, kill_point: str, number: int) -> None:
    """Do every step until killed."""
    store = await kill_at_put(store_at(store_address), kill_point, number).open()
    for step in STEPS:
        await do(Board(store, "list"), step)


def model() -> ScriptedModel:
    """Return a model that creates a task, claims it, is killed, and completes it."""
    claim, complete = (Call("TaskUpdate", {"taskId": "1", "status": each}) for each in ("in_progress", "completed"))
    return ScriptedModel({"work": [Call("TaskCreate", {"subject": "dig"}), claim, Call("die"), complete, "it is dug"]})


def tools(runtime: AgentRuntime) -> list[BaseTool]:
    """Return the tools of the board, and one that kills the process."""

    async def die() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    fatal = StructuredTool.from_function(coroutine=die, name="die", description="Dies.")
    return [*board_tools(boards(runtime)("list")), fatal]


async def agent(store_address: str) -> None:
    """Run an agent that claims a task, until killed."""
    async with AgentRuntime(store=store_at(store_address)) as runtime:
        handle = await runtime.spawn(Agent(name="worker", model=model()), "work", tools=tools(runtime))
        await handle.result()


if __name__ == "__main__":
    asyncio.run(agent(sys.argv[1]) if sys.argv[2] == "agent" else steps(sys.argv[1], sys.argv[2], int(sys.argv[3])))
