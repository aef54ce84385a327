"""The folder of a run stays while the run can be resumed; its owner and its agent are told of a missing one."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session
from ramet.core import events
from ramet.core.events import Event
from ramet.host.retention.janitor import RetentionJob
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.models.scripted.dialogue import Call, ReplyStep
from ramet.tools.workspace import workspace_tools
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.trips.kits.sessions import of_kind, run_of

KEEP_COUNT = FolderLimits().count or 0
WRITES = Call("Write", {"file_path": "note.txt", "content": "to be kept"})
READS = Call("Read", {"file_path": "note.txt"})
LOST = "its folder no longer exists"


@asynccontextmanager
async def runtime_killed_at_exit(folder: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """Yield a runtime whose process is killed at the end of the block: nothing later is recorded."""
    runtime = AgentRuntime(folder, backend="local", grace_s=0.1)
    await runtime.start()
    yield runtime
    for tree in runtime.trees.values():
        await tree.recorder.durable()  # type: ignore[misc]  # it has a journal
    assert runtime.journal is not None
    await runtime.journal.store.close()
    await runtime.stop()


def open_session(runtime: AgentRuntime, model: ScriptedModel) -> Session:
    """Return a session whose root works in a sandbox."""
    return Session(model, workspace_tools(), runtime=runtime, session_id="talk", root_policy=Policy())


async def resume_session(runtime: AgentRuntime, model: ScriptedModel) -> Session:
    """Return that session, resumed in another process."""
    return await Session.resume("talk", model, workspace_tools(), runtime=runtime)


async def recorded_events(session: Session) -> list[Event]:
    """Return every recorded event of the session's tree."""
    await session.handle(session.id).run.context.wait_persisted()
    assert session.runtime.journal is not None
    entries = await session.runtime.journal.store.read(tree=session.id, limit=10_000)
    return [events.decode(each.data) for each in entries]


def create_ended_folders(folder: pathlib.Path, count: int = KEEP_COUNT + 20) -> None:
    """Create folders of runs that ended after every run that exists now."""
    folders = RunFolders(folder)
    for number in range(count):
        folders.create(f"run-{number}").record_end()


@pytest.mark.parametrize("session_id", ["talk", None])
async def test_a_closed_session_keeps_its_folder_only_with_an_id(
    tmp_path: pathlib.Path, session_id: str | None
) -> None:
    """A session with an id can be resumed, so its folder stays; the folder of one without an id is removed by count."""
    settings: dict[str, Any] = {"session_id": session_id, "root_policy": Policy()}
    async with (
        AgentRuntime(tmp_path, backend="local") as runtime,
        Session(ScriptedModel([WRITES, "written"]), workspace_tools(), runtime=runtime, **settings) as session,
    ):
        await session.ask("write")
        root = session.id
    create_ended_folders(tmp_path)

    async with AgentRuntime(tmp_path, backend="local") as runtime:
        await runtime.open_store()
        stays = session_id is not None  # It is beside those that are counted.
        await eventually(lambda: len(RunFolders(tmp_path).list()) <= KEEP_COUNT + stays)
        assert (root in [each.id for each in RunFolders(tmp_path).list()]) == stays


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_killed_sessions_folder_survives_a_thousand_newer_runs(tmp_path: pathlib.Path, moment: str) -> None:
    """The folder is the oldest of more than retention keeps, and stays because the session can be resumed.

    The backend is opened before the session is found again, as a server does, or by its next turn.
    """
    async with runtime_killed_at_exit(tmp_path) as runtime:
        await open_session(runtime, ScriptedModel([WRITES, "written"])).ask("write")
    create_ended_folders(tmp_path)

    model = ScriptedModel([READS, "read"])
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        if moment == "before":
            await runtime.sandboxes.backend()
        session = await resume_session(runtime, model)
        await session.ask("read")
        await eventually(lambda: len(RunFolders(tmp_path).list()) <= KEEP_COUNT + 1)

        assert "to be kept" in model.requests[-1].messages[-1].text
        assert "folder_lost" not in {type(each).__struct_config__.tag for each in await recorded_events(session)}


async def test_a_finished_child_keeps_its_folder_for_later_mail(tmp_path: pathlib.Path) -> None:
    """The tree of the child is open in another process, so that its folder stays."""
    spawn = Call("Agent", {"subagent_type": "toil", "name": "kid", "prompt": "write it"})
    plan: dict[str, list[Call | str]] = {"write it": [WRITES, "written"], "go": [spawn, "ok"]}
    toil = Agent(name="toil", description="Toils", instructions="Toil.", tools=["Write", "Read"])
    async with runtime_killed_at_exit(tmp_path) as runtime:
        session = Session(
            ScriptedModel(script=plan), workspace_tools(), agents=[toil], runtime=runtime, session_id="talk",
            policy=Policy(),
        )  # fmt: skip
        await session.ask("go")
        kid = run_of(session, "main/kid").info.id
    create_ended_folders(tmp_path)

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        newest = messages[-1].text
        return READS if "read it" in newest else f"read: {newest}" if "to be kept" in newest else "heard"

    model = ScriptedModel(answer)
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        await runtime.sandboxes.backend()
        session = await Session.resume("talk", model, workspace_tools(), agents=[toil], runtime=runtime)
        session.handle("kid").send("read it")
        await eventually(lambda: any("read: " in each.text for each in session.messages))

        assert RunFolders(tmp_path).find(kid).workspace.joinpath("note.txt").read_text() == "to be kept"


async def test_a_finished_child_does_not_report_a_missing_folder(tmp_path: pathlib.Path) -> None:
    """Resume records no FolderLost for an ended child whose folder was removed, nor for a run in the host."""
    spawn = Call("Agent", {"subagent_type": "toil", "name": "kid", "prompt": "write it"})
    toil = Agent(name="toil", description="Toils", instructions="Toil.", tools=["Write"])
    model = ScriptedModel(script={"write it": [WRITES, "written"], "go": [spawn, "ok"]})
    async with runtime_killed_at_exit(tmp_path) as runtime:
        session = Session(model, workspace_tools(), agents=[toil], runtime=runtime, session_id="talk", policy=Policy())
        await session.ask("go")
        kid = RunFolders(tmp_path).find(run_of(session, "main/kid").info.id)
        await eventually(lambda: kid.read_info().ended is not None)
    shutil.rmtree(kid.path)

    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = await Session.resume("talk", ScriptedModel([]), workspace_tools(), agents=[toil], runtime=runtime)

        assert run_of(session, "main/kid").info.id == kid.id
        assert of_kind(await recorded_events(session), events.FolderLost) == []
        assert not RunFolders(tmp_path).list()


async def test_a_kept_trees_folder_stays(tmp_path: pathlib.Path) -> None:
    """`retain` keeps the folder of the tree; of other trees only the newest folders stay."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        one, other = [await runtime.spawn(scheduled.note, policy=Policy()) for _ in range(2)]
        for each in (one, other):
            await each.result()
        await runtime.retain(one.id)
    create_ended_folders(tmp_path)

    async with AgentRuntime(tmp_path, backend="local") as runtime:
        assert (await (await runtime.spawn(scheduled.note, policy=Policy())).result()).value == "noted note"
        await eventually(lambda: other.id not in {each.id for each in RunFolders(tmp_path).list()})
        assert one.id in {each.id for each in RunFolders(tmp_path).list()}


async def test_a_running_kernel_limits_the_number_of_folders(tmp_path: pathlib.Path) -> None:
    """The kernel removes folders without a restart, and never those of runs in open trees."""
    limits = FolderLimits(days=None, count=2)
    async with AgentRuntime(tmp_path, backend="local", keep_folders=limits) as runtime:
        rests = open_session(runtime, ScriptedModel([WRITES, "written"]))
        await rests.ask("write")
        runs = []
        for _ in range(4):
            handle = await runtime.spawn(scheduled.note, policy=Policy())
            assert (await handle.result()).value == "noted note"
            runs.append(handle.id)
        await eventually(lambda: len(runtime.trees) == 1)
        assert runtime.journal is not None
        assert isinstance(runtime.journal.retention_job, RetentionJob)

        assert set(await runtime.journal.retention_job.tidy()) == set(runs[:2])

        assert {each.id for each in RunFolders(tmp_path).list()} == {rests.id, *runs[2:]}


async def test_a_missing_folder_is_reported_to_owner_and_agent_once(tmp_path: pathlib.Path) -> None:
    """One event and one message in the agent's next turn report it, however often the kernel is killed.

    They do not wake the agent.
    """
    async with runtime_killed_at_exit(tmp_path) as runtime:
        session = open_session(runtime, ScriptedModel([WRITES, "written"]))
        await session.ask("write")
        folder = RunFolders(tmp_path).find(session.id)
    shutil.rmtree(folder.path)
    for _ in range(2):
        unused_model = ScriptedModel(["not asked"])
        async with runtime_killed_at_exit(tmp_path) as runtime:
            session = await resume_session(runtime, unused_model)
            await session.handle(session.id).run.context.wait_persisted()
        assert not unused_model.requests

    model = ScriptedModel(["I see", "and go on"])
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = await resume_session(runtime, model)
        await session.ask("go on")
        await session.ask("and on")
        tree_events = await recorded_events(session)

    [lost_event] = of_kind(tree_events, events.FolderLost)
    assert lost_event.run == session.id
    for request in model.requests:
        assert sum(LOST in each.text for each in request.messages) == 1


@pytest.mark.parametrize("removed_folder", ["folder", "workspace"])
async def test_a_folder_removed_between_turns_is_reported(tmp_path: pathlib.Path, removed_folder: str) -> None:
    """The next turn works in an empty folder, and has the message and the event."""
    model = ScriptedModel([WRITES, "written", "I see"])
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = open_session(runtime, model)
        await session.ask("write")
        folder = RunFolders(tmp_path).find(session.id)
        await eventually(lambda: folder.read_info().ended is not None)
        shutil.rmtree(folder.path if removed_folder == "folder" else folder.workspace)

        result = await session.ask("go on")

        assert result.value == "I see"
        assert len(of_kind(await recorded_events(session), events.FolderLost)) == 1
        assert sum(LOST in each.text for each in model.requests[-1].messages) == 1
