"""`ramet schedule` while a kernel holds the working directory.

The kernel makes each change, and fires due schedules at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ramet import AgentRuntime, AgentScheduler
from ramet.core.errors import Unknown
from ramet.host.control.run_queries import journal_reader
from ramet.host.control.schedules import PutSchedule, ScheduleTable
from ramet.host.control.socket import Refused, send_request
from ramet.host.schedules.offline import OfflineScheduler
from ramet.host.schedules.view import ScheduleView, view_now
from ramet.store.sqlite.store import SqliteStore
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.trips.kits.terminal import CommandOutput, environment, ramet

JOBS = """
import asyncio, pathlib

def note(folder, word):
    with (pathlib.Path(folder) / "notes").open("a") as file:
        file.write(word + "\\n")
    return word

async def hold(folder):
    folder = pathlib.Path(folder)
    (folder / "begun").touch()
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return "held"
"""
KERNEL = """
import asyncio, sys
from ramet import AgentRuntime, AgentScheduler

async def main():
    async with AgentRuntime(sys.argv[1]) as runtime, AgentScheduler(runtime) as scheduler:
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with functions to run, and a program with a scheduler."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "kernel.py").write_text(KERNEL)
    return tmp_path


@asynccontextmanager
async def kernel(project: Path) -> AsyncIterator[Process]:
    """Start a process with a scheduler alone, and kill it afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(project / "kernel.py"),
        str(project),
        stdout=PIPE,
        env=environment(None, PYTHONPATH=os.pathsep.join((str(project), *sys.path))),
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def schedule(project: Path, verb: str, *args: str) -> CommandOutput:
    """Run a verb of `ramet schedule` on the folder."""
    return await ramet("schedule", verb, "--dir", str(project), *args)


async def schedules_by_id(project: Path) -> dict[str, Any]:
    """Return what `ramet schedule list` prints, by id."""
    result = await schedule(project, "list", "--json")
    return {view["id"]: view for view in map(json.loads, result.out.splitlines())}


async def wait_for_schedule(project: Path, id: str, holds: Callable[[ScheduleView], object]) -> None:
    """Return once the recorded schedule meets the condition, as another process sees it."""
    async with asyncio.timeout(180):
        while True:
            async with await journal_reader(project) as records:
                schedule = await ScheduleTable(records.store).read(id)
                if schedule is not None and holds(await view_now(schedule.record, records)):
                    return


def notes(project: Path) -> list[str]:
    """Return the words that the function wrote."""
    file = project / "notes"
    return file.read_text().split() if file.exists() else []


async def test_every_schedule_verb_reaches_a_running_kernel(project: Path) -> None:
    """Due schedules and triggers fire at once in that kernel, not at its next look."""
    async with kernel(project) as process:
        add = ("add", "--in-process", "jobs:note", json.dumps(str(project)))
        soon = await schedule(project, *add, '"soon"', "--in", "0")
        await eventually(lambda: notes(project) == ["soon"])
        daily = await schedule(project, *add, '"daily"', "--every", "1d", "--name", "daily")
        paused = await schedule(project, "pause", "daily")
        triggered = await schedule(project, "trigger", "daily")
        await eventually(lambda: notes(project) == ["soon", "daily"])
        resume_result = await schedule(project, "resume", "daily")
        await wait_for_schedule(project, "daily", lambda view: view.last is not None)
        removal = await schedule(project, "rm", "daily")
        second_result = await schedule(project, "rm", "daily")
        assert process.returncode is None

    assert [each.status for each in (soon, daily, paused, triggered, resume_result, removal)] == [0] * 6
    assert "paused" in paused.out
    assert "paused" not in resume_result.out
    assert (second_result.status, second_result.err.count("\n")) == (2, 1)
    assert second_result.err.startswith("ramet: unknown schedule 'daily'; known: note-")
    assert "daily" not in await schedules_by_id(project)


async def test_a_kernel_without_a_control_socket_is_named_and_nothing_is_written(project: Path) -> None:
    """The refusal names the owner of the folder, as for each command that needs the folder alone."""
    async with kernel(project) as process:
        (project / ".ramet" / "kernel.sock").unlink()
        result = await schedule(project, "add", "jobs:note", '"."', '"x"', "--in", "1h")

    assert result.status == 1
    assert result.err.endswith(f"belongs to another kernel (pid {process.pid})\n")
    assert await schedules_by_id(project) == {}


async def test_concurrent_changes_of_one_schedule_lose_no_update(project: Path) -> None:
    """Each process reads again after another's change; the kernel refuses invalid records."""
    async with kernel(project):
        async with OfflineScheduler(working_dir=project) as first:
            view = await first.schedule_agent_interval(86_400, scheduled.note, name="shared", in_process=True)
            await first.pause(view.id)

        async def press() -> None:
            async with OfflineScheduler(working_dir=project) as scheduler:
                await asyncio.gather(scheduler.resume(view.id), scheduler.pause(view.id))

        await asyncio.gather(*(press() for _ in range(5)))
        store = await SqliteStore(project / ".ramet" / "journal.db", read_only=True).open()
        try:
            document = await store.get("schedule", view.id)
            with pytest.raises(Unknown):
                async with OfflineScheduler(working_dir=project) as scheduler:
                    await scheduler.trigger("nobody")
            assert document is not None
            put_request = PutSchedule(id="another", data=document.data, expected=0)
            with pytest.raises(Refused, match="the id in the schedule itself"):
                await send_request(project, put_request)
            with pytest.raises(Refused, match="schedule"):
                await send_request(project, PutSchedule(id="shared", data=b"[]", expected=document.version))
            assert await store.get("schedule", view.id) == document
        finally:
            await store.close()


async def test_schedules_can_be_changed_after_a_kill_of_the_kernel(project: Path) -> None:
    """The dead control socket does not prevent the change."""
    async with kernel(project) as process:
        await schedule(project, "add", "jobs:note", '"."', '"x"', "--in", "1h", "--name", "later")
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    assert (project / ".ramet" / "kernel.sock").exists()

    paused = await schedule(project, "pause", "later")

    assert (paused.status, "paused" in paused.out) == (0, True)


async def test_a_lost_tick_follows_the_state_of_its_resumed_run(project: Path) -> None:
    """A tick whose function is missing is lost; after `resume` it is running, then completed."""
    folder = json.dumps(str(project))
    await schedule(project, "add", "jobs:hold", folder, "--in", "0", "--name", "held", "--repeatable", "--in-process")
    async with kernel(project) as process:
        await eventually((project / "begun").exists)
        await wait_for_schedule(project, "held", lambda view: view.running)
        process.kill()
        await process.wait()
    (project / "jobs.py").rename(project / "away")
    async with kernel(project):  # Its scheduler finds what the dead one had claimed.
        await wait_for_schedule(project, "held", lambda view: view.last is not None)
    (project / "away").rename(project / "jobs.py")
    lost_tick = (await schedules_by_id(project))["held"]["last"]
    assert (lost_tick["status"], lost_tick["error"]["type"]) == ("lost", "Lost")

    resuming = asyncio.create_task(ramet("resume", "--dir", str(project)))
    await wait_for_schedule(project, "held", lambda view: view.last is not None and view.last.status != "lost")
    running = (await schedules_by_id(project))["held"]["last"]
    (project / "go").touch()
    resume_output = await resuming
    last_tick = (await schedules_by_id(project))["held"]["last"]
    async with AgentRuntime(project) as runtime, AgentScheduler(runtime) as scheduler:
        (result,) = await scheduler.results("held")
        (view,) = await scheduler.list()

    assert (running["status"], running.get("ended"), running.get("error")) == ("running", None, None)
    assert resume_output.out == "held\n"
    assert (last_tick["status"], last_tick["text"], last_tick.get("error")) == ("completed", "held", None)
    assert (result.status, result.text, result.run) == ("completed", "held", lost_tick["run"])
    assert view.last == result


async def test_a_removed_schedule_is_deleted_once_its_run_ends(project: Path) -> None:
    """The removed schedule is not listed; its active run continues, and the document is deleted after it."""
    async with kernel(project):
        add_arguments = ("jobs:hold", json.dumps(str(project)), "--in", "0", "--name", "held")
        await schedule(project, "add", "--in-process", *add_arguments)
        await eventually((project / "begun").exists)
        removal = await schedule(project, "rm", "held")
        schedules, second_result = await schedules_by_id(project), await schedule(project, "rm", "held")
        (project / "go").touch()
        async with await journal_reader(project) as records, asyncio.timeout(180):
            while await records.store.get("schedule", "held") is not None:  # noqa: ASYNC110 - by another process
                await asyncio.sleep(0.01)
            (root,) = await records.trees(ended=True)
            (row,) = await records.rows(root)

    assert (removal.status, schedules, second_result.status) == (0, {}, 2)
    assert row.state in ("running", "completed")
