"""Kills and deletions on a store that fails for a while: a repeated request completes them and leaves nothing."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import pytest

from ramet.core.errors import InvalidValue, NotYours, StoreFailed
from ramet.services.agent_types.conversation_log import COMMAND_TURN, FUNCTION_TURN
from ramet.services.contract import SpawnedAgent
from ramet.services.server.server import _forget
from ramet.services.teams.tables import AGENT, TEAM
from ramet.services.turns import log
from ramet.services.turns.log import TurnLog
from ramet.services.turns.service import AgentService
from ramet.store.contract import Document, DocumentWrite
from ramet.store.memory import MemoryStore
from tests.support.sites import OPERATOR, Site
from tests.support.waiting import eventually

#: Of what the store does and for which kind it fails: at each step of an end, in their order.
STEPS = {
    "its part is freed": ("put", TEAM),
    "its turns are listed": ("list", FUNCTION_TURN),
    "its turns are removed": ("delete", FUNCTION_TURN),
    "what it used is removed": ("delete", COMMAND_TURN),
    "its row is removed": ("delete", AGENT),
}
each_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())


class FailingStore(MemoryStore):
    """A store that refuses the operations which `fails` selects."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[str, str], bool] = lambda operation, kind: False

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        for each in documents:
            self._try("put", each.kind)
        return await super().put_together(blobs, documents)

    async def list(self, kind: str, *, prefix: str = "") -> list[Document]:
        self._try("list", kind)
        return await super().list(kind, prefix=prefix)

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        self._try("delete", kind)
        return await super().delete(kind, key, expected=expected)

    def fail_at(self, step: tuple[str, str]) -> None:
        """Fail at this step until `whole` is called."""
        self.fails = lambda operation, kind: (operation, kind) == step

    def stop_failing(self) -> None:
        """Let all later operations succeed."""
        self.fails = lambda operation, kind: False

    def of(self, agent: str) -> Sequence[tuple[str, str]]:
        """Return the kinds and keys of all documents of an agent."""
        return [
            document_key
            for document_key in self._tables.all_documents
            if document_key[1] == agent or document_key[1].startswith(f"{agent}/")
        ]

    def _try(self, operation: str, kind: str) -> None:
        if self.fails(operation, kind):
            raise StoreFailed("the journal", f"no {operation} of {kind}")


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
async def site(tmp_path: pathlib.Path, store: FailingStore) -> AsyncIterator[Site]:
    async with clean_up_agents(Site(tmp_path / "first", store), store) as site:
        yield site


def clean_up_agents(site: Site, store: FailingStore) -> Site:
    """Return the site, whose agents leave nothing behind, as on a real server."""
    site.spawner.before_removal = partial(_forget, store, site.runtime.dynamic.registries)
    return site


async def add_turns(store: FailingStore, agent: SpawnedAgent) -> SpawnedAgent:
    """Return the agent after recording a turn in each kind of log."""
    for kind in (FUNCTION_TURN, COMMAND_TURN):
        await store.put(kind, f"{agent.agent.id}/1", b"{}")
    return agent


@each_step
async def test_a_kill_that_failed_can_be_repeated(site: Site, store: FailingStore, step: tuple[str, str]) -> None:
    """A repetition has the same key.

    Until then the agent is listed as ended and keeps its name; then nothing is left.
    """
    team = await site.team(tokens=10)
    spawned_agent = await add_turns(store, await site.agent(team, limits={"tokens": 4}))
    async for _ in site.opened(spawned_agent).turn(b"two words", "words"):
        pass
    store.fail_at(step)
    for _ in range(2):
        with pytest.raises(StoreFailed):
            await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    assert (await site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)).state == "ended"
    with pytest.raises((InvalidValue, StoreFailed)):
        await site.agent(team, limits={"tokens": 4})
    store.stop_failing()

    await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)

    assert store.of(spawned_agent.agent.id) == []
    assert await site.left() == ([], [])
    assert (await site.free(team), await site.free(team, "tokens")) == (3, 8)
    with pytest.raises(NotYours):
        await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    await site.agent(team, limits={"tokens": 4})


@each_step
async def test_a_team_deletion_that_failed_at_an_agent_can_be_repeated(
    site: Site, store: FailingStore, step: tuple[str, str]
) -> None:
    """The team's row stays as long as an agent's row does; the repeated request removes both."""
    team = await site.team("crew")
    agents = [await add_turns(store, await site.agent(team, name)) for name in "ab"]
    has_begun = asyncio.Event()

    def fails(operation: str, kind: str) -> bool:  # But for the first word of the deletion.
        is_first = (operation, kind) == ("put", TEAM) and not has_begun.is_set()
        has_begun.set()
        return (operation, kind) == step and not is_first

    store.fails = fails
    for _ in range(2):
        has_begun.clear()
        with pytest.raises(StoreFailed):
            await site.spawner.delete_team(team.team.id, team.key)
        assert [each.key for each in await MemoryStore.list(store, TEAM)] == [team.team.id]
    store.stop_failing()

    await site.spawner.delete_team(team.team.id, team.key)

    assert [store.of(each.agent.id) for each in agents] == [[], []]
    assert await site.left() == ([], [])
    assert await store.list(TEAM) == []
    await site.team("crew")


async def test_a_spawn_that_could_not_be_undone_is_removed_with_its_team(site: Site, store: FailingStore) -> None:
    """The agent's row alone exists, because its removal failed when the spawn was cancelled."""
    team = await site.team()
    asking = asyncio.create_task(site.agent(team, type="slow"))
    await eventually(lambda: site.slow.at_it)
    failed_keys: list[str] = []

    def fails(operation: str, kind: str) -> bool:  # Once.
        if (operation, kind) != ("delete", AGENT) or failed_keys:
            return False
        failed_keys.append(kind)
        return True

    store.fails = fails
    await site.spawner.delete_team(team.team.id, team.key)
    assert failed_keys
    await asyncio.wait({asking})
    assert asking.exception() is not None
    assert await site.left() == ([], [])
    assert await store.list(TEAM) == []


async def test_a_kill_after_a_failed_removal_removes_the_failed_agent(site: Site, store: FailingStore) -> None:
    """The second kill finds the agent instead of raising NotYours."""
    team = await site.team()
    spawned_agent = await add_turns(store, await site.agent(team, keep_failed_s=60))
    living = site.spawner.agents.find_by_key(spawned_agent.nonce, "info")
    async for _ in site.opened(spawned_agent).turn(b"a", "words"):
        pass
    with pytest.raises(Exception, match="died"):
        async for _ in site.opened(spawned_agent).turn(b"die", "words"):
            pass
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    store.fail_at(("delete", AGENT))
    await site.clock.advance(60)
    await eventually(lambda: living.end_task is not None and living.end_task.done())
    store.stop_failing()
    await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    assert store.of(spawned_agent.agent.id) == []
    assert await site.left() == ([], [])


async def test_the_rest_of_an_agent_of_a_removed_team_is_removed_with_its_row(
    site: Site, store: FailingStore, tmp_path: pathlib.Path
) -> None:
    """An older server removed the team although the agent's row was left; the next server removes the agent."""
    team = await site.team()
    spawned_agent = await add_turns(store, await site.agent(team))
    second_store = FailingStore()
    records = [each for each in store._tables.all_documents.values() if each.kind not in (TEAM, "team name")]
    next_site = site.begun_anew(tmp_path / "later", records, store=second_store)
    assert (next_site.agents / spawned_agent.agent.id).is_dir()
    assert len(second_store.of(spawned_agent.agent.id)) == 3
    async with clean_up_agents(next_site, second_store):
        assert second_store.of(spawned_agent.agent.id) == []
        assert await next_site.left() == ([], [])
        assert await next_site.spawner.list_teams(OPERATOR) == []


class Slow(FailingStore):
    """A store whose write of a new turn waits; `was_early` tells whether a team row was written meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write, self.is_writing, self.was_early = asyncio.Event(), False, False

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
        if kind == log.REQUEST_KIND:
            self.is_writing = True
            await self.may_write.wait()
            self.is_writing = False
        return await super().put(kind, key, data, expected=expected, tree=tree)

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        self.was_early = self.was_early or (self.is_writing and documents[0].kind == TEAM)
        return await super().put_together(blobs, documents)


async def test_a_turn_that_is_being_recorded_during_a_kill_is_removed_too(tmp_path: pathlib.Path) -> None:
    """The conversation's records are removed after the last one is written."""
    store = Slow()
    async with clean_up_agents(Site(tmp_path, store), store) as site:
        talks = AgentService(
            site.spawner.agents.authorize, {"echo": site.echo}, clock=site.clock, log_of=partial(TurnLog, store)
        )
        spawned_agent = await site.agent(await site.team())
        talks.turn(spawned_agent.agent.id, spawned_agent.nonce, b"word")
        await eventually(lambda: store.is_writing)
        killing = asyncio.create_task(site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce))
        await eventually(site.opened(spawned_agent).end.done)
        store.may_write.set()
        await killing
        assert not store.was_early
        assert store.of(spawned_agent.agent.id) == []
        await talks.close()
