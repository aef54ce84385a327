"""Tests of `RunRegistry`: a lookup finds the right run or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import Unknown
from ramet.core.ids import safe_name
from ramet.core.limits import SpawnLimits
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.tools.spawn_request import SpawnRequest
from tests.trips.kits.sessions import open_tree_of, run_of


async def return_one() -> int:
    return 1


async def spawn_children(session: Session, *names: str) -> tuple[RunRegistry, list[Run]]:
    """Spawn children with these names, wait for their ends, and return the registry and the runs."""
    runs = []
    for name in names:
        handle = await session.spawn(SpawnRequest(agent=return_one, name=name or None))
        await handle.result()
        runs.append(run_of(session, handle.id))
    return open_tree_of(session).tree.register, runs


async def test_a_run_is_found_by_id_path_and_name() -> None:
    """Parts of a name and other cases are unknown."""
    async with Session(ScriptedModel([])) as session:
        register, (digger,) = await spawn_children(session, "digger")

        assert [register.find(each) for each in (digger.info.id, "main/digger", "digger")] == [digger] * 3
        for wrong in ("Digger", "digg", "digger ", "/digger", "main/", "", digger.info.id[:-1]):
            with pytest.raises(Unknown):
                register.find(wrong)


async def test_parent_finds_the_parent_of_the_asking_run() -> None:
    """The name 'parent' is unknown for the root, and without an asking run."""
    async with Session(ScriptedModel([])) as session:
        register, (child,) = await spawn_children(session, "child")

        assert register.find("parent", child) is register.root
        with pytest.raises(Unknown):
            register.find("parent", register.root)
        with pytest.raises(Unknown):
            register.find("parent")


async def test_a_child_without_a_name_is_named_by_its_path() -> None:
    """The path of an unnamed child ends in a number."""
    async with Session(ScriptedModel([])) as session:
        register, (first, second) = await spawn_children(session, "", "")

        assert [first.name, second.name] == ["main/1", "main/2"]
        assert register.find("main/2") is second


@given(
    wanted=st.lists(st.text(max_size=12) | st.sampled_from(["main", "parent", "1", "a", "a-2", "a.jsonl"]), max_size=12)
)
async def test_id_path_and_name_of_each_run_find_that_run_only(wanted: list[str]) -> None:
    """No requested names make two runs share a path, or a path equal another run's transcript."""
    async with Session(ScriptedModel([]), spawn_limits=SpawnLimits(children=100)) as session:
        register, runs = await spawn_children(session, *map(safe_name, wanted), *[""] * 3)
        runs.append(run_of(session, session.id))

        for run in runs:
            assert {register.find(each).info.id for each in (run.info.id, run.info.path, run.name)} == {run.info.id}
        assert len({run.info.path for run in runs}) == len(runs)
        assert len({f"{run.info.path}.jsonl" for run in runs} & {run.info.path for run in runs}) == 0


async def test_finished_runs_are_kept_up_to_a_number() -> None:
    """Older finished runs are replaced by tombstones that say how they ended."""
    async with Session(ScriptedModel([]), spawn_limits=SpawnLimits(children=10)) as session:
        kept_runs = open_tree_of(session).tree.register.services.max_finished_runs
        register, runs = await spawn_children(session, *(f"n-{number}" for number in range(kept_runs + 2)))

        assert set(register.tombstones) == {runs[0].info.id, runs[1].info.id}
        assert register.find(f"n-{kept_runs + 1}") is runs[-1]
        for key in (runs[0].info.id, runs[0].info.path, "n-0"):
            with pytest.raises(Unknown, match="it ended as completed; its history has expired"):
                register.find(key)
        with pytest.raises(Unknown) as unknown:
            register.find("n-of-nobody")
        assert "it ended as" not in str(unknown.value)
