"""Agents in sandboxes outlive their killed kernel: the next kernel adopts them, and repeats nothing."""

from __future__ import annotations

import json
import os
import pathlib
import signal
from collections import Counter

import pytest

from ramet.agent.history.pairing import groups
from ramet.core.events import (
    Event,
    MailDelivered,
    MessageRecorded,
    ModelAsked,
    MonitorEnded,
    MonitorStarted,
    RunEnded,
    RunSpawned,
    SandboxStarted,
)
from ramet.core.replay.run_replay import RunReplay
from ramet.models.messages import decode
from tests.chaos.checks import check, check_notices, death_of, not_started, read_events
from tests.chaos.deadly import Kill
from tests.chaos.functions import FOUND, RUNS
from tests.chaos.kernels import inheriting_orphans, start
from tests.chaos.monitored import ANSWERED, COUNT
from tests.chaos.program import bearing
from tests.chaos.talking import CALLS, CONVERSED, NOTED
from tests.support.halved import halved

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine"),
]

MOMENTS = (
    "after:sandbox_started:1",
    "before:run_spawned:2",
    "after:run_spawned:3",
    "before:run_ended:1",
    "after:run_ended:2",
    "after:sandbox_started:5",
    "before:run_ended:7",
)


@pytest.mark.parametrize("moment", halved(MOMENTS))
async def test_the_next_kernel_adopts_active_sandboxes_and_repeats_no_run(moment: str, tmp_path: pathlib.Path) -> None:
    """The next kernel adopts each active sandbox and spawns each run once, wherever the first kernel was killed."""
    with inheriting_orphans():
        kernel = await start("outliving", tmp_path, Kill.parse(moment))
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        before = _events(await read_events(tmp_path))
        kernel = await start("outliving", tmp_path)
        assert await kernel.end() == 0, kernel.words

    after = _events(await read_events(tmp_path))
    assert json.loads((tmp_path / "ended").read_text())["status"] == "completed"
    ends = {each.run: each.result for each in after if isinstance(each, RunEnded)}
    births = [each for each in after if isinstance(each, RunSpawned)]
    assert len(births) == len(ends) == RUNS, [each.path for each in births]
    assert ends[births[0].run].value == FOUND
    begun = Counter(each.run for each in after if isinstance(each, SandboxStarted) and not each.adopted)
    at_work = {each.run for each in before if isinstance(each, SandboxStarted)} - not_started(after)
    assert all(begun[run] == 1 for run in at_work), "it was called again"
    adopted = {each.run for each in after if isinstance(each, SandboxStarted) and each.adopted}
    assert adopted == at_work - {each.run for each in before if isinstance(each, RunEnded)}


TALKS = (
    "after:model_asked:2",
    "after:run_spawned:3",
    "after:tool_ended:3",
    "before:message_recorded:12",
    "after:message_recorded:2",
    "after:message_recorded:5",
    "before:turn_ended:4",
    "before:mail_delivered:1",
)


@pytest.mark.parametrize("moment", halved(TALKS))
async def test_an_adopted_conversation_continues_in_its_process(moment: str, tmp_path: pathlib.Path) -> None:
    """An adopted conversation continues in its process.

    No recorded question is asked again, and no event is recorded twice.
    """
    with inheriting_orphans():
        kernel = await start("talking", tmp_path, Kill.parse(moment))
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        before = await read_events(tmp_path)
        deaths = [death_of(tmp_path, before)]
        kernel = await start("talking", tmp_path)
        assert await kernel.end() == 0, kernel.words

    trees = await read_events(tmp_path)
    story = check(tmp_path, trees, deaths)
    check_notices(story)
    assert story.root.result is not None
    assert story.root.result.value == "the lead has heard of c", story.root.result
    after = _events(trees)
    texts = [str(each.message["content"]) for each in after if isinstance(each, MessageRecorded) and _is_note(each)]
    assert sorted(texts) == NOTED, "a tool was called again, or in another process"
    numbers = Counter((each.run, each.told) for each in after if each.told and not isinstance(each, MailDelivered))
    assert set(numbers.values()) == {1}, "a record is there twice"
    at_work = {each.run for each in _events(before) if isinstance(each, ModelAsked)}  # It knew what to do, then.
    over = {each.run for each in _events(before) if isinstance(each, RunEnded)}
    adopted = {each.run for each in after if isinstance(each, SandboxStarted) and each.adopted}
    assert adopted >= at_work - over - {story.root.id}, "a conversation that was at work was begun anew"


def _is_note(event: MessageRecorded) -> bool:
    return event.message["type"] == "tool" and "noted" in str(event.message["content"])


@pytest.mark.parametrize(
    "moment",
    halved(
        [
            "after:approval_asked:1",
            "after:approval_answered:1",
            "after:tool_started:5",
            "before:compacted:1",
            "after:compacted:1",
            "after:message_recorded:13",
        ]
    ),
)
async def test_the_next_kernel_knows_denials_counts_and_compaction(moment: str, tmp_path: pathlib.Path) -> None:
    """The next kernel of a conversation knows its denials, approvals, counted calls and compaction."""
    story = await _replay_after_one_kill("talk", moment, tmp_path)
    outputs = [str(each["content"]) for each in story.messages if each["type"] == "tool"]
    assert all(text.startswith(begins) for text, begins in zip(outputs, CONVERSED[-len(outputs) :], strict=True)), (
        outputs
    )
    spent = json.loads((tmp_path / "ended").read_text())["spent"]
    assert spent["tool_calls"] == len(CONVERSED) - 1, "one was denied"


async def test_lines_of_a_monitored_command_are_told_once_over_kills(tmp_path: pathlib.Path) -> None:
    """No line is lost where a kernel dies before it answers, reads or delivers a report, and none comes twice."""
    with inheriting_orphans():
        for moment in ("acked:monitor_started:1", "after:mail_pushed:1", "before:model_asked:2"):
            kernel = await start("monitored", tmp_path, Kill.parse(moment))
            assert await kernel.end() == -signal.SIGKILL, kernel.words
        kernel = await start("monitored", tmp_path)
        assert await kernel.end() == 0, kernel.words
    trees = await read_events(tmp_path)
    story = check(tmp_path, trees, [])
    assert story.root.result is not None
    assert story.root.result.value == ANSWERED
    texts = "\n".join(str(each["content"]) for each in story.root.messages if each["type"] == "human")
    told = {number: texts.count(f"line {number}\n") for number in range(1, COUNT + 1)}
    assert told == dict.fromkeys(told, 1), texts
    kinds = Counter(type(each) for each in _events(trees))
    assert (kinds[MonitorStarted], kinds[MonitorEnded], texts.count("has ended")) == (1, 1, 1)
    assert {each.adopted for each in _events(trees) if isinstance(each, SandboxStarted)} == {False, True}


@pytest.mark.parametrize("moment", ["before:tool_ended:1", "after:model_asked:2", "after:tool_started:2"])
async def test_an_adopted_run_that_crashes_is_retried(moment: str, tmp_path: pathlib.Path) -> None:
    """An adopted run that crashes is retried.

    Each call of its conversation has one answer, those cut off by the kill included.
    """
    story = await _replay_after_one_kill("crash", moment, tmp_path)
    assert not [each for each in groups([decode(each) for each in story.messages]) if each.open or each.orphans]


@pytest.mark.parametrize(
    ("trip", "moment"), [("spent", "before:turn_ended:1"), ("spent here", "after:message_recorded:12")]
)
async def test_a_run_killed_after_its_last_reply_is_budget_exhausted(
    trip: str, moment: str, tmp_path: pathlib.Path
) -> None:
    """A run whose kernel dies after the last reply ends as budget_exhausted.

    The reply is only a partial result, and no question is asked again.
    """
    with inheriting_orphans():
        kernel = await start(trip, tmp_path, Kill.parse(moment))
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        asked = (tmp_path / "asked").read_text()
        kernel = await start(trip, tmp_path)
        assert await kernel.end() == 0, kernel.words
    (end,) = [each for each in _events(await read_events(tmp_path)) if isinstance(each, RunEnded)]
    assert (end.result.status, end.result.partial) == ("budget_exhausted", "step 5")
    assert end.result.error is not None
    assert "tool_calls" in end.result.error.message
    assert (tmp_path / "asked").read_text() == asked


@pytest.mark.parametrize(
    ("trip", "moment", "resource"),
    [("spent", "after:tool_ended:4", "tool_calls"), ("few questions", "before:model_asked:4", "model_calls")],
)
async def test_an_adopted_run_knows_what_its_budget_refused(
    trip: str, moment: str, resource: str, tmp_path: pathlib.Path
) -> None:
    """An adopted run whose budget refused a request gets one last reply from its model and ends as budget_exhausted.

    It stays in its sandbox.
    """
    with inheriting_orphans():
        kernel = await start(trip, tmp_path, Kill.parse(moment))
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        kernel = await start(trip, tmp_path)
        assert await kernel.end() == 0, kernel.words
    after = _events(await read_events(tmp_path))
    (end,) = [each for each in after if isinstance(each, RunEnded)]
    assert end.result.status == "budget_exhausted"
    assert end.result.error is not None
    assert resource in end.result.error.message
    assert [each.adopted for each in after if isinstance(each, SandboxStarted)] == [False, True], "it was begun anew"
    (last,) = [each for each in after if isinstance(each, MessageRecorded) and each.exhausted]
    assert end.result.partial == last.message["content"]


async def _replay_after_one_kill(trip: str, moment: str, folder: pathlib.Path) -> RunReplay:
    """Return the replay of a one-conversation trip whose process a second kernel adopted."""
    with inheriting_orphans():
        kernel = await start(trip, folder, Kill.parse(moment))
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        before = await read_events(folder)
        kernel = await start(trip, folder)
        assert await kernel.end() == 0, kernel.words
    trees = await read_events(folder)
    story = check(folder, trees, [death_of(folder, before)])
    result = story.root.result
    assert result is not None
    assert (result.status, result.value) == ("completed", f"done after {len(CALLS[trip]) + 1}"), result
    later = [each for each in _events(trees)[len(_events(before)) :] if isinstance(each, SandboxStarted)]
    assert later[0].adopted, "it was begun anew"
    return story.root


async def test_a_run_that_was_being_stopped_is_terminated(tmp_path: pathlib.Path) -> None:
    """A run that was being stopped when its kernel died is terminated by the next kernel, and ends as cancelled."""
    with inheriting_orphans():
        kernel = await start("stopped", tmp_path, Kill.parse("after:state_changed:1"))
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        assert bearing((tmp_path / "name").read_text())

        kernel = await start("stopped", tmp_path)

        assert await kernel.end() == 0, kernel.words
    assert (tmp_path / "ended").read_text() == "cancelled"


async def test_a_run_cancelled_right_after_resume_leaves_no_process(tmp_path: pathlib.Path) -> None:
    """A run that is cancelled right after resume has no process left when the cancel returns."""
    with inheriting_orphans():
        kernel = await start("stopped late", tmp_path)
        assert await kernel.end() == -signal.SIGKILL, kernel.words
        assert bearing((tmp_path / "name").read_text())

        kernel = await start("stopped late", tmp_path)

        assert await kernel.end() == 0, kernel.words
    assert (tmp_path / "ended").read_text() == "cancelled"
    assert (tmp_path / "left").read_text() == "", "it was there when it was said to be gone"


def _events(trees: dict[str, list[Event]]) -> list[Event]:
    return [each for tree in trees.values() for each in tree]
