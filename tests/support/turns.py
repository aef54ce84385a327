"""Turns of slow agents (`tests.support.slow_agents`), and readers that follow them to their end on any kernel."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from ramet.services.client.client import Client
from ramet.services.client.requests import RequestSpec
from ramet.services.client.transport import Transport
from ramet.services.contract import Chunk, SpawnedAgent
from ramet.services.turns.service import AgentService
from ramet.services.turns.turn import Batch, Turn
from ramet.wire.sse import ServerSentEvent


def counting(most: int, wait: int, folder: pathlib.Path) -> bytes:
    """Return a message: count to `most`, and wait before the number `wait` until `folder/go` exists."""
    text = f"count {most} {wait} {folder}"
    return json.dumps({"messages": [{"role": "user", "content": text}]}).encode()


def chunks_of(turn: Turn, after: int = 0) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a turn after a number, then new chunks. Raises like `Turn.batches`, also at once."""
    return _one_by_one(turn.batches(after))


def read_turn(service: AgentService, agent: str, key: str, turn: str, after: int = 0) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a turn for a key of its agent. Raises like `AgentService.batches`, also at once."""
    return _one_by_one(service.batches(agent, key, service.turn_of(agent, key, turn), after))


async def _one_by_one(batches: AsyncGenerator[Batch, None]) -> AsyncGenerator[Chunk, None]:
    async with aclosing(batches):
        async for batch in batches:
            for chunk in batch:
                yield chunk


class _HeaderNotingTransport(Transport):
    """The connections of another transport, which passes the headers of each stream to `note`."""

    def __init__(self, transport: Transport, note: Callable[[Mapping[str, str]], None]) -> None:
        self.__dict__.update(transport.__dict__)
        self._note = note

    def stream(
        self,
        ask: RequestSpec[None],
        key: str | None = None,
        on_headers: Callable[[Mapping[str, str]], None] = lambda headers: None,
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """See `Transport.stream`."""

        def note(headers: Mapping[str, str]) -> None:
            self._note(headers)
            on_headers(headers)

        return super().stream(ask, key, note)


class HeaderNotingClient(Client):
    """A client that shares the connections of another one, and passes the headers of each stream to `note`."""

    def __init__(self, client: Client, note: Callable[[Mapping[str, str]], None]) -> None:
        self.__dict__.update(client.__dict__)
        self._transport = _HeaderNotingTransport(client._transport, note)


class Reader:
    """A reader of one turn, a new one or an existing one; `done` ends with the turn.

    `turn_id` is empty until the server has accepted the turn. A kernel that is killed before then may or may not have
    recorded the turn, and the request fails with 502, as docs/guides/services.md says: the client does not repeat it.
    """

    def __init__(
        self, client: Client, agent: SpawnedAgent, body: bytes = b"", *, format: str = "openai", **options: str
    ) -> None:
        self.chunks: list[Chunk] = []
        self.turn_id = ""
        self._client, self._agent = HeaderNotingClient(client, self._note), agent
        self.done = asyncio.create_task(self._read(body, format, **options))

    @property
    def text(self) -> str:
        """Return the text of the turn, in the format of OpenAI."""
        bodies = [json.loads(each.body) for each in self.chunks if each.kind == "chunk"]
        return "".join(choice["delta"].get("content") or "" for each in bodies for choice in each["choices"])

    async def leave(self) -> None:
        """Stop reading."""
        self.done.cancel()
        await asyncio.wait({self.done})

    def _note(self, headers: Mapping[str, str]) -> None:
        self.turn_id = headers.get("ramet-turn", self.turn_id)

    async def _read(self, body: bytes, format: str, turn: str = "", on_leave: str = "") -> None:
        agent, key = self._agent.agent.id, self._agent.nonce
        if turn:
            chunks = self._client.read_turn(agent, turn, key=key)
        else:
            chunks = self._client.turn(agent, body, format=format, on_leave=on_leave, key=key)
        async with aclosing(chunks):
            async for chunk in chunks:
                self.chunks.append(chunk)
