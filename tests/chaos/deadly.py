"""Store with a fault at one write: its process dies before or after the write, or its disk is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
from typing import Any, NamedTuple, NoReturn

from ramet.isolation.contract import KILL_GRACE_S, Backend, Exit, Sandbox, SandboxSpec
from ramet.store.contract import Document, Entry, Store


class Kill(NamedTuple):
    """Moment of a fault: the n-th write of a kind. As text: `before:tool_started:2`, `after:*:17`.

    `acked` is the moment after the store's commit listener is called and before any waiter wakes.
    `full:model_asked:1` does not kill: from that write on, the disk of the log has no room left.
    """

    phase: str  #: before | acked | after | full
    kind: str  #: an event's tag, `document`, or `*` for any
    nth: int

    def __str__(self) -> str:
        return f"{self.phase}:{self.kind}:{self.nth}"

    @classmethod
    def parse(cls, text: str) -> Kill | None:
        """Return the moment that a text names, or None for an empty text."""
        if not text:
            return None
        phase, kind, nth = text.split(":")
        return cls(phase, kind, int(nth))


def make_deadly(store: Store, kill: Kill | None, log: pathlib.Path) -> None:
    """Make a store kill its process at that moment, after a line in `log`."""
    if kill is None:
        return
    append, put = store.append, store.put
    seen, dying = 0, []

    def strikes(kind: str, whose: str) -> bool:
        nonlocal seen
        seen += kill.kind in ("*", kind)
        if seen != kill.nth or kill.kind not in ("*", kind):
            return False
        with log.open("a") as file:
            file.write(f"{kill} {kind} {whose}\n")
        if kill.phase == "before":
            die()
        if kill.phase == "full":
            fill(log.parent / "disk")
        return kill.phase in ("after", "acked")

    def die_when_acked(ticket: int) -> None:
        def on_commit(committed: int) -> None:
            if committed >= ticket:
                stop_hearing()
                die()

        stop_hearing = store.on_commit(on_commit)

    async def die_after(ticket: int) -> None:
        await store.durable(ticket)
        die()

    def deadly_append(entry: Entry) -> int:
        strikes_now = strikes(entry.type, entry.run)
        ticket = append(entry)
        if strikes_now and kill.phase == "acked":
            die_when_acked(ticket)
        elif strikes_now:
            dying.append(asyncio.get_running_loop().create_task(die_after(ticket)))
        return ticket

    async def deadly_put(kind: str, key: str, data: bytes, **more: Any) -> Document:
        strikes_now = strikes("document", kind)
        written = await put(kind, key, data, **more)
        if strikes_now:
            die()
        return written

    store.append, store.put = deadly_append, deadly_put  # type: ignore[method-assign]


def make_deadly_by_kill(backend: Backend, mark: pathlib.Path) -> None:
    """Make this process die, and remove a mark, as soon as a sandbox of a backend has been killed."""
    start = backend.start

    async def deadly_start(spec: SandboxSpec) -> Sandbox:
        sandbox = await start(spec)
        kill = sandbox.kill

        async def deadly_kill(grace_s: float = KILL_GRACE_S) -> Exit:
            await kill(grace_s)
            mark.unlink()  # noqa: ASYNC240 - nothing goes on after this
            die()

        sandbox.kill = deadly_kill  # type: ignore[method-assign]
        return sandbox

    backend.start = deadly_start  # type: ignore[method-assign]


def fill(disk: pathlib.Path) -> None:
    """Fill this disk: no file can grow there until `ballast` is removed."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"\0" * 4096)


def die() -> NoReturn:
    """End this process by SIGKILL, as suddenly as a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it was killed")
