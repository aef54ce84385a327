"""Tests of the replay of one run: its times, what it waits for, and what its open requests may cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Compacted,
    Event,
    LimitPaused,
    MailPushed,
    MessageRecorded,
    ModelAsked,
    ModelRetried,
    RunEnded,
    RunResumed,
    RunSpawned,
    StateChanged,
    TimeStarted,
    TimeStopped,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from ramet.core.outcome import NO_USAGE, Result, Status, Usage
from ramet.core.replay.codec import IGNORED_TAGS
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.run_replay import RunReplay
from ramet.host.control.run_queries import rows_of

START = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Story:
    """The events of one run, one second after the other, and their replay."""

    def __init__(self, **spawn: Any) -> None:
        self.replay, self._seq = TreeReplay(), 0
        self.add(RunSpawned, name="main", **spawn)

    def add(self, kind: type[Event], /, **fields: Any) -> RunReplay:
        """Apply the next event; return the run."""
        self._seq += 1
        stamp: dict[str, Any] = {"root": "run-1", "run": "run-1", "path": "main", "agent": "general-purpose"}
        self.replay.apply(kind(**stamp, seq=self._seq, at=START + timedelta(seconds=self._seq), **fields))
        return self.replay.root


def test_a_run_names_what_it_waits_for() -> None:
    """A person goes before a tool; a run between two turns waits for mail; an ended one waits for nothing."""
    story = Story()
    reply = {"type": "ai", "tool_calls": [{"id": "c1", "name": "Write"}]}

    assert story.replay.root.waits_for == "slot"
    assert story.add(TurnStarted, turn=1).waits_for == ""
    assert story.add(ModelAsked, step_id="s:1", model="m").waits_for == "model"
    assert story.add(MessageRecorded, message=reply, step_id="s:1").waits_for == ""
    question = {"approval_id": "a1", "tool": "Write", "question": "Really?", "call_id": "c1"}
    assert story.add(ApprovalAsked, **question).waits_for == "person"
    assert story.add(ApprovalAnswered, approval_id="a1", allowed=True, call_id="c1").waits_for == ""
    assert story.add(ToolStarted, tool="Write", step_id="s:1", call_id="c1").waits_for == "tool"
    answer = {"type": "tool", "tool_call_id": "c1", "content": "done"}
    assert story.add(MessageRecorded, message=answer, call_id="c1").waits_for == ""
    assert story.add(TurnEnded, turn=1, status="completed").waits_for == "mail"
    assert story.add(RunEnded, result=Result(status=Status.COMPLETED, value="done")).waits_for == ""


def test_an_answer_of_a_person_is_for_no_later_turn() -> None:
    """A program of another maker records no answer of a call. What it asks in a later turn is a question of its own.

    A row lists a question until it is answered.
    """
    story = Story()
    story.add(TurnStarted, turn=1)
    for id in ("a1", "a2"):
        story.add(ApprovalAsked, approval_id=id, tool="Bash", question="Really?", call_id=f"call-{id}")
    story.add(ApprovalAnswered, approval_id="a1", allowed=True)
    assert list(story.replay.root.approval_answers) == ["a1"], "the call has not begun, and may ask again after a kill"
    (row,) = rows_of(story.replay, is_active=True)
    assert [each.approval_id for each in row.approvals] == ["a2"]

    ended = story.add(TurnEnded, turn=1, status="completed")
    assert (ended.approvals, ended.approval_answers, ended.past_approvals) == ({}, {}, ["a1", "a2"])


def test_a_run_whose_calls_all_wait_names_the_cause() -> None:
    """It waits for room until its spawn is recorded, then for the child; a paused run waits for its limit."""
    story = Story()
    story.add(TurnStarted, turn=1)
    story.add(ToolStarted, tool="Agent", step_id="s:1", call_id="c1")
    assert story.add(StateChanged, state="waiting", why="room").waits_for == "room"
    child: dict[str, Any] = {
        "root": "run-1",
        "run": "run-2",
        "path": "main/a",
        "agent": "a",
        "depth": 1,
        "parent": "run-1",
    }
    story.replay.apply(RunSpawned(**child, name="a", seq=90))
    assert story.replay.root.waits_for == "child"
    assert story.replay.runs["run-2"].waits_for == "slot"
    assert story.add(StateChanged, state="running").waits_for == "tool"
    assert story.add(StateChanged, state="waiting").waits_for == "child"
    assert story.add(StateChanged, state="paused").waits_for == "pause"
    story.add(LimitPaused, resource="usd", asked=1.0, left=0.0, scope="main")
    assert story.add(StateChanged, state="paused").waits_for == "limit"
    assert story.add(StateChanged, state="stopping").waits_for == ""


def test_a_session_without_a_prompt_waits_for_mail() -> None:
    """A slot would not help it."""
    assert Story(birth={"persistent": True}).replay.root.waits_for == "mail"


def test_a_run_knows_the_size_of_its_newest_request() -> None:
    """A compaction estimates it anew; a watch's report changes nothing."""
    story = Story(window=1_000)
    story.add(TurnStarted, turn=1)
    usage = Usage(model_calls=1, input_tokens=800, output_tokens=50)
    assert story.add(MessageRecorded, message={"type": "ai"}, step_id="s:1", usage=usage).context_tokens == 800
    shortened = {"before_messages": 9, "after_messages": 2, "before_tokens": 850, "after_tokens": 90}
    assert story.add(Compacted, **shortened).context_tokens == 90
    [row] = rows_of(story.replay, is_active=True)
    assert (row.context_tokens, row.context_window) == (90, 1_000)


def test_a_retry_is_a_sign_of_life() -> None:
    """A model that fails again and again is not silent."""
    story = Story()
    story.add(TurnStarted, turn=1)
    run = story.add(ModelRetried, step_id="s:1", model="m", reason="HTTP 500", attempt=1)
    assert run.last_event_at == START + timedelta(seconds=3)
    assert "model_retried" not in IGNORED_TAGS


def test_open_requests_are_reserved_until_their_reply() -> None:
    """The reservation is what the requests may cost at most; the reply replaces it by what it cost."""
    story = Story()
    story.add(TurnStarted, turn=1)

    run = story.add(ModelAsked, step_id="s:1", model="m", reserved_tokens=100, reserved_usd=0.5, requests=2)
    assert run.reservation == Usage(model_calls=2, output_tokens=100, usd=0.5, estimated=True)

    run = story.add(MessageRecorded, message={"type": "ai"}, step_id="s:1", usage=Usage(model_calls=1, usd=0.1))
    assert (run.reservation, run.usage) == (NO_USAGE, Usage(model_calls=1, usd=0.1))


def test_a_run_has_the_times_of_its_newest_event_and_of_its_end() -> None:
    """Mail that wakes an ended run also takes its end back."""
    story = Story()
    story.add(TurnStarted, turn=1)
    assert (story.replay.root.ended_at, story.replay.root.last_event_at) == (None, START + timedelta(seconds=2))

    run = story.add(RunEnded, result=Result(status=Status.COMPLETED, value="done"))
    assert run.ended_at == run.last_event_at == START + timedelta(seconds=3)

    run = story.add(MailPushed, mail_id="mail-1", sender="user", kind="user", text="more")
    assert (run.ended_at, run.last_event_at) == (None, START + timedelta(seconds=4))


def test_time_that_stands_does_not_count() -> None:
    """Only the seconds before a stop and after the next start are active time, whatever is recorded in between."""
    story = Story()
    story.add(TurnStarted, turn=1)
    assert story.add(ModelAsked, step_id="s:1", model="m").active_time.seconds == 1
    assert story.add(TimeStopped).active_time.seconds == 2
    assert story.add(ToolStarted, tool="Write", step_id="s:2", call_id="c1").active_time.seconds == 2
    assert story.add(TimeStarted).active_time.seconds == 2
    assert story.add(ModelAsked, step_id="s:3", model="m").active_time.seconds == 3


def test_another_process_counts_on_after_time_that_stood() -> None:
    """The time between a stop and the return of the run in another process is not known, and does not count."""
    story = Story()
    story.add(TurnStarted, turn=1)
    story.add(TimeStopped)
    assert story.add(RunResumed, turn=1).active_time.seconds == 1
    assert story.add(TimeStopped).active_time.seconds == 2
    assert story.add(TimeStarted).active_time.seconds == 2


def test_each_turn_of_a_session_has_its_own_time() -> None:
    """A turn that ended while its time stood leaves nothing to the next one."""
    story = Story(birth={"persistent": True})
    story.add(TurnStarted, turn=1)
    story.add(TimeStopped)
    story.add(TurnEnded, turn=1, status="cancelled")
    story.add(TurnStarted, turn=2)
    assert story.add(ModelAsked, step_id="s:1", model="m").active_time.seconds == 1
