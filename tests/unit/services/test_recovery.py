"""AC-S3-13: Agents of a killed server resume under the same ids, paths and keys, become failed, or are removed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ramet.core.errors import Damaged, Gone, InvalidValue, ModelFailed, NotYours
from ramet.core.policy.policy import Policy
from ramet.isolation.local import LocalBackend
from ramet.services.contract import CreateTeam, Image, ListAgents, SpawnedAgent
from ramet.store.contract import Document, DocumentWrite
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.support.sites import OPERATOR, Site
from tests.support.waiting import eventually


@pytest.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    """The server that counts as killed: nothing of its later work reaches the next server."""
    async with Site(tmp_path / "first") as site:
        yield site


@pytest.fixture
def next_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of the next server."""
    return tmp_path / "later"


class WatchedStore(MemoryStore):
    """A store that calls `changed` after each change, since a kill could come next."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: Callable[[list[Document]], None] = lambda documents: None

    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        result = await super().put_together(blobs, documents)
        self.changed(list(self._tables.all_documents.values()))
        return result

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        deleted_document = await super().delete(kind, key, expected=expected)
        self.changed(list(self._tables.all_documents.values()))
        return deleted_document


async def change_record(site: Site, kind: str, **fields: object) -> None:
    """Change fields in the only record of a kind, as a kill at another moment would leave it."""
    store = await site.store()
    [document] = await store.list(kind)
    row = msgspec.json.decode(document.data) | fields
    await store.put(kind, document.key, msgspec.json.encode(row))


async def kill_by_turn(site: Site, agent: SpawnedAgent) -> None:
    living = site.spawner.agents.authorize(agent.agent.id, agent.nonce, "info").entry
    with pytest.raises(Exception, match="died"):
        async for _ in site.opened(agent).turn(b"die", "words"):
            pass
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())


async def test_agents_resume_with_the_same_id_path_key_and_capacity(site: Site, next_folder: pathlib.Path) -> None:
    """The agent type gets the run and the folder; the agents can be killed as before."""
    team = await site.team("crew", tokens=10)
    agents = [
        await site.agent(team, name, limits={"tokens": 4}, spawn_info=Raw(b'{"prefix": "> "}'), env={"A": "b"})
        for name in "ab"
    ]
    (site.opened(agents[0]).opening.folder / "note").write_text("mine")
    async with await site.as_killed(next_folder, env_vars={"crew/a:A": "b", "crew/b:A": "b"}) as next_site:
        infos = await next_site.spawner.list_agents(ListAgents(), team.key)
        assert infos == [each.agent for each in agents]
        assert await next_site.free(team) == 1
        assert await next_site.free(team, "tokens") == 2
        before, opening = site.opened(agents[0]), next_site.opened(agents[0]).opening
        assert (opening.run, opening.info, opening.env) == (before.run, before.opening.info, {"A": "b"})
        assert (opening.limits, opening.path) == (before.opening.limits, "crew/a")
        assert (opening.folder / "note").read_text() == "mine"
        await next_site.spawner.kill_agent(agents[0].agent.id, agents[0].nonce)
        assert await next_site.free(team) == 2
        await kill_by_turn(next_site, agents[1])
        assert await next_site.free(team) == 3
        assert await next_site.left() == ([agents[1].agent.id], [agents[1].agent.id])


#: A server with two agents, of which one has failed; it says what there is, and goes on until it is killed.
SERVER = """
import asyncio, json, pathlib, sys
from ramet.core.outcome import ErrorInfo
from ramet.store.sqlite.store import SqliteStore
from tests.support.sites import Site
from tests.support.waiting import eventually

async def main(folder):
    async with Site(folder, SqliteStore(folder / "journal.db")) as site:
        team = await site.team("crew")
        agents = [await site.agent(team, name) for name in "ab"]
        site.opened(agents[1]).end.set_result(ErrorInfo(type="Crashed", message="it was told to"))
        living = site.spawner.agents.find_by_key(agents[1].nonce, "info")
        await eventually(lambda: living.fail_task is not None and living.fail_task.done())
        print(json.dumps([team.key, *([each.agent.id, each.nonce] for each in agents)]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


async def test_agents_of_a_killed_process_resume_in_another_process(tmp_path: pathlib.Path) -> None:
    """The disk holds ids, keys, the folder, states and capacity after SIGKILL."""
    root = pathlib.Path(__file__).parents[3]
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(tmp_path), cwd=root, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        team, (one, nonce), (two, other) = json.loads(await server.stdout.readline())
    finally:
        server.kill()
        await server.communicate()
    async with Site(tmp_path, SqliteStore(tmp_path / "journal.db")) as site:
        assert (await site.spawner.get_team("crew", team)).free == {"agents": 2}
        info = await site.spawner.get_agent(one, nonce)
        assert (info.path, info.state, info.run) == ("crew/a", "idle", f"run-of-{one}")
        assert site.echo.opened[0].opening.folder.is_dir()
        failed_info = await site.spawner.get_agent(two, other)
        assert (failed_info.path, failed_info.state) == ("crew/b", "failed")
        await site.spawner.delete_team("crew", team)
        assert await site.left() == ([], [])


async def test_a_server_opens_and_closes_once(site: Site, next_folder: pathlib.Path) -> None:
    """Concurrent and repeated calls of `open` and `close` have no effect."""
    await site.agent(await site.team())
    next_site = await site.as_killed(next_folder)
    async with next_site.runtime:
        await asyncio.gather(*(next_site.spawner.open() for _ in range(3)))
        await next_site.spawner.open()
        assert len(next_site.echo.opened) == 1
        await next_site.spawner.close()
        await next_site.spawner.close()


async def test_turns_and_runs_are_persisted(site: Site, next_folder: pathlib.Path) -> None:
    """The conversation counts the turns and has them recorded."""
    spawned_agent = await site.agent(await site.team())
    living = site.spawner.agents.authorize(spawned_agent.agent.id, spawned_agent.nonce, "turn").entry
    living.state, living.turns, site.opened(spawned_agent).run = "working", 2, "run-later"
    await living.save()
    assert (await site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)).state == "working"
    async with await site.as_killed(next_folder) as next_site:
        info = await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)
        assert (info.state, info.turns, info.run) == ("idle", 2, "run-later")


async def test_an_agent_that_cannot_be_reopened_is_failed_and_holds_nothing(
    site: Site, next_folder: pathlib.Path
) -> None:
    """The agent has an error and can be killed; all of its tokens count as used."""
    team = await site.team(tokens=10)
    spawned_agent = await site.agent(team, limits={"tokens": 4})
    await change_record(site, "served", agent_type="gone")
    async with await site.as_killed(next_folder) as next_site:
        info = await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)
        assert info.state == "failed"
        assert info.error is not None
        assert (info.error.type, info.path, info.run) == ("Unknown", spawned_agent.agent.path, spawned_agent.agent.run)
        assert await next_site.free(team) == 3
        assert await next_site.free(team, "tokens") == 6
        living = next_site.spawner.agents.authorize(spawned_agent.agent.id, spawned_agent.nonce, "turn").entry
        assert living.state == "failed"
        for ask in (
            living.running_agent.history(),
            living.running_agent.control(None),
            living.running_agent.mail("hello"),
        ):
            with pytest.raises(Gone, match="gone"):
                await ask
        with pytest.raises(Gone):
            living.running_agent.turn(b"", "words")
        await next_site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
        assert await next_site.left() == ([], [])


async def test_the_error_of_an_agent_shows_no_path_of_the_host(
    site: Site, next_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holders of the agent's key see the reason; the path is for the server's log."""
    spawned_agent = await site.agent(await site.team())
    next_site = await site.as_killed(next_folder)

    async def image(id: str, team: str) -> Image:
        raise Damaged("the image", next_folder / "secret-place", "this folder is missing")

    monkeypatch.setattr(next_site.spawner._checks._images, "image", image)
    async with next_site:
        error = (await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)).error
        assert error is not None
        assert error.type == "Damaged"
        assert "secret-place" not in error.message


async def test_an_agent_that_fails_to_open_does_not_affect_others(site: Site, next_folder: pathlib.Path) -> None:
    """The error belongs to that agent."""
    team = await site.team()
    good, bad = await site.agent(team, "good"), await site.agent(team, "bad")
    store = await site.store()
    document = await store.get("served", bad.agent.id)
    assert document is not None
    row = msgspec.json.decode(document.data) | {"spawn_info": {"trouble": "open"}}
    await store.put("served", bad.agent.id, msgspec.json.encode(row))
    async with await site.as_killed(next_folder) as next_site:
        assert (await next_site.spawner.get_agent(good.agent.id, good.nonce)).state == "idle"
        assert (await next_site.spawner.get_agent(bad.agent.id, bad.nonce)).state == "failed"
        assert await next_site.free(team) == 2


async def test_an_agent_whose_spawn_was_cut_is_removed(site: Site, next_folder: pathlib.Path) -> None:
    """No client has its nonce: record, folder and capacity are freed, and its name can be used again."""
    team = await site.team()
    spawned_agent = await site.agent(team)
    await change_record(site, "served", state="starting", run="")
    async with await site.as_killed(next_folder) as next_site:
        assert next_site.echo.opened == []
        assert await next_site.left() == ([], [])
        assert await next_site.free(team) == 3
        with pytest.raises(NotYours):
            await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)
        await next_site.agent(team)


async def test_an_agent_whose_kill_was_cut_is_removed(site: Site, next_folder: pathlib.Path) -> None:
    """The agent held nothing any more; only its record and folder were left."""
    team = await site.team()
    await site.agent(team)
    await change_record(site, "team", held={})
    async with await site.as_killed(next_folder) as next_site:
        assert next_site.echo.opened == []
        assert await next_site.left() == ([], [])
        assert await next_site.free(team) == 3


async def test_capacity_held_without_an_agent_is_freed(site: Site, next_folder: pathlib.Path) -> None:
    """The holder has no record."""
    team = await site.team()
    await change_record(site, "team", held={"agent-0": {"agents": 1.0}})
    async with await site.as_killed(next_folder) as next_site:
        assert await next_site.free(team) == 3


async def test_a_team_whose_deletion_was_cut_is_removed(site: Site, next_folder: pathlib.Path) -> None:
    """The team's agents go with it, even if the removing server is killed too."""
    team = await site.team("crew")
    await site.agent(team)
    await change_record(site, "team", doomed=True)
    doomed: list[bool] = []

    def changed(records: list[Document]) -> None:
        doomed.extend(msgspec.json.decode(each.data)["doomed"] for each in records if each.kind == "team")

    store = WatchedStore()
    store.changed = changed
    async with await site.as_killed(next_folder, store=store) as next_site:
        assert doomed
        assert all(doomed)
        assert await next_site.left() == ([], [])
        assert await next_site.spawner.list_teams(OPERATOR) == []
        assert await (await next_site.store()).list("team") == []
        await next_site.team("crew")


async def test_a_failed_agent_stays_listed(site: Site, next_folder: pathlib.Path) -> None:
    """The failed agent keeps its error and holds nothing until the team is deleted."""
    team = await site.team()
    spawned_agent = await site.agent(team)
    await kill_by_turn(site, spawned_agent)
    failed_info = await site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)
    async with await site.as_killed(next_folder) as next_site:
        assert await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce) == failed_info
        assert next_site.echo.opened == []
        assert await next_site.free(team) == 3
        await next_site.spawner.delete_team(team.team.id, team.key)
        assert await next_site.left() == ([], [])


async def test_a_failed_agent_holds_nothing_after_a_kill(site: Site, next_folder: pathlib.Path) -> None:
    """The failed state is recorded before the capacity is freed: a kill in between must not hold it permanently."""
    team = await site.team()
    spawned_agent = await site.agent(team)
    await change_record(site, "served", state="failed", error={"type": "ModelFailed", "message": "it died"})
    async with await site.as_killed(next_folder) as next_site:
        assert (await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)).state == "failed"
        assert await next_site.free(team) == 3
        await next_site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
        assert await next_site.free(team) == 3


async def test_secrets_must_be_supplied_again_after_a_restart(
    site: Site, next_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Values of secrets are not persisted; without them the agent waits and names the missing one."""
    team = await site.team()
    spawned_agent = await site.agent(team, policy=Policy(secrets={"token": "s3cret"}))
    [document] = await (await site.store()).list("served")
    assert b"token" in document.data
    assert b"s3cret" not in document.data
    async with await site.as_killed(next_folder, secrets={"token": "s3cret"}) as next_site:
        assert next_site.opened(spawned_agent).opening.policy == Policy(secrets={"token": "s3cret"})
    async with await site.as_killed(tmp_path / "third") as next_site:
        info = await next_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)
        assert info.state == "waiting"
        assert info.error is not None
        assert info.error.type == "ValuesMissing"
        assert "token" in info.error.message


@pytest.mark.parametrize("kind", ["team", "served"])
async def test_records_of_a_newer_server_stay_unchanged(site: Site, next_folder: pathlib.Path, kind: str) -> None:
    """The older server refuses to start, and has opened and changed nothing."""
    await site.agent(await site.team())
    await change_record(site, kind, version=2)
    next_site = await site.as_killed(next_folder)
    async with next_site.runtime:
        store = await next_site.store()
        before = [*await store.list("team"), *await store.list("served")]
        with pytest.raises(Damaged, match="version 2"):
            await next_site.spawner.open()
        assert [*await store.list("team"), *await store.list("served")] == before
        assert next_site.echo.opened == []


async def test_a_kill_at_any_moment_loses_no_capacity_and_no_agent(tmp_path: pathlib.Path) -> None:
    """An agent lives with its folder and capacity after each change of the records, or nothing of it is left."""
    store = WatchedStore()
    async with Site(tmp_path / "first", store) as site:
        moments: list[Site] = []

        store.changed = lambda records: moments.append(site.begun_anew(tmp_path / str(len(moments)), records))
        team, other = await site.team("crew", tokens=10), await site.team("other")
        one, two = [await site.agent(team, name, limits={"tokens": 2}) for name in "ab"]
        with pytest.raises(ModelFailed):
            await site.agent(other, "c", spawn_info=Raw(b'{"trouble": "open"}'))
        await site.agent(other, "d")
        await site.spawner.owners.rotate(one.agent.id, one.nonce)
        await kill_by_turn(site, two)
        await site.spawner.kill_agent(one.agent.id, OPERATOR)
        deleting = len(moments)
        await site.spawner.delete_team(other.team.id, other.key)
    assert len(moments) > 15
    for number, moment in enumerate(moments):
        async with moment as next_site:
            assert number < deleting or "other" not in [
                each.name for each in await next_site.spawner.list_teams(OPERATOR)
            ]
            agents = await next_site.spawner.list_agents(ListAgents(), OPERATOR)
            living = [each for each in agents if each.state == "idle"]
            assert len(living) == len(next_site.echo.opened)
            for info in await next_site.spawner.list_teams(OPERATOR):
                team_agents = [each for each in living if each.team == info.id]
                assert info.held["agents"] == len(team_agents)
                assert info.free["agents"] == 3 - len(team_agents)
                assert info.held.get("tokens", 0) == 2 * len(team_agents) * ("tokens" in info.held)
            records, folders = await next_site.left()
            assert records == sorted(each.id for each in agents)
            assert {each.id for each in living} <= set(folders) <= set(records)


class LenientBackend(LocalBackend):
    """A backend that accepts any configuration of a team."""

    def check_team(self, config: Any) -> None:
        pass

    async def configure_team(self, team: str, config: Any) -> None:
        pass


async def test_an_accepted_configuration_never_stops_a_later_server(
    tmp_path: pathlib.Path, next_folder: pathlib.Path
) -> None:
    """JSON that almost exceeds the stack is refused now, not when another server reads it on a deeper stack."""

    async def begun(site: Site, levels: int) -> None:
        if levels:
            await begun(site, levels - 1)
        else:
            async with site:
                pass

    count = 0
    async with Site(tmp_path / "first", backend=LenientBackend(tmp_path / "runs")) as site:
        for depth in range(50, 1_000, 25):
            config = Raw(b"[" * depth + b"]" * depth)
            with contextlib.suppress(InvalidValue):
                await site.spawner.create_team(CreateTeam(resources={"agents": 1}, config=config), OPERATOR)
                count += 1

        assert count > 2
        await begun(await site.as_killed(next_folder, backend=LenientBackend(tmp_path / "runs")), 50)


async def test_too_deep_json_is_refused_by_name(site: Site) -> None:
    """The refused team and agent leave nothing."""
    deep = Raw(b"[" * 100_000 + b"]" * 100_000)
    team = await site.team()
    with pytest.raises(InvalidValue, match="config"):
        await site.spawner.create_team(CreateTeam(resources={"agents": 1}, config=deep), OPERATOR)
    with pytest.raises(InvalidValue, match="spawn_info"):
        await site.agent(team, spawn_info=deep)
    assert await site.free(team) == 3
    assert [each.id for each in await site.spawner.list_teams(OPERATOR)] == [team.team.id]
