"""Several kernels as processes on one PostgreSQL, killed or stopped: each tree continues in exactly one of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest

from ramet.core.replay.replay import TreeReplay
from ramet.host.journal.journal import TREES
from ramet.store.postgres import PostgresStore
from tests.chaos.checks import check, check_notices, effects, lines, read_events
from tests.chaos.deadly import Kill
from tests.chaos.functions import FOUND
from tests.chaos.kernels import ROOT, inheriting_orphans
from tests.chaos.planned import NOTES
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.waiting import eventually

__all__ = ["postgres"]  # a fixture is used by its name

pytestmark = pytest.mark.slow


class Several:
    """Kernels on one schema, each a process that reports its acts."""

    def __init__(self, folder: pathlib.Path, server: Server) -> None:
        self.folder, self.dsn, self.schema = folder, server.dsn, fresh_schema()
        self.output_lines: dict[str, list[dict[str, Any]]] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._hearing: list[asyncio.Task[None]] = []

    async def start(
        self, name: str, *, trees: int = 0, skew_h: float = 0, kill: Kill | None = None, fate: str = "kill"
    ) -> None:
        """Start a kernel, and wait until it is ready to take over trees."""
        with (self.folder / "stderr").open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.several", name, str(self.folder), self.dsn, self.schema),
                *(str(trees), str(skew_h), fate, str(kill or "")),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        self._processes[name], self.output_lines[name] = process, []
        self._hearing.append(asyncio.ensure_future(self._hear(name, process)))
        await eventually(lambda: self.output_lines[name] or process.returncode is not None)

    def all(self, name: str, key: str) -> list[str]:
        """Return the values of one key in a kernel's reports."""
        return [line[key] for line in self.output_lines[name] if key in line]

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a kernel."""
        os.kill(self._processes[name].pid, number)

    def is_stopped(self, name: str) -> bool:
        """Return whether a kernel is stopped by a signal."""
        stat = pathlib.Path(f"/proc/{self._processes[name].pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    async def end(self, name: str) -> int:
        """End a kernel by closing its stdin, and return its exit code."""
        process = self._processes.pop(name)
        assert process.stdin is not None
        process.stdin.close()
        return await asyncio.wait_for(process.wait(), 180)

    async def died(self, name: str) -> int:
        """Wait until a kernel has ended by itself, and return its exit code."""
        return await asyncio.wait_for(self._processes[name].wait(), 180)

    async def over(self, roots: int) -> dict[str, dict[str, Any]]:
        """Wait until so many trees exist and all are over, and return the document of each."""
        reader = await PostgresStore(self.dsn, schema=self.schema, read_only=True).open()
        try:
            async with asyncio.timeout(180):
                while True:
                    about = {each.key: msgspec.json.decode(each.data) for each in await reader.list(TREES)}
                    if len(about) == roots and all(each.get("over") for each in about.values()):
                        return about
                    await asyncio.sleep(0.02)
        except TimeoutError:
            words = (self.folder / "stderr").read_text()[-3000:]
            pytest.fail(f"not over: {about}\n{self.output_lines}\n{words}")
        finally:
            await reader.close()

    async def close(self) -> None:
        """End all kernels, and drop their schema."""
        for name, process in list(self._processes.items()):
            with contextlib.suppress(ProcessLookupError):
                self.signal(name, signal.SIGCONT)
                process.kill()
            await process.wait()
        await asyncio.gather(*self._hearing)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')

    async def _hear(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.output_lines[name].append(json.loads(line))


@pytest.fixture
async def several(tmp_path: pathlib.Path, postgres: Server) -> AsyncIterator[Several]:
    """Kernels that a test starts; none at first."""
    with inheriting_orphans() as orphans:
        kernels = Several(tmp_path, postgres)
        try:
            yield kernels
        finally:
            await kernels.close()
            await orphans.wait_ended()


def _check_tree(tree_events: list[Any], folder: pathlib.Path) -> TreeReplay:
    """Return the replay of a completed tree without gaps, without acts after an end, and with budgets that add up."""
    story = check(folder, {tree_events[0].root: tree_events}, [])
    check_notices(story)
    result = story.root.result
    assert result is not None
    assert str(result.status) == "completed", f"{result.status}: {result.error}"
    return story


async def test_each_tree_of_a_killed_kernel_is_taken_over_by_one_other(several: Several) -> None:
    """Two kernels take over the trees of one that dies by SIGKILL, each tree once.

    No effect is repeated, and budgets add up.

    The clocks differ by an hour from each other: no decision about another kernel reads a clock.
    """
    await several.start("two", skew_h=1)
    await several.start("three", skew_h=-1)
    await several.start("one", trees=4, kill=Kill("after", "tool_started", 10))

    assert await several.died("one") == -signal.SIGKILL
    roots = set(several.all("one", "began"))
    await several.over(len(roots))
    assert [await several.end(name) for name in ("two", "three")] == [0, 0]

    adopted = Counter(several.all("two", "adopted") + several.all("three", "adopted"))
    left = roots - set(several.all("one", "ended"))
    assert left, "it was killed when all was over"
    assert adopted == dict.fromkeys(adopted, 1), "each by one"
    assert set(adopted) <= left
    empty = several.folder / "empty"
    stories = {
        root: _check_tree(tree_events, empty)
        for root, tree_events in (await read_events(several.folder, _server(several))).items()
    }
    assert stories.keys() == roots
    models = [story for story in stories.values() if story.root.spawn_event.agent == "lead"]
    found = [story.root.result and story.root.result.value for story in stories.values() if story not in models]
    assert found == [FOUND] * len(found)
    done = effects(several.folder)
    assert {effect: len(steps) for effect, steps in done.items()} == dict.fromkeys(NOTES, len(models))


@pytest.mark.parametrize("moment", ["before", "acked"])
async def test_a_stopped_kernel_that_lost_its_trees_does_nothing_in_them(several: Several, moment: str) -> None:
    """A kernel that wakes after its trees were taken over records nothing in them, and ends its own runs of them.

    No tool call begins in it, not even one whose intent was recorded before SIGSTOP.
    """
    await several.start("one", trees=2, kill=Kill(moment, "tool_started", 5), fate="stop")
    await eventually(lambda: several.is_stopped("one"))
    roots = set(several.all("one", "began"))
    await several.start("two")
    with psycopg.connect(several.dsn, autocommit=True) as connection:
        query = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name LIKE %s"
        connection.execute(query, ["ramet one pid%"])
    await several.over(2)
    before = lines(several.folder / "effects")
    several.signal("one", signal.SIGCONT)

    await eventually(lambda: set(several.all("one", "ended")) == roots)
    assert await several.end("one") == 0
    assert await several.end("two") == 0
    assert set(several.all("two", "adopted")) == roots
    assert lines(several.folder / "effects") == before
    empty = several.folder / "empty"
    for tree_events in (await read_events(several.folder, _server(several))).values():
        _check_tree(tree_events, empty)


def _server(several: Several) -> tuple[str, str]:
    return several.dsn, several.schema
