"""Who tries to be born without an answer of the policy adapter, or with another one than it was asked for."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

import ramet
from ramet.core.errors import RametError, StoreFailed
from ramet.host.policy_adapters import Allow, PolicyAnswer, PolicyRequest
from ramet.models.scripted import ScriptedModel
from tests.support.waiting import eventually
from tests.trips.test_policy_adapters import Adapter, runtime


class Slow(Adapter):
    """Allows everything, once the test lets it."""

    def __init__(self) -> None:
        super().__init__(self._allow)
        self.may_answer = asyncio.Event()

    async def _allow(self, request: PolicyRequest) -> PolicyAnswer:
        await self.may_answer.wait()
        return Allow()


# --- what happens while it is asked


@pytest.mark.parametrize("kind", ["function", "sandboxed", "session"])
@pytest.mark.parametrize("end", ["stop", "fence"])
async def test_nothing_is_born_in_a_runtime_that_was_stopped_meanwhile(
    kind: str, end: str, tmp_path: pathlib.Path
) -> None:
    """Its `stop` has returned, or its journal is another kernel's: the answer comes too late."""
    worked: list[str] = []

    def work() -> None:
        worked.append("born")

    adapter, model = Slow(), ScriptedModel(["born"])
    async with runtime(adapter, tmp_path, backend="local") as host:
        if kind == "session":
            begun = asyncio.create_task(ramet.Session(model, runtime=host).start())
        else:
            policy = ramet.Policy() if kind == "sandboxed" else None
            begun = asyncio.create_task(host.spawn(work, policy=policy))  # type: ignore[arg-type]  # either is awaited
        await eventually(lambda: adapter.asked)
        if end == "stop":
            await host.stop()
        else:
            host._fence(StoreFailed("journal", "another kernel has it"))
        adapter.may_answer.set()
        with pytest.raises(RametError, match=r"was stopped|another kernel"):
            await begun
        assert not host.trees

    assert not worked


async def test_a_session_that_is_closed_while_its_adapter_is_asked_leaves_no_agent(tmp_path: pathlib.Path) -> None:
    """The runtime is others', too, and lives on: nobody would end what was born after the close."""
    adapter = Slow()
    async with runtime(adapter, tmp_path) as host:
        session = ramet.Session(ScriptedModel(["hello"]), runtime=host)
        asked = asyncio.create_task(session.ask("Hi."))
        await eventually(lambda: adapter.asked)
        await session.close()
        adapter.may_answer.set()
        with pytest.raises(RametError, match="was closed"):
            await asked
        assert not host.trees
