"""Values of secrets and variables are in no error text, journal, transcript, or document."""

from __future__ import annotations

import asyncio
import pathlib
import sqlite3
from typing import Any

import msgspec
import pytest
from langchain_core.tools import tool

import ramet
from ramet import Policy, ScriptedModel, Session
from ramet.cli.main import main
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import DefinitionMissing, InvalidValue
from ramet.core.events import Event, RunEnded, RunSpawned, encode
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.core.policy.policy import Grant
from ramet.host.journal.journal import TREES
from ramet.host.schedules.scheduler import AgentScheduler
from ramet.models.scripted.dialogue import Call
from ramet.services.contract import ListAgents
from ramet.store.contract import Entry
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.security import leaking
from tests.support.cut_journals import cut_behind
from tests.support.sites import Site
from tests.trips.agents import scheduled
from tests.trips.kits.isolated import BackendName, backend, runtime

__all__ = ["backend", "runtime"]

#: Has what JSON and Python escape.
SECRET = 'correct"horse\\battery\nstaple-0123456789'
VALUE = "postgresql://app:hunter2-0123456789@db/app"
VARIABLES = {"DATABASE_URL": VALUE}


def files_with(text: str, folder: pathlib.Path) -> list[str]:
    """Return the names of files below a folder that hold a text, plain or as JSON writes it."""
    forms = {text.encode(), msgspec.json.encode(text)[1:-1]}
    found = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    return [each.name for each in found if any(form in each.read_bytes() for form in forms)]


# ---- error texts


async def test_a_secret_in_an_error_is_masked(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """Neither the result nor any file of the host holds the secret, in each spelling of the error's text."""
    for form in ("plain", "repr", "json", "type", "cut"):
        secret = SECRET if form != "type" else "correct_horse_0123456789"
        result = await runtime.run_agent(leaking.fail_with_secret, Policy(secrets={"token": secret}), args=(form,))

        assert result.error is not None
        shown = f"{result.error.type}: {result.error.message}"
        assert "***" in shown, form
        for part in (secret.split("\n")[0], "horse", "staple"):
            assert part not in shown, form
    await runtime.stop()
    assert files_with("horse", tmp_path) == []


async def test_a_variable_in_an_error_is_masked(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """Values of `env_vars` are masked as secrets are."""
    result = await runtime.run_agent(leaking.fail_with_variable, Policy(env_vars=VARIABLES))

    assert result.error is not None
    assert result.error.message == "cannot log in with ***"
    await runtime.stop()
    assert files_with(VALUE, tmp_path) == []


async def test_a_variable_in_printed_text_is_not_recorded(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """The recorded end of stderr holds no values of variables."""
    result = await runtime.run_agent(leaking.print_variable, Policy(env_vars=VARIABLES))

    assert result.stderr.startswith("password: ***\n")
    await runtime.stop()
    assert files_with(VALUE, tmp_path) == []


async def test_a_secret_in_a_childs_error_is_masked(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """The parent and the journal receive the child's error without the secret."""
    policy = Policy(secrets={"token": SECRET}, allow_sub_agents=True)

    result = await runtime.run_agent(leaking.spawn_child_that_fails, policy)

    assert result.output == "the server refused *** today"
    await runtime.stop()
    assert files_with("horse", tmp_path) == []


async def test_a_secret_in_a_tools_error_is_masked(tmp_path: pathlib.Path) -> None:
    """The error of a tool in a sandbox is in the conversation and the journal without the secret."""
    folder = tmp_path / "work"
    folder.mkdir()

    def connect() -> str:
        """Connect to the database."""
        raise ValueError(f"refused: {pathlib.Path(leaking.TOKEN).read_text()!r}")

    session = Session(
        ScriptedModel([Call("connect", {}), "It failed."]),
        [tool(connect)],
        cwd=folder,
        backend="local",
        root_policy=Policy(secrets={"token": SECRET}),
        unattended=True,
    )
    async with session as talk:
        await talk.ask("Connect.")
        history = str([message.content for message in talk.messages])

    assert "refused" in history
    assert "horse" not in history
    assert files_with("horse", tmp_path) == []


# ---- values of variables


async def test_values_of_variables_are_not_stored(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """A function reads its variable. Files of the host hold only the variable's name."""
    result = await runtime.run_agent(leaking.read_variable, Policy(env_vars=VARIABLES))

    assert result.output == VALUE[::-1]
    await runtime.stop()
    assert files_with(VALUE, tmp_path) == []
    assert "journal.db" in files_with("DATABASE_URL", tmp_path)


async def interrupted_store(
    store: MemoryStore, tmp_path: pathlib.Path, backend: BackendName, **policy: Any
) -> MemoryStore:
    """Return the store of a kernel that was killed while a function with a variable was active."""
    async with ramet.AgentRuntime(tmp_path / "first", store=store, backend=backend) as runtime:
        handle = await runtime.run_agent(leaking.read_variable, Policy(env_vars=VARIABLES, **policy))
        assert handle.status is Status.COMPLETED
    return await cut_behind(store, lambda event: isinstance(event, RunSpawned))


async def test_a_run_resumes_with_values_that_are_supplied_again(backend: BackendName, tmp_path: pathlib.Path) -> None:
    """`resume` takes values of variables."""
    left = await interrupted_store(MemoryStore(), tmp_path, backend)

    async with ramet.AgentRuntime(tmp_path / "second", store=left, backend=backend) as runtime:
        [handle] = await runtime.resume(env_vars={"DATABASE_URL": "another-value"})
        result = await handle.result()

    assert result.value == "another-value"[::-1]


async def test_a_run_does_not_resume_without_the_values(backend: BackendName, tmp_path: pathlib.Path) -> None:
    """`resume` without the values raises an error that names the variable."""
    left = await interrupted_store(MemoryStore(), tmp_path, backend)

    async with ramet.AgentRuntime(tmp_path / "second", store=left, backend=backend) as runtime:
        with pytest.raises(DefinitionMissing, match="variable 'DATABASE_URL'"):
            await runtime.resume()


async def test_a_schedule_with_values_of_variables_is_refused() -> None:
    """A schedule is persisted, and would keep the values."""
    async with ramet.AgentRuntime(store=MemoryStore(), clock=FakeClock()) as runtime:
        scheduler = AgentScheduler(runtime)
        with pytest.raises(InvalidValue) as refusal:
            await scheduler.schedule_agent_in(1, scheduled.note, policy=Policy(env_vars=VARIABLES))
        await scheduler.close()

    assert refusal.value.field == "policy.env_vars"
    assert VALUE not in str(refusal.value)


async def test_a_servers_record_of_an_agent_has_no_values(tmp_path: pathlib.Path) -> None:
    """The record holds values neither of the agent's policy nor of its environment."""
    async with Site(tmp_path) as site:
        team = await site.team("crew")
        await site.agent(team, env=VARIABLES, policy=Policy(env_vars={"OTHER": f"{VALUE}/other"}))
        [row] = await (await site.store()).list("served")

    assert VALUE.encode() not in row.data
    assert b"DATABASE_URL" in row.data


async def test_an_agent_without_its_values_waits_and_names_the_variable(tmp_path: pathlib.Path) -> None:
    """After a restart the agent is in state `waiting`, and its error names the variable."""
    async with Site(tmp_path / "first") as site:
        team = await site.team("crew")
        spawned = await site.agent(team, env=VARIABLES)
        async with await site.as_killed(tmp_path / "later") as again:
            [info] = await again.spawner.list_agents(ListAgents(), team.key)

    assert info.id == spawned.agent.id
    assert info.state == "waiting"
    assert info.error is not None
    assert "DATABASE_URL" in info.error.message


# ---- what older versions have written


def older_events(root: str) -> list[Event]:
    """Return the events of a tree of an older version, whose grant holds the values of variables."""
    stamp: dict[str, Any] = {"root": root, "run": root, "path": "main", "agent": "older"}
    grant = msgspec.to_builtins(Grant(env_vars=dict(VARIABLES))) | {"secrets": []}
    birth = {"agent": {"name": "older"}, "cwd": "/", "system": [], "max_turns": 1, "limits": {}, "grant": grant}
    result = Result(status=Status.FAILED, error=ErrorInfo(type="ValueError", message=f"no {VALUE}"))
    return [
        RunSpawned(**stamp, seq=1, name="main", birth=birth),
        RunEnded(**stamp, seq=2, result=result),
    ]


async def write_older(store: Any, root: str) -> None:
    """Put an old tree into a store."""
    await store.put(TREES, root, msgspec.json.encode({"number": "0123456789abcdef", "cwd": None, "over": True}))
    for event in older_events(root):
        kind = str(type(event).__struct_config__.tag)
        await store.durable(store.append(Entry(root, root, event.seq, kind, encode(event))))


async def test_gc_replaces_values_that_older_versions_stored(tmp_path: pathlib.Path) -> None:
    """`ramet gc` removes values from the journal and the transcripts, and the result can still be read."""
    root, state = "r" * 16, tmp_path / ".ramet"
    transcripts = state / "transcripts" / "0123456789abcdef"
    transcripts.mkdir(parents=True)
    (transcripts / "main.jsonl").write_bytes(b"\n".join(map(encode, older_events(root))) + b"\n")
    store = await SqliteStore(state / "journal.db").open()
    await write_older(store, root)
    await store.close()
    assert set(files_with(VALUE, tmp_path)) == {"journal.db", "main.jsonl"}

    assert await asyncio.to_thread(main, ["gc", "--dir", str(tmp_path), "--older-than", "7d"]) == 0

    assert files_with(VALUE, tmp_path) == []
    with sqlite3.connect(state / "journal.db") as journal:
        [(data,)] = journal.execute("SELECT data FROM events WHERE seq = 1").fetchall()
    journal.close()
    assert b"DATABASE_URL" in data
    async with ramet.AgentRuntime(tmp_path) as runtime:
        result = await runtime.result(root)
    assert result.error is not None
    assert result.error.message == "no ***"
