"""What a birth would be is decided before anything is taken, and never wider than what is above it."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.definition import Agent
from ramet.core.budget import RESOURCES, Limits
from ramet.core.errors import InvalidValue, SpawnRefused, Unknown
from ramet.core.limits import SpawnLimits
from ramet.core.policy.policy import Policy
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.birth.plan import Plan, as_agent, plan_birth
from ramet.tools.context import SpawnRequest
from tests.trips.kits.sessions import nothing_is_held, opened, run_of

limits = st.builds(
    Limits,
    tokens=st.none() | st.integers(0, 50),
    usd=st.none() | st.integers(0, 50).map(float),
    model_calls=st.none() | st.integers(0, 50),
    tool_calls=st.none() | st.integers(0, 50),
    agents=st.none() | st.integers(0, 50),
    seconds=st.none() | st.integers(0, 50),
)


def planned(session: Session, request: SpawnRequest, **spawn_limits: Any) -> Plan:
    register = opened(session).tree.register
    return plan_birth(run_of(session, "main"), request, register.services, SpawnLimits(**spawn_limits))


def most(field: str, *given: Limits) -> float:
    values = [getattr(each, field) for each in given if getattr(each, field) is not None]
    return min(values, default=math.inf)


@given(above=limits, defined=limits, asked=limits, detached=st.booleans())
def test_limits_never_widen(above: Limits, defined: Limits, asked: Limits, detached: bool) -> None:
    """A child's limit is the least of its parent's, its definition's and its request's; what was cut is said."""
    session = Session(ScriptedModel([]), limits=above)
    agent = Agent(name="a", limits=defined, function=print)

    plan = planned(session, SpawnRequest(agent=agent, limits=asked, detached=detached))

    clamped = {clamp.name.removeprefix("limits."): clamp for clamp in plan.clamps}
    for each in fields(Limits):
        name, wanted = each.name, most(each.name, defined, asked)
        ceiling = math.inf if detached and name == "seconds" else most(name, above)
        own = getattr(plan.limits, name)
        effective = own if own is not None else (math.inf if name == "seconds" else ceiling)
        assert effective == min(wanted, ceiling) or (own is None and wanted == math.inf)
        assert (name in clamped) is (wanted != math.inf and wanted > ceiling)
        if name in clamped:
            assert (clamped[name].asked, clamped[name].given) == (wanted, ceiling)


@given(above=limits, asked=limits)
def test_a_plan_takes_nothing(above: Limits, asked: Limits) -> None:
    """Nothing is reserved, admitted or recorded by deciding."""
    session = Session(ScriptedModel([]), limits=above)

    planned(session, SpawnRequest(agent=print, limits=asked))

    assert nothing_is_held(session)
    assert opened(session).tree.register.admission.slot_count == 1
    assert all(run_of(session, "main").context.budget.spent(resource) == 0 for resource in RESOURCES)


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
def test_what_cannot_be_is_refused_by_name(request_: SpawnRequest, error: type[Exception], word: str) -> None:
    """Each wrong word is named, before anything is taken."""
    session = Session(ScriptedModel([]))

    with pytest.raises(error, match=word):
        planned(session, request_)


def test_depth_is_a_refusal_that_says_what_is_free() -> None:
    """At the limit: SpawnRefused("depth"), nothing free."""
    session = Session(ScriptedModel([]))

    with pytest.raises(SpawnRefused) as refusal:
        planned(session, SpawnRequest(), depth=0)

    assert (refusal.value.limit, refusal.value.free) == ("depth", 0)


def test_a_function_cannot_be_forked() -> None:
    """A function has no conversation: below it, a spawn needs a definition."""
    session = Session(agent=Agent(name="f", function=print))

    with pytest.raises(InvalidValue, match="function"):
        planned(session, SpawnRequest(prompt="x"))


def test_a_fork_is_its_parent() -> None:
    """Same definition, same tools to the object, same prompt; its parent's own limits do not count twice."""
    session = Session(ScriptedModel([]), system_prompt="Rules.", limits=Limits(tokens=50_000))
    root = run_of(session, "main")

    plan = planned(session, SpawnRequest(prompt="x"))

    assert plan.is_fork
    assert plan.toolset.tools is root.context.tools
    assert plan.system is root.context.system_messages
    assert plan.limits == Limits()


def test_what_code_hands_over_becomes_a_definition() -> None:
    """An Agent as it is, a dict checked, a function under its own name, a lambda under a usable one."""

    def dig() -> None: ...

    agent = Agent(name="a")
    assert as_agent(agent) is agent
    assert as_agent({"name": "b", "system_prompt": "Be brief."}).instructions == "Be brief."
    assert (as_agent(dig).name, as_agent(dig).function) == ("dig", dig)
    assert as_agent(lambda: None).name == "lambda"


def test_a_sandboxed_parents_child_has_no_folder_behind_a_symbolic_link(tmp_path: Path) -> None:
    """Issue 16, line 1: its instructions would be read by the host from where the link leads."""
    repo, other = tmp_path / "repo", tmp_path / "other"
    (repo / "below").mkdir(parents=True)
    (other / "below").mkdir(parents=True)
    (other / ".git").mkdir()
    (other / "AGENTS.md").write_text("Words of another project.")
    (repo / "link").symlink_to(other)
    policy = Policy(readonly_mounts=(str(repo),), allow_sub_agents=True)
    session = Session(ScriptedModel([]), root_policy=policy, cwd=repo, backend="local")
    agent = Agent(name="a", instructions="Look around.")

    assert planned(session, SpawnRequest(prompt="Look.", agent=agent, cwd="below")).cwd == repo / "below"
    for cwd in ("link", "link/below", str(repo / "link")):
        with pytest.raises(InvalidValue, match="symbolic link"):
            planned(session, SpawnRequest(agent=agent, cwd=cwd))
