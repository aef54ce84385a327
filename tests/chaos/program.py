"""Kernel that is killed by tests: `python -m tests.chaos.program TRIP FOLDER KILL [DSN SCHEMA]`, until it ends well.

The program resumes the trees of its journal, or begins one. KILL is a moment (`tests.chaos.deadly.Kill`) at which it
kills itself; with an empty KILL it lives until its trip is over. It prints `up` when it is about to begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import secrets
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ramet import Agent, AgentRuntime, AgentScheduler, Limits, Policy
from ramet.core.errors import StoreFailed
from ramet.core.limits import RESOURCES
from ramet.host.sandbox.sandboxes import BackendName
from ramet.host.trees.project import Project
from ramet.isolation.contract import Backend
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.spawn.handle import Handle
from ramet.store.contract import Store
from tests.chaos import commands, functions, monitored, talking
from tests.chaos.deadly import Kill, die, make_deadly, make_deadly_by_kill
from tests.chaos.planned import Planned, tools
from tests.support.outliving import OutlivingBackend

TALKS = Policy(retry_count=1)
LIMITS = Limits(model_calls=60, tokens=100_000, tool_calls=100, agents=60)


def write_end(folder: pathlib.Path, text: str) -> None:
    """Write the file `ended` whole or not at all: the process may be killed at any time."""
    file = folder / "ending"
    file.write_text(text)
    file.replace(folder / "ended")


async def tree_of_models(runtime: AgentRuntime, folder: pathlib.Path, brief: str = "lead") -> Handle | None:
    """Resume or spawn trip A, a tree of models."""
    model = Planned(folder=str(folder))
    for handle in await runtime.resume(llm=model, tools=tools(folder)):
        return handle
    if (folder / "begun").exists():
        return None
    return await runtime.spawn(
        Agent(name="lead", model=model),
        brief,
        tools=tools(folder),
        agents=Project.open(None, user_dir=None),
        limits=LIMITS,
    )


async def tree_of_talks(runtime: AgentRuntime, folder: pathlib.Path) -> Handle | None:
    """Resume or spawn trip D, a tree of conversations in sandboxes."""
    model = Planned(folder=str(folder))
    for handle in await runtime.resume(llm=model, tools=talking.tools()):
        return handle
    if (folder / "begun").exists():
        return None
    return await runtime.spawn(
        Agent(name="lead", model=model),
        "lead",
        tools=talking.tools(),
        agents=Project.open(None, user_dir=None),
        policy=Policy(allow_sub_agents=True, memory_mb=4096, cpu_cores=8),
        limits=LIMITS,
    )


_people = set[asyncio.Task[None]]()


async def one_talk(
    runtime: AgentRuntime, folder: pathlib.Path, brief: str, limits: Limits = LIMITS, policy: Policy | None = TALKS
) -> Handle | None:
    """Resume or spawn a trip of one conversation."""
    agent = talking.talker(folder)
    _people.add(asyncio.create_task(talking.says_yes(runtime)))
    for handle in await runtime.resume(llm=talking.Narrow(folder=str(folder)), tools=talking.tools(), agents=[agent]):
        return handle
    if (folder / "begun").exists():
        return None
    return await runtime.spawn(agent, brief, tools=talking.tools(), policy=policy, limits=limits)


async def nested_functions(runtime: AgentRuntime, folder: pathlib.Path, timeout_s: float = 60) -> Handle | None:
    """Resume or spawn trip B, nested functions."""
    for handle in await runtime.resume():
        return handle
    if (folder / "begun").exists():
        return None
    policy = Policy(allow_sub_agents=True, memory_mb=1024, cpu_cores=4, timeout_seconds=timeout_s)
    return await runtime.spawn(functions.survey, policy=policy, limits=LIMITS)


async def schedule(runtime: AgentRuntime, folder: pathlib.Path) -> None:
    """Run trip C: one tick, until its end is reported."""
    async with AgentScheduler(runtime) as scheduler:
        known = {view.name: view for view in await scheduler.list()}
        view = known.get("job") or await scheduler.schedule_agent_in(
            0, functions.tick, name="job", args=[str(folder)], in_process=True
        )
        while not (results := await scheduler.results(view.id)) or results[0].ended is None:  # noqa: ASYNC110 - as users do
            await asyncio.sleep(0.005)
        write_end(folder, json.dumps({"statuses": [str(each.status) for each in results]}))


async def stopped(runtime: AgentRuntime, folder: pathlib.Path, *, late: bool = False) -> None:
    """Stop a function that ignores SIGTERM, and write its status once a later kernel sees that its process is gone.

    With `late` the first kernel dies before it cancels, and the next one cancels right after resume.
    """
    for handle in await runtime.resume():
        if late:
            await handle.cancel("enough")
            (folder / "left").write_text("\n".join(bearing((folder / "name").read_text())))
        result = await handle.result()
        while bearing((folder / "name").read_text()):  # noqa: ASYNC110 - nobody tells of other machines' processes
            await asyncio.sleep(0.005)
        write_end(folder, str(result.status))
        return
    (folder / "name").write_text(name := f"stays {secrets.token_hex(4)}")
    is_there = asyncio.Event()
    handle = await runtime.spawn(functions.stay, args=(name,), policy=Policy(), on_output=lambda *_: is_there.set())
    await is_there.wait()
    if late:
        await handle.run.context.wait_persisted()
        die()
    await handle.cancel("enough")


def bearing(name: str) -> list[str]:
    """Return the ids of processes with this name, on any machine that this one stands for."""
    found = list[str]()
    for each in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if each.read_text() == f"{name}\n":
                found.append(each.parent.name)
    return found


def outliving(folder: pathlib.Path) -> Backend:
    """Return a backend whose sandboxes outlive a killed kernel."""
    runs = RunFolders(folder).root
    runs.mkdir(0o700, parents=True, exist_ok=True)
    backend = OutlivingBackend(runs)
    if (folder / "dies after a kill").exists():
        make_deadly_by_kill(backend, folder / "dies after a kill")
    return backend


def pods(folder: pathlib.Path) -> Backend:
    """Return a backend of pods that dial, in the cluster that the environment names."""
    from tests.support.pods import dialing_backend

    return dialing_backend(RunFolders(folder).root)


def limited(trip: str, *, takes_over: bool = False) -> Trip:
    """Return a trip that pauses at a limit, or one that takes the tree of such a trip over."""

    async def begin(runtime: AgentRuntime, folder: pathlib.Path) -> Handle | None:
        from tests.chaos import limited as trips  # The client of a provider is imported here only.

        return await (trips.take_over if takes_over else trips.begin)(runtime, folder, trip)

    return begin


def paused(trip: str, *, takes_over: bool = False) -> Trip:
    """Return a trip that its owner pauses, or one that takes the tree of such a trip over."""

    async def begin(runtime: AgentRuntime, folder: pathlib.Path) -> Handle | None:
        from tests.chaos import paused as trips  # The client of a provider is imported here only.

        return await (trips.take_over if takes_over else trips.begin)(runtime, folder, trip)

    return begin


Trip = Callable[[AgentRuntime, pathlib.Path], Awaitable[Handle | None]]
TRIPS: dict[str, tuple[Trip, BackendName | Callable[[pathlib.Path], Backend] | None]] = {
    "models": (tree_of_models, None),
    "letters": (partial(tree_of_models, brief="write letters"), None),
    "local": (nested_functions, "local"),
    "bwrap": (nested_functions, "bwrap"),
    "outliving": (nested_functions, outliving),
    "talking": (tree_of_talks, outliving),
    "talk": (partial(one_talk, brief="talk"), outliving),
    "pod talk": (partial(one_talk, brief="talk"), pods),
    "spent": (partial(one_talk, brief="talk", limits=Limits(tool_calls=4)), outliving),
    "few questions": (partial(one_talk, brief="talk", limits=Limits(model_calls=4)), outliving),
    "spent here": (partial(one_talk, brief="talk", limits=Limits(tool_calls=4), policy=None), None),
    "monitored": (monitored.begin, outliving),
    "commands": (commands.begin, None),
    "crash": (partial(one_talk, brief="crash"), outliving),
    "pods": (partial(nested_functions, timeout_s=600), pods),
    "stopped": (stopped, outliving),
    "stopped late": (partial(stopped, late=True), outliving),
    "schedule": (schedule, None),
    **{f"limited {trip}": (limited(trip), None) for trip in ("one", "nested", "hundred")},
    "limited talk": (limited("talk"), "local"),
    "limited outliving": (limited("talk"), outliving),
    "paused host": (paused("host"), None),
    "paused talk": (paused("talk"), "local"),
    "paused outliving": (paused("outliving"), outliving),
    "paused host taken over": (paused("host", takes_over=True), None),
    **{f"limited {trip} taken over": (limited(trip, takes_over=True), None) for trip in ("one", "nested", "hundred")},
}


async def main(trip: str, folder: pathlib.Path, kill: Kill | None, server: list[str]) -> None:
    """Resume the trees of the journal, or begin the trip."""
    store = None if (folder / "alone").exists() else _store(folder, server)
    begin, backend_spec = TRIPS[trip]
    backend = backend_spec(folder) if callable(backend_spec) else backend_spec
    async with AgentRuntime(folder, store=store, grace_s=1.0, backend=backend) as runtime:
        make_deadly(store or _own_store(runtime), kill, folder / "deaths")
        print("up", flush=True)  # noqa: T201 - whoever kills at a random moment counts from here
        handle = await begin(runtime, folder)
        if handle is not None:
            await _to_its_end(runtime, handle, folder)
    if backend_spec is outliving:  # Whoever had nothing to do there has not told it to end.
        await OutlivingBackend(RunFolders(folder).root).end()


def _own_store(runtime: AgentRuntime) -> Store:
    """Return the store of a runtime with a journal of its own, and so with a control socket."""
    assert runtime.journal is not None
    return runtime.journal.store


def _store(folder: pathlib.Path, server: list[str]) -> Store:
    if server:
        from ramet.store.postgres import PostgresStore

        return PostgresStore(server[0], schema=server[1], kernel=server[2] if len(server) > 2 else "kernel")
    from ramet.store.sqlite.store import SqliteStore

    disk = folder / "disk"  # A small one, if there is one.
    return SqliteStore((disk if disk.is_dir() else folder) / "journal.db")


async def _to_its_end(runtime: AgentRuntime, handle: Handle, folder: pathlib.Path) -> None:
    opened = runtime.trees[handle.run.info.id]
    register = opened.tree.register
    with contextlib.suppress(StoreFailed):  # Its result says so, too.
        await handle.run.context.wait_persisted()
        (folder / "begun").write_text(handle.id)
    result = await handle.result()
    held = {
        f"{run.info.path} {resource}": run.context.budget.reserved_amount(resource)
        for run in register.runs.values()
        for resource in RESOURCES
        if run.context.budget.reserved_amount(resource)
    }
    budget = handle.run.context.budget
    report: dict[str, Any] = {
        "status": str(result.status),
        "error": str(result.error),
        "held": held,
        "shown": [event.seq for event in opened.recorder.recent_events],
        "spent": {name: budget.spent_amount(name) for name in RESOURCES if name != "usd"},
    }
    write_end(folder, json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2]), Kill.parse(sys.argv[3]), sys.argv[4:]))
