"""An image with a function that greets, and agents of this function, for clients of several kernels."""

from __future__ import annotations

import asyncio

from ramet.core.policy.policy import Policy
from ramet.services.client.client import Client
from ramet.services.contract import SpawnedAgent

GREETER = {"greeter.py": b"def greet(text):\n    return 'hello from an image'\n"}


async def image_of(client: Client, bundle: str, *, asked: Client | None = None, key: str | None = None) -> str:
    """Make an image of one bundle, and return its id. The client `asked` waits for it, by default the same one."""
    job = await client.create_image([bundle], key=key)
    async with asyncio.timeout(180):
        while job.state in ("queued", "running"):
            await asyncio.sleep(0.01)
            job = await (asked or client).job(job.id, key=key)
    assert job.state == "done", job.error
    return job.image


async def spawn_greeter(client: Client, team: str, name: str, image: str, key: str) -> SpawnedAgent:
    """Spawn an agent of that image."""
    info, policy = {"function": "greeter:greet"}, Policy()
    return await client.spawn_agent(team, name, "function", info, image=image, policy=policy, key=key)


async def greeting(client: Client, agent: SpawnedAgent) -> bytes:
    """Return the greeting of an agent."""
    asked = b'{"messages": [{"role": "user", "content": "Go"}]}'
    return await client.say(agent.agent.id, asked, key=agent.nonce)
