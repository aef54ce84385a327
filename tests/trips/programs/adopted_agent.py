"""A program whose adopted agent never gets the answer to its second request; the test kills it there."""

from __future__ import annotations

import asyncio
import sys

from langchain_core.runnables import RunnableLambda

import ramet
from ramet.agent.definition import Agent
from ramet.core.limits import Limits
from ramet.host.runtime import AgentRuntime
from ramet.models.scripted.model import Hang, ScriptedModel
from tests.support.waiting import eventually


def asks_twice(model: ScriptedModel, *, says: bool = False) -> Agent:
    """Return an agent that asks a model twice, and prints a line during the second request."""

    async def asks(text: str) -> str:
        first = await model.ainvoke(text)
        second = asyncio.ensure_future(model.ainvoke(text))
        if says:
            await eventually(lambda: len(model.requests) == 2)
            sys.stdout.write("asked\n")
            sys.stdout.flush()
        return f"{first.text}, {(await second).text}"

    return ramet.adopt(RunnableLambda(asks), name="asker")


async def main() -> None:
    """Run the agent in the named folder without an end."""
    async with AgentRuntime(sys.argv[1]) as runtime:
        agent = asks_twice(ScriptedModel(["one", Hang(0)], max_tokens=50), says=True)
        handle = await runtime.spawn(agent, "Go.", limits=Limits(model_calls=4, tokens=5_000))
        await handle.result()


if __name__ == "__main__":
    asyncio.run(main())
