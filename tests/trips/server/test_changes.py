"""The feed of changes: rows of all runs, then new rows whenever a run changes, resumed by cursor."""

from __future__ import annotations

import asyncio
import pathlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace

import ramet
from ramet import Agent
from ramet.core.errors import Gone, InvalidValue, Unknown
from ramet.core.events import Event, MessageRecorded, ModelAsked, RunSpawned, StateChanged, encode
from ramet.core.outcome import Usage
from ramet.host.control.limit_use import LimitUse
from ramet.host.control.run_queries import INTERRUPTED, RunRow
from ramet.host.journal.journal import TREES
from ramet.services.client.client import Client
from ramet.services.operator import live_rows
from ramet.services.operator.change_feed import ChangeFeed
from ramet.services.operator.changes import ChangedRow, RunChanges
from ramet.store.contract import Entry
from ramet.wire.sse import Parser
from tests.support.serve_process import serve
from tests.support.serving import EchoServer
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.trips.server.test_operator_client import spawn_tree_with_a_question


class Picture:
    """The rows of a reader, as its messages change them."""

    def __init__(self) -> None:
        self.rows: dict[str, ChangedRow] = {}
        self.cursor = ""
        self.row_count = 0
        self.is_complete = True

    def take(self, message: RunChanges) -> None:
        """Apply a message."""
        for row in message.runs:
            assert row.parent is None or row.parent in self.rows
            self.rows[row.id] = row
        self.rows = {id: row for id, row in self.rows.items() if row.root not in message.removed}
        self.row_count += len(message.runs)
        self.cursor, self.is_complete = message.cursor or self.cursor, message.complete

    async def read(self, changes: AsyncGenerator[RunChanges, None], is_met: Callable[[], Awaitable[bool]]) -> None:
        """Read until a condition holds."""
        async for message in changes:
            self.take(message)
            if self.is_complete and await is_met():
                return

    @property
    def ended_paths(self) -> set[str]:
        """The paths of the runs that have ended."""
        return {each.path for each in self.rows.values() if each.is_over}

    async def read_until_equal(
        self,
        changes: AsyncGenerator[RunChanges, None],
        listing: Callable[[], Awaitable[Iterable[RunRow]]],
        is_met: Callable[[], bool],
    ) -> None:
        """Read until a condition holds and the rows equal those of a listing."""

        async def is_equal() -> bool:
            if not is_met():
                return False
            listed = {each.id: as_data(each) for each in await listing()}
            return {id: as_data(row) for id, row in self.rows.items()} == listed

        await self.read(changes, is_equal)


def as_data(row: RunRow) -> dict[str, object]:
    """Return a row as data, without what messages about changes leave out."""
    return asdict(replace(row, children=(), result=None))


def feed_of(echo_server: EchoServer) -> ChangeFeed:
    """Return the feed of a server."""
    return echo_server.server._parts.views.feed


async def first(changes: AsyncGenerator[RunChanges, None]) -> RunChanges:
    """Return the first message, and close the stream."""
    async with aclosing(changes):
        return await anext(changes)


async def test_rows_follow_the_listing_and_resume_by_cursor(echo_server: EchoServer, client: Client) -> None:
    """A reader resumes with the rows that changed meanwhile, and nothing is kept once the last reader has left."""
    handle, kernel = await spawn_tree_with_a_question(echo_server), client.kernel
    picture, feed = Picture(), feed_of(echo_server)

    async def tree() -> Iterable[RunRow]:
        return await kernel.tree(handle.id)

    async with aclosing(kernel.changes(interval_ms=50)) as changes:
        await picture.read_until_equal(changes, tree, lambda: "main/writer" in picture.ended_paths)
    payer, writer = (
        next(id for id, row in picture.rows.items() if row.path == f"main/{n}") for n in ("payer", "writer")
    )
    await eventually(lambda: feed.live is None)
    cursor = (await first(kernel.changes())).cursor  # Nothing happens now: it is behind all that was recorded.
    assert picture.rows[payer].waits_for == "person"

    async with aclosing(kernel.changes(run=payer)) as of_payer:
        assert [each.id for each in (await anext(of_payer)).runs] == [payer]
        (question,) = await kernel.approvals()
        await kernel.answer(question.id, True)
        while not (message := await anext(of_payer)).runs[0].is_over:
            assert [each.id for each in message.runs] == [payer]
        async with aclosing(kernel.changes(after=cursor, interval_ms=50)) as changes:
            resumed = await anext(changes)
            assert ({each.id for each in resumed.runs}, resumed.complete) == ({payer, handle.id}, True)
            picture.take(resumed)
            await picture.read_until_equal(changes, tree, lambda: "main" in picture.ended_paths)
    await eventually(lambda: feed.live is None)
    journal = echo_server.server.runtime.journal
    await eventually(lambda: journal is not None and handle.id not in journal.living)

    def read_blocking() -> RunChanges:
        with ramet.connect(echo_server.server.listen_address) as blocking:
            return next(iter(blocking.kernel.changes(after=cursor)))

    # The tree has ended, and no feed was kept: its rows come from the journal.
    assert {each.id for each in (await asyncio.to_thread(read_blocking)).runs} == {payer, handle.id}
    assert {each.id for each in (await first(kernel.changes(ended=True))).runs} == {handle.id, payer, writer}
    assert (await first(kernel.changes())).runs == []
    assert (await first(kernel.changes(after="999999"))).reset, "no event has that cursor"
    with pytest.raises(Unknown):
        await first(kernel.changes(run="run-0"))
    for wrong in ("x", "1-2", "1" * 30):
        with pytest.raises(InvalidValue, match="after"):
            await first(kernel.changes(after=wrong))
    await eventually(lambda: feed.live is None)


async def test_changes_coalesce_for_a_reader_that_stands_still(
    echo_server: EchoServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many runs end meanwhile, and most are dropped: the reader still gets the last row of each, and few others."""
    monkeypatch.setattr(live_rows, "ENDED_RUNS", 50)
    monkeypatch.setattr(live_rows, "ENDED_S", 0.0)
    monkeypatch.setattr(live_rows, "CHECK_S", 0.05)
    runtime, server, picture, parser = echo_server.server.runtime, echo_server.server, Picture(), Parser()
    path, count = "/v1/changes?interval_ms=50", 200
    headers = {"authorization": f"Bearer {server.operator}"}
    async with echo_server.http.stream("GET", path, headers=headers) as answer:
        chunks = answer.aiter_raw()
        await anext(chunks)
        live = feed_of(echo_server).live
        assert live is not None
        agent = Agent(name="note", function=scheduled.note)
        ids = {(handle := await runtime.spawn(agent)).id for _ in range(count)}
        await handle.result()
        await eventually(lambda: live.dropped and len(live.trees) <= 50)
        (stream,) = server._parts.streams._open
        held, changes = stream._size, live.version
        assert (changes >= 4 * count, held < 1_000_000) == (True, True)
        async for chunk in chunks:
            for event in parser.feed(chunk):
                picture.take(replace(msgspec.json.decode(event.data, type=RunChanges), cursor=event.id))
            if picture.rows.keys() >= ids and all(each.is_over for each in picture.rows.values()):
                break
        assert picture.row_count < changes


async def test_a_picture_of_many_runs_comes_in_parts(
    echo_server: EchoServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last part has a cursor, and a parent comes before its children. Limits are as the budget counts them."""
    monkeypatch.setattr(live_rows, "LIST_S", 0.1)
    handle = await echo_server.server.runtime.spawn(Agent(name="note", function=scheduled.note))
    store, root, count, picture = await echo_server.server.runtime.open_store(), "run-large", 1_200, Picture()
    await handle.result()
    await store.put(TREES, root, msgspec.json.encode({"began": datetime.now(UTC)}))

    def put(kind: type[Event], run: str, seq: int, **values: Any) -> int:
        event = kind(root=root, run=run, agent="a", seq=seq, at=datetime.now(UTC), **values)
        return store.append(Entry(root, run, seq, str(kind.__struct_config__.tag), encode(event)))

    for number in range(1, count + 1):
        run, path = (root, "main") if number == 1 else (f"run-{number}", f"main/{number}")
        parent = None if number == 1 else f"run-{number // 2}" if number > 3 else root
        limits = {1: {"tokens": 1_000, "usd": 2.5, "at_limit": "pause"}, 2: {"tokens": 300}}.get(number, {})
        put(RunSpawned, run, number, path=path, name=run, parent=parent, birth={"limits": limits})
    usage, reply = Usage(model_calls=1, input_tokens=20, output_tokens=10, usd=0.5), {"type": "ai", "content": "yes"}
    put(ModelAsked, "run-4", count + 1, path="main/4", step_id="a:1", model="m", reserved_tokens=80, reserved_usd=1.0)
    put(MessageRecorded, "run-4", count + 2, path="main/4", step_id="a:1", message=reply, usage=usage)
    await store.durable(put(StateChanged, "run-4", count + 3, path="main/4", state="running"))

    async with aclosing(client.kernel.changes()) as changes:
        parts = [await anext(changes) for _ in range(3)]
    for each in parts:
        picture.take(each)

    assert [(len(each.runs), each.complete, bool(each.cursor)) for each in parts] == [
        (500, False, False), (500, False, False), (200, True, True)
    ]  # fmt: skip
    listed = await client.kernel.tree(root)
    assert [as_data(each) for each in picture.rows.values()] == [as_data(each) for each in listed]
    assert {each.state for each in listed} == {INTERRUPTED}, "no kernel has the tree"
    assert listed[0].limits["usd"] == LimitUse(limit=2.5, used=0.5)
    async with aclosing(client.kernel.changes(interval_ms=50)) as changes:
        while not (await anext(changes)).complete:
            pass
        await store.durable(
            put(ModelAsked, "run-4", count + 4, path="main/4", step_id="a:3", model="m", reserved_tokens=80)
        )
        changed = {each.id: each for each in (await anext(changes)).runs}
        assert list(changed) == [root, "run-2", "run-4"]
        assert changed["run-2"].limits == {"tokens": LimitUse(limit=300, used=30, reserved=80)}
        assert changed[root].limits["tokens"] == LimitUse(limit=1_000, used=30, reserved=270), "the rest of its slice"
        assert changed[root].limits == (await client.kernel.run(root)).limits
        # A tree that was removed is named once.
        await store.delete(TREES, root)
        await store.forget(root)
        assert (await anext(changes)).removed == [root]


async def test_a_reader_goes_on_by_cursor_after_the_kill_of_its_server(folder: pathlib.Path) -> None:
    """The next server sends the rows of the runs that changed since, such as the end of the run that was cut."""
    env = {
        "RAMET_OPERATOR_TOKEN": "op_of_the_test_of_changes",
        "RAMET_BACKEND": "local",
        "RAMET_RULES_SANDBOXED": "false",
    }
    picture, socket = Picture(), folder / ".ramet" / "serve.sock"

    async def are_known() -> bool:
        return {(each.agent, each.is_over) for each in picture.rows.values()} == {("note", True), ("waits", False)}

    async def has_ended() -> bool:
        return picture.rows[waits].is_over

    async with serve(folder, **env) as process, ramet.connect(socket, env["RAMET_OPERATOR_TOKEN"]) as client:
        for name in ("note", "waits"):
            function = f"{scheduled.__name__}:{name}"
            await client.kernel.add_schedule(function, every_s=86_400, name=name, in_process=True)
            await client.kernel.trigger_schedule(name)
        async with aclosing(client.kernel.changes(interval_ms=50, ended=True)) as changes:
            await picture.read(changes, are_known)
            (waits,) = (each.id for each in picture.rows.values() if each.agent == "waits")
            process.process.send_signal(signal.SIGKILL)
            await process.process.wait()
            with pytest.raises(Gone):
                await anext(changes)
    assert picture.rows[waits].state == "running"
    async with serve(folder, **env), ramet.connect(socket, env["RAMET_OPERATOR_TOKEN"]) as client:
        async with aclosing(client.kernel.changes(interval_ms=50, after=picture.cursor)) as changes:
            resumed = await anext(changes)
            assert [each.id for each in resumed.runs] == [waits], "the other one did not change"
            picture.take(resumed)
            if not picture.rows[waits].is_over:
                await picture.read(changes, has_ended)
        assert (picture.rows[waits].state, picture.rows[waits].result) == ("lost", None)
