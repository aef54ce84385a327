"""Agent types that a server of the acceptance suite finds as plugins: no part of ramet knows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from msgspec import Struct

from ramet.core.errors import Bug, InvalidValue, MailRefused
from ramet.core.outcome import ErrorInfo
from ramet.models.scripted.dialogue import Call, Step
from ramet.models.scripted.model import ScriptedModel
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.agent_types.sandbox import isolation_of
from ramet.services.contract import AgentSpec, RunningAgent

ENTRY_POINTS = """\
[ramet.agent_types]
shell = tests.support.acceptance_types:ShellType
raw = tests.support.acceptance_types:RawType
"""


def _answer(messages: list[BaseMessage]) -> Step:
    """Run `$ command` with Bash and repeat its result. Repeat every other text, with the number of prompts."""
    newest = messages[-1]
    if isinstance(newest, ToolMessage):
        return str(newest.text)
    asked = [str(each.text) for each in messages if isinstance(each, HumanMessage)]
    if asked[-1].startswith("$ "):
        return Call("Bash", {"command": asked[-1][2:]})
    return f"{len(asked)} so far: {' | '.join(asked)}"


class ShellType(LlmType):
    """A model that obeys its prompts."""

    name = "shell"

    def __init__(self) -> None:
        super().__init__({"shell": ScriptedModel(_answer, keep_requests=False)}, default="shell")


class RawInfo(Struct, forbid_unknown_fields=True):
    """The method in which the agent fails: `trouble` is `check` or `open`."""

    trouble: str = ""


class RawType:
    """An agent type with its own formats: its sandbox receives the bytes unchanged."""

    name = "raw"
    spawn_info: type = RawInfo
    transport_formats: Sequence[str] = ("plain", "backwards")
    operations: Mapping[str, type] = {}

    async def check(self, spec: AgentSpec) -> None:
        self._fail_if("check", spec)

    async def open(self, spec: AgentSpec) -> RunningAgent:
        self._fail_if("open", spec)
        return Raw(spec, await isolation_of(spec.runtime, spec.policy))

    def _fail_if(self, method: str, opening: AgentSpec) -> None:
        if opening.info.trouble == method:
            raise InvalidValue("spawn_info.trouble", method, "none")


def echo_body(body: bytes, format: str) -> bytes:
    """Return what the sandbox makes of a body."""
    return body if format == "plain" else body[::-1]


class Raw:
    """An agent whose every turn is a function in a sandbox of its own."""

    run = ""

    def __init__(self, opening: AgentSpec, isolation: str) -> None:
        self.isolation, self._opening = isolation, opening
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        handle = await self._opening.runtime.spawn(echo_body, args=(body, format), policy=self._opening.policy)
        value = (await handle.result()).value
        assert isinstance(value, bytes)
        yield value

    async def interrupt(self) -> None:
        pass

    async def control(self, operation: Any) -> Any:
        raise Bug("it declares none")

    async def history(self) -> Sequence[Mapping[str, Any]]:
        return []

    async def mail(self, text: str) -> None:
        raise MailRefused(self._opening.path, "it reads none")

    def usage(self) -> Mapping[str, float]:
        return {}

    async def close(self, reason: str) -> None:
        if not self.end.done():
            self.end.set_result(None)
