"""The register of a tree: whoever is looked for is found, or nobody is; never somebody else."""

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
from ramet.tools.context import SpawnRequest
from tests.trips.kits.sessions import opened, run_of


async def nothing() -> int:
    return 1


async def family(session: Session, *names: str) -> tuple[RunRegistry, list[Run]]:
    """A root with children of these names, all of them finished."""
    runs = []
    for name in names:
        handle = await session.spawn(SpawnRequest(agent=nothing, name=name or None))
        await handle.result()
        runs.append(run_of(session, handle.id))
    return opened(session).tree.register, runs


async def test_a_run_is_found_by_id_path_and_name() -> None:
    """And by nothing else: no part of a name, no other case."""
    async with Session(ScriptedModel([])) as session:
        register, (digger,) = await family(session, "digger")

        assert [register.find(each) for each in (digger.info.id, "main/digger", "digger")] == [digger] * 3
        for wrong in ("Digger", "digg", "digger ", "/digger", "main/", "", digger.info.id[:-1]):
            with pytest.raises(Unknown):
                register.find(wrong)


async def test_parent_means_the_asker_s_own() -> None:
    """'parent' is relative; for the root, who has none, it is nobody."""
    async with Session(ScriptedModel([])) as session:
        register, (child,) = await family(session, "child")

        assert register.find("parent", child) is register.root
        with pytest.raises(Unknown):
            register.find("parent", register.root)
        with pytest.raises(Unknown):
            register.find("parent")


async def test_the_unnamed_are_called_by_their_path() -> None:
    """A child without a name has a number in its path, and that path for a name."""
    async with Session(ScriptedModel([])) as session:
        register, (first, second) = await family(session, "", "")

        assert [first.name, second.name] == ["main/1", "main/2"]
        assert register.find("main/2") is second


@given(
    wanted=st.lists(st.text(max_size=12) | st.sampled_from(["main", "parent", "1", "a", "a-2", "a.jsonl"]), max_size=12)
)
async def test_no_two_runs_can_be_mistaken(wanted: list[str]) -> None:
    """Whatever names are asked for: every run's id, path and name lead to that run and to no other."""
    async with Session(ScriptedModel([]), spawn_limits=SpawnLimits(children=100)) as session:
        register, runs = await family(session, *map(safe_name, wanted), *[""] * 3)
        runs.append(run_of(session, session.id))

        for run in runs:
            assert {register.find(each).info.id for each in (run.info.id, run.info.path, run.name)} == {run.info.id}
        assert len({run.info.path for run in runs}) == len(runs)
        assert len({f"{run.info.path}.jsonl" for run in runs} & {run.info.path for run in runs}) == 0


async def test_what_is_over_is_kept_for_a_while() -> None:
    """Finished runs stay with their history up to a number; then a tombstone says what they were."""
    async with Session(ScriptedModel([]), spawn_limits=SpawnLimits(children=10)) as session:
        kept_runs = opened(session).tree.register.services.max_finished_runs
        register, runs = await family(session, *(f"n-{number}" for number in range(kept_runs + 2)))

        assert set(register.tombstones) == {runs[0].info.id, runs[1].info.id}
        assert register.find(f"n-{kept_runs + 1}") is runs[-1]
        for way in (runs[0].info.id, runs[0].info.path, "n-0"):
            with pytest.raises(Unknown, match="it ended as completed; its history has expired"):
                register.find(way)
        with pytest.raises(Unknown) as unknown:
            register.find("n-of-nobody")
        assert "it ended as" not in str(unknown.value)
