"""An agent type for tests of the formats of model clients: it answers in their formats, word by word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ramet.core.errors import ModelFailed
from ramet.core.outcome import Usage
from ramet.services.contract import AgentSpec, RunningAgent
from ramet.services.formats.registry import format_of
from ramet.services.formats.request import read_text
from tests.support.echo_agents import Echo, EchoInfo


class Parrot(Echo):
    """An agent that answers `<n>: words`, where n counts the turns. It obeys `fail` and `wait` as an echo does."""

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        shape = format_of(format)
        words = read_text(body).split()
        self.received_bodies.append((body, format))
        writer = shape.Writer(f"{len(self.received_bodies)}", "parrot", 1_700_000_000)
        for chunk in writer.begin():
            yield chunk
        for word in (f"{len(self.received_bodies)}:", *words):
            if word == "fail":
                raise ModelFailed("parrot", "it was told to")
            if word == "wait":
                await self.go_on.wait()
            for chunk in writer.text(f"{word} "):
                yield chunk
            await asyncio.sleep(0)
        for chunk in writer.end(Usage(input_tokens=len(words), output_tokens=len(words) + 1)):
            yield chunk


class ParrotType:
    """An agent type that keeps a list of all agents that it has opened."""

    name = "parrot"
    spawn_info: type = EchoInfo
    transport_formats: Sequence[str] = ("openai", "anthropic")
    operations: Mapping[str, type] = {}

    def __init__(self) -> None:
        self.opened: list[Parrot] = []

    async def check(self, spec: AgentSpec) -> None:
        pass

    async def open(self, spec: AgentSpec) -> RunningAgent:
        self.opened.append(Parrot(spec))
        return self.opened[-1]


def user_message(text: str) -> Any:
    """Return a message of a user, which both clients accept."""
    return {"role": "user", "content": text}
