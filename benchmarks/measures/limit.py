"""A limit of model calls under many concurrent children: the number of HTTP requests of the real ChatOpenAI client."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.cost import Cost, Figures
from benchmarks.loopback import Loopback
from ramet import Agent, Limits, Session, SpawnLimits, Status


async def measure(children: int, limit: int = 5) -> Figures:
    """Spawn so many children with one reply, each of which asks the model at once. The tree may make `limit` calls."""
    async with Loopback().serve() as server:
        model = ChatOpenAI(model="gpt-4o", base_url=f"{server.url}/v1", api_key=SecretStr("none"), max_retries=0)
        with Cost() as cost:
            async with Session(
                model,
                agents=[Agent(name="worker", tools=[])],
                limits=Limits(model_calls=limit),
                spawn_limits=SpawnLimits(children=children, runs=children + 1, running=None),
            ) as session:
                result = await session.ask(f"delegate {children}")
                usage = session.usage
        await model.root_async_client.close()
        model.root_client.close()
        assert result.status is Status.BUDGET_EXHAUSTED, result
        assert usage.agents == children, usage
        requests = server.requests
        assert usage.model_calls == requests, f"{requests} arrived, {usage.model_calls} were counted"
    return {"requests": requests, "overshoot": requests - limit, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s}
