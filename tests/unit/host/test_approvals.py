"""The inbox: one place for a tree's questions, which denies by default."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from ramet.agent.hooks.hooks import HookRunner
from ramet.concurrency.clock import FakeClock
from ramet.concurrency.slots import Slot, Slots
from ramet.core.errors import Aborted, InvalidValue, Unknown
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    MessageRecorded,
    RunSpawned,
    decode,
    encode,
)
from ramet.core.replay.replay import TreeReplay
from ramet.host.approvals import Inbox, Pending
from ramet.host.argument_preview import MAX_SHOWN, MAX_TEXT
from ramet.tools.context import ToolUseContext
from tests.support.context import calling, make_context, run_info
from tests.support.waiting import eventually


def make_inbox(**options: Any) -> Inbox:
    """Return an inbox with counted ids and a clock that stands still."""
    numbers = itertools.count(1)
    return Inbox(mint=lambda: f"approval-{next(numbers)}", **{"clock": FakeClock(), **options})


def context_with(events: list[Event] | None = None, **fields: Any) -> ToolUseContext:
    """Return a context of a grandchild whose events are collected in `events`."""

    def record(event: Event) -> Event:
        if events is not None:
            events.append(event)
        return event

    return make_context(**{"record": record, "run": run_info(3, path="main/a/b", agent="explore", depth=2), **fields})


def ask(inbox: Inbox, context: ToolUseContext, question: str = "Delete it?") -> asyncio.Task[bool]:
    """Ask as a dispatcher does; return whether the call was allowed."""

    async def allowed() -> bool:
        return (await inbox.ask(context, tool="Bash", question=question, args={"command": "rm x"})).is_allowed

    return asyncio.create_task(allowed())


@pytest.mark.parametrize("word", [True, False])
async def test_an_answer_by_id_reaches_the_asking_run_and_is_recorded(word: bool) -> None:
    """The question shows the path and depth of the run; the event names the call."""
    events: list[Event] = []
    inbox, context = make_inbox(), context_with(events)
    with calling(context, "call-9"):
        asking = ask(inbox, context)
    await eventually(lambda: inbox.pending)

    (waiting,) = inbox.pending
    inbox.answer(waiting.id, word, "by Ann")

    assert await asking is word
    assert waiting == Pending(
        id=waiting.id,
        run=context.run.id,
        path=context.run.path,
        agent="explore",
        depth=2,
        tool="Bash",
        question="Delete it?",
        args={"command": "rm x"},
        asked_at=datetime(2026, 1, 1, tzinfo=UTC),
        deadline=datetime(2026, 1, 1, 0, 10, tzinfo=UTC),
    )
    question, answer_event = events
    assert isinstance(question, ApprovalAsked)
    assert isinstance(answer_event, ApprovalAnswered)
    assert (question.approval_id, question.path, question.depth, question.call_id) == (
        waiting.id,
        "main/a/b",
        2,
        "call-9",
    )
    assert (answer_event.approval_id, answer_event.allowed, answer_event.reason) == (waiting.id, word, "by Ann")


async def test_an_answer_settles_one_question_once() -> None:
    """Unknown and answered ids are refused with the waiting ids; the other question still waits."""
    inbox = make_inbox()
    first, second = ask(inbox, context_with(), "first?"), ask(inbox, context_with(), "second?")
    await eventually(lambda: len(inbox.pending) == 2)

    inbox.answer("approval-1", True)
    with pytest.raises(Unknown, match="approval-2"):
        inbox.answer("approval-1", True)
    with pytest.raises(Unknown):
        inbox.answer("approval-7", True)

    assert await first is True
    assert [each.question for each in inbox.pending] == ["second?"]
    inbox.close()
    assert await second is False


async def test_a_reused_call_id_makes_another_question() -> None:
    """Some providers number calls anew with each reply: an old yes must not allow a new call."""
    inbox, context = make_inbox(), context_with()
    ids = []
    for _ in range(3):
        with calling(context, "call-0"):
            asking = ask(inbox, context)
        await eventually(lambda: inbox.pending)
        ids.append(inbox.pending[0].id)
        for old in ids[:-1]:
            with pytest.raises(Unknown):
                inbox.answer(old, True)
        inbox.answer(ids[-1], False)
        assert await asking is False

    assert len(set(ids)) == 3


async def test_the_id_of_a_question_depends_on_run_call_and_arguments() -> None:
    """Another inbox gives an equal question the same id; any difference gives another id."""

    async def id_of(call: str, number: int, **args: Any) -> str:
        inbox = make_inbox()
        context = make_context(run=run_info(number))
        with calling(context, call):
            asking = asyncio.create_task(inbox.ask(context, tool="Bash", question="?", args=args))
        await eventually(lambda: inbox.pending)
        approval_id = inbox.pending[0].id
        inbox.close()
        await asking
        return approval_id

    first = await id_of("c1", 1, command="ls")
    others = [
        await id_of("c2", 1, command="ls"),
        await id_of("c1", 2, command="ls"),
        await id_of("c1", 1, command="rm"),
    ]

    assert await id_of("c1", 1, command="ls") == first
    assert len({first, *others}) == 4


async def test_only_true_and_false_are_answers() -> None:
    """A truthy "no" must not count as yes; the question still waits."""
    inbox = make_inbox()
    asking = ask(inbox, context_with())
    await eventually(lambda: inbox.pending)

    with pytest.raises(InvalidValue, match="allowed"):
        inbox.answer("approval-1", "no")  # type: ignore[arg-type]  # what is tested

    assert len(inbox.pending) == 1
    inbox.close()
    await asking


async def test_a_question_is_denied_at_its_deadline() -> None:
    """The question leaves the inbox, and the recorded reason says that nobody answered."""
    events: list[Event] = []
    clock = FakeClock()
    inbox = make_inbox(clock=clock, timeout_s=30)
    asking = ask(inbox, context_with(events))
    await eventually(lambda: clock.sleeping)
    await clock.advance(30)

    assert await asking is False
    assert inbox.pending == ()
    assert isinstance(events[-1], ApprovalAnswered)
    assert events[-1].reason == "no answer within 30 s"


async def test_an_accepted_answer_counts_even_at_the_deadline() -> None:
    """An answer at any step of the deadline is either accepted and counts, or is refused."""
    outcomes: list[tuple[bool, bool]] = []
    for steps in range(100):
        clock = FakeClock()
        inbox = make_inbox(clock=clock, timeout_s=30)
        asking = ask(inbox, context_with())
        await eventually(partial(getattr, clock, "sleeping"))
        passing = asyncio.ensure_future(clock.advance(30))
        for _ in range(steps):
            await asyncio.sleep(0)
        try:
            inbox.answer("approval-1", True)
            is_accepted = True
        except Unknown:
            is_accepted = False
        await passing
        outcomes.append((is_accepted, await asking))
        if not is_accepted:
            break

    assert set(outcomes) == {(True, True), (False, False)}


@pytest.mark.parametrize("mode", ["abort", "cancel"])
async def test_the_question_of_a_stopped_run_leaves_the_inbox(mode: str) -> None:
    """The record says that the question was withdrawn."""
    events: list[Event] = []
    inbox, context = make_inbox(), context_with(events)
    asking = ask(inbox, context)
    await eventually(lambda: inbox.pending)
    if mode == "abort":
        context.abort.abort("user")
    else:
        asking.cancel()

    with pytest.raises((Aborted, asyncio.CancelledError)):
        await asking
    assert inbox.pending == ()
    assert [type(each) for each in events] == [ApprovalAsked, ApprovalAnswered]


async def test_a_stopped_run_asks_nobody() -> None:
    """Persons and approvers do not see a call that will not be made, and nothing is recorded."""
    events: list[Event] = []
    questions: list[Pending] = []

    def approve(pending: Pending) -> bool:
        questions.append(pending)
        return True

    inbox, context = make_inbox(approver=approve), context_with(events)
    context.abort.abort("user")

    with pytest.raises(Aborted):
        await ask(inbox, context)

    assert (events, questions, inbox.pending) == ([], [], ())


async def test_a_run_that_waits_for_a_person_holds_no_slot() -> None:
    """Another run can use the only slot meanwhile."""
    slots = Slots(1)
    context = context_with(slot=Slot(slots))
    await context.slot.acquire()
    context.slot.begin_calls(1)
    inbox = make_inbox()
    asking = ask(inbox, context)
    await eventually(lambda: inbox.pending)

    free_while_waiting = slots.try_acquire()
    inbox.answer("approval-1", True)

    assert (free_while_waiting, await asking) == (True, True)


async def test_closing_the_inbox_denies_waiting_and_later_questions() -> None:
    """An inbox without an owner denies."""
    inbox = make_inbox()
    waiting = ask(inbox, context_with())
    await eventually(lambda: inbox.pending)
    inbox.close("goodbye")

    assert await waiting is False
    assert await ask(inbox, context_with()) is False


async def test_an_unattended_inbox_denies_at_once_with_a_reason() -> None:
    """Both events are recorded, so that a reader sees what was asked."""
    events: list[Event] = []

    assert await ask(make_inbox(unattended=True), context_with(events)) is False
    assert isinstance(events[-1], ApprovalAnswered)
    assert events[-1].reason == "no person is available to answer"
    assert len(events) == 2


async def _yes(pending: Pending) -> bool:
    return pending.tool == "Bash"


async def _fails(pending: Pending) -> bool:
    raise RuntimeError("no terminal")


@pytest.mark.parametrize(
    ("approver", "allowed"),
    [
        (_yes, True),
        (lambda pending: True, True),
        (lambda pending: "yes", False),
        (lambda pending: None, False),
        (_fails, False),
    ],
)
async def test_an_approver_answers_instead_of_a_person_and_only_true_is_yes(approver: Any, allowed: bool) -> None:
    """An approver that fails denies, unattended or not."""
    assert await ask(make_inbox(approver=approver, unattended=True), context_with()) is allowed


async def test_an_answer_by_id_goes_before_a_slow_approver() -> None:
    """The first answer counts, and the approver is cancelled."""
    has_ended = False

    async def thinks(pending: Pending) -> bool:
        nonlocal has_ended
        try:
            await asyncio.Event().wait()
        finally:
            has_ended = True
        return True

    inbox = make_inbox(approver=thinks)
    asking = ask(inbox, context_with())
    await eventually(lambda: inbox.pending)
    inbox.answer("approval-1", False)

    assert (await asking, has_ended) == (False, True)


@pytest.mark.parametrize(("behaviour", "allowed"), [("allow", True), ("deny", False)])
async def test_a_permission_hook_decides_before_a_person_is_asked(behaviour: str, allowed: bool) -> None:
    """A hook without a decision leaves the question to a person."""
    answer = {"hookSpecificOutput": {"decision": {"behavior": behaviour, "message": "policy"}}}
    hooks = HookRunner({"PermissionRequest": [{"matcher": "Bash", "hooks": [lambda payload: answer]}]})
    silent = HookRunner({"PermissionRequest": [lambda payload: None]})
    inbox = make_inbox()

    assert await ask(inbox, context_with(hooks=hooks)) is allowed

    asking = ask(inbox, context_with(hooks=silent))
    await eventually(lambda: inbox.pending)
    inbox.close()
    assert await asking is False


async def test_a_subscriber_can_answer_a_question_within_its_event() -> None:
    """The question is already waiting when its event is recorded."""
    inbox = make_inbox()

    def record(event: Event) -> Event:
        if isinstance(event, ApprovalAsked):
            inbox.answer(event.approval_id, True)
        return event

    assert await ask(inbox, context_with(record=record)) is True


async def test_the_shown_arguments_are_bounded_plain_and_marked_where_cut() -> None:
    """Hostile arguments neither fill a screen nor break the journal; both ends of a long command are shown."""
    events: list[Event] = []
    args: dict[str, Any] = {
        "command": "x" * 100_000 + "; rm -rf /",
        "many": list(range(1_000)),
        "deep": [[[[[["hidden"] * 10_000]]]]],
        "odd": {1: b"\xff", "nan": float("nan"), "huge": 10**30, "surrogate": "\ud800"},
        "wide": [[["y" * 1_000] * 40] * 40] * 40,
    }

    await make_inbox(unattended=True).ask(context_with(events), tool="Bash", question="q" * 100_000, args=args)

    question = decode(encode(events[0]))
    assert isinstance(question, ApprovalAsked)
    assert len(encode(events[0])) < MAX_SHOWN + 3 * MAX_TEXT
    assert question.args["command"].endswith("; rm -rf /")
    assert "100010 characters" in question.args["command"]
    assert question.args["many"][-1] == "… 1000 entries"
    assert question.args["odd"] == {"1": "b'\\xff'", "nan": "nan", "huge": repr(10**30), "surrogate": "?"}


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_deadline_must_be_positive_and_finite(timeout_s: float) -> None:
    """None means no deadline."""
    with pytest.raises(InvalidValue, match="timeout_s"):
        make_inbox(timeout_s=timeout_s)


async def test_an_answer_from_before_a_restart_holds_only_for_its_open_call() -> None:
    """A call with a result is over: another call with that id and equal arguments is asked about anew."""
    stamp: dict[str, Any] = {"root": "run-01", "run": "run-01", "path": "main", "agent": "main"}
    context = make_context(run=run_info(1))

    async def asked_after(*events: Event) -> tuple[str, bool | None]:
        """Return the question's id, and the answer if there is one already."""
        replay = TreeReplay().apply_all([RunSpawned(**stamp, name="main"), *events])
        inbox = make_inbox()
        inbox.restore(replay.root, lambda call: True, context.emit)
        with calling(context, "call-0"):
            asking = ask(inbox, context)
        await eventually(lambda: inbox.pending or asking.done())
        if not inbox.pending:
            return "", await asking
        id = inbox.pending[0].id
        inbox.close()
        await asking
        return id, None

    first, _ = await asked_after()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    question = ApprovalAsked(**stamp, at=at, approval_id=first, tool="Bash", question="Delete it?", call_id="call-0")
    yes = ApprovalAnswered(**stamp, approval_id=first, allowed=True)
    tool_result = MessageRecorded(**stamp, call_id="call-0", message={"type": "tool", "tool_call_id": "call-0"})

    assert await asked_after(question) == (first, None)
    assert await asked_after(question, yes) == ("", True)
    second_answer, word = await asked_after(question, yes, tool_result)
    assert (second_answer != first, word) == (True, None)


@pytest.mark.parametrize(("call_id", "is_dated"), [("", True), (None, True), ("call-0", False)])
async def test_a_question_outside_a_call_does_not_wait_after_a_restart(call_id: str | None, is_dated: bool) -> None:
    """The id of the question is never made again, so that an answer to it would have no effect."""
    stamp: dict[str, Any] = {"root": "run-01", "run": "run-01", "path": "main", "agent": "main"}
    at = datetime(2026, 1, 1, tzinfo=UTC) if is_dated else None
    question = ApprovalAsked(**stamp, at=at, approval_id="a-1", tool="Bash", question="Delete it?", call_id=call_id)
    replay = TreeReplay().apply_all([RunSpawned(**stamp, name="main"), question])
    inbox = make_inbox()

    inbox.restore(replay.root, lambda call: True, make_context(run=run_info(1)).emit)

    assert inbox.pending == ()
    with pytest.raises(Unknown):
        inbox.answer("a-1", True)
