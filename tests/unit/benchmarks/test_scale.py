"""The model of docs/design/scale.md: its results follow from its constants, and each limit can be the deciding one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale import SIZES, Capacity, Costs, Load, measured, predict, table

COSTS = Costs(
    base_mb=100,
    conversation_kb=50,
    client_kb=10,
    reader_kb=10,
    turn_ms=2,
    turn_events=10,
    event_us=10,
    taken_up_ms=1,
    heard_us=100,
    turn_commits=4,
    server_event_us=10,
    server_commit_us=200,
    server_heard_us=100,
    event_bytes=500,
    event_wal_bytes=600,
    commit_wal_bytes=400,
    sessions=4,
    pod_kb=71,
    pod_writes=5,
)


def test_rates_follow_from_the_behaviour_of_agents() -> None:
    """One in a hundred of a million agents takes a turn of 20 events each 30 s."""
    need = predict(1_000_000, COSTS)

    assert need.figures["turns/s"] == pytest.approx(333.3, abs=0.1)
    assert need.figures["durable events/s"] == pytest.approx(6_667, abs=1)
    assert need.figures["pods"] == 10_000
    assert need.figures["nodes for them"] == 91


@pytest.mark.parametrize(
    ("expected", "costs"),
    [
        ("memory", replace(COSTS, conversation_kb=5_000)),
        ("processor", replace(COSTS, turn_ms=2_000)),
        ("connections", replace(COSTS, taken_up_ms=0, conversation_kb=1)),
        ("takeover", replace(COSTS, taken_up_ms=100)),
    ],
)
def test_the_tightest_limit_decides(expected: str, costs: Costs) -> None:
    """Each limit of a kernel can be the one that needs the most kernels."""
    assert predict(1_000_000, costs).decides == expected


def test_the_number_of_kernels_is_the_smallest_that_is_enough() -> None:
    """No limit of a kernel needs more, and one fewer would not be enough."""
    need = predict(1_000_000, COSTS)

    assert need.kernels - 1 < max(need.kernels_for.values()) <= need.kernels


def test_received_commits_may_exceed_a_kernel() -> None:
    """More kernels do not help where receiving each commit takes all the time of each kernel."""
    need = predict(1_000_000, replace(COSTS, heard_us=1_000))

    assert need.kernels == 0
    assert need.used["notices"] > 1


def test_a_takeover_needs_a_second_kernel() -> None:
    """One kernel that fails has nobody to take over: there are two at least."""
    assert predict(1, COSTS, Load(), Capacity()).kernels == 2


def test_the_stored_results_have_each_constant() -> None:
    """The output of `python -m benchmarks.scale` comes from a stored file."""
    needs = [predict(size, measured()) for size in SIZES]

    assert "1,000,000" in table(needs).splitlines()[0]
    assert all(need.figures["durable events/s"] > 0 for need in needs)
