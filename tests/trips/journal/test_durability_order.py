"""Waits for the disk: an effect outside waits for durable events, a mere record does not."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from typing import Self

import pytest

from ramet import Agent, AgentRuntime, Policy, Session
from ramet.core.errors import StoreFailed
from ramet.core.events import ModelAsked, decode
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from ramet.tools.context import require_current_call
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName
from tests.trips.kits.isolated import backend as backend
from tests.trips.kits.sessions import async_tool, write_files
from tests.trips.spawning.test_worktree import git, worktrees


class RecordingStore(SqliteStore):
    """A store that notes the newest event of each wait for durability."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path)
        self.awaited: list[int] = []

    async def durable(self, ticket: int) -> None:
        self.awaited.append(ticket)
        await super().durable(ticket)

    async def types(self) -> list[str]:
        """Return the type of the newest event of each wait, in order; a wait for the same event again is none.

        One tree alone has tickets equal to event numbers.
        """
        types = {each.seq: each.type for each in await self.read()}
        return [types[ticket] for ticket in dict.fromkeys(self.awaited)]


async def test_a_child_costs_one_wait(tmp_path: pathlib.Path) -> None:
    """The child asks its model once; its spawn and its end cause no wait of their own."""
    store = RecordingStore(tmp_path / "journal.db")
    worker = Agent(name="worker", description="Works.", model=ScriptedModel(["found"]))
    async with AgentRuntime(store=store) as runtime:
        model = ScriptedModel([Call("Agent", {"prompt": "Look.", "subagent_type": "worker"}), "done"])
        async with Session(model, agents=[worker], runtime=runtime) as session:
            result = await session.ask("go")
            types = await store.types()
            events = [decode(each.data) for each in await store.read()]

    assert result.value == "done"
    assert types == ["model_asked"] * 3 + ["state_changed"]  # the parent, its child, the parent; the turn's end
    assert [each.depth for each in events if isinstance(each, ModelAsked)] == [0, 1, 0]


async def test_a_read_only_tool_does_not_wait_for_the_disk(tmp_path: pathlib.Path) -> None:
    """Other tools wait until their start is durable."""

    async def change() -> str:
        """Change something."""
        return "changed"

    async def peek() -> str:
        """Look at it."""
        return "seen"

    store = RecordingStore(tmp_path / "journal.db")
    async with AgentRuntime(store=store) as runtime:
        tools = [async_tool(change), async_tool(peek, read_only=True)]
        model = ScriptedModel([Call("change"), Call("peek"), "done"])
        async with Session(model, tools, runtime=runtime) as session:
            await session.ask("go")
            types = await store.types()

    assert types == ["model_asked", "tool_started", "model_asked", "model_asked", "state_changed"]


async def test_a_functions_child_result_arrives_once_its_end_is_durable(tmp_path: pathlib.Path) -> None:
    """The parent finds the child's end in the journal as soon as it has the result."""
    store = RecordingStore(tmp_path / "journal.db")
    types: list[str] = []

    async def child() -> str:
        return "found"

    async def parent() -> str:
        context = require_current_call().context
        assert context.tree is not None
        handle = await context.tree.spawn(context, SpawnRequest(agent=child))
        value = str((await handle.result()).value)
        types.extend(each.type for each in await store.read(run=handle.id))
        return value

    async with AgentRuntime(store=store) as runtime:
        handle = await runtime.spawn(parent)
        result = await handle.result()

    assert result.value == "found"
    assert types[-1] == "run_ended"


async def test_a_function_begins_once_its_run_is_durable(tmp_path: pathlib.Path) -> None:
    """A killed kernel leaves no effect of a function without a recorded run."""
    store = RecordingStore(tmp_path / "journal.db")
    awaited: dict[str, str] = {}

    async def child() -> None:
        types = {each.seq: (each.run, each.type) for each in await store.read()}
        run = require_current_call().context.run.id
        awaited.update([types[ticket] for ticket in store.awaited if types[ticket][0] == run])

    async def parent() -> None:
        context = require_current_call().context
        assert context.tree is not None
        await (await context.tree.spawn(context, SpawnRequest(agent=child))).result()

    async with AgentRuntime(store=store) as runtime:
        assert (await (await runtime.spawn(parent)).result()).status == "completed"

    assert list(awaited.values()) == ["turn_started"]


class HeldStore(SqliteStore):
    """A store whose waits for durability go on once they are let on, or fail."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path)
        self.is_asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.failure: StoreFailed | None = None

    async def durable(self, ticket: int) -> None:
        self.is_asked.set()
        await self.may_go_on.wait()
        if self.failure is not None:
            raise self.failure
        await super().durable(ticket)


def leave_mark(path: str) -> str:
    """Leave a file in the workspace."""
    pathlib.Path(path).write_text("begun")
    return "done"


@pytest.mark.parametrize("outcome", ["recorded", "lost", "stopped"])
async def test_a_sandbox_starts_meanwhile_and_works_once_its_run_is_durable(
    tmp_path: pathlib.Path, backend: BackendName, outcome: str
) -> None:
    """The start of its process overlaps with the record. The user's code arrives only after the record, or never."""
    store = HeldStore(tmp_path / "journal.db")
    async with AgentRuntime(tmp_path, backend=backend, store=store) as runtime:
        handle = await runtime.start_agent(leave_mark, Policy(), ("mark",))
        await store.is_asked.wait()
        run = runtime.get(handle.id).run
        await eventually(lambda: run.sandbox.current is not None)
        assert run.sandbox.folder is not None
        workspace = run.sandbox.folder.workspace
        if outcome == "stopped":
            stopping = asyncio.ensure_future(handle.cancel("enough"))
            await eventually(lambda: run.sandbox.current is None)
            store.may_go_on.set()
            await stopping
        elif outcome == "lost":
            store.failure = StoreFailed(store.path, "the disk is gone")
        store.may_go_on.set()
        result = await handle.result()
        store.failure = None

    assert result.status == {"recorded": "completed", "lost": "failed", "stopped": "cancelled"}[outcome], result
    assert (workspace / "mark").exists() is (outcome == "recorded")
    assert run.sandbox.current is None


async def test_a_worktree_waits_until_its_call_is_durable(tmp_path: pathlib.Path) -> None:
    """A killed kernel leaves no copy of a repository without a recorded request."""
    repo = write_files(tmp_path / "repo", {"a.txt": "as it was\n"})
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(repo, *words)
    copies: list[int] = []

    class Looking(RecordingStore):
        async def durable(self, ticket: int) -> None:
            copies.append(len(worktrees(repo)))
            await super().durable(ticket)

    store = Looking(tmp_path / "journal.db")
    worker = Agent(name="worker", description="Works.", model=ScriptedModel(["found"]), isolation="worktree")
    async with AgentRuntime(store=store) as runtime:
        model = ScriptedModel([Call("Agent", {"prompt": "Look.", "subagent_type": "worker"}), "done"])
        async with Session(model, agents=[worker], runtime=runtime, cwd=repo) as session:
            await session.ask("go")
            types = await store.types()

    model_asked = types.index("tool_started")
    assert types[: model_asked + 1] == ["model_asked", "tool_started"]
    assert copies[: model_asked + 1] == [0, 0]


class DefectiveStore(MemoryStore):
    """A store whose opening fails in a way that its contract does not name."""

    async def open(self) -> Self:
        raise ZeroDivisionError("a defect")


async def test_a_run_ends_whatever_its_store_raises() -> None:
    """A defect of a store is the reason of the run's failure; nobody waits for a record that is never made."""
    runtime = AgentRuntime(store=DefectiveStore())
    await runtime.__aenter__()
    async with asyncio.timeout(60):
        result = await (await runtime.spawn(make_value)).result()
    with contextlib.suppress(ZeroDivisionError, StoreFailed):
        await runtime.__aexit__(None, None, None)

    assert result.status == "failed"
    assert result.error is not None
    assert "ZeroDivisionError: a defect" in result.error.message


def make_value() -> int:
    return 1
