"""Rows of teams and agents in the store: complete, versioned, changed by compare-and-swap, and without keys."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from ramet.core.errors import Conflict
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Policy
from ramet.services.errors import TakenOver
from ramet.services.teams import keys
from ramet.services.teams.tables import AGENT, TEAM, AgentRow, TeamRow, TeamTables
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
TEAM_ROW = TeamRow(
    id="team-1",
    name="crew",
    key=keys.hash_of("team_key"),
    resources={"agents": 3.0},
    held={"agent-1": {"agents": 1.0}},
    spent={"tokens": 5.0},
    labels={"env": "test"},
    config=Raw(b'{"queue": true}'),
    created_at=WHEN,
)
AGENT_ROW = AgentRow(
    id="agent-1",
    team="team-1",
    name="a",
    path="crew/a",
    agent_type="echo",
    spawn_info=Raw(b'{"prefix": "x"}'),
    transport_format="words",
    image="",
    policy=Policy(memory_mb=64, secrets=["token"]),
    limits={"tokens": 10.0},
    env={"A": "b"},
    labels={},
    metadata={"purpose": "test"},
    keys=keys.Keyring(
        owner=keys.hash_of("agent_key"),
        delegated=(keys.KeyRecord(id="key-1", hash="0" * 64, rights=("turn",), until=WHEN),),
    ),
    state="failed",
    created_at=WHEN,
    run="run-1",
    error=ErrorInfo(type="Crashed", message="it was told to"),
)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.db")
    await store.open()
    yield store
    await store.close()


async def test_rows_are_read_back_as_they_were_written(store: Store) -> None:
    """Another server reads the same rows."""
    await TeamTables(store).write(TEAM_ROW, AGENT_ROW)
    [team], [agent] = (await TeamTables(store).teams()).readable_rows, (await TeamTables(store).agents()).readable_rows
    assert msgspec.json.encode(team) == msgspec.json.encode(TEAM_ROW)
    assert msgspec.json.encode(agent) == msgspec.json.encode(AGENT_ROW)
    assert (bytes(agent.spawn_info), agent.policy, agent.keys) == (
        b'{"prefix": "x"}',
        AGENT_ROW.policy,
        AGENT_ROW.keys,
    )


async def test_a_write_over_another_kernels_change_is_refused(store: Store) -> None:
    """Rows that were to be written together with the changed row are not written either."""
    first, second = TeamTables(store), TeamTables(store)
    await first.write(TEAM_ROW)
    second.hold(*(await second.teams()).readable_rows)
    await second.write(replace(TEAM_ROW, doomed=True))
    with pytest.raises(TakenOver):
        await first.write(TEAM_ROW, AGENT_ROW)
    assert [row.doomed for row in (await first.teams()).readable_rows] == [True]
    assert (await first.agents()).readable_rows == []
    with pytest.raises(TakenOver):
        await TeamTables(store).write(TEAM_ROW)


async def test_the_kernel_that_read_a_row_last_changes_and_removes_it(store: Store) -> None:
    """Removing a row that does not exist succeeds."""
    books = TeamTables(store)
    await books.remove(AGENT_ROW)
    await books.write(AGENT_ROW)
    await books.write(replace(AGENT_ROW, turns=1))
    assert [row.turns for row in (await TeamTables(store).agents()).readable_rows] == [1]
    await books.remove(AGENT_ROW)
    assert (await TeamTables(store).agents()).readable_rows == []
    await books.write(AGENT_ROW)


@pytest.mark.parametrize("kind", [TEAM, AGENT])
@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"version": 1}', b'{"version": 2}', b"\xff"],
    ids=["none", "list", "cut", "empty", "newer", "text"],
)
async def test_a_row_that_cannot_be_read_is_left_as_it_is(store: Store, kind: str, data: bytes) -> None:
    """A row of a newer version, or an incomplete row, is reported and not used."""
    await store.put(kind, "thing-1", data)
    rows = await (TeamTables(store).teams() if kind == TEAM else TeamTables(store).agents())
    assert not rows.readable_rows
    assert rows.errors.keys() == {"thing-1"}
    assert ("version 2" in str(rows.errors["thing-1"])) == (b"2" in data)
    document = await store.get(kind, "thing-1")
    assert document is not None
    assert document.data == data


async def test_a_team_is_taken_over_once_and_its_former_kernel_cannot_write_it(store: Store) -> None:
    """The former kernel cannot write the team's agents either, changed or not."""
    former, one, two = TeamTables(store), TeamTables(store), TeamTables(store)
    await former.create(TEAM_ROW)
    await former.write(AGENT_ROW)
    arguments = []
    for books in (one, two):
        [team], [agent] = (await books.teams()).readable_rows, (await books.agents()).readable_rows
        arguments.append((books, replace(team, kernel="another"), agent))
    assert [await books.take_over(team, [agent], "") for books, team, agent in arguments] == [True, False]
    await former.teams(), await former.agents()  # To have read how it is now changes nothing of that.
    for row in (TEAM_ROW, AGENT_ROW):
        with pytest.raises(TakenOver):
            await former.write(row)
    await one.write(replace(AGENT_ROW, turns=9))


async def test_two_teams_cannot_have_one_name(store: Store) -> None:
    """Two kernels cannot either; a kernel that died while it removed a team leaves the name free."""
    one, two = TeamTables(store), TeamTables(store)
    other = replace(TEAM_ROW, id="team-2")
    await one.create(TEAM_ROW)
    with pytest.raises(Conflict):
        await two.create(other)
    await one.remove(TEAM_ROW)
    await two.create(other)
    await store.delete(TEAM, "team-2")
    await one.create(TEAM_ROW)


async def test_a_new_team_of_a_name_survives_the_removal_of_the_old_team(store: Store) -> None:
    """Another kernel takes the name after the old team's row is gone and before its name is removed."""
    one, two = TeamTables(store), TeamTables(store)
    await one.create(TEAM_ROW)
    delete = store.delete

    async def given_anew(kind: str, key: str, *, expected: int | None = None) -> bool:
        was_there = await delete(kind, key, expected=expected)
        if kind == TEAM:
            await two.create(replace(TEAM_ROW, id="team-2"))
        return was_there

    store.delete = given_anew  # type: ignore[method-assign]
    await one.remove(TEAM_ROW)
    with pytest.raises(Conflict):
        await one.create(replace(TEAM_ROW, id="team-3"))
