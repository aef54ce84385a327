"""AC-S0-6: a parent's end by time or by cancel ends all runs below it, and each record names that end as the cause."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Limits, Policy, Status, workspace_tools
from ramet.cli.main import main
from ramet.concurrency.clock import FakeClock
from ramet.core.events import RunEnded, StateChanged
from ramet.core.lifecycle import State
from ramet.core.outcome import ErrorInfo
from ramet.host.trees.factory import OpenTree
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.spawn.run import Run
from ramet.tools.context import require_current_call
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.sessions import WIDE_LIMITS, async_tool

__all__ = ["backend"]

#: Seconds that the parent has. A child asks for none, for as many, or for more, which are lowered to the parent's.
TIME_S = 10.0
of_child = pytest.mark.parametrize("child_s", [None, TIME_S, 60.0])
OF_TIME = "its time of 10 s is over"
Ends = dict[str, tuple[Status, ErrorInfo | None]]


def ends_by_path(tree: OpenTree) -> Ends:
    """Return how each run of a tree ended, by path, from the events."""
    ends = [each for each in tree.recorder.recent_events if isinstance(each, RunEnded)]
    assert len(ends) == len({each.path for each in ends}), "each run ends once"
    return {each.path: (each.result.status, each.result.error) for each in ends}


def expected_ends(tree: OpenTree, status: Status, reason: str) -> Ends:
    """Return the expected ends of `main` and of the two runs below it, for one reason."""
    descendants = [run.info.path for run in tree.tree.register.runs.values() if run.parent is not None]
    assert len(descendants) == 2
    scope = "main" if status is Status.TIMEOUT else None
    own = ErrorInfo(type="Aborted", message=reason, scope=scope)
    inherited = ErrorInfo(type="Aborted", message=f"stopped with its parent: {reason}", scope=scope)
    return {"main": (status, own), **dict.fromkeys(descendants, (Status.CANCELLED, inherited))}


class Slow:
    """Work that notices a cancel, and continues until the test lets it end."""

    def __init__(self) -> None:
        self.begun_count = 0
        self.free = asyncio.Event()

    async def work(self) -> str:
        """Wait forever."""
        self.begun_count += 1
        try:
            return str(await asyncio.get_running_loop().create_future())
        finally:
            await self.free.wait()


async def let_time_expire(clock: FakeClock, slow: Slow, tree: OpenTree) -> None:
    """Let the time of all runs expire before the slow ones have ended; wait for their ends."""
    await clock.advance(TIME_S)
    slow.free.set()
    await eventually(lambda: not any(run.is_living for run in tree.tree.register.runs.values()))


# --- in the host


async def chain_of_functions(runtime: AgentRuntime, slow: Slow, child_s: float | None) -> tuple[Handle, OpenTree]:
    """Start three functions, each the parent of the next, and wait until all are active."""

    async def chain(depth: int) -> None:
        if depth:
            context = require_current_call().context
            assert context.tree is not None
            limits = Limits() if child_s is None else Limits(seconds=child_s)
            await context.tree.spawn(context, SpawnRequest(agent=chain, args=(depth - 1,), limits=limits))
        await slow.work()

    handle = await runtime.spawn(chain, args=(2,), limits=Limits(seconds=TIME_S), spawn_limits=WIDE_LIMITS)
    tree = runtime.trees[handle.run.info.root]
    await eventually(lambda: slow.begun_count == 3)
    return handle, tree


async def chain_of_models(runtime: AgentRuntime, slow: Slow, child_s: float | None) -> tuple[Handle, OpenTree]:
    """Start three model agents, each the parent of the next, and wait until the last is active."""
    limits = Limits() if child_s is None else Limits(seconds=child_s)
    child = Agent(name="child", description="Works.", limits=limits)
    script: dict[str, Any] = {
        "go on": [Call("Agent", {"prompt": "begin", "subagent_type": "child"}), "never"],
        "begin": [Call("work"), "never"],
        "": [Call("Agent", {"prompt": "go on", "subagent_type": "child"}), "never"],
    }
    handle = await runtime.spawn(
        Agent(name="top", model=ScriptedModel(script)),
        "go",
        tools=[async_tool(slow.work, name="work")],
        agents={"child": child},
        limits=Limits(seconds=TIME_S),
    )
    tree = runtime.trees[handle.run.info.root]
    await eventually(lambda: slow.begun_count == 1)
    return handle, tree


@of_child
@pytest.mark.parametrize("start", [chain_of_functions, chain_of_models])
async def test_a_parents_timeout_is_the_cause_of_all_ends_below(start: Any, child_s: float | None) -> None:
    """A child whose own time expires at the same moment is cancelled by its parent; it has no timeout of its own."""
    clock, slow = FakeClock(), Slow()
    async with AgentRuntime(clock=clock, grace_s=180) as runtime:
        _, tree = await start(runtime, slow, child_s)

        await let_time_expire(clock, slow, tree)

        assert ends_by_path(tree) == expected_ends(tree, Status.TIMEOUT, OF_TIME)


@of_child
@pytest.mark.parametrize("start", [chain_of_functions, chain_of_models])
async def test_a_parents_cancel_is_the_cause_of_all_ends_below(start: Any, child_s: float | None) -> None:
    """The cause stays the cancel if the time of all runs expires before the slow ones have ended."""
    clock, slow = FakeClock(), Slow()
    async with AgentRuntime(clock=clock, grace_s=180) as runtime:
        handle, tree = await start(runtime, slow, child_s)

        cancelling = asyncio.create_task(handle.cancel("enough"))
        await asyncio.sleep(0)
        await let_time_expire(clock, slow, tree)

        assert len((await cancelling).stopped) == 3
        assert ends_by_path(tree) == expected_ends(tree, Status.CANCELLED, "enough")


async def test_all_commands_show_equal_times_of_a_cancelled_tree(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ps`, `tree`, `show` and `logs` show the same age of each run at its stop."""
    clock, slow = FakeClock(), Slow()
    async with AgentRuntime(tmp_path, clock=clock, grace_s=180) as runtime:
        handle, tree = await chain_of_functions(runtime, slow, None)
        await clock.advance(7)
        slow.free.set()
        await handle.cancel("enough")
        ids = list(tree.tree.register.runs)

    async def output_of(*words: str) -> str:
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*words, "--dir", str(tmp_path)]) == 0
        return capsys.readouterr().out

    assert (await output_of("ps", "--all")).count(" 7.0s ") == 3
    assert (await output_of("tree", ids[0])).count(" 7.0s\n") == 3
    assert (await output_of("logs", ids[0])).count("enough (7.0s)\n") == 3
    for run in ids:
        assert "age        7.0s, " in await output_of("show", run)


async def test_a_childs_timeout_stays_its_cause_after_the_parents_cancel() -> None:
    """A child whose time expired before its parent's cancel records a timeout; the run below names the child's end."""
    clock, slow = FakeClock(), Slow()
    async with AgentRuntime(clock=clock, grace_s=180) as runtime:
        handle, tree = await chain_of_functions(runtime, slow, 4.0)

        await clock.advance(4)
        cancelling = asyncio.create_task(handle.cancel("enough"))
        await asyncio.sleep(0)
        slow.free.set()
        await cancelling

        results = ends_by_path(tree)
        paths = sorted(results, key=len)
        assert [results[path][0] for path in paths] == [Status.CANCELLED, Status.TIMEOUT, Status.CANCELLED]
        leaf = results[paths[2]][1]
        assert leaf is not None
        assert (leaf.message, leaf.scope) == ("stopped with its parent: its time of 4 s is over", paths[1])


# --- in sandboxes


async def sandboxed_functions(runtime: AgentRuntime, child_s: float | None) -> tuple[Handle, OpenTree]:
    """Start three functions in sandboxes, each the parent of the next, and wait until the last ignores signals."""
    policy = Policy(allow_sub_agents=True, memory_mb=512, cpu_cores=8, timeout_seconds=TIME_S)
    handle = await runtime.spawn(agents.chain, args=(2, child_s), policy=policy)
    tree = runtime.trees[handle.run.info.root]
    await eventually(lambda: leaf_of(tree, "begun"))
    return handle, tree


async def sandboxed_models(runtime: AgentRuntime, child_s: float | None) -> tuple[Handle, OpenTree]:
    """Start three model agents in sandboxes, each the parent of the next, and wait until the last ignores signals."""
    policy = Policy(timeout_seconds=child_s, allow_sub_agents=True, memory_mb=200)
    leaf = Agent(name="leaf", description="Works.", policy=Policy(timeout_seconds=child_s, memory_mb=128))
    middle = Agent(name="middle", description="Leads.", policy=policy)
    deaf = "trap '' TERM; touch begun; while :; do sleep 1000; done"
    script: dict[str, Any] = {
        "lead": [Call("Agent", {"prompt": "begin", "subagent_type": "leaf"}), "never"],
        "begin": [Call("Bash", {"command": deaf}), "never"],
        "": [Call("Agent", {"prompt": "lead", "subagent_type": "middle"}), "never"],
    }
    handle = await runtime.spawn(
        Agent(name="top", model=ScriptedModel(script)),
        "go",
        tools=workspace_tools(),
        agents={"leaf": leaf, "middle": middle},
        policy=Policy(allow_sub_agents=True, memory_mb=512, cpu_cores=8, timeout_seconds=TIME_S),
    )
    tree = runtime.trees[handle.run.info.root]
    await eventually(lambda: leaf_of(tree, "begun"))
    return handle, tree


def leaf_of(tree: OpenTree, file: str) -> Run | None:
    """Return the run two levels below the root once it has written a file of this name, or None."""
    leaves = [run for run in tree.tree.register.runs.values() if run.info.depth == 2 and run.sandbox.folder is not None]
    return (
        leaves[0]
        if leaves and leaves[0].sandbox.folder and (leaves[0].sandbox.folder.workspace / file).exists()
        else None
    )


@of_child
@pytest.mark.parametrize("start", [sandboxed_functions, sandboxed_models])
async def test_a_sandboxed_parents_timeout_is_the_cause_of_all_ends_below(
    tmp_path: pathlib.Path,
    backend: BackendName,
    start: Any,
    child_s: float | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The events, the result of the leaf and `ramet show` name the parent's timeout."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path / "work", backend=backend, clock=clock) as runtime:
        handle, tree = await start(runtime, child_s)
        leaf = leaf_of(tree, "begun")
        assert leaf is not None

        await clock.advance(TIME_S)
        await handle.result()

        assert ends_by_path(tree) == expected_ends(tree, Status.TIMEOUT, OF_TIME)
        assert leaf.result is not None
        assert leaf.result.status is Status.CANCELLED
    assert await asyncio.to_thread(main, ["show", leaf.info.id, "--dir", str(tmp_path / "work")]) == 0
    assert f"cancelled: stopped with its parent: {OF_TIME}" in capsys.readouterr().out


async def test_a_run_stopped_twice_ends_after_the_sandboxes_below_it(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """A run that is stopped again while it stops with its parent still waits for the run below it."""
    async with AgentRuntime(tmp_path / "work", backend=backend, clock=FakeClock()) as runtime:
        handle, tree = await sandboxed_models(runtime, None)
        leaf = leaf_of(tree, "begun")
        assert leaf is not None
        middle = leaf.parent
        assert middle is not None

        stopping = asyncio.create_task(handle.cancel("enough"))
        await eventually(lambda: middle.sandbox.was_started and not middle.context.running_processes)
        assert leaf.is_living
        await runtime.get(middle.info.id).cancel("again")
        await stopping
        await handle.result()

        assert list(ends_by_path(tree)) == [leaf.info.path, middle.info.path, "main"]
        assert [end[1].message for end in ends_by_path(tree).values() if end[1] is not None] == [
            "stopped with its parent: enough", "stopped with its parent: enough", "enough",
        ]  # fmt: skip


async def test_children_of_a_failed_sandboxed_parent_end_concurrently(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """Each of three deaf children is told to stop before the first has ended: many take no longer than one."""
    async with AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        policy = Policy(allow_sub_agents=True, memory_mb=512, cpu_cores=8)
        handle = await runtime.spawn(agents.fail_above, args=(3,), policy=policy)
        tree, root = runtime.trees[handle.run.info.root], handle.run
        await eventually(
            lambda: (
                [
                    child.sandbox.folder is not None and (child.sandbox.folder.workspace / "begun").exists()
                    for child in root.living_descendants
                ]
                == [True] * 3
            )
        )
        assert root.sandbox.folder is not None
        (root.sandbox.folder.workspace / "go").touch()

        assert (await handle.result()).status is Status.FAILED

        events_below = [each for each in tree.recorder.recent_events if each.path != "main"]
        stops = [
            at for at, each in enumerate(events_below) if isinstance(each, StateChanged) and each.state == "stopping"
        ]
        end_positions = [at for at, each in enumerate(events_below) if isinstance(each, RunEnded)]
        assert (len(stops), len(end_positions), max(stops) < min(end_positions)) == (3, 3, True)
        messages = {
            error.message for path, (_, error) in ends_by_path(tree).items() if path != "main" and error is not None
        }
        assert messages == {"its parent ended: failed"}


async def test_a_child_with_the_rest_of_its_parents_time_has_no_own_timeout(
    tmp_path: pathlib.Path,
) -> None:
    """The child is cancelled although its time, computed in fractions, expires a moment before its parent's."""
    time_s, born_s = 5.37, 1.35
    assert born_s + (time_s - born_s) < time_s
    clock = FakeClock()
    async with AgentRuntime(tmp_path / "work", backend="local", clock=clock) as runtime:
        policy = Policy(allow_sub_agents=True, memory_mb=512, timeout_seconds=time_s)
        handle = await runtime.spawn(agents.chain_when_told, policy=policy)
        tree, folder = runtime.trees[handle.run.info.root], handle.run.sandbox.folder
        assert folder is not None
        await eventually(folder.workspace.is_dir)
        await clock.advance(born_s)
        (folder.workspace / "go").touch()
        await eventually(lambda: any(run.state is State.RUNNING for run in handle.run.attached_children()))

        await clock.advance(time_s)
        await handle.result()

        statuses = {path: (status, error and error.scope) for path, (status, error) in ends_by_path(tree).items()}
        assert statuses == {"main": (Status.TIMEOUT, "main"), "main/1": (Status.CANCELLED, "main")}


@pytest.mark.parametrize("start", [sandboxed_functions, sandboxed_models])
async def test_a_sandboxed_parents_cancel_is_the_cause_of_all_ends_below(
    tmp_path: pathlib.Path, backend: BackendName, start: Any
) -> None:
    """The cause stays the cancel if the time of all runs expires before the deaf one has ended."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path / "work", backend=backend, clock=clock) as runtime:
        handle, tree = await start(runtime, 60.0)

        cancelling = asyncio.create_task(handle.cancel("enough"))
        await asyncio.sleep(0)
        await clock.advance(TIME_S)
        await cancelling
        await handle.result()

        assert ends_by_path(tree) == expected_ends(tree, Status.CANCELLED, "enough")
