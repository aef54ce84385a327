"""Tests of a killed process that commits forever: every acknowledged commit is there, and whole."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from ramet.store.sqlite.store import SqliteStore
from ramet.store.state.gc import reachable
from ramet.store.state.versioned import Versioned

_PROGRAM = """
import asyncio, sys
from ramet.store.sqlite.store import SqliteStore
from ramet.store.state.versioned import Versioned

async def main():
    store = await SqliteStore(sys.argv[1]).open()
    state = await Versioned.open(store, "notes")
    step = state.get("step", 0)
    while True:
        step += 1
        state.set("step", step)
        for number in range(20):
            state.set(f"{step % 7}/{number}", {"step": step, "text": "x" * (number * 40)})
        await state.commit()
        if step % 5 == 0:
            child = await state.fork(f"child-{step}")
            child.set("child", step)
            await state.merge(await child.commit(), resolve=lambda key, base, ours, theirs: ours)
        print(step, flush=True)

asyncio.run(main())
"""


async def test_a_commit_survives_a_kill_whole(tmp_path: Path) -> None:
    """AC-S4-10: branches survive, too; a step is there with all of its keys or not at all."""
    path = tmp_path / "journal.db"
    for kill_after in (3, 12, 7):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PROGRAM, str(path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        steps = [int(await asyncio.wait_for(process.stdout.readline(), 180)) for _ in range(kill_after)]
        process.send_signal(signal.SIGKILL)
        steps += [int(line) for line in (await process.stdout.read()).split(b"\n")[:-1]]
        await process.wait()

        store = await SqliteStore(path).open()
        try:
            state = await Versioned.open(store, "notes")
            step = state.get("step")
            assert step in (steps[-1], steps[-1] + 1)
            assert {state.get(f"{step % 7}/{number}")["step"] for number in range(20)} == {step}
            assert {*await store.list_blobs()} >= await reachable(store)
            for branch in await state.branches():
                each = await Versioned.open(store, "notes", branch)
                assert [each.get(key) is not None for key in each.keys()].count(False) == 0
        finally:
            await store.close()
