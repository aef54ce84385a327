"""Tests of `plan_birth`: a spawn is decided before it takes anything, and never widens the limits above it."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.definition import Agent, as_agent
from ramet.core.errors import InvalidValue, SpawnRefused, Unknown
from ramet.core.limits import RESOURCES, Limits, SpawnLimits
from ramet.core.mcp.server_entry import as_server
from ramet.core.policy.policy import Policy, resolve_root_policy
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.birth.plan import Plan, plan_birth
from ramet.spawn.grants import with_definition_mounts
from ramet.spawn.mcp.server_grants import server_grant
from ramet.tools.spawn_request import SpawnRequest
from tests.trips.kits.sessions import has_no_reservation, open_tree_of, run_of

limits = st.builds(
    Limits,
    tokens=st.none() | st.integers(0, 50),
    usd=st.none() | st.integers(0, 50).map(float),
    model_calls=st.none() | st.integers(0, 50),
    tool_calls=st.none() | st.integers(0, 50),
    agents=st.none() | st.integers(0, 50),
    seconds=st.none() | st.integers(0, 50),
)


def plan_of(session: Session, request: SpawnRequest, **spawn_limits: Any) -> Plan:
    register = open_tree_of(session).tree.register
    return plan_birth(run_of(session, "main"), request, register.services, SpawnLimits(**spawn_limits))


def smallest_limit(field: str, *limits: Limits) -> float:
    values = [getattr(each, field) for each in limits if getattr(each, field) is not None]
    return min(values, default=math.inf)


@given(above=limits, defined=limits, limits=limits, detached=st.booleans())
def test_limits_never_widen(above: Limits, defined: Limits, limits: Limits, detached: bool) -> None:
    """A child's limit is the least of its parent's, its definition's and its request's; the plan lists every cut."""
    session = Session(ScriptedModel([]), limits=above)
    agent = Agent(name="a", limits=defined, function=print)

    plan = plan_of(session, SpawnRequest(agent=agent, limits=limits, detached=detached))

    clamps = {clamp.name.removeprefix("limits."): clamp for clamp in plan.clamps}
    for each in fields(Limits):
        name, wanted_limit = each.name, smallest_limit(each.name, defined, limits)
        ceiling = math.inf if detached and name == "seconds" else smallest_limit(name, above)
        own_limit = getattr(plan.limits, name)
        effective = own_limit if own_limit is not None else (math.inf if name == "seconds" else ceiling)
        assert effective == min(wanted_limit, ceiling) or (own_limit is None and wanted_limit == math.inf)
        assert (name in clamps) is (wanted_limit != math.inf and wanted_limit > ceiling)
        if name in clamps:
            assert (clamps[name].requested, clamps[name].granted) == (wanted_limit, ceiling)


@given(above=limits, limits=limits)
def test_a_plan_reserves_admits_and_spends_nothing(above: Limits, limits: Limits) -> None:
    """A decision holds no resource of the tree."""
    session = Session(ScriptedModel([]), limits=above)

    plan_of(session, SpawnRequest(agent=print, limits=limits))

    assert has_no_reservation(session)
    assert open_tree_of(session).tree.register.admission.slot_count == 1
    assert all(run_of(session, "main").context.budget.spent_amount(resource) == 0 for resource in RESOURCES)


@pytest.mark.parametrize(
    ("request_", "error", "word"),
    [
        (SpawnRequest(subagent_type="nobody"), Unknown, "nobody"),
        (SpawnRequest(subagent_type="plan", mode="fork"), InvalidValue, "mode"),
        (SpawnRequest(agent=print, mode="fork"), InvalidValue, "mode"),
        (SpawnRequest(agent=17), InvalidValue, "agent"),
        (SpawnRequest(agent={"name": "a", "nonsense": 1}), InvalidValue, "nonsense"),
        (SpawnRequest(isolation="moon"), InvalidValue, "isolation"),
        (SpawnRequest(cwd="\0"), InvalidValue, "cwd"),
        (SpawnRequest(cwd="x" * 5_000), InvalidValue, "cwd"),
        (SpawnRequest(model="nowhere:nothing"), Unknown, "nowhere"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value)[:12],
)
def test_an_invalid_request_is_refused_with_its_wrong_value(
    request_: SpawnRequest, error: type[Exception], word: str
) -> None:
    """The error names the wrong field or value."""
    session = Session(ScriptedModel([]))

    with pytest.raises(error, match=word):
        plan_of(session, request_)


def test_a_spawn_below_the_depth_limit_is_refused() -> None:
    """SpawnRefused has the limit "depth" and 0 free levels."""
    session = Session(ScriptedModel([]))

    with pytest.raises(SpawnRefused) as refusal:
        plan_of(session, SpawnRequest(), depth=0)

    assert (refusal.value.limit, refusal.value.free) == ("depth", 0)


def test_a_function_cannot_be_forked() -> None:
    """A function has no conversation, so a spawn below it needs a definition."""
    session = Session(agent=Agent(name="f", function=print))

    with pytest.raises(InvalidValue, match="function"):
        plan_of(session, SpawnRequest(prompt="x"))


def test_a_fork_has_its_parents_tools_and_prompt() -> None:
    """A fork shares the tool and message objects, and does not count its parent's limits twice."""
    session = Session(ScriptedModel([]), system_prompt="Rules.", limits=Limits(tokens=50_000))
    root = run_of(session, "main")

    plan = plan_of(session, SpawnRequest(prompt="x"))

    assert plan.is_fork
    assert plan.toolset.tools is root.context.tools
    assert plan.system is root.context.system_messages
    assert plan.limits == Limits()


def test_as_agent_accepts_agents_dicts_and_functions() -> None:
    """An Agent stays as it is, a dict is checked, a function keeps its name, and a lambda is called "lambda"."""

    def dig() -> None: ...

    agent = Agent(name="a")
    assert as_agent(agent) is agent
    assert as_agent({"name": "b", "system_prompt": "Be brief."}).instructions == "Be brief."
    assert (as_agent(dig).name, as_agent(dig).function) == ("dig", dig)
    assert as_agent(lambda: None).name == "lambda"


def test_a_sandboxed_parents_child_has_no_folder_behind_a_symbolic_link(tmp_path: Path) -> None:
    """Issue 16, line 1: the host would read the instructions of a project behind a symbolic link."""
    repo, other = tmp_path / "repo", tmp_path / "other"
    (repo / "below").mkdir(parents=True)
    (other / "below").mkdir(parents=True)
    (other / ".git").mkdir()
    (other / "AGENTS.md").write_text("Words of another project.")
    (repo / "link").symlink_to(other)
    policy = Policy(readonly_mounts=(str(repo),), allow_sub_agents=True)
    session = Session(ScriptedModel([]), root_policy=policy, cwd=repo, backend="local")
    agent = Agent(name="a", instructions="Look around.")

    assert plan_of(session, SpawnRequest(prompt="Look.", agent=agent, cwd="below")).cwd == repo / "below"
    for cwd in ("link", "link/below", str(repo / "link")):
        with pytest.raises(InvalidValue, match="symbolic link"):
            plan_of(session, SpawnRequest(agent=agent, cwd=cwd))


def test_skills_are_mounted_unless_the_grant_shows_them_or_the_ceiling_does_not() -> None:
    """A skill below a mount needs none of its own. The most that a policy adapter allows holds for skills, too."""
    grant = resolve_root_policy(Policy(readonly_mounts=("/project",)))
    skills = ("/project/.claude/skills/a", "/elsewhere/skills/b", "/elsewhere/skills/b")

    mounted, added = with_definition_mounts(grant, skills, None)
    limited, none_added = with_definition_mounts(grant, skills, Policy(readonly_mounts=("/project",)))
    unlimited, also_added = with_definition_mounts(grant, skills, Policy(memory_mb=64))

    assert (mounted, unlimited) == (unlimited, mounted)
    assert (added, also_added) == (("/elsewhere/skills/b",),) * 2
    assert mounted is not None
    assert mounted.readonly_mounts == ("/project", "/elsewhere/skills/b")
    assert (limited, none_added) == (grant, ())
    assert with_definition_mounts(None, skills, None) == (None, ())


def test_a_server_of_an_agent_at_the_last_level_has_a_sandbox_of_its_own() -> None:
    """A server is no level of the tree. What its agent lacks is refused by the names of the server and of the field."""
    server = as_server({"name": "calc", "command": "calc", "policy": {"memory_mb": 64}})
    wider = as_server({"name": "calc", "command": "calc", "policy": {"secrets": ["TOKEN"]}})
    grant = resolve_root_policy(Policy(max_sub_agent_depth=0))

    assert server_grant(server, grant).memory_mb == 64
    with pytest.raises(SpawnRefused, match=r"mcp\.calc\.policy\.secrets"):
        server_grant(wider, grant)
