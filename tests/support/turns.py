"""Turns of slow agents (`tests.support.slow_agents`), and who reads them to their end, wherever they go on."""

from __future__ import annotations

import asyncio
import json
import pathlib
from contextlib import aclosing

from ramet.services.client.client import Client
from ramet.services.contract import Chunk, SpawnedAgent


def counting(most: int, wait: int, folder: pathlib.Path) -> bytes:
    """A message: say the numbers to `most`, and wait before number `wait` until there is `folder/go`."""
    text = f"count {most} {wait} {folder}"
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


class Reader:
    """Reads one turn, which it asks for, or that is there; `done` when it is over."""

    def __init__(
        self, client: Client, agent: SpawnedAgent, body: bytes = b"", *, format: str = "openai", **options: str
    ) -> None:
        self.chunks: list[Chunk] = []
        self._client, self._agent = client, agent
        self.done = asyncio.create_task(self._read(body, format, **options))

    @property
    def text(self) -> str:
        """What was said, in the format of OpenAI."""
        said = [json.loads(each.body) for each in self.chunks if each.kind == "chunk"]
        return "".join(choice["delta"].get("content") or "" for each in said for choice in each["choices"])

    async def leave(self) -> None:
        """Read no more."""
        self.done.cancel()
        await asyncio.wait({self.done})

    async def _read(self, body: bytes, format: str, turn: str = "", on_leave: str = "") -> None:
        agent, key = self._agent.agent.id, self._agent.nonce
        if turn:
            chunks = self._client.read_turn(agent, turn, key=key)
        else:
            chunks = self._client.turn(agent, body, format=format, on_leave=on_leave, key=key)
        async with aclosing(chunks):
            async for chunk in chunks:
                self.chunks.append(chunk)
