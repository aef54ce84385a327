"""Decorators in any order make one definition; a repeated setting is refused in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet import Agent, Limits, Policy
from ramet.agent.decorators import Decorator, agent, cache, policy, resources, retry, timeout
from ramet.core.errors import InvalidValue


def work(text: str) -> str:
    """Works."""
    return text


DECORATORS: dict[str, Decorator] = {
    "agent": agent(name="worker", max_turns=3, limits=Limits(agents=5), policy=Policy(tmpfs_size_mb=16)),
    "policy": policy(Policy(pids=20, allowed_endpoints=["example.org:443"])),
    "more policy": policy(workspace_size_mb=32),
    "resources": resources(cpu=0.5, memory_mb=100),
    "timeout": timeout(9),
    "retry": retry(2, delay_seconds=0.5),
    "cache": cache(ttl_seconds=60),
}
CONFLICTS: list[tuple[Decorator, Decorator]] = [
    (timeout(1), timeout(1)),
    (timeout(1), policy(timeout_seconds=2)),
    (timeout(1), agent(limits=Limits(seconds=2))),
    (resources(memory_mb=100), policy(memory_mb=200)),
    (retry(1), policy(retry_count=0)),
    (retry(1), retry(2)),
    (cache(ttl_seconds=1), agent(cache_ttl_seconds=2)),
    (cache(ttl_seconds=1), cache(ttl_seconds=2)),
    (agent(name="a"), agent(name="b")),
    (policy(network="disabled"), policy(allowed_endpoints=["example.org:443"])),
]


def apply_decorators(decorators: list[Any]) -> Agent:
    """Apply the decorators, the first one innermost."""
    made: Any = work
    for each in decorators:
        made = each(made)
    assert isinstance(made, Agent)
    return made


@given(st.permutations(list(DECORATORS)))
def test_the_order_of_decorators_does_not_matter(order: list[str]) -> None:
    """Decorators in any order make an equal definition, which can still be called as the function."""
    made = apply_decorators([DECORATORS[name] for name in order])

    assert made == apply_decorators(list(DECORATORS.values()))
    assert (made.name, made.description, made.limits.seconds, made.limits.agents) == ("worker", "Works.", 9, 5)
    assert made("text") == "text"


@given(st.permutations(list(DECORATORS)), st.sets(st.sampled_from(list(DECORATORS))))
def test_any_selection_of_decorators_works_in_any_order(order: list[str], chosen: set[str]) -> None:
    """A selection of the decorators makes an equal definition in any order."""
    some = [DECORATORS[name] for name in order if name in chosen]
    if some:
        assert apply_decorators(some) == apply_decorators([each for name, each in DECORATORS.items() if name in chosen])


@given(st.sampled_from(CONFLICTS), st.booleans(), st.integers(0, 2))
def test_a_repeated_setting_is_refused_in_any_order(
    pair: tuple[Decorator, Decorator], turned: bool, between: int
) -> None:
    """Two decorators that state the same setting are refused, whatever stands between them."""
    first, second = pair[::-1] if turned else pair
    harmless: list[Decorator] = [policy(readonly_mounts=["/usr"]), resources(max_output_bytes=1000)]

    with pytest.raises(InvalidValue):
        apply_decorators([first, *harmless[:between], second])


def test_a_conflict_names_both_values() -> None:
    """The error names the refused value and the one that another decorator states."""
    with pytest.raises(InvalidValue) as refusal:
        apply_decorators([timeout(3), timeout(5)])
    assert (
        str(refusal.value)
        == "timeout: 5 is not accepted; expected a value that is stated once; another decorator states timeout=3"
    )

    with pytest.raises(InvalidValue, match=r"timeout: 5 is not accepted.*policy.timeout_seconds=3\.0"):
        apply_decorators([policy(timeout_seconds=3), timeout(5)])
    with pytest.raises(InvalidValue, match=r"one @agent for 'a'; another one has \{'name': 'a'\}"):
        apply_decorators([agent(name="a"), timeout(1), agent(name="b")])
