"""What another process goes on with: the way that a graph had taken, and objects that were on their way."""

from __future__ import annotations

import asyncio
import pathlib
from dataclasses import dataclass
from typing import Any

from ramet import END, AgentRuntime, StateGraph, chain, parallel
from ramet.compose import agent
from ramet.core.outcome import Status
from ramet.store.sqlite.store import SqliteStore


class World:
    """What is another in another process."""

    way = "left"
    gate = asyncio.Event()
    entered: asyncio.Event
    calls: list[str]


def fresh(way: str) -> None:
    """A world of its own for each process."""
    World.way, World.gate, World.entered, World.calls = way, asyncio.Event(), asyncio.Event(), []


def way(state: dict[str, Any]) -> str:
    """Another one after the restart."""
    World.calls.append("way")
    return World.way


async def slow(state: dict[str, Any]) -> dict[str, Any]:
    """Is at work when the process is killed."""
    World.entered.set()
    await World.gate.wait()
    return {"left": True}


def right(state: dict[str, Any]) -> dict[str, Any]:
    """Where nobody had gone."""
    return {"right": True}


@dataclass(frozen=True)
class Parcel:
    """Something on its way."""

    content: bytes
    stamps: tuple[int, ...]


def pack(text: str) -> Parcel:
    """Makes one."""
    return Parcel(text.encode(), (1, 2))


@agent(name="opened")
async def open_slowly(parcel: Parcel) -> str:
    """Is at work with it when the process is killed."""
    World.entered.set()
    await World.gate.wait()
    assert type(parcel) is Parcel
    return f"{parcel.content.decode()} {parcel.stamps}"


async def killed(runtime: AgentRuntime, store: SqliteStore) -> None:
    """From here on nothing is on record."""
    for opened in runtime.trees.values():
        await opened.recorder.durable()  # type: ignore[misc]  # it has a journal
    await store.close()
    await runtime.stop()


async def test_a_way_that_was_taken_is_not_asked_for_again(tmp_path: pathlib.Path) -> None:
    """The route would say something else now; the node that was at work goes on all the same."""
    graph = StateGraph().add_node("left", slow).add_node("right", right)
    graph.set_conditional_entry_point(way, ["left", "right"]).add_edge("left", END)
    fresh("left")
    store = SqliteStore(tmp_path / "journal.db")
    runtime = AgentRuntime(store=store, grace_s=0.1)
    await runtime.spawn(graph.compile(), args=({"n": 1},))
    await World.entered.wait()
    await killed(runtime, store)

    fresh("right")
    World.gate.set()
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        [handle] = await runtime.resume()
        result = await handle.result()

    assert (result.status, result.value, World.calls) == (Status.COMPLETED, {"n": 1, "left": True}, [])


async def test_objects_that_were_on_their_way_arrive_as_what_they_are(tmp_path: pathlib.Path) -> None:
    """A dataclass with bytes and a tuple: an ended step's value, and a step's argument, also through a composition."""
    line = chain(pack, parallel(open_slowly, open_slowly))
    fresh("")
    store = SqliteStore(tmp_path / "journal.db")
    runtime = AgentRuntime(store=store, grace_s=0.1)
    await runtime.spawn(line, args=("tea",))
    await World.entered.wait()
    await killed(runtime, store)

    fresh("")
    World.gate.set()
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        [handle] = await runtime.resume()
        result = await handle.result()

    assert (result.status, result.value) == (Status.COMPLETED, ["tea (1, 2)"] * 2)
