"""A closed session stays in the journal: any process continues it by its id, until it is removed."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from ramet import AgentRuntime, Limits, Session
from ramet.core.errors import BusyError, InvalidValue, OwnedElsewhere, RametError, StoreInUse, Unknown
from ramet.core.events import RunEnded, TurnStarted
from ramet.core.outcome import Status
from ramet.core.policy.policy import Isolation, Policy
from ramet.host.control.run_queries import JournalReader
from ramet.host.session_ids import SESSIONS
from ramet.models.scripted.model import Call, Script, ScriptedModel
from ramet.store.contract import Document
from ramet.store.postgres import PostgresStore
from ramet.tools.workspace import workspace_tools
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.store_addresses import store_at
from tests.trips.kits.sessions import Gate, background_call, of_kind, session_events
from tests.trips.recovery.test_resume import MakeStore, lost_runtime, make_store

__all__ = ["make_store", "postgres"]  # fixtures are used by their names


async def test_a_closed_conversation_continues_by_its_session_id(make_store: MakeStore) -> None:
    """An equal constructor call continues it with the same ids, history and usage."""
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(ScriptedModel(["one"]), runtime=runtime, session_id="chat-7") as session,
    ):
        await session.ask("first")
        root = session.id

    for turn, answer in enumerate(["two", "three"], start=2):
        model = ScriptedModel([answer])
        async with (
            AgentRuntime(store=make_store()) as runtime,
            Session(model, runtime=runtime, session_id="chat-7") as session,
        ):
            assert not model.requests, "opening it costs nothing"
            result = await session.ask("again")

            assert (session.id, result.value) == (root, answer)
            assert session.usage.model_calls == turn
            texts = [message.text for message in model.requests[0].messages]
            assert texts == ["first", "one", "again", "two", "again"][: 2 * turn - 1]


async def test_a_closed_conversation_is_resumed_by_the_id_of_its_root(make_store: MakeStore) -> None:
    """The root's id works for a conversation without a session id, too."""
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(ScriptedModel(["one"]), runtime=runtime) as session,
    ):
        await session.ask("first")
        root = session.id

    model = ScriptedModel(["two"])
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume(root, model, runtime=runtime)
        await session.ask("second")

        assert [message.text for message in model.requests[0].messages] == ["first", "one", "second"]
        assert [each.turn for each in of_kind(session_events(session), TurnStarted)] == [2]


async def test_a_limit_holds_for_the_whole_conversation(make_store: MakeStore) -> None:
    """A reopened conversation does not get its used budget back."""
    for status in (Status.COMPLETED, Status.BUDGET_EXHAUSTED):
        async with (
            AgentRuntime(store=make_store()) as runtime,
            Session(
                ScriptedModel(["one"]), runtime=runtime, session_id="chat", limits=Limits(model_calls=2), spawn=False
            ) as session,
        ):
            assert (await session.ask("go")).status is status


async def test_a_conversation_closed_in_mid_turn_takes_the_next_prompt(make_store: MakeStore) -> None:
    """The interrupted call has an answer that says so."""
    gate = Gate()
    async with AgentRuntime(store=make_store(), grace_s=0.1) as runtime:
        model = ScriptedModel([[Call("gate")], "not reached"])
        async with Session(model, [gate.tool], runtime=runtime, session_id="chat") as session:
            turn = asyncio.create_task(session.ask("first"))
            await gate.entered.wait()
        assert (await turn).status is Status.CANCELLED

    model = ScriptedModel(["two"])
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(model, [Gate().tool], runtime=runtime, session_id="chat") as session,
    ):
        result = await session.ask("second")

        assert result.value == "two"
        assert [each.type for each in model.requests[0].messages] == ["human", "ai", "tool", "human"]


async def test_notices_of_children_ended_by_closing_do_not_wake_the_session(make_store: MakeStore) -> None:
    """Opening the conversation asks no model: the notice waits for the next prompt."""
    gate = Gate()
    plan: dict[str, Any] = {"": [[background_call("wait", "worker")], "started"], "wait": [[Call("gate")]]}
    async with (
        AgentRuntime(store=make_store(), grace_s=0.1) as runtime,
        Session(ScriptedModel(plan), [gate.tool], runtime=runtime, session_id="chat") as session,
    ):
        await session.ask("first")
        await gate.entered.wait()

    model = ScriptedModel(["two"])
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(model, [gate.tool], runtime=runtime, session_id="chat") as session,
    ):
        assert [each.state for each in session.runs()] == ["idle", "cancelled"]
        assert not model.requests
        assert (await session.ask("second")).value == "two"


async def test_a_kill_of_a_reopened_conversation_loses_nothing(make_store: MakeStore) -> None:
    """The first kill comes before the next turn, and the second one after it."""
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(ScriptedModel(["one"]), runtime=runtime, session_id="chat") as session,
    ):
        await session.ask("first")

    async with lost_runtime(make_store()) as runtime:
        await Session(ScriptedModel(["never"]), runtime=runtime, session_id="chat").start()

    gate = Gate()
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel(["never"]), runtime=runtime, session_id="chat")
        await session.ask("second")

    model = ScriptedModel(["three"])
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("chat", model, [gate.tool], runtime=runtime)
        await session.ask("third")

        texts = [message.text for message in model.requests[0].messages]
        assert texts == ["first", "one", "second", "never", "third"]


async def test_resume_of_an_unknown_session_names_similar_ids(make_store: MakeStore) -> None:
    """`resume` begins no conversation."""
    async with AgentRuntime(store=make_store()) as runtime:
        for name in ("chat-7", "other"):
            async with Session(ScriptedModel(["one"]), runtime=runtime, session_id=name) as session:
                await session.ask("go")

        with pytest.raises(Unknown, match=r"unknown session 'chat-8'; known: chat-7$"):
            await Session.resume("chat-8", ScriptedModel([]), runtime=runtime)


async def test_an_open_conversation_refuses_a_second_session(make_store: MakeStore) -> None:
    """The open conversation does not change."""
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(ScriptedModel(["one", "two"]), runtime=runtime, session_id="chat") as session,
    ):
        await session.ask("first")
        for second in (
            Session(ScriptedModel([]), runtime=runtime, session_id="chat").start(),
            Session.resume("chat", ScriptedModel([]), runtime=runtime),
        ):
            with pytest.raises(BusyError, match="'chat' is open in this process"):
                await second
        assert (await session.ask("second")).value == "two"


async def test_a_conversation_open_on_another_kernel_is_refused(postgres: Server) -> None:
    """The error names the kernel that has the conversation.

    The second kernel can open it once the first has closed it.
    """
    schema = fresh_schema()
    stores = [PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two")]
    async with AgentRuntime(store=stores[0]) as one, AgentRuntime(store=stores[1]) as two:
        async with Session(ScriptedModel(["1"]), runtime=one, session_id="chat") as session:
            await session.ask("first")
            with pytest.raises(OwnedElsewhere, match="'one'"):
                await Session(ScriptedModel([]), runtime=two, session_id="chat").start()
            with pytest.raises(OwnedElsewhere, match="'one'"):
                await Session.resume("chat", ScriptedModel([]), runtime=two)
        async with Session(ScriptedModel(["2"]), runtime=two, session_id="chat") as session:
            assert (await session.ask("second")).value == "2"
            assert len(session.messages) == 4


async def test_one_of_several_kernels_wins_a_new_conversation(postgres: Server) -> None:
    """Three kernels start a conversation of the same id: two are refused."""
    schema = fresh_schema()
    stores = [PostgresStore(postgres.dsn, schema=schema, kernel=f"k{n}") for n in range(3)]
    runtimes = [AgentRuntime(store=store) for store in stores]
    sessions = [Session(ScriptedModel(["hello"]), runtime=each, session_id="chat") for each in runtimes]
    outcomes = await asyncio.gather(*(each.start() for each in sessions), return_exceptions=True)

    assert sum(isinstance(each, Session) for each in outcomes) == 1
    assert all(isinstance(each, Session | OwnedElsewhere) for each in outcomes)
    for each in runtimes:
        await each.stop()


@pytest.mark.parametrize("reads", [1, 2])
async def test_a_kernel_that_looked_before_another_began_the_conversation_is_refused(
    postgres: Server, reads: int
) -> None:
    """The other kernel begins it between two looks at the id: it keeps the conversation, and the id."""
    schema = fresh_schema()
    first = AgentRuntime(store=PostgresStore(postgres.dsn, schema=schema, kernel="first"))
    winner = Session(ScriptedModel(["hello"]), runtime=first, session_id="chat")

    class LateStore(PostgresStore):
        looks = 0

        async def get(self, kind: str, key: str) -> Document | None:
            found = await super().get(kind, key)
            if kind == SESSIONS:
                self.looks += 1
                if self.looks == reads:
                    await winner.start()
            return found

    second = AgentRuntime(store=LateStore(postgres.dsn, schema=schema, kernel="second"))
    with pytest.raises(OwnedElsewhere, match="first"):
        await Session(ScriptedModel(["hello"]), runtime=second, session_id="chat").start()
    assert (await winner.ask("go")).value == "hello"
    await second.stop()
    await first.stop()


async def test_a_folder_in_use_names_the_process_that_uses_it(tmp_path: pathlib.Path) -> None:
    """SQLite allows one kernel, and the error has its pid."""
    async with Session(ScriptedModel(["one"]), cwd=tmp_path, session_id="chat") as session:
        await session.ask("first")
        second = AgentRuntime(store=store_at(f"sqlite {tmp_path}/.ramet/journal.db"))
        with pytest.raises(StoreInUse, match="pid"):
            await Session(ScriptedModel([]), runtime=second, session_id="chat").start()
        await second.stop()


async def test_a_reopened_conversation_has_its_workspace(tmp_path: pathlib.Path) -> None:
    """A sandboxed agent finds the files that it wrote before its session was closed."""
    policy = Policy(isolation=Isolation.L1)
    scripts: list[Script] = [
        [[Call("Write", {"file_path": "note.txt", "content": "kept"})], "written"],
        [[Call("Read", {"file_path": "note.txt"})], "read"],
    ]
    for script, expected in zip(scripts, ("written", "read"), strict=True):
        async with Session(
            ScriptedModel(script),
            workspace_tools(),
            cwd=tmp_path,
            session_id="chat",
            root_policy=policy,
            backend="local",
        ) as session:
            assert (await session.ask("go")).value == expected
            assert "kept" in str(session.messages[-2].text) or expected == "written"


async def test_the_id_of_a_session_is_unknown_before_its_start(tmp_path: pathlib.Path) -> None:
    """Reading `id` raises an error that names `start`. An invalid session id is refused at once."""
    session = Session(ScriptedModel([]), cwd=tmp_path, session_id="chat")
    with pytest.raises(RametError, match="start"):
        _ = session.id
    await session.close()
    for bad in ("", "a\nb", "x" * 201):
        with pytest.raises(InvalidValue, match="session_id"):
            Session(ScriptedModel([]), cwd=tmp_path, session_id=bad)


async def test_a_resumed_turn_can_be_waited_for(make_store: MakeStore) -> None:
    """A prompt during the turn raises BusyError. An idle conversation has no turn to wait for."""
    gate = Gate()
    async with lost_runtime(make_store()) as runtime:
        session = Session(ScriptedModel([[Call("gate")], "no"]), [gate.tool], runtime=runtime, session_id="chat")
        turn = asyncio.create_task(session.ask("first"))
        await gate.entered.wait()
    turn.cancel()

    model = ScriptedModel([[Call("gate")], "the turn is over", "two"])
    gate = Gate()
    async with AgentRuntime(store=make_store()) as runtime:
        session = await Session.resume("chat", model, [gate.tool], runtime=runtime)
        waiting = asyncio.create_task(session.wait_for_turn())
        await gate.entered.wait()
        with pytest.raises(BusyError):
            await session.ask("too early")
        gate.open.set()
        result = await waiting

        assert result is not None
        assert result.value == "the turn is over"
        assert session.result == result
        assert await session.wait_for_turn() is None
        assert (await session.ask("second")).value == "two"


async def test_a_fork_is_a_conversation_of_its_own(make_store: MakeStore) -> None:
    """The fork has the conversation up to that point and an id of its own, and the old conversation does not change."""
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(ScriptedModel(["one", "two"]), runtime=runtime, session_id="chat") as session,
    ):
        await session.ask("first")
        model = ScriptedModel(["other"])
        async with await Session.fork(session.id, model, runtime=runtime, session_id="what-if") as fork:
            assert (await fork.ask("And if not?")).value == "other"
            assert [message.text for message in model.requests[0].messages] == ["first", "one", "And if not?"]
        with pytest.raises(BusyError, match="'what-if' is recorded already"):
            await Session.fork(session.id, model, runtime=runtime, session_id="what-if")
        await session.ask("second")
        assert [message.text for message in session.messages] == ["first", "one", "second", "two"]

    model = ScriptedModel(["again"])
    async with (
        AgentRuntime(store=make_store()) as runtime,
        Session(model, runtime=runtime, session_id="what-if") as fork,
    ):
        await fork.ask("Go on.")
        texts = [message.text for message in model.requests[0].messages]
        assert texts == ["first", "one", "And if not?", "other", "Go on."]


async def test_the_journal_shows_a_reopened_conversation_as_idle(make_store: MakeStore) -> None:
    """A closed conversation is shown as completed."""
    async with AgentRuntime(store=make_store()) as runtime:
        async with Session(ScriptedModel(["one"]), runtime=runtime, session_id="chat") as session:
            await session.ask("first")
            root = session.id
        store = await runtime.open_store()
        assert [each.state for each in await JournalReader(store, ()).rows(root)] == ["completed"]
        async with Session(ScriptedModel(["two"]), runtime=runtime, session_id="chat") as session:
            await session.context.wait_persisted()
            assert [each.state for each in await JournalReader(store, (root,)).rows(root)] == ["idle"]
            assert await JournalReader(store, (root,)).trees() == [root]
            assert not of_kind(session_events(session), RunEnded)
        assert [each.state for each in await JournalReader(store, ()).rows(root)] == ["completed"]
