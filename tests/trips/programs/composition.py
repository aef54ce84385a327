"""A composition whose process is killed: `composition.py FOLDER SHAPE EVENTS BACKEND [DSN SCHEMA]`.

Begins it, or goes on with it, and kills itself when so many events of this process are on record; 0 is never. Each
step leaves a line when it begins and one when it has ended; at the end the result is printed. A negative number kills
it behind so many ends of turns, when a function has returned and nothing says what.
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
    """Ends its process like a power cut when so many events are on record."""

    left = 0
    newest = 0
    dying: asyncio.Task[None] | None = None

    def is_over(self, entry: Entry) -> bool:
        """Whether nothing more is taken in."""
        if self.left < 0:
            self.left += entry.type == "turn_ended"
            return self.dying is not None
        self.left -= 1
        return self.left == -1 or self.dying is not None


class DyingSqlite(Dying, SqliteStore):
    """On SQLite."""

    def append(self, entry: Entry) -> int:
        """Take in as much as there is to be."""
        if self.is_over(entry):
            self.dying = self.dying or asyncio.get_running_loop().create_task(self._die())
            return self.newest
        self.newest = super().append(entry)
        return self.newest

    async def durable(self, ticket: int) -> None:
        """Once it dies nobody gets any further."""
        if self.dying is not None:
            await self.dying
        await super().durable(ticket)

    async def _die(self) -> None:
        if self.newest:
            await super().durable(self.newest)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingPostgres(Dying, PostgresStore):
    """On PostgreSQL."""

    def append(self, entry: Entry) -> int:
        """Take in as much as there is to be."""
        if self.is_over(entry):
            self.dying = self.dying or asyncio.get_running_loop().create_task(self._die())
            return self.newest
        self.newest = super().append(entry)
        return self.newest

    async def durable(self, ticket: int) -> None:
        """Once it dies nobody gets any further."""
        if self.dying is not None:
            await self.dying
        await super().durable(ticket)

    async def _die(self) -> None:
        if self.newest:
            await super().durable(self.newest)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Count:
    """What passes between two steps, as an object."""

    of: str
    number: int


def leave(folder: str, word: str) -> None:
    """Leave a line that a kill does not take away."""
    with (pathlib.Path(folder) / "effects").open("a") as file:
        file.write(word + "\n")


async def first(folder: str) -> Count:
    """The first step: makes an object."""
    leave(folder, "begin first")
    await asyncio.sleep(0)
    leave(folder, "end first")
    return Count(folder, 1)


def left(count: Count) -> dict[str, Any]:
    """One of two branches, in a thread."""
    leave(count.of, "begin left")
    leave(count.of, "end left")
    return {"folder": count.of, "n": count.number + 1}


async def right(count: Count) -> dict[str, Any]:
    """The other."""
    leave(count.of, "begin right")
    leave(count.of, "end right")
    return {"folder": count.of, "n": count.number + 2}


def together(both: list[dict[str, Any]]) -> dict[str, Any]:
    """Gathers the branches."""
    folder = str(both[0]["folder"])
    leave(folder, "begin together")
    leave(folder, "end together")
    return {"folder": folder, "n": sum(each["n"] for each in both)}


def more(state: dict[str, Any]) -> dict[str, Any]:
    """A node that is come back to."""
    leave(state["folder"], f"begin more {state['n']}")
    leave(state["folder"], f"end more {state['n']}")
    return {"n": state["n"] + 1}


def way(state: dict[str, Any]) -> str:
    """Around again until it is enough."""
    return "more" if state["n"] < 7 else "write"


def last(state: dict[str, Any]) -> list[Any]:
    """The last step."""
    leave(state["folder"], "begin last")
    leave(state["folder"], "end last")
    return [state["n"], state["write"]]


def writer() -> Agent:
    """A model among the functions."""
    return Agent(name="writer", model=ScriptedModel(["it is written"]))


def composition(shape: str, backend: str) -> Agent:
    """All that there is: a chain with branches and a graph in it, or only functions in sandboxes."""
    if shape == "sandboxed":
        return chain(boxed, boxed, boxed).with_policy(Policy(timeout_seconds=60))
    graph = (
        StateGraph()
        .add_node(more)
        .add_node("write", writer(), input="n")
        .set_entry_point("more")
        .add_conditional_edges("more", way, ["more", "write"])
        .add_edge("write", END)
        .compile()
    )
    return chain(first, parallel(left, right), together, graph, last)


def boxed(value: list[int]) -> list[int]:
    """A step in a sandbox: whatever it leaves outside is nothing."""
    return [*value, len(value)]


def store_of(folder: pathlib.Path, events: int, dsn: list[str]) -> Store:
    """The store that the process has."""
    store = DyingPostgres(dsn[0], schema=dsn[1]) if dsn else DyingSqlite(folder / "journal.db")
    store.left = events or 1_000_000
    return store


async def worked(folder: pathlib.Path, shape: str, events: int, backend: str, dsn: list[str]) -> None:
    """Begin, or go on, to the end or the kill."""
    store = store_of(folder, events, dsn)
    async with AgentRuntime(folder, store=store, backend="local" if backend == "local" else None) as runtime:
        handles: list[Handle] = await runtime.resume(llm=ScriptedModel(["it is written"]))
        if not handles:
            args: tuple[Any, ...] = ([1],) if shape == "sandboxed" else (str(folder),)
            handles = [await runtime.spawn(composition(shape, backend), args=args)]
        result = await handles[0].result()
        said = {
            "status": result.status,
            "value": result.value,
            "error": result.error,
            "agents": result.usage_subtree.agents,
        }
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")


if __name__ == "__main__":
    _, where, what, count, place, *server = sys.argv
    asyncio.run(worked(pathlib.Path(where), what, int(count), place, server))
