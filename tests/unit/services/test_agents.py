"""AgentService: rights, request bodies, operations of agent types, and the events of a tree by cursor."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import Bug, Gone, InvalidValue, NotYours, StoreFailed, Unknown
from ramet.core.events import Notice, decode
from ramet.core.outcome import ErrorInfo
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.model import ScriptedModel
from ramet.services.contract import RIGHTS, AgentInfo, AgentSpec, AgentState, Right
from ramet.services.errors import BodyTooLarge, Missed, Undecodable
from ramet.services.teams.agents import AgentAccess, AgentEntry
from ramet.services.teams.keys import ValidKey
from ramet.services.turns.queue import TurnLimits
from ramet.services.turns.service import AgentService
from ramet.services.turns.tree_events import TreeEvent
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.support.echo_agents import Echo, EchoInfo, EchoType
from tests.support.turns import read_turn
from tests.support.waiting import eventually

OWNER = "the owner's key"
TYPES = {"echo": EchoType()}


class AgentTable:
    """One agent, as the agent table would have it. A key stands for its own hash."""

    id = "agent-1"

    def __init__(self, runtime: AgentRuntime | None = None, run: str = "") -> None:
        self.clock = FakeClock()
        self.spec: AgentSpec | None = AgentSpec(
            "agent-1", "echo", "team/echo", EchoInfo(), runtime or AgentRuntime(), pathlib.Path(), run=run
        )
        self.running_agent = Echo(self.spec)
        self.queue: Any = None
        self.state: AgentState = "idle"
        self.turns = 0
        self.saved_states: list[tuple[int, str]] = []
        self.rights: dict[str, tuple[Right, ...]] = {OWNER: RIGHTS}
        self.seconds_left_by: dict[str, float] = {}
        self.watchers: set[Callable[[], object]] = set()
        self.was_killed = self.fails = False

    def info(self) -> AgentInfo:
        return AgentInfo(
            id="agent-1",
            team="team",
            name="echo",
            path="team/echo",
            agent_type="echo",
            transport_format="letters",
            state=self.state,
            image="",
            labels={},
            metadata={},
            run=self.running_agent.run,
            isolation="none",
            turns=self.turns,
            created_at="",
        )

    async def save(self) -> None:
        if self.fails:
            raise StoreFailed("the books", "full")
        self.saved_states.append((self.turns, self.state))

    def admit(self, agent: str, key: str, right: Right) -> AgentAccess:
        if agent != "agent-1" or self.was_killed or not self.has_right(key, right):
            raise NotYours("agent", agent)
        return AgentAccess(cast("AgentEntry", self), ValidKey("", self.rights[key]), key, right, self.clock)

    def has_right(self, by: str, right: Right) -> bool:
        return right in self.rights.get(by, ())

    def seconds_left(self, by: str) -> float | None:
        return self.seconds_left_by.get(by)

    def lose(self, key: str) -> None:
        """Have a key lose its rights."""
        del self.rights[key]
        for look in tuple(self.watchers):
            look()


@pytest.fixture
async def agent_table() -> AgentTable:
    return AgentTable()


@pytest.fixture
async def service(agent_table: AgentTable) -> AsyncIterator[AgentService]:
    service = AgentService(agent_table.admit, TYPES, clock=FakeClock(), limits=TurnLimits(body_bytes=1_000))
    yield service
    await service.close()


async def answer(service: AgentService, body: bytes, **options: Any) -> list[bytes]:
    """Return the chunks that the agent answers to a body."""
    turn = service.turn("agent-1", OWNER, body, **options)
    return [chunk.body async for chunk in read_turn(service, "agent-1", OWNER, turn.id) if chunk.kind == "chunk"]


# ---- rights


async def _turn(service: AgentService, agent: str, key: str) -> object:
    return service.turn(agent, key, b"hello")


async def _read_turn(service: AgentService, agent: str, key: str) -> object:
    turn = service.turn("agent-1", OWNER, b"hello")
    return read_turn(service, agent, key, turn.id)


async def _info(service: AgentService, agent: str, key: str) -> object:
    return service.info(agent, key)


async def _events(service: AgentService, agent: str, key: str) -> object:
    return service.events(agent, key)


CALLS: Mapping[str, tuple[Right, Callable[[AgentService, str, str], Awaitable[object]]]] = {
    "turn": ("turn", _turn),
    "read_turn": ("turn", _read_turn),
    "interrupt": ("turn", lambda service, agent, key: service.interrupt(agent, key)),
    "control": ("control", lambda service, agent, key: service.control(agent, key, b'{"@type": "shout"}')),
    "mail": ("mail", lambda service, agent, key: service.mail(agent, key, "hello")),
    "history": ("history", lambda service, agent, key: service.history(agent, key)),
    "info": ("info", _info),
    "events": ("events", _events),
}


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_needs_its_own_right(service: AgentService, agent_table: AgentTable, name: str) -> None:
    """AC-S3-4: A key with only that right succeeds; a key with all other rights, a wrong key and no key are refused."""
    right, call = CALLS[name]
    agent_table.rights |= {"this": (right,), "others": tuple(each for each in RIGHTS if each != right)}

    await call(service, "agent-1", "this")

    for key in ("others", "wrong", ""):
        with pytest.raises(NotYours):
            await call(service, "agent-1", key)
    with pytest.raises(NotYours):
        await call(service, "agent-2", "this")


async def test_a_refused_call_does_nothing(service: AgentService, agent_table: AgentTable) -> None:
    """AC-S3-4: The agent receives nothing of a refused call."""
    for _, call in CALLS.values():
        with pytest.raises(NotYours):
            await call(service, "agent-1", "wrong")

    assert [body for body, _ in agent_table.running_agent.received_bodies] in (
        [],
        [b"hello"],
    )  # The owner's own, for `read_turn`.
    assert (
        agent_table.running_agent.mail_texts,
        agent_table.running_agent.times,
        agent_table.running_agent.interrupts,
    ) == ([], 1, 0)


# ---- the data plane


@given(body=st.binary(min_size=1, max_size=1_000), format=st.sampled_from(EchoType.transport_formats))
async def test_a_body_reaches_the_agent_byte_for_byte(body: bytes, format: str) -> None:
    """AC-S3-6: Each format passes any bytes unchanged."""
    living = AgentTable()
    service = AgentService(living.admit, TYPES, clock=FakeClock())
    try:
        await service.turn("agent-1", OWNER, body, format=format).wait_ended()
    finally:
        await service.close()

    assert living.running_agent.received_bodies == [(body, format)]


async def test_a_turn_has_the_format_of_the_spawn_unless_another_is_asked_for(
    service: AgentService, agent_table: AgentTable
) -> None:
    """AC-S3-6: A format that the agent type does not have is refused."""
    await answer(service, b"one")
    await answer(service, b"two", format="words")

    with pytest.raises(InvalidValue, match="words or letters"):
        service.turn("agent-1", OWNER, b"three", format="morse")
    assert agent_table.running_agent.received_bodies == [(b"one", "letters"), (b"two", "words")]


async def test_a_body_over_the_cap_never_reaches_the_agent(service: AgentService, agent_table: AgentTable) -> None:
    """The refusal names the cap, for a turn and for an operation."""
    with pytest.raises(BodyTooLarge, match=r"body: .* at most 1000 bytes"):
        service.turn("agent-1", OWNER, bytes(1_001))
    with pytest.raises(BodyTooLarge, match=r"operation: .* at most 1000 bytes"):
        await service.control("agent-1", OWNER, b" " * 1_001)

    assert agent_table.running_agent.received_bodies == []


async def test_the_second_turn_goes_to_the_same_agent(service: AgentService) -> None:
    """AC-S3-5: The history holds the bodies of both turns."""
    await answer(service, b"one")
    await answer(service, b"two")

    assert [message["content"] for message in await service.history("agent-1", OWNER)] == ["one", "two"]


async def test_a_turn_is_read_again_by_its_id(service: AgentService) -> None:
    """A reader may begin after any chunk number; the id of no turn is unknown."""
    turn = service.turn("agent-1", OWNER, b"a b c")
    await turn.wait_ended()

    assert [chunk.body async for chunk in read_turn(service, "agent-1", OWNER, turn.id, 1)] == [b"b", b"c", b""]
    with pytest.raises(Unknown, match="unknown turn"):
        read_turn(service, "agent-1", OWNER, "turn-1")


async def test_a_turn_of_another_agent_is_unknown(service: AgentService) -> None:
    """The service knows the ids of its own agent's turns only."""
    other = AgentTable()
    others = AgentService(other.admit, TYPES, clock=FakeClock())
    turn = others.turn("agent-1", OWNER, b"hello")
    service.turn("agent-1", OWNER, b"hello")

    with pytest.raises(Unknown):
        read_turn(service, "agent-1", OWNER, turn.id)
    await others.close()


async def test_the_roster_knows_whether_an_agent_works_and_its_turns(
    service: AgentService, agent_table: AgentTable
) -> None:
    """The agent is working while a turn is active; each turn is counted and persisted once the agent answers."""
    turn = service.turn("agent-1", OWNER, b"a wait")
    await eventually(lambda: turn.readable_number == 1)
    await eventually(lambda: agent_table.saved_states)
    assert (service.info("agent-1", OWNER).state, service.info("agent-1", OWNER).turns) == ("working", 1)
    assert agent_table.saved_states == [(1, "working")]

    assert await service.interrupt("agent-1", OWNER)

    assert turn.is_over
    assert (service.info("agent-1", OWNER).state, service.info("agent-1", OWNER).turns) == ("idle", 1)


async def test_a_turn_is_answered_even_if_the_store_fails(
    service: AgentService, agent_table: AgentTable, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator's log has the failure."""
    agent_table.fails = True

    assert await answer(service, b"one") == [b"one"]

    await service.close()
    assert "the books" in caplog.text


async def test_an_agent_that_has_ended_refuses_new_requests(service: AgentService, agent_table: AgentTable) -> None:
    """Turns, control and mail raise Gone; old turns, history and info stay readable."""
    turn = service.turn("agent-1", OWNER, b"a die")
    await turn.wait_ended()

    for name in ("turn", "control", "mail"):
        with pytest.raises(Gone, match="it was told to"):
            await CALLS[name][1](service, "agent-1", OWNER)
    assert [chunk.kind async for chunk in read_turn(service, "agent-1", OWNER, turn.id)] == ["chunk", "error"]
    assert await service.history("agent-1", OWNER)
    assert service.info("agent-1", OWNER).id == "agent-1"
    assert not await service.interrupt("agent-1", OWNER)


async def test_closing_the_service_ends_turns_but_not_agents(service: AgentService, agent_table: AgentTable) -> None:
    """Agents stay alive, so that the next server can resume them."""
    turn = service.turn("agent-1", OWNER, b"wait")

    await service.close("the server stops")
    await service.close()

    assert turn.is_over
    assert not agent_table.running_agent.end.done()
    assert agent_table.state == "idle"


# ---- the mutation plane


async def test_an_operation_of_an_agent_type_is_done_and_answered(service: AgentService) -> None:
    """AC-S3-7: The operation and its answer are JSON, and the operation changes the agent."""
    response = await service.control("agent-1", OWNER, b'{"@type": "shout", "times": 2}')

    assert json.loads(response) == {"times": 2}
    assert await answer(service, b"hey") == [b"heyhey"]


REFUSED: Mapping[str, tuple[bytes, type[Exception], str]] = {
    "unknown": (b'{"@type": "whisper"}', Unknown, "unknown operation 'whisper'; known: shout"),
    "unnamed": (b'{"times": 2}', InvalidValue, "operation.@type: None is not accepted; expected one of shout"),
    "no-name": (b'{"@type": 7}', InvalidValue, "operation.@type"),
    "field": (b'{"@type": "shout", "loud": 1}', InvalidValue, r"operation\.loud: 'loud' is not accepted"),
    "value": (
        b'{"@type": "shout", "times": "x"}',
        InvalidValue,
        r"operation\.times: 'x' is not accepted; expected int, not str",
    ),
    "list": (b"[]", InvalidValue, "operation"),
    "half": (b'{"@type": "shout"', Undecodable, "operation"),
    "nothing": (b"", Undecodable, "operation"),
    "bytes": (b"\xff\xfe", Undecodable, "operation"),
    "deep": (b'{"@type": "shout", "times": ' + b"[" * 900, InvalidValue, "operation"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_an_invalid_operation_is_refused_by_name(
    service: AgentService, agent_table: AgentTable, case: str
) -> None:
    """AC-S3-7: The error names the known operations or the wrong field, and the operation has no effect."""
    operation, error, words = REFUSED[case]

    with pytest.raises(error, match=words):
        await service.control("agent-1", OWNER, operation)

    assert agent_table.running_agent.times == 1


async def test_an_operation_result_that_is_not_data_is_a_bug_of_the_type(
    service: AgentService, agent_table: AgentTable
) -> None:
    """The error is Bug, not an error of the caller."""

    async def control(operation: object) -> object:
        return object()

    agent_table.running_agent.control = control  # type: ignore[method-assign]

    with pytest.raises(Bug, match="'echo'"):
        await service.control("agent-1", OWNER, b'{"@type": "shout"}')


async def test_mail_is_sent_to_the_agent(service: AgentService, agent_table: AgentTable) -> None:
    """An empty text is refused."""
    await service.mail("agent-1", OWNER, "hello")

    with pytest.raises(InvalidValue, match="text"):
        await service.mail("agent-1", OWNER, "")
    assert agent_table.running_agent.mail_texts == ["hello"]


# ---- events


async def _some(events: AsyncIterator[TreeEvent], types: str) -> list[TreeEvent]:
    """Return the events up to the first of a type."""
    tree_events: list[TreeEvent] = []
    async for event in events:
        tree_events.append(event)
        if json.loads(event.data)["type"] == types:
            break
    return tree_events


async def _append_all(events: AsyncIterator[TreeEvent], to: list[TreeEvent]) -> None:
    async for event in events:
        to.append(event)


@pytest.fixture(params=["sqlite", "memory", "none"])
async def runtime(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """A runtime with a journal on disk, with one in memory, and with none."""
    stores: dict[str, Store | None] = {"sqlite": SqliteStore(tmp_path / "journal.db"), "memory": MemoryStore()}
    async with AgentRuntime(store=stores.get(request.param)) as runtime:
        yield runtime


async def test_the_events_of_a_tree_are_followed_by_cursor(runtime: AgentRuntime) -> None:
    """A reader gets past and new events of one tree only, and may continue after a cursor."""
    session, other = (Session(ScriptedModel(["one", "two"]), runtime=runtime) for _ in range(2))
    await session.ask("First?")
    await other.ask("Other?")
    living = AgentTable(runtime, session.id)
    service = AgentService(living.admit, TYPES)

    async with aclosing(service.events("agent-1", OWNER)) as events:
        first = await _some(events, "turn_ended")
        following = asyncio.create_task(_some(events, "turn_ended"))
        await session.ask("Second?")
        second = await following

    async with aclosing(service.events("agent-1", OWNER, first[-1].cursor)) as events:
        assert await _some(events, "turn_ended") == second
    all_events = [decode(event.data) for event in first + second]
    assert {event.root for event in all_events} == {session.id}
    assert [event.seq for event in all_events] == list(range(1, len(all_events) + 1))
    assert sorted({each.cursor for each in first + second}) == [each.cursor for each in first + second]


async def test_a_stream_of_events_ends_with_the_agent(runtime: AgentRuntime) -> None:
    """The reader gets every recorded event first."""
    session = Session(ScriptedModel(["one"]), runtime=runtime)
    await session.ask("First?")
    living = AgentTable(runtime, session.id)
    service = AgentService(living.admit, TYPES)
    types: list[str] = []

    async def follow() -> None:
        async for event in service.events("agent-1", OWNER):
            types.append(json.loads(event.data)["type"])

    following = asyncio.create_task(follow())
    await eventually(lambda: "turn_ended" in types)
    await session.close()
    living.was_killed = True  # Nobody is let in any more.
    await living.running_agent.close("killed")
    await following

    assert types[-1] == "run_ended"


async def test_a_revoked_key_gets_no_further_events(runtime: AgentRuntime) -> None:
    """The stream raises NotYours before events of the next turn."""
    session = Session(ScriptedModel(["one", "two"]), runtime=runtime)
    await session.ask("First?")
    living = AgentTable(runtime, session.id)
    living.rights["lent"] = ("events",)
    service = AgentService(living.admit, TYPES)

    async with aclosing(service.events("agent-1", "lent")) as events:
        await _some(events, "turn_ended")
        living.lose("lent")
        await session.ask("Second?")
        rest: list[TreeEvent] = []
        with pytest.raises(NotYours):
            await _append_all(events, rest)

    assert "turn_started" not in [json.loads(event.data)["type"] for event in rest]


async def test_events_of_an_agent_that_has_no_tree_yet_are_waited_for(runtime: AgentRuntime) -> None:
    """The events come once the agent has a tree; the stream of an agent that ends before is empty."""
    clock = FakeClock()
    living, never = AgentTable(runtime), AgentTable(runtime)
    living.running_agent.run = never.running_agent.run = ""
    following, in_vain = (
        asyncio.create_task(_some(AgentService(each.admit, TYPES, clock=clock).events("agent-1", OWNER), "turn_ended"))
        for each in (living, never)
    )
    await eventually(lambda: clock.sleeping == 2)

    session = Session(ScriptedModel(["one"]), runtime=runtime)
    await session.ask("First?")
    living.running_agent.run = session.id
    never.running_agent.end.set_result(ErrorInfo(type="Crashed", message="early"))
    await clock.advance(1)

    assert json.loads((await following)[0].data)["type"] == "run_spawned"
    assert await in_vain == []


async def test_an_invalid_cursor_is_refused(service: AgentService) -> None:
    """The error comes at once, before anything is streamed."""
    with pytest.raises(InvalidValue, match="after"):
        service.events("agent-1", OWNER, -1)


async def test_events_that_were_kept_in_memory_only_are_gone_with_their_tree() -> None:
    """The stream raises Gone instead of ending as if the tree had no events."""
    async with AgentRuntime() as runtime:
        living = AgentTable(runtime, "run-of-old")
        with pytest.raises(Gone, match="in memory only"):
            await anext(AgentService(living.admit, TYPES).events("agent-1", OWNER))


async def test_events_that_were_dropped_from_memory_are_gone() -> None:
    """A reader that asks for dropped events gets Gone; a reader that asks for newer events gets them."""
    async with AgentRuntime() as runtime:
        session = Session(ScriptedModel(["one"]), runtime=runtime)
        await session.ask("First?")
        (tree,) = runtime.trees.values()
        recorder = tree.recorder
        while recorder.recent_events[0].seq == 1:
            recorder.append(Notice(root=session.id, run=session.id, path="main", agent="main", text="more"))
        living = AgentTable(runtime, session.id)
        service = AgentService(living.admit, TYPES)

        with pytest.raises(Gone, match="after number 0"):
            await anext(service.events("agent-1", OWNER))
        async with aclosing(service.events("agent-1", OWNER, recorder.recent_events[0].seq - 1)) as events:
            assert await anext(events)


async def test_an_agent_that_could_not_be_opened_again_has_no_events(
    service: AgentService, agent_table: AgentTable
) -> None:
    """The stream raises Gone with the reason."""
    agent_table.spec = None
    agent_table.running_agent.end.set_result(ErrorInfo(type="Unknown", message="no such type"))

    with pytest.raises(Gone, match="no such type"):
        service.events("agent-1", OWNER)


async def test_a_reader_that_is_too_slow_gets_missed(agent_table: AgentTable) -> None:
    """The service raises Missed for chunks that were dropped."""
    service = AgentService(agent_table.admit, TYPES, clock=FakeClock(), limits=TurnLimits(kept_bytes=5_000))
    turn = service.turn("agent-1", OWNER, b"a " * 100)
    await turn.wait_ended()

    with pytest.raises(Missed):
        read_turn(service, "agent-1", OWNER, turn.id)
    await service.close()


# ---- a right that is lost


async def test_a_stream_of_a_turn_ends_when_its_key_expires(agent_table: AgentTable) -> None:
    """The stream raises NotYours at that time, not before, though the agent sends nothing."""
    clock = agent_table.clock
    service = AgentService(agent_table.admit, TYPES, clock=clock)
    agent_table.rights["lent"], agent_table.seconds_left_by["lent"] = ("turn",), 60.0
    turn = service.turn("agent-1", OWNER, b"a wait")
    reading = asyncio.create_task(_all(read_turn(service, "agent-1", "lent", turn.id)))
    await eventually(lambda: turn.readable_number == 1 and clock.sleeping == 1)
    await clock.advance(59)
    assert not reading.done()

    del agent_table.rights["lent"], agent_table.seconds_left_by["lent"]
    await clock.advance(1)

    with pytest.raises(NotYours):
        await reading
    await service.close()


async def test_events_in_memory_end_when_their_key_loses_the_right() -> None:
    """The stream raises NotYours at once, even if no event comes."""
    async with AgentRuntime() as runtime:
        session = Session(ScriptedModel(["one"]), runtime=runtime)
        await session.ask("First?")
        living = AgentTable(runtime, session.id)
        living.rights["lent"] = ("events",)
        events: list[TreeEvent] = []
        reading = asyncio.create_task(_append_all(AgentService(living.admit, TYPES).events("agent-1", "lent"), events))
        await eventually(lambda: "turn_ended" in [json.loads(each.data)["type"] for each in events])

        living.lose("lent")

        with pytest.raises(NotYours):
            await reading


@pytest.mark.parametrize("name", ["history", "control"])
async def test_an_answer_that_comes_after_a_key_lost_its_right_is_withheld(
    service: AgentService, agent_table: AgentTable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The answer belongs to the new owner."""
    was_called, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> list[str]:
        was_called.set()
        await may_answer.wait()
        return ["of the new owner"]

    monkeypatch.setattr(agent_table.running_agent, name, slow)
    agent_table.rights["lent"] = ("history", "control")
    answer = asyncio.ensure_future(CALLS[name][1](service, "agent-1", "lent"))
    await was_called.wait()

    agent_table.lose("lent")
    may_answer.set()

    with pytest.raises(NotYours):
        await answer


async def _all(chunks: AsyncIterator[object]) -> list[object]:
    return [each async for each in chunks]
