"""An agent type for tests of the services: it repeats its messages, and waits, fails or ends on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ramet.core.errors import InvalidValue, ModelFailed
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import AgentSpec, Image, RunningAgent


class EchoInfo(Struct, forbid_unknown_fields=True):
    """The method in which the agent fails: `trouble` is `check` or `open`."""

    prefix: str = ""
    trouble: str = ""


class Shout(Struct, forbid_unknown_fields=True):
    """Repeat each word so many times from now on."""

    times: int = 1


class Echo:
    """An agent that answers a body word by word. Some words have a meaning:

    `wait` waits until `go_on` is set; `fail` fails with a ModelFailed; `die` ends the agent.
    """

    def __init__(self, opening: AgentSpec) -> None:
        self.opening, self.run, self.isolation = opening, opening.run or f"run-of-{opening.id}", "none"
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self.go_on = asyncio.Event()
        self.received_bodies: list[tuple[bytes, str]] = []
        self.mail_texts: list[str] = []
        self.interrupts = 0
        self.times = 1
        self._turn: asyncio.Task[Any] | None = None

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        if not body:
            raise InvalidValue("body", body, "words")
        self.received_bodies.append((body, format))
        self._turn = asyncio.current_task()
        for word in body.split():
            match word:
                case b"wait":
                    await self.go_on.wait()
                case b"fail":
                    raise ModelFailed("echo", "it was told to")
                case b"die":
                    self.end.set_result(ErrorInfo(type="Crashed", message="it was told to"))
                    raise ModelFailed("echo", "it died")
            yield self.opening.info.prefix.encode() + word * self.times

    async def interrupt(self) -> None:
        self.interrupts += 1
        self.go_on.set()

    async def control(self, operation: Any) -> Any:
        assert isinstance(operation, Shout)
        self.times = operation.times
        return {"times": self.times}

    async def history(self) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": body.decode()} for body, _ in self.received_bodies]

    async def mail(self, text: str) -> None:
        self.mail_texts.append(text)

    def usage(self) -> Mapping[str, float]:
        return {"tokens": float(sum(len(body.split()) for body, _ in self.received_bodies))}

    async def close(self, reason: str) -> None:
        if not self.end.done():
            self.end.set_result(None)
        self.go_on.set()


class EchoType:
    """An agent type that keeps a list of all agents that it has opened."""

    name = "echo"
    spawn_info: type = EchoInfo
    transport_formats: Sequence[str] = ("words", "letters")
    operations: Mapping[str, type] = {"shout": Shout}

    def __init__(self) -> None:
        self.opened: list[Echo] = []

    def needs_sandbox(self, info: EchoInfo, image: Image) -> bool:
        return False

    async def check(self, spec: AgentSpec) -> None:
        if spec.info.trouble == "check":
            raise InvalidValue("spawn_info.trouble", "check", "none")

    async def open(self, spec: AgentSpec) -> RunningAgent:
        if spec.info.trouble == "open":
            raise ModelFailed("echo", "it cannot be opened")
        self.opened.append(Echo(spec))
        return self.opened[-1]
