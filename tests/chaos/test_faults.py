"""Faults under a tree: a sandbox, a zygote or a kernel is killed, or the disk is full.

Faults of servers have a file of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
import signal
import sys
from typing import Any

import pytest

from ramet import AgentRuntime, Policy
from ramet.core.events import RunRetried
from ramet.core.outcome import Result
from ramet.core.replay.replay import TreeReplay
from ramet.spawn.run import Run
from ramet.store.sqlite.store import SqliteStore
from tests.chaos import functions
from tests.chaos.checks import Death, check, check_notices, effects, read_events
from tests.chaos.deadly import Kill
from tests.chaos.functions import FOUND, RUNS
from tests.chaos.kernels import ROOT, descendants, inheriting_orphans, start
from tests.chaos.planned import NOTES
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, backend

__all__ = ["backend"]

pytestmark = pytest.mark.slow


class Loss:
    """Run of `functions.hold_one` that loses a process to SIGKILL while it works."""

    def __init__(self, folder: pathlib.Path, backend: BackendName, *, patient: bool, retries: int = 0) -> None:
        self._folder, self._backend, self._patient = folder, backend, patient
        self._policy = Policy(
            allow_sub_agents=True, memory_mb=512, cpu_cores=2, timeout_seconds=60, retry_count=retries,
            retry_delay_seconds=0,
        )  # fmt: skip
        self.retries: list[str] = []  #: what each attempt before the last came to

    async def play(self, *, zygote: bool) -> Result:
        """Begin, kill, and wait for the end. Checks that the journal is complete and that no process is left."""
        output: list[str] = []
        before = set(descendants(os.getpid()))
        store = SqliteStore(self._folder / "journal.db")
        async with AgentRuntime(self._folder, store=store, backend=self._backend, grace_s=1.0) as runtime:
            handle = await runtime.spawn(
                functions.hold_one,
                args=(self._patient,),
                policy=self._policy,
                on_output=lambda _, text: output.append(text),
            )
            runs = runtime.trees[handle.id].tree.register.runs

            def target() -> int:
                found: list[Run] = [run for run in runs.values() if (run.parent is not None) == self._patient]
                return (
                    found[0].sandbox.current.pid
                    if found and found[0].sandbox.current is not None and (self._patient or output)
                    else 0
                )

            await eventually(target)
            pid = target()
            os.kill(_parent_of(pid) if zygote else pid, signal.SIGKILL)
            result = await handle.result()
        assert set(descendants(os.getpid())) <= before
        [tree_events] = (await read_events(self._folder)).values()
        check(self._folder, {"": tree_events}, ())
        self.retries = [each.status for each in tree_events if isinstance(each, RunRetried)]
        return result


async def test_a_killed_child_is_reported_as_crashed(tmp_path: pathlib.Path) -> None:
    """A parent continues after its child is killed, and receives the status crashed with an exit code other than 0."""
    result = await Loss(tmp_path, "local", patient=True).play(zygote=False)

    assert result.status == "completed"
    assert result.value["status"] == "crashed"
    assert result.value["exit_code"] != 0


async def test_a_killed_run_ends_as_crashed(tmp_path: pathlib.Path) -> None:
    """A killed run without retries ends as crashed."""
    result = await Loss(tmp_path, "local", patient=False).play(zygote=False)

    assert (result.status, result.value) == ("crashed", None)


async def test_a_killed_run_is_retried_as_its_policy_says(tmp_path: pathlib.Path) -> None:
    """The next attempt finds the checkpoint of the killed attempt."""
    loss = Loss(tmp_path, "local", patient=False, retries=1)

    result = await loss.play(zygote=False)

    assert (result.status, result.value) == ("completed", {"attempt": "again"})
    assert loss.retries == ["crashed"]


async def test_a_killed_zygote_ends_its_runs(backend: BackendName, tmp_path: pathlib.Path) -> None:
    """A run whose zygote is killed ends as lost or crashed, parent or child, and is never reported as completed."""
    result = await Loss(tmp_path, backend, patient=True).play(zygote=True)

    assert (result.status if result.value is None else result.value["status"]) in ("lost", "crashed")


async def test_a_run_of_a_killed_zygote_is_retried_in_a_new_one(tmp_path: pathlib.Path) -> None:
    """The next attempt has a sandbox of a new zygote."""
    loss = Loss(tmp_path, "local", patient=False, retries=1)

    result = await loss.play(zygote=True)

    assert (result.status, result.value) == ("completed", {"attempt": "again"})
    assert loss.retries[0] in ("lost", "crashed")


async def test_resume_never_confuses_a_child_with_one_that_is_skipped(tmp_path: pathlib.Path) -> None:
    """A function whose kernel dies in the second region skips the first region.

    It receives the second region's own child.
    """
    with inheriting_orphans() as orphans:
        kernel = await start("local", tmp_path, Kill("after", "sandbox_started", 5))
        assert await kernel.end() == -signal.SIGKILL
        await orphans.wait_ended()
        kernel = await start("local", tmp_path)
        assert await kernel.end() == 0, kernel.words
        await orphans.wait_ended()

    story = check(tmp_path, await read_events(tmp_path), ())
    assert story.root.result is not None
    assert story.root.result.value == FOUND
    assert len(story.runs) == RUNS


async def test_a_model_request_interrupted_by_a_kill_stays_counted(tmp_path: pathlib.Path) -> None:
    """A model request that was under way at a kill stays counted: kills extend no budget."""
    with inheriting_orphans() as orphans:
        for kill in (Kill("after", "model_asked", 1), Kill("after", "model_asked", 1), None):
            kernel = await start("models", tmp_path, kill)
            assert await kernel.end() == (-signal.SIGKILL if kill else 0), kernel.words
            await orphans.wait_ended()

    check(tmp_path, await read_events(tmp_path), ())
    spent = json.loads((tmp_path / "ended").read_text())["spent"]
    assert spent["model_calls"] == 16


async def test_messages_sent_before_and_after_a_kill_arrive_once_each(tmp_path: pathlib.Path) -> None:
    """A message sent before a kernel died and one sent after resume both arrive, each once."""
    with inheriting_orphans() as orphans:
        for kill in (Kill("after", "mail_pushed", 1), None):
            kernel = await start("letters", tmp_path, kill)
            assert await kernel.end() == (-signal.SIGKILL if kill else 0), kernel.words
            await orphans.wait_ended()

    [tree_events] = (await read_events(tmp_path)).values()
    reader = next(run for run in TreeReplay().apply_all(tree_events).runs.values() if run.spawn_event.name == "reader")
    messages = [str(each["content"]) for each in reader.messages if each["type"] == "human"]
    assert [sum(word in each for each in messages) for word in ("first", "second")] == [1, 1], messages


ON_A_SMALL_DISK = """
set -eu
folder=$1 moment=$2; shift 2
mkdir "$folder/disk"
mount -t tmpfs -o size=4m none "$folder/disk"
"$@" "$moment" || echo "life ended with $?" >> "$folder/lives"
cp "$folder/ended" "$folder/ended-when-full"
mkdir "$folder/when-full"
cp "$folder"/disk/journal.db* "$folder/when-full/"
rm "$folder/disk/ballast"
"$@" ""
cp "$folder"/disk/journal.db* "$folder/"
"""


@pytest.mark.parametrize("moment", ["full:model_asked:2", pytest.param("full:tool_started:4", marks=pytest.mark.chaos)])
async def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path: pathlib.Path, moment: str) -> None:
    """A run on a full disk fails with StoreFailed and keeps every event that was shown.

    Another process ends the tree once there is room.
    """
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a small disk of one's own takes root and unshare")
    program = [sys.executable, "-m", "tests.chaos.program", "models", str(tmp_path)]
    shell = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", str(tmp_path), moment, *program]
    with (tmp_path / "words").open("wb") as words:
        process = await asyncio.create_subprocess_exec(*shell, cwd=ROOT, stdout=words, stderr=words)
        code = await asyncio.wait_for(process.wait(), 180)
    assert code == 0, (tmp_path / "words").read_text()[-3000:]

    assert (tmp_path / "lives").read_text() == "life ended with 1\n", "leaving the runtime raises"
    assert "\nramet.core.errors.StoreFailed: " in (tmp_path / "words").read_text()
    full: dict[str, Any] = json.loads((tmp_path / "ended-when-full").read_text())
    assert full["status"] == "failed"
    assert full["error"].startswith("StoreFailed") or "StoreFailed" in full["error"]
    numbers = {each.seq for tree_events in (await read_events(tmp_path / "when-full")).values() for each in tree_events}
    assert set(full["shown"]) <= numbers

    story = check(tmp_path, await read_events(tmp_path), [Death()])
    check_notices(story)
    assert story.root.result is not None
    assert story.root.result.value == "the lead has heard of c"
    assert sorted(effects(tmp_path)) == NOTES


def _parent_of(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
