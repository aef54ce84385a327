"""Functions in sandboxes that pause at a limit are frozen: nothing of them runs, and they go on as if nothing was."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ramet import AgentRuntime, Limits, Policy, ScriptedModel, Session
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import SandboxFailed
from ramet.core.events import SandboxFrozen, SandboxStarted, TimeStarted, TimeStopped, ToolEnded
from ramet.core.lifecycle import State
from ramet.host.control.run_queries import rows_of
from ramet.isolation.limits.cgroups import Cgroups
from ramet.isolation.linux import procfs
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.isolation.zygote.sandbox import ForkedSandbox
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle
from ramet.tools.python import python_tool
from tests.support.control_groups import find_groups
from tests.support.machines import MachineBackend
from tests.support.waiting import alive, eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.pausing import pausing
from tests.trips.kits.sessions import of_kind, run_of, session_events

__all__ = ["backend"]

POLICY = Policy(allow_sub_agents=True, memory_mb=256, pids=40)


def nothing() -> str:
    """Return at once: the child that must wait for the limit."""
    return "child"


def count() -> str:
    """Count in a thread, in a file of the workspace, and spawn a child meanwhile."""
    import pathlib
    import threading

    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    is_over = threading.Event()

    def tick() -> None:
        with pathlib.Path("count").open("a", buffering=1) as file:
            while not is_over.wait(0.001):
                file.write("x")
                file.flush()

    thread = threading.Thread(target=tick)
    thread.start()
    result = spawn_sub_agent(agent=nothing, policy=Policy(memory_mb=96, cpu_cores=0.2))
    is_over.set()
    thread.join()
    return str(result.output)


def fork_and_count() -> str:
    """Have shells that start one another write to a file of the workspace, and spawn a child meanwhile."""
    import subprocess

    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    with open("chain", "w") as file:  # noqa: PTH123 - packed by value: few imports
        file.write("echo x >> count\nsleep 0.001\nif [ -e over ]; then exit; fi\n(exec sh chain) &\n")
    subprocess.Popen(["sh", "chain"])
    result = spawn_sub_agent(agent=nothing, policy=Policy(memory_mb=96, cpu_cores=0.2))
    open("over", "w").close()  # noqa: PTH123
    return str(result.output)


@pytest.fixture(params=["group", "signals"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Freeze by control groups of version 2, or have this machine refuse them, so that signals are used."""
    if request.param == "signals":

        def refuse(_: object) -> None:
            raise SandboxFailed("control groups: read-only file system")

        monkeypatch.setattr(Cgroups, "open_freezers", refuse)
    elif not any(mount.version == 2 for mount in procfs.cgroup_mounts()) or os.geteuid() != 0:
        pytest.skip("this machine has no control groups of version 2 for us")
    return str(request.param)


def file_of(handle: Handle, name: str = "count") -> pathlib.Path:
    """Return a file of the workspace of a run."""
    folder = handle.run.sandbox.folder
    assert folder is not None, "a run in a sandbox has a folder"
    return folder.workspace / name


def size_of(handle: Handle) -> int:
    """Return how far the function has counted."""
    file = file_of(handle)
    return file.stat().st_size if file.exists() else 0


async def frozen(handle: Handle) -> None:
    """Wait until the process of a paused run is frozen."""
    await eventually(lambda: handle.run.state is State.PAUSED and handle.run.sandbox.is_frozen)


async def count_meanwhile() -> None:
    """Return once another process of this machine has counted for a while, with the same pauses."""
    script = "import threading\nfor _ in range(200): threading.Event().wait(0.001)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-ISc", script)
    assert await process.wait() == 0


def processes_of(handle: Handle) -> dict[int, procfs.Stat]:
    """Return the processes of the sandbox."""
    sandbox = handle.run.sandbox.current
    assert sandbox is not None, "its process lives"
    return dict(sandbox._processes())  # type: ignore[attr-defined]  # of a sandbox of this machine


async def start(runtime: AgentRuntime, function: Callable[[], Any] = count, **limits: Any) -> Handle:
    """Start a function that may spawn no child before its limit is raised, and wait until it counts."""
    handle = await runtime.spawn(function, policy=POLICY, limits=pausing(agents=0, **limits))
    await frozen(handle)
    return handle


@pytest.mark.parametrize("function", [count, fork_and_count])
async def test_a_paused_function_stands_still_and_goes_on_after_a_raise(
    tmp_path: pathlib.Path, backend: BackendName, means: str, function: Callable[[], Any]
) -> None:
    """Nothing of it runs while it is paused: no thread, and no process that was about to be started."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        handle = await start(runtime, function)
        before = size_of(handle)
        await count_meanwhile()
        assert size_of(handle) == before
        assert handle.run.state is State.PAUSED

        await handle.raise_limits(Limits(agents=1))
        result = await handle.result()
        assert (result.status, result.value) == ("completed", "child")
        assert size_of(handle) > before


async def test_a_timer_that_was_set_before_does_not_thaw(tmp_path: pathlib.Path, means: str) -> None:
    """A process that has ordered SIGCONT for itself runs for a moment at most, and not at all in a group."""

    def wake_itself() -> str:
        import signal

        from ramet import Policy
        from ramet.sub_agent_client import spawn_sub_agent

        def wake(*_: object) -> None:
            with open("count", "a") as file:  # noqa: PTH123
                file.write("x")

        signal.signal(signal.SIGCONT, wake)
        return str(spawn_sub_agent(agent=nothing, policy=Policy(memory_mb=96, cpu_cores=0.2)).output)

    async with AgentRuntime(tmp_path, backend="bwrap") as runtime:
        handle = await start(runtime, wake_itself)
        [pid] = [each for each in processes_of(handle) if each == handle.run.sandbox.current.pid]  # type: ignore[union-attr]
        os.kill(pid, signal.SIGCONT)  # As the timer would.
        await eventually(lambda: means == "group" or (procfs.stat(pid) or pytest.fail("it ended")).state == "T")
        await count_meanwhile()
        assert means == "signals" or size_of(handle) == 0
        assert handle.run.sandbox.is_frozen
        await handle.raise_limits(Limits(agents=1))
        assert (await handle.result()).value == "child"


@pytest.mark.parametrize("way", ["cancel", "runtime"])
async def test_a_frozen_function_is_stopped_and_nothing_is_left(
    tmp_path: pathlib.Path, backend: BackendName, means: str, way: str
) -> None:
    """Its processes are killed at once: none of them does anything before."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        handle = await start(runtime, fork_and_count)
        pids, before = set(processes_of(handle)), size_of(handle)
        if way == "cancel":
            receipt = await handle.cancel("enough")
            assert receipt.left == ()
            assert not any(map(alive, pids))
            assert (await handle.result()).status == "cancelled"
            assert size_of(handle) == before
    assert not any(map(alive, pids))


async def test_the_time_of_a_frozen_function_stands(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """An hour in a pause does not count for its time limit, nor for a deadline above it."""
    clock = FakeClock()
    async with AgentRuntime(tmp_path, backend=backend, clock=clock, grace_s=0.05) as runtime:
        handle = await start(runtime, seconds=100)
        await eventually(lambda: handle.run.time_stopped_at is not None)
        left_s = handle.run.seconds_left(clock.monotonic())
        await clock.advance(3600)
        assert handle.run.seconds_left(clock.monotonic()) == left_s
        [tree] = runtime.trees.values()
        await handle.raise_limits(Limits(agents=1))
        assert (await handle.result()).value == "child"
        kinds = [type(each) for each in tree.recorder.recent_events if isinstance(each, (TimeStopped, TimeStarted))]
        assert kinds[:2] == [TimeStopped, TimeStarted]


async def test_a_frozen_function_is_shown_with_its_memory(tmp_path: pathlib.Path) -> None:
    """Its row has the memory that it holds, until it goes on."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        handle = await start(runtime)
        [tree] = runtime.trees.values()
        await eventually(lambda: any(isinstance(each, SandboxFrozen) for each in tree.recorder.recent_events))
        assert runtime.journal is not None
        [row] = rows_of(await runtime.journal.replay(handle.id), is_active=True)
        assert (row.state, row.waits_for) == ("paused", "limit")
        assert row.frozen_mb is not None
        assert row.frozen_mb > 0
        [row] = rows_of(await runtime.journal.replay(handle.id), is_active=False)
        assert row.frozen_mb is None
        await handle.raise_limits(Limits(agents=1))
        await handle.result()
        row = rows_of(await runtime.journal.replay(handle.id), is_active=True)[0]
        assert (row.state, row.frozen_mb) == ("completed", None)


KERNEL = """
import asyncio, pathlib, sys
from ramet import AgentRuntime
from ramet.core.errors import SandboxFailed
from ramet.isolation.limits.cgroups import Cgroups
from tests.trips.limits import test_frozen_processes as frozen

def refuse(_):
    raise SandboxFailed("control groups: read-only file system")

async def main(folder, backend, means):
    if means == "signals":
        Cgroups.open_freezers = refuse
    async with AgentRuntime(pathlib.Path(folder), backend=backend) as runtime:
        handle = await frozen.start(runtime, frozen.fork_and_count)
        print(*frozen.processes_of(handle), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_kill_of_a_kernel_leaves_no_frozen_process(
    tmp_path: pathlib.Path, backend: BackendName, means: str
) -> None:
    """The processes of a frozen sandbox die with their kernel, without a message from it."""
    arguments = (sys.executable, "-c", KERNEL, str(tmp_path), backend, means)
    kernel = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    try:
        assert kernel.stdout is not None
        pids = set(map(int, (await kernel.stdout.readline()).split()))
        assert len(pids) > 1
    finally:
        kernel.kill()
        await kernel.wait()
    await eventually(lambda: not any(map(alive, pids)))
    groups = f"*-frozen.*-{kernel.pid}-*"
    assert bool(find_groups(groups)) is (means == "group")
    async with AgentRuntime(tmp_path, backend=backend) as runtime:  # Opening the backend removes what is left.
        await runtime.run_agent(agent=nothing, policy=Policy())
        assert not find_groups(groups)


async def test_the_values_of_an_agents_code_outlive_a_pause(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A conversation with the tool `python` is frozen where another one gives its process up."""
    replies: list[Any] = [Call("python", {"code": "x = 41"}), Call("python", {"code": "x + 1"}), "done"]
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        session = await Session(
            ScriptedModel(replies),
            [python_tool()],
            runtime=runtime,
            root_policy=Policy(),
            unattended=True,
            limits=pausing(model_calls=1),
        ).start()
        turn = asyncio.create_task(session.ask("Go."))
        root = run_of(session, "main")
        await eventually(lambda: root.state is State.PAUSED and root.sandbox.is_frozen)
        await session.raise_limits(Limits(model_calls=2))
        assert (await turn).value == "done"
        events = session_events(session)
        assert [each.preview for each in of_kind(events, ToolEnded)][-1] == "42"
        assert len(of_kind(events, SandboxStarted)) == 1


async def test_a_conversation_that_gives_its_process_up_is_not_frozen(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is frozen that is about to end."""
    freezes: list[ForkedSandbox] = []
    freeze = ForkedSandbox.freeze

    async def note(sandbox: ForkedSandbox) -> bool:
        freezes.append(sandbox)
        return await freeze(sandbox)

    monkeypatch.setattr(ForkedSandbox, "freeze", note)
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = await Session(
            ScriptedModel(["done"]),
            runtime=runtime,
            root_policy=Policy(),
            unattended=True,
            limits=pausing(model_calls=0),
        ).start()
        turn = asyncio.create_task(session.ask("Go."))
        root = run_of(session, "main")
        await eventually(lambda: root.state is State.PAUSED and root.sandbox.current is None)
        await session.raise_limits(Limits(model_calls=1))
        assert (await turn).value == "done"
        assert freezes == []


@pytest.mark.skipif("os.getuid() != 0", reason="only root can be another machine")
async def test_a_function_on_another_machine_stands_still(tmp_path: pathlib.Path) -> None:
    """Its machine freezes it, and it goes on after a raise."""
    runs = RunFolders(tmp_path).root
    runs.mkdir(0o700, parents=True)
    printed: list[str] = []

    def count_aloud() -> str:
        import threading

        from ramet import Policy
        from ramet.sub_agent_client import spawn_sub_agent

        is_over = threading.Event()

        def tick() -> None:
            while not is_over.wait(0.001):
                print("x", flush=True)  # noqa: T201

        thread = threading.Thread(target=tick)
        thread.start()
        result = spawn_sub_agent(agent=nothing, policy=Policy(memory_mb=96, cpu_cores=0.2))
        is_over.set()
        thread.join()
        return str(result.output)

    machine = MachineBackend(runs)
    async with AgentRuntime(tmp_path, backend=machine) as runtime:
        handle = await runtime.spawn(
            count_aloud, policy=POLICY, limits=pausing(agents=0), on_output=lambda _, text: printed.append(text)
        )
        await frozen(handle)
        await count_meanwhile()  # What was printed before arrives.
        before = len(printed)
        await count_meanwhile()
        assert len(printed) == before
        await handle.raise_limits(Limits(agents=1))
        assert (await handle.result()).value == "child"
        assert len(printed) > before
    await machine.close()
