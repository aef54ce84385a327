"""A composition whose process is killed: `composition.py FOLDER SHAPE EVENTS BACKEND [DSN SCHEMA]`.

The process begins the composition, or resumes it, and kills itself once so many events of this process are recorded;
0 is never. A negative number kills it after so many ends of turns, when a function has returned and no result is
recorded. Each step appends a line at its start and at its end; the process prints the result at the end.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from ramet import END, Agent, AgentRuntime, Policy, ScriptedModel, StateGraph, chain, parallel
from ramet.spawn.handle import Handle
from ramet.store.contract import Entry, Store
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore


class Dying:
    """Kills its process once so many events are recorded, like a power cut."""

    remaining = 0
    newest = 0
    dying: asyncio.Task[None] | None = None

    def is_over(self, entry: Entry) -> bool:
        """Return whether the store accepts no more events."""
        if self.remaining < 0:
            self.remaining += entry.type == "turn_ended"
            return self.dying is not None
        self.remaining -= 1
        return self.remaining == -1 or self.dying is not None


class DyingSqlite(Dying, SqliteStore):
    """A dying store on SQLite."""

    def append(self, entry: Entry) -> int:
        """Append an event until the limit."""
        if self.is_over(entry):
            self.dying = self.dying or asyncio.get_running_loop().create_task(self._die())
            return self.newest
        self.newest = super().append(entry)
        return self.newest

    async def durable(self, ticket: int) -> None:
        """Wait for durability, or for the kill."""
        if self.dying is not None:
            await self.dying
        await super().durable(ticket)

    async def _die(self) -> None:
        if self.newest:
            await super().durable(self.newest)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingPostgres(Dying, PostgresStore):
    """A dying store on PostgreSQL."""

    def append(self, entry: Entry) -> int:
        """Append an event until the limit."""
        if self.is_over(entry):
            self.dying = self.dying or asyncio.get_running_loop().create_task(self._die())
            return self.newest
        self.newest = super().append(entry)
        return self.newest

    async def durable(self, ticket: int) -> None:
        """Wait for durability, or for the kill."""
        if self.dying is not None:
            await self.dying
        await super().durable(ticket)

    async def _die(self) -> None:
        if self.newest:
            await super().durable(self.newest)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Count:
    """A value between two steps."""

    of: str
    number: int


def leave(folder: str, word: str) -> None:
    """Append a line that survives a kill."""
    with (pathlib.Path(folder) / "effects").open("a") as file:
        file.write(word + "\n")


async def first(folder: str) -> Count:
    """Return an object, as the first step."""
    leave(folder, "begin first")
    await asyncio.sleep(0)
    leave(folder, "end first")
    return Count(folder, 1)


def left(count: Count) -> dict[str, Any]:
    """Return one of two branches, in a thread."""
    leave(count.of, "begin left")
    leave(count.of, "end left")
    return {"folder": count.of, "n": count.number + 1}


async def right(count: Count) -> dict[str, Any]:
    """Return the other branch."""
    leave(count.of, "begin right")
    leave(count.of, "end right")
    return {"folder": count.of, "n": count.number + 2}


def together(both: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the branches."""
    folder = str(both[0]["folder"])
    leave(folder, "begin together")
    leave(folder, "end together")
    return {"folder": folder, "n": sum(each["n"] for each in both)}


def more(state: dict[str, Any]) -> dict[str, Any]:
    """Count up, as a node of a loop."""
    leave(state["folder"], f"begin more {state['n']}")
    leave(state["folder"], f"end more {state['n']}")
    return {"n": state["n"] + 1}


def next_node(state: dict[str, Any]) -> str:
    """Return the next node: again until the number is 7."""
    return "more" if state["n"] < 7 else "write"


def last(state: dict[str, Any]) -> list[Any]:
    """Return the result, as the last step."""
    leave(state["folder"], "begin last")
    leave(state["folder"], "end last")
    return [state["n"], state["write"]]


def writer() -> Agent:
    """Return a model agent among the functions."""
    return Agent(name="writer", model=ScriptedModel(["it is written"]))


def composition(shape: str, backend: str) -> Agent:
    """Return a chain with branches and a graph, or a chain of functions in sandboxes."""
    if shape == "sandboxed":
        return chain(boxed, boxed, boxed).with_policy(Policy(timeout_seconds=60))
    graph = (
        StateGraph()
        .add_node(more)
        .add_node("write", writer(), input="n")
        .set_entry_point("more")
        .add_conditional_edges("more", next_node, ["more", "write"])
        .add_edge("write", END)
        .compile()
    )
    return chain(first, parallel(left, right), together, graph, last)


def boxed(value: list[int]) -> list[int]:
    """Append the length, as a step in a sandbox."""
    return [*value, len(value)]


def store_of(folder: pathlib.Path, events: int, dsn: list[str]) -> Store:
    """Return the store of the process."""
    store = DyingPostgres(dsn[0], schema=dsn[1]) if dsn else DyingSqlite(folder / "journal.db")
    store.remaining = events or 1_000_000
    return store


async def run_composition(folder: pathlib.Path, shape: str, events: int, backend: str, dsn: list[str]) -> None:
    """Begin or resume the composition, until its end or the kill."""
    store = store_of(folder, events, dsn)
    async with AgentRuntime(folder, store=store, backend="local" if backend == "local" else None) as runtime:
        handles: list[Handle] = await runtime.resume(llm=ScriptedModel(["it is written"]))
        if not handles:
            args: tuple[Any, ...] = ([1],) if shape == "sandboxed" else (str(folder),)
            handles = [await runtime.spawn(composition(shape, backend), args=args)]
        result = await handles[0].result()
        report = {
            "status": result.status,
            "value": result.value,
            "error": result.error,
            "agents": result.usage_subtree.agents,
        }
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


if __name__ == "__main__":
    asyncio.run(run_composition(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:]))
