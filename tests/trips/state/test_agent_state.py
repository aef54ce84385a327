"""An agent's own state as its code uses it: in sandboxes on every backend, and in the host."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

import ramet
from ramet.core import events
from ramet.core.errors import Conflict, RametError
from ramet.core.events import StateCommitted
from ramet.core.outcome import Status
from ramet.host.dynamic.registry import STATE
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.values import MISSING
from ramet.sub_agent_client import agent_state
from tests.trips.agents import stateful as agents
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]

MAY = ramet.Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=8)


async def commits_of(runtime: ramet.AgentRuntime, run: str) -> list[StateCommitted]:
    """Return the recorded commits of a run."""
    assert runtime.journal is not None
    entries = await runtime.journal.store.read(run=run)
    tree_events = [events.decode(each.data) for each in entries]
    return [each for each in tree_events if isinstance(each, StateCommitted)]


async def run(runtime: ramet.AgentRuntime, function: Any, *args: Any, policy: ramet.Policy | None = None) -> Any:
    """Return the output of a function in a sandbox."""
    result = await runtime.run_agent(function, policy, args=args)
    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    return result.output


async def test_the_next_run_has_what_a_run_committed(runtime: ramet.AgentRuntime) -> None:
    """State belongs to the agent's name, and its code sees its own keys.

    Uncommitted values are lost, and commits are recorded.
    """
    handle = await runtime.spawn(agents.keeps, args=(1,), policy=MAY)
    first = (await handle.result()).value
    second = await run(runtime, agents.keeps, 2)

    assert first["before"] == []
    assert second["before"] == [1]
    assert second["keys"] == ["plan", "seen", "unsaved"]
    assert second["has"] == [True, False, True]
    assert second["messages"] == ["run 2", "run 1"]
    assert first["author"] == handle.id
    (commit,) = await commits_of(runtime, handle.id)
    assert (commit.state, commit.branch, commit.commit, commit.keys) == (STATE, "main", first["commit"], 2)
    state = await runtime.state(STATE)
    assert Namespaced(state, "keeps").keys() == ["plan", "seen"]


async def test_older_commits_are_read_only(runtime: ramet.AgentRuntime) -> None:
    """AC-S4-7: agent code can commit, check out, discard and remove. A commit without changes is the same commit."""
    assert await run(runtime, agents.looks_back) == {
        "then": 0,
        "refused": "UnsavedChanges",
        "same": True,
        "removed": [True, False],
        "now": "none",
    }


async def test_a_hostile_guest_gets_typed_errors_and_nothing_else(runtime: ramet.AgentRuntime) -> None:
    """Huge keys, keys of other agents, registries and floods get typed errors, and the channel stays open."""
    await run(runtime, agents.secret)
    result = await run(runtime, agents.hostile)

    assert result == {
        **dict.fromkeys(["above", "root", "nul", "huge key", "huge value"], "InvalidValue"),
        **dict.fromkeys(["deep", "no data", "no key"], "InvalidValue"),
        "registry": "Denied",
        "registry below": "Denied",
        "stranger": "Unknown",
        "branch of others": "Unknown",
        "branch elsewhere": "InvalidValue",
        "message": "InvalidValue",
        "conflict": "InvalidValue",
        "flood stopped": "True",
        "commit": "",
    }
    state = await runtime.state(STATE)
    assert sorted(state.keys()) == ["hostile/fine", "secret/secret"]


async def test_a_forged_commit_cannot_be_checked_out(runtime: ramet.AgentRuntime) -> None:
    """A commit outside the branch's history is unknown, even if its blob exists."""
    assert await run(runtime, agents.forges) == ["Unknown"] * 20 + ["Denied"] * 10


async def test_children_have_namespaces_below_their_parents(runtime: ramet.AgentRuntime) -> None:
    """AC-S4-8: a sibling does not see a child's key, and the parent can list it."""
    one, two, before, names, after = await run(runtime, agents.parent_of_two, policy=MAY)

    assert (one, two) == (["one"], ["two"])
    assert before == ["mine"]
    assert names == ["named_one", "named_two"]
    assert after == ["mine", "named_one/one", "named_two/two"]


async def test_ac_s4_10_a_parent_sees_nothing_of_a_branch_until_it_merges(runtime: ramet.AgentRuntime) -> None:
    """AC-S4-10: the delegate works on a fork of a real commit. Merging twice adds its work once, with its author."""
    handle = await runtime.spawn(agents.delegates, policy=MAY)
    value = (await handle.result()).value

    child = value["child"]
    assert value["before"] == [{"of": "the parent"}, ["plan"]]
    assert value["branches"] == {child: True}
    assert value["plan"] == {"of": "the parent", "word": "hello"}
    assert value["keys"] == ["by hello", "mine", "plan"]
    assert (value["parents"], value["once"]) == (2, True)
    assert value["told"] == [f"merge the branch of {child}", handle.id]
    assert value["dropped"] == [True, False, {}]
    (of_child,) = await commits_of(runtime, child)
    assert (of_child.branch, of_child.keys) == (f"delegates/{child}", 2)
    assert [each.keys for each in await commits_of(runtime, handle.id)] == [1, 1, 2]
    state = await runtime.state(STATE)
    assert value["first"] in {each.id for each in await state.history()}


async def test_agent_code_decides_about_keys_that_both_branches_changed(runtime: ramet.AgentRuntime) -> None:
    """A branch begins at a commit.

    Without a decision of the parent nothing is merged, and with one each key is asked once.
    """
    error_type, conflict, error, plan, by = await run(runtime, agents.disagrees, policy=MAY)

    assert error_type == "UnsavedChanges"
    assert conflict == "MergeConflict ('by hello', 'plan')"
    assert error == [
        ["by hello", "nobody", "the parent", True],
        ["plan", {"of": "the parent"}, {"of": "another plan"}, {"of": "the parent", "word": "hello"}],
    ]
    assert (plan, by) == ({"of": "another plan", "word": "hello"}, "the parent")


async def test_branches_of_branches_are_merged_one_by_one(runtime: ramet.AgentRuntime) -> None:
    """The work of a delegate's delegate reaches the parent only through the delegate."""
    assert await run(runtime, agents.nested, policy=MAY) == {
        "before": {},
        "refused": "Unknown",
        "after": {"word": "deep"},
        "branches": 1,
    }


async def test_a_function_named_like_an_agent_does_not_get_its_state(runtime: ramet.AgentRuntime) -> None:
    """A sandbox spawns a function with another agent's name, whose state stays below its parent."""
    await run(runtime, agents.secret)

    assert await run(runtime, agents.thief, policy=MAY) == "nothing"


@pytest.mark.parametrize("folder", [True, False])
async def test_functions_in_the_host_have_state(tmp_path: pathlib.Path, folder: bool) -> None:
    """A function in a thread uses the blocking interface. A coroutine awaits the calls."""
    in_thread = ramet.Agent(name="keeps", function=agents.keeps_in_thread)
    in_loop = ramet.Agent(name="keeps", function=agents.keeps_async)
    async with ramet.AgentRuntime(tmp_path if folder else None) as runtime:
        first = await (await runtime.spawn(agents.keeps, args=(1,))).result()
        threaded = await (await runtime.spawn(in_thread, args=(2,))).result()
        awaited = await (await runtime.spawn(in_loop, args=(3,))).result()

    assert first.value["before"] == []
    assert threaded.value["before"] == [1], threaded.error
    assert threaded.value["messages"] == ["run 2", "run 1"]
    assert awaited.value == [1, 2], awaited.error


@pytest.mark.parametrize(
    ("mode", "second", "expected"),
    [
        ("retry", "MergeConflict ('count',)", {"count": 1, "first": True}),
        ("resolve", "", {"count": 3, "first": True, "second": True}),
        ("abandon", "Conflict", {"count": 1, "first": True}),
    ],
)
async def test_ac_s4_7_concurrent_commits_of_one_agent_conflict(
    mode: str, second: str, expected: dict[str, Any]
) -> None:
    """AC-S4-7: the second run is refused, resolves, or abandons its changes, as it asked."""
    barrier, first_is_done = asyncio.Barrier(2), asyncio.Event()

    async def count(word: str, by: int) -> str:
        state = agent_state()
        await state.set("count", await state.get("count", 0) + by)
        await state.set(word, True)
        await barrier.wait()
        if word == "first":
            await state.commit()
            first_is_done.set()
            return ""
        await first_is_done.wait()
        ways: dict[str, dict[str, Any]] = {"resolve": {"resolve": _add_counts}, "abandon": {"on_conflict": "abandon"}}
        try:
            await state.commit(**ways.get(mode, {}))
        except Conflict as refusal:
            message = f"{type(refusal).__name__} {getattr(refusal, 'keys', '')}".strip()
            assert ("second" in await state.keys()) == (mode == "retry")
            return message
        return ""

    async with ramet.AgentRuntime() as runtime:
        agent = ramet.Agent(name="counter", function=count)
        handles = [await runtime.spawn(agent, args=each) for each in (("first", 1), ("second", 2))]
        results = [await each.result() for each in handles]
        state = Namespaced(await runtime.state(STATE), "counter")

        assert [each.value for each in results] == ["", second], [each.error for each in results]
        assert {key: state.get(key) for key in state.keys()} == expected


def _add_counts(key: str, base: Any, ours: Any, theirs: Any) -> Any:
    assert (key, base, sorted([ours, theirs])) == ("count", MISSING, [1, 2])
    return ours + theirs


async def test_code_outside_an_agent_has_no_state() -> None:
    """The error says that the code does not run inside an agent."""
    with pytest.raises(RametError, match="does not run inside an agent"):
        agents.keeps(1)
