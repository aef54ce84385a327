"""Definitions by decorators and methods: checked at once, and immutable."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ramet import Agent, Limits, Policy
from ramet.agent.decorators import agent, cache, policy, resources, retry, timeout
from ramet.core.errors import InvalidValue


def work(text: str = "") -> str:
    """Works well.

    And more.
    """
    return text.upper()


def test_a_bare_decorator_takes_name_and_description_from_the_function() -> None:
    """The description is the first line of the docstring."""
    definition = agent(work)

    assert (definition.name, definition.description, definition.function) == ("work", "Works well.", work)
    assert definition("x") == "X"


def test_an_agent_that_is_not_a_function_cannot_be_called() -> None:
    """The error says what runs such an agent."""
    with pytest.raises(InvalidValue, match="a runtime or session runs any other"):
        Agent(name="talker")("hi")


@pytest.mark.parametrize(
    "make",
    [
        lambda: agent(nmae="x"),
        lambda: agent(function=work),
        lambda: agent(name="../x")(work),
        lambda: policy(),
        lambda: policy("strict"),  # type: ignore[arg-type]  # that is what is tried
        lambda: policy(memory=3),
        lambda: resources(),
        lambda: resources(network="disabled"),
        lambda: resources(memory_mb=-1),
        lambda: timeout(-1),
        lambda: timeout(None),  # type: ignore[arg-type]  # as above
        lambda: timeout(float("nan")),
        lambda: retry(-1),
        lambda: retry(None),  # type: ignore[arg-type]  # as above
        lambda: cache(ttl_seconds=0),
        lambda: cache(ttl_seconds=float("inf")),
        lambda: cache(ttl_seconds=None),  # type: ignore[arg-type]  # as above
        lambda: timeout(1)("work"),  # type: ignore[arg-type]  # as above
        lambda: Agent(name="a", cache_ttl_seconds=True),
    ],
)
def test_an_invalid_argument_is_refused_by_its_decorator(make: Any) -> None:
    """The error does not wait for the first run."""
    with pytest.raises(InvalidValue):
        make()


CHANGES: list[tuple[str, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    ("with_name", ("other",), {}, {"name": "other"}),
    ("with_description", ("d",), {}, {"description": "d"}),
    ("with_instructions", ("i",), {}, {"instructions": "i"}),
    ("with_model", ("anthropic:x",), {}, {"model": "anthropic:x"}),
    ("with_tools", ("Read", "Grep"), {}, {"tools": ("Read", "Grep")}),
    ("with_tools", (), {}, {"tools": ()}),
    ("with_output", (dict,), {}, {"output": dict}),
    ("with_policy", (Policy(pids=9),), {}, {"policy": Policy(pids=9)}),
    ("with_policy", (), {"pids": 9}, {"policy": Policy(memory_mb=64, pids=9)}),
    ("with_policy", (None,), {}, {"policy": None}),
    ("with_resources", (), {"cpu": 2, "memory_mb": 99}, {"policy": Policy(memory_mb=99, cpu_cores=2)}),
    ("with_timeout", (7,), {}, {"limits": Limits(agents=4, seconds=7)}),
    ("with_timeout", (None,), {}, {"limits": Limits(agents=4)}),
    (
        "with_retry",
        (3,),
        {"delay_seconds": 0.5},
        {"policy": Policy(memory_mb=64, retry_count=3, retry_delay_seconds=0.5)},
    ),
    ("with_cache", (5,), {}, {"cache_ttl_seconds": 5}),
    ("with_limits", (Limits(tokens=8),), {}, {"limits": Limits(tokens=8)}),
    ("with_limits", (), {"tokens": 8}, {"limits": Limits(agents=4, seconds=3, tokens=8)}),
]


@pytest.mark.parametrize(("method", "args", "kwargs", "changes"), CHANGES)
def test_a_method_changes_only_its_own_fields(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any], changes: dict[str, Any]
) -> None:
    """The result is a new definition, and the old one stays unchanged."""
    old = Agent(name="old", policy=Policy(memory_mb=64), limits=Limits(agents=4, seconds=3))
    before = dataclasses.replace(old)

    new = getattr(old, method)(*args, **kwargs)

    assert old == before
    assert new == dataclasses.replace(old, **changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda old: old.with_name("a/b"),
        lambda old: old.with_policy(memory=1),
        lambda old: old.with_resources(network="disabled"),
        lambda old: old.with_timeout(-1),
        lambda old: old.with_retry(-1),
        lambda old: old.with_cache(0),
    ],
)
def test_an_invalid_change_is_refused(make: Any) -> None:
    """The checks are those of a new definition."""
    with pytest.raises(InvalidValue):
        make(Agent(name="old"))
