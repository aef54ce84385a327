"""State of compositions that another process resumes: the route of a graph, and objects between steps."""

from __future__ import annotations

import asyncio
import pathlib
from dataclasses import dataclass
from typing import Any

from ramet import END, AgentRuntime, StateGraph, chain, parallel
from ramet.compose import agent
from ramet.core.outcome import Status
from ramet.store.sqlite.store import SqliteStore


class OutsideState:
    """The state that differs in another process."""

    route = "left"
    gate = asyncio.Event()
    entered: asyncio.Event
    calls: list[str]


def enter_process(route: str) -> None:
    """Reset the world, as a new process does."""
    OutsideState.route, OutsideState.gate, OutsideState.entered, OutsideState.calls = (
        route,
        asyncio.Event(),
        asyncio.Event(),
        [],
    )


def choose_route(state: dict[str, Any]) -> str:
    """Return a route, which differs after the restart."""
    OutsideState.calls.append("choose_route")
    return OutsideState.route


async def slow(state: dict[str, Any]) -> dict[str, Any]:
    """Stay active until the process is killed."""
    OutsideState.entered.set()
    await OutsideState.gate.wait()
    return {"left": True}


def right(state: dict[str, Any]) -> dict[str, Any]:
    """Run the route that was not taken."""
    return {"right": True}


@dataclass(frozen=True)
class Parcel:
    """A value between two steps."""

    content: bytes
    stamps: tuple[int, ...]


def pack(text: str) -> Parcel:
    """Return a parcel."""
    return Parcel(text.encode(), (1, 2))


@agent(name="opened")
async def open_slowly(parcel: Parcel) -> str:
    """Stay active with the parcel until the process is killed."""
    OutsideState.entered.set()
    await OutsideState.gate.wait()
    assert type(parcel) is Parcel
    return f"{parcel.content.decode()} {parcel.stamps}"


async def kill_runtime(runtime: AgentRuntime, store: SqliteStore) -> None:
    """Stop the runtime so that nothing later is recorded."""
    for tree in runtime.trees.values():
        await tree.recorder.durable()  # type: ignore[misc]  # it has a journal
    await store.close()
    await runtime.stop()


async def test_resume_does_not_ask_for_a_taken_route_again(tmp_path: pathlib.Path) -> None:
    """The route would differ now; the active node continues all the same."""
    graph = StateGraph().add_node("left", slow).add_node("right", right)
    graph.set_conditional_entry_point(choose_route, ["left", "right"]).add_edge("left", END)
    enter_process("left")
    store = SqliteStore(tmp_path / "journal.db")
    runtime = AgentRuntime(store=store, grace_s=0.1)
    await runtime.spawn(graph.compile(), args=({"n": 1},))
    await OutsideState.entered.wait()
    await kill_runtime(runtime, store)

    enter_process("right")
    OutsideState.gate.set()
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        [handle] = await runtime.resume()
        result = await handle.result()

    assert (result.status, result.value, OutsideState.calls) == (Status.COMPLETED, {"n": 1, "left": True}, [])


async def test_objects_between_steps_keep_their_types_over_a_restart(tmp_path: pathlib.Path) -> None:
    """A dataclass with bytes and a tuple is the value of an ended step and the argument of the next ones."""
    line = chain(pack, parallel(open_slowly, open_slowly))
    enter_process("")
    store = SqliteStore(tmp_path / "journal.db")
    runtime = AgentRuntime(store=store, grace_s=0.1)
    await runtime.spawn(line, args=("tea",))
    await OutsideState.entered.wait()
    await kill_runtime(runtime, store)

    enter_process("")
    OutsideState.gate.set()
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        [handle] = await runtime.resume()
        result = await handle.result()

    assert (result.status, result.value) == (Status.COMPLETED, ["tea (1, 2)"] * 2)
