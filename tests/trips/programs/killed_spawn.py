"""A kernel that spawns one function and dies at a moment: `killed_spawn.py FOLDER MOMENT [DSN SCHEMA]`.

MOMENT is `early`: before the tree's document is written, with every earlier event durable; `between`: once the
document is written, and no event behind it; `together`: once the call that writes it returns, mostly with the events
behind it; `born`: once the spawn is recorded.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
from typing import Any

from ramet import AgentRuntime
from ramet.host.journal.journal import TREES
from ramet.store.contract import Document, Entry, Store
from tests.chaos.deadly import die


def work(folder: str) -> str:
    """Append a character to a file, as an effect that can be counted."""
    with (pathlib.Path(folder) / "effects").open("a") as file:
        file.write("x")
    return "worked"


def make_deadly(store: Store, moment: str) -> None:
    """Let the store kill the process at that moment."""
    append, put, newest = store.append, store.put, 0

    def noting_append(entry: Entry) -> int:
        nonlocal newest
        newest = (
            newest + 1 if moment == "between" else append(entry)
        )  # Its commit would come after that of the document.
        return newest

    async def deadly_put(kind: str, key: str, data: bytes, **more: Any) -> Document:
        if kind != TREES:
            return await put(kind, key, data, **more)
        if moment == "early":
            await store.durable(newest)
            die()
        result = await put(kind, key, data, **more)
        if moment in ("between", "together"):
            die()
        return result

    async def deadly_durable(ticket: int) -> None:
        await durable(ticket)
        if ticket and moment == "born":
            die()

    durable = store.durable
    store.append, store.put = noting_append, deadly_put  # type: ignore[method-assign]
    if moment == "born":
        store.durable = deadly_durable  # type: ignore[method-assign]


def store_of(folder: pathlib.Path, server: list[str]) -> Store:
    """Return the store of the folder, or one on a server."""
    if server:
        from ramet.store.postgres import PostgresStore

        return PostgresStore(server[0], schema=server[1])
    from ramet.store.sqlite.store import SqliteStore

    return SqliteStore(folder / ".ramet" / "journal.db")


async def main(folder: pathlib.Path, moment: str, server: list[str]) -> None:
    """Spawn the function, until killed."""
    (folder / ".ramet").mkdir(exist_ok=True)
    store = store_of(folder, server)
    make_deadly(store, moment)
    async with AgentRuntime(folder, store=store) as runtime:
        handle = await runtime.spawn(work, args=(str(folder),))
        await handle.result()


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
