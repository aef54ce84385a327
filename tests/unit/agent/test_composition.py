"""Compositions: invalid ones are refused when they are built, with the accepted values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramet import END, START, Agent, Policy, ScriptedModel, StateGraph, chain, parallel
from ramet.agent.composition.steps import nesting_depth
from ramet.core.errors import DefinitionMissing, InvalidValue, RametError, Unknown
from ramet.host.serialize.recipes import agent_of, recipe
from tests.trips.agents.composed import double, fails, norm, plus_one, triple, untyped
from tests.trips.definitions.test_composition import Draft, enough, review


def node() -> StateGraph:
    """Return a graph with one node."""
    return StateGraph().add_node(double)


BAD: list[Callable[[], Any]] = [
    lambda: chain(),
    lambda: chain(3),  # type: ignore[arg-type]  # that is what is tried
    lambda: chain({"nmae": "x"}),
    lambda: chain(double, name="a/b"),
    lambda: parallel(),
    lambda: parallel(double, double, for_each=True),
    lambda: parallel(double, max_parallel=0),
    lambda: parallel(double, max_parallel=True),
    lambda: parallel(double, on_failure="ignore"),  # type: ignore[arg-type]  # as above
    lambda: StateGraph(3),  # type: ignore[arg-type]  # as above
    lambda: node().add_node(double),
    lambda: node().add_node(END, double),
    lambda: node().add_node("a"),
    lambda: node().add_node("a b", double),
    lambda: StateGraph(Draft).add_node("a", double, input="nothing"),
    lambda: node().add_edge(END, "double"),
    lambda: node().add_edge("double", START),
    lambda: node().add_edge("double", END).set_finish_point("double"),
    lambda: node().add_conditional_edges("double", "route"),  # type: ignore[arg-type]  # as above
    lambda: node().compile(),
    lambda: node().set_entry_point("double").compile(max_steps=0),
    lambda: node().set_entry_point("nobody").compile(),
    lambda: node().set_entry_point("double").add_edge("double", "nobody").compile(),
    lambda: node().set_entry_point("double").add_edge("nobody", "double").compile(),
    lambda: node().set_entry_point("double").add_conditional_edges("double", enough, ["nobody"]).compile(),
    lambda: node().add_node("lost", double).set_entry_point("double").compile(),
]


@pytest.mark.parametrize("make", BAD)
def test_an_invalid_composition_is_refused_when_it_is_built(make: Callable[[], Any]) -> None:
    """The error does not wait for a run to reach the step."""
    with pytest.raises((InvalidValue, Unknown)):
        make()


def test_levels_of_compositions_are_counted() -> None:
    """The deepest path counts."""
    assert [
        nesting_depth(each) for each in (double, None, chain(double).function, chain(chain(double), double).function)
    ] == [
        0,
        0,
        1,
        2,
    ]


def full_composition() -> Agent:
    """Return a composition with every kind of part."""
    writer = Agent(name="writer", model="anthropic:x", instructions="Write.", cache_ttl_seconds=9, tools=["Read"])
    graph = StateGraph(Draft).add_node("write", writer, input="topic", output="text").add_node(review)
    graph.set_entry_point("write").add_edge("write", "review")
    graph.add_conditional_edges("review", enough, {True: END, False: "write"})
    boxed = triple.with_policy(Policy(allowed_env_vars=["LANG"], secrets=["key"], retry_count=1))
    branches = parallel(double, chain(norm, boxed), max_parallel=3, on_failure="stop")
    return chain(branches, parallel(fails, for_each=True), graph.compile(max_steps=7), name="whole")


def rebuild(agent: Agent, *agents: Agent) -> Agent:
    """Return the agent that another process makes of the recipe."""

    def no_model(name: str) -> Any:
        raise DefinitionMissing("model", name)

    return agent_of(recipe(agent), agents={each.name: each for each in agents}, model=no_model)


def test_a_composition_survives_a_round_trip_through_data() -> None:
    """Steps, policies, edges and routes are equal."""
    assert rebuild(full_composition()) == full_composition()


def test_a_part_that_is_not_data_must_be_supplied_by_name() -> None:
    """The supplied composition comes back as it is."""
    inner = lambda state: END  # noqa: E731 - what has no name of its own
    graph = StateGraph().add_node("one", plus_one).set_entry_point("one").add_conditional_edges("one", inner)
    composition = chain(graph.compile(), name="made")
    with pytest.raises(DefinitionMissing, match="policy of 'triple"):
        rebuild(chain(triple.with_policy(Policy(env_vars={"A": "secret"})).with_name("triple")))
    with pytest.raises(DefinitionMissing, match="model 'scripted'"):
        rebuild(chain(Agent(name="a", model=ScriptedModel([]))))
    assert rebuild(composition, composition).function is composition.function
    function = rebuild(composition).function
    assert function is not None
    with pytest.raises(DefinitionMissing, match="lambda"):
        function.parts()[0].function.edges["one"].function({})  # type: ignore[attr-defined]  # a chain with a graph


def test_a_recipe_contains_no_secret() -> None:
    """Recipes of steps contain none either."""
    composition = chain(triple.with_policy(Policy(env_vars={"A": "hush"}, secrets={"key": "hush"})), untyped)

    assert "hush" not in str(recipe(composition))


def test_a_composition_of_an_unknown_kind_is_refused() -> None:
    """Such a kind may come from a newer version."""
    data = recipe(chain(double))
    data["function"]["@composition"]["kind"] = "spiral"

    with pytest.raises(RametError, match="spiral"):
        agent_of(data, agents={}, model=lambda name: None)
