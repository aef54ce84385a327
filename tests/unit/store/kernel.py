"""Process with a store of its own: `python -m tests.unit.store.kernel DEED PATH`. It prints what it did."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Awaitable, Callable

from ramet.core.errors import RametError, StoreFailed
from ramet.store.contract import Entry
from ramet.store.sqlite.store import SqliteStore

_LIMIT = 400_000  #: bytes of a file, for `limited`


def entry(number: int, size: int = 20) -> Entry:
    """Return the entry with this number."""
    return Entry(f"tree-{number % 3}", f"run-{number % 7}", number, "notice", b"%d " % number + b"x" * size)


def say(*words: object) -> None:
    """Print one line and flush it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def hold(path: str) -> None:
    """Keep the store open until stdin ends."""
    store = await SqliteStore(path).open()
    say("open", os.getpid())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await store.close()


async def append(path: str) -> None:
    """Append forever, several events at a time, and print the last durable one."""
    store = await SqliteStore(path).open()
    number = len(await store.read(limit=1_000_000))
    while True:
        for _ in range(number % 9 + 1):
            number += 1
            ticket = store.append(entry(number))
        store.append(entry(number + 1))  # one that nobody waits for
        number += 1
        await store.durable(ticket)
        say(number - 1)


async def fill(path: str) -> None:
    """Append until the disk is full, then check that every use raises StoreFailed and nothing hangs."""
    store = await SqliteStore(path).open()
    following = asyncio.ensure_future(_follow(store))
    number = 0
    try:
        while True:
            number += 1
            await store.durable(store.append(entry(number, 4_000)))
            say(number)
    except StoreFailed as failure:
        why = failure.why
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        "durable": lambda: store.durable(number),
        "read": store.read,
        "head": store.head,
        "wait": lambda: store.wait(10_000),
        "put": lambda: store.put("kind", "key", b""),
        "get": lambda: store.get("kind", "key"),
        "follow": lambda: following,
        "append": lambda: _append(store),
        "close": store.close,
    }
    async with asyncio.timeout(180):
        for name, use in uses.items():
            problem = await _problem(use)
            if problem != why:
                raise AssertionError(f"{name}: {problem}, not {why}")
        await store.close()
    say("failed:", why)


async def limited(path: str) -> None:
    """Fill the store under a limit on the size of files."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT, _LIMIT))
    await fill(path)


async def refused(path: str) -> None:
    """Open the store, and print the refusal."""
    try:
        await SqliteStore(path).open()
    except RametError as refusal:
        say(type(refusal).__name__, refusal)


async def forgetful(path: str) -> None:
    """Append, wait for durability, and end without closing."""
    store = await SqliteStore(path).open()
    await store.durable(store.append(entry(1)))
    say("done")


async def _follow(store: SqliteStore) -> None:
    while True:
        await store.wait(await store.head())


async def _problem(use: Callable[[], Awaitable[object]]) -> str | None:
    try:
        await use()
    except StoreFailed as failure:
        return failure.why
    return None


async def _append(store: SqliteStore) -> None:
    store.append(entry(1))


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](sys.argv[2]))
