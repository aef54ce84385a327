"""Kills of function agents while a turn begins: afterwards the function is not called, and nothing is written."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from ramet import AgentRuntime
from ramet.core.errors import RametError
from ramet.host.policy_adapters import Allow, PolicyAnswer, PolicyRequest
from ramet.services.agent_types.conversation_log import FUNCTION_TURN
from ramet.services.agent_types.function.agent import FunctionAgent
from ramet.services.contract import RunningAgent
from ramet.store.contract import Document
from ramet.store.memory import MemoryStore
from tests.support.waiting import eventually
from tests.trips.spawning.test_policy_adapters import Adapter
from tests.trips.teams.test_agent_types import OURS, Backend, agent_spec, function, policy_for, say

each_backend = pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])


class Slow(MemoryStore):
    """A store that writes a turn only once it may; `write_count` counts the turns that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write, self.write_count = asyncio.Event(), 0

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        if kind == FUNCTION_TURN:
            self.write_count += 1
            await self.may_write.wait()
        return await super().put(kind, key, data, expected=expected, tree=tree)


async def open_marking_agent(folder: pathlib.Path, runtime: AgentRuntime, backend: Backend | None) -> RunningAgent:
    """Return an agent whose function creates the file that its message names."""
    start = agent_spec(runtime, folder / "ada", **function("leaves_a_mark", policy=policy_for(backend)))
    await OURS.check(start)
    return await OURS.open(start)


@each_backend
async def test_a_kill_before_the_turn_is_recorded_prevents_the_call(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """The kill returns only once the store writes nothing more; the turn raises RametError."""
    store, mark = Slow(), tmp_path / "mark"
    async with AgentRuntime(tmp_path, store=store, backend=backend) as runtime:
        agent = await open_marking_agent(tmp_path, runtime, backend)
        turn = asyncio.create_task(say(agent, str(mark)))
        await eventually(lambda: store.write_count)
        closing = asyncio.create_task(agent.close("it was killed"))
        await eventually(agent.end.done)
        was_early = closing.done()
        store.may_write.set()
        await asyncio.wait({turn, closing})
        assert not mark.exists()
        assert not was_early
        assert await store.list(FUNCTION_TURN) == []
        assert await store.head() == 0
        with pytest.raises(RametError, match="ended"):
            await turn
        with pytest.raises(RametError, match="ended"):
            await say(agent, str(mark))


async def test_a_kill_during_a_policy_decision_prevents_the_call(tmp_path: pathlib.Path) -> None:
    """The kill does not wait for the adapter, and removes the record of the turn that had not begun."""
    may_answer, mark, store = asyncio.Event(), tmp_path / "mark", MemoryStore()

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        await may_answer.wait()
        return Allow()

    adapter: Any = Adapter(answers)
    async with AgentRuntime(tmp_path, store=store, policy_adapter=adapter) as runtime:
        agent = await open_marking_agent(tmp_path, runtime, None)
        turn = asyncio.create_task(say(agent, str(mark)))
        await eventually(lambda: adapter.requests)
        await agent.close("it was killed")
        remaining = await store.list(FUNCTION_TURN)
        may_answer.set()
        await asyncio.wait({turn})
        assert not mark.exists()
        assert remaining == []
        with pytest.raises(RametError, match="ended"):
            await turn


async def test_a_turn_abandoned_before_its_start_leaves_no_record(tmp_path: pathlib.Path) -> None:
    """The function is not called for that turn; the agent answers the next one."""
    store, mark = Slow(), tmp_path / "mark"
    async with AgentRuntime(tmp_path, store=store) as runtime:
        agent = await open_marking_agent(tmp_path, runtime, None)
        turn = asyncio.create_task(say(agent, str(mark)))
        await eventually(lambda: store.write_count)
        turn.cancel()
        store.may_write.set()
        await asyncio.wait({turn})
        assert turn.cancelled()
        assert not mark.exists()
        assert await store.list(FUNCTION_TURN) == []
        assert await say(agent, str(mark)) == "left"
        assert mark.exists()
        await agent.close("it is over")


async def test_a_reader_that_leaves_at_any_start_moment_leaves_no_active_call(tmp_path: pathlib.Path) -> None:
    """A cancelled reader ends the call that had begun for it."""
    async with AgentRuntime(tmp_path, store=MemoryStore()) as runtime:
        agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **function("waits")))
        assert isinstance(agent, FunctionAgent)
        for moments in range(1, 12):
            turn = asyncio.create_task(say(agent, "go"))
            for _ in range(moments):
                await asyncio.sleep(0)
            turn.cancel()
            await asyncio.wait({turn})
            assert turn.cancelled()
            assert agent._call is None or agent._call.is_over, moments
        assert 0 < agent._turns.newest_number < moments
        await agent.close("it is over")
