"""`ramet gc` in a folder of many trees: it opens each transcript once, however long its first line is."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
from datetime import UTC, datetime, timedelta

import pytest

from ramet import AgentRuntime
from ramet.cli.main import main
from ramet.core import events
from ramet.core.events import Notice, RunEnded, RunSpawned
from ramet.core.outcome import Result, Status
from ramet.disk.state_folder import state_folder
from ramet.host.journal.journal import TREES
from ramet.host.retention.janitor import BATCH
from ramet.store.contract import Entry
from ramet.store.sqlite.store import SqliteStore
from tests.trips.journal.test_retention import waits_for_ever
from tests.trips.kits.terminal import ramet
from tests.unit.store.test_sqlite_space import create_older_journal

LONG_AGO = datetime.now(UTC) - timedelta(days=30)
COUNTING = """
import os, sys
from collections import Counter
opened = Counter()
def hear(event, args):
    if event == "open" and str(args[0]).endswith("main.jsonl"):
        opened[str(args[0])] += 1
from ramet.cli.main import main
sys.addaudithook(hear)
status = main(["gc", "--older-than", "0", "--dir", sys.argv[1]])
print(status, len(opened), max(opened.values()))
"""


async def create_ended_trees(folder: pathlib.Path, count: int, *, prompt: str = "do it", texts: int = 0) -> list[str]:
    """Create a journal of trees that ended long ago, each with a transcript; return the ids of their roots."""
    state = state_folder(folder)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    roots = [f"run-{number:016x}" for number in range(count)]
    store = await SqliteStore(state / "journal.db").open()
    for root in roots:
        tree_events = events_of(root, prompt, texts)
        about = {"number": root[4:], "began": LONG_AGO.isoformat(), "over": True, "ended": LONG_AGO.isoformat()}
        await store.put(TREES, root, json.dumps(about).encode(), tree=root)
        transcript = state / "transcripts" / root[4:]
        transcript.mkdir(parents=True)
        lines = [events.encode(each) for each in tree_events]
        (transcript / "main.jsonl").write_bytes(b"\n".join([*lines, b""]))
        for each, line in zip(tree_events, lines, strict=True):
            tag = str(type(each).__struct_config__.tag)
            ticket = store.append(Entry(root, root, each.seq, tag, line))
    await store.durable(ticket)
    await store.close()
    return roots


def events_of(root: str, prompt: str, texts: int) -> list[events.Event]:
    """Return the events of a run that spawned, wrote some texts of 3 KB, and ended."""
    stamp = {"root": root, "run": root, "path": "main", "agent": "worker", "depth": 0, "parent": None, "at": LONG_AGO}
    return [
        RunSpawned(**stamp, seq=1, name="main", prompt=prompt, description="", mode="root", model=""),  # type: ignore[arg-type]  # as above
        *(Notice(**stamp, seq=2 + number, text="x" * 3_000) for number in range(texts)),  # type: ignore[arg-type]  # as above
        RunEnded(**stamp, seq=2 + texts, result=Result(status=Status.COMPLETED, value="done")),  # type: ignore[arg-type]  # as above
    ]


async def collect_and_count(folder: pathlib.Path) -> str:
    """Return the output of `COUNTING`: the status, the number of opened transcripts, and the most opens of one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COUNTING, str(folder), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().splitlines()[-1]


def remaining_transcripts(folder: pathlib.Path) -> list[str]:
    """Return the names of the transcripts that exist."""
    return sorted(each.name for each in (state_folder(folder) / "transcripts").iterdir() if each.is_dir())


async def test_each_transcript_is_opened_once_for_all_trees(tmp_path: pathlib.Path) -> None:
    """Gc does not open it for each tree: a folder of 6,200 had taken hours."""
    await create_ended_trees(tmp_path, 40)

    assert await collect_and_count(tmp_path) == "0 40 1"
    assert remaining_transcripts(tmp_path) == []


@pytest.mark.parametrize("kind", ["new", "older"])
async def test_gc_shrinks_the_journal_file(
    tmp_path: pathlib.Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gc also shrinks the file of an older version, which does not shrink by itself."""
    journal = state_folder(tmp_path) / "journal.db"
    if kind == "older":
        journal.parent.mkdir(mode=0o700, parents=True)
        create_older_journal(journal)
    await create_ended_trees(tmp_path, 60, texts=20)
    assert journal.stat().st_size > 3 << 20

    status = await asyncio.to_thread(main, ["gc", "--older-than", "0", "--dir", str(tmp_path)])

    assert status == 0
    assert "60 trees removed" in (err := capsys.readouterr().err)
    assert "the journal is" in err
    assert journal.stat().st_size < 3 << 19


async def test_a_running_kernel_removes_trees_for_gc(tmp_path: pathlib.Path) -> None:
    """The kernel removes ended trees in several batches; active trees and those of `--keep` stay."""
    roots = await create_ended_trees(tmp_path, BATCH + 20)
    async with AgentRuntime(tmp_path) as runtime:
        living = await runtime.spawn(waits_for_ever)
        await living.run.context.wait_persisted()

        result = await ramet("gc", "--older-than", "7d", "--keep", roots[3], "--json", "--dir", str(tmp_path))
        second_result = await ramet("gc", "--older-than", "0", "--keep", roots[3], "--dir", str(tmp_path))

        assert (result.status, second_result.status) == (0, 0), (result.err, second_result.err)
        assert {json.loads(each)["root"] for each in result.out.splitlines()} == {*roots} - {roots[3]}
        assert "0 trees removed" in second_result.err
        assert runtime.journal is not None
        assert {each.key for each in await runtime.journal.store.list(TREES)} == {roots[3], living.id}
        assert living.view().state == "running"
        assert roots[3][4:] in remaining_transcripts(tmp_path)
        assert len(remaining_transcripts(tmp_path)) == 2

        unknown = await ramet("gc", "--keep", "run-of-nobody", "--dir", str(tmp_path))
        assert unknown.status != 0
        assert "run-of-nobody" in unknown.err


async def test_a_transcript_with_a_long_first_line_goes_with_its_tree(tmp_path: pathlib.Path) -> None:
    """Gc removes a transcript that begins with a prompt of 3 MiB; a folder with an invalid transcript stays."""
    await create_ended_trees(tmp_path, 2, prompt="p" * (3 << 20))
    strange = state_folder(tmp_path) / "transcripts" / "strange"
    strange.mkdir()
    (strange / "main.jsonl").write_text('{"type":"run_spawned","path":"' + "x" * (1 << 20))

    assert (await collect_and_count(tmp_path)).startswith("0 ")

    assert remaining_transcripts(tmp_path) == ["strange"]
