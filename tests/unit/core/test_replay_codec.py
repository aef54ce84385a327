"""core/replay/codec.py: a replay that reads as little as it needs ends as one that reads the whole events."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from ramet.core.errors import InvalidValue
from ramet.core.events import (
    AnyEvent,
    Compacted,
    Event,
    MailDelivered,
    MailPushed,
    MessageRecorded,
    ModelAsked,
    ModelCharged,
    Notice,
    RunResumed,
    RunRetried,
    RunSpawned,
    SandboxStarted,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    decode,
    encode,
)
from ramet.core.outcome import Usage
from ramet.core.replay import codec
from ramet.core.replay.replay import CLOSED, OPEN, SPENT, TreeReplay

STAMP: dict[str, Any] = {"root": "run-1", "run": "run-1", "path": "main", "agent": "worker"}
CHILD: dict[str, Any] = {**STAMP, "run": "run-2", "path": "main/child", "parent": "run-1", "depth": 1}
CALLS = [{"name": "Read", "args": {}, "id": f"call-{number}"} for number in range(3)]


def said(message: dict[str, Any], **fields: Any) -> MessageRecorded:
    return MessageRecorded(**{**STAMP, **fields}, message=message)


def answer(number: int) -> Event:
    call = f"call-{number}"
    return said({"type": "tool", "content": f"answer {number}", "tool_call_id": call}, call_id=call)


EVENTS: list[Event] = [
    RunSpawned(**STAMP, name="main"),
    TurnStarted(**STAMP, turn=1),
    said({"type": "human", "content": "Go."}),
    ModelAsked(**STAMP, step_id="run-1:1", model="scripted", reserved_tokens=10),
    said(
        {"type": "ai", "content": 'É "quoted"', "tool_calls": CALLS},
        step_id="run-1:1",
        usage=Usage(model_calls=1, output_tokens=3, usd=0.1),
    ),
    *(ToolStarted(**STAMP, tool="Read", step_id=f"run-1:{n + 2}", call_id=f"call-{n}") for n in range(3)),
    ToolEnded(**STAMP, tool="Read", status="ok", call_id="call-2"),
    answer(2),
    answer(0),
    answer(1),
    RunSpawned(**CHILD, name="child", birth={"shared": 2, "answers": [{"type": "human", "content": "You."}]}),
    said({"type": "ai", "content": "Done."}, **CHILD, usage=Usage(model_calls=1, usd=0.2)),
    MailPushed(**STAMP, mail_id="mail-1", sender="user", kind="user", text="More."),
    MailDelivered(**STAMP, mail_id="mail-1", sender="user", kind="user"),
    said({"type": "human", "content": "More."}),
    Notice(**STAMP, text="something"),
    Compacted(
        **STAMP,
        before_messages=6,
        after_messages=3,
        before_tokens=9,
        after_tokens=3,
        kept=({"type": "human", "content": "In short."}, 4, 5),
    ),
    TurnEnded(**STAMP, turn=1, status="completed"),
]


def as_stored(events: list[Event]) -> TreeReplay:
    """The replay of events as a journal stores them."""
    story = TreeReplay()
    for seq, event in enumerate(events, 1):
        if event.__struct_config__.tag in codec.IGNORED_TAGS:
            story.skip(seq)
        else:
            story.apply(codec.decode(encode(msgspec.structs.replace(event, seq=seq))))
    return story


@pytest.mark.parametrize("upto", range(1, len(EVENTS) + 1))
def test_a_story_of_what_was_read_is_that_of_the_events(upto: int) -> None:
    """Wherever a record ends: the same conversations, in the same order, the same usage, moves and open ends."""
    events = [msgspec.structs.replace(each, seq=seq) for seq, each in enumerate(EVENTS[:upto], 1)]
    whole, read = TreeReplay().apply_all(decode(encode(each)) for each in events), as_stored(EVENTS[:upto])

    assert read.ledger == whole.ledger
    assert read.seq == whole.seq == upto
    for one, other in zip(whole.runs.values(), read.runs.values(), strict=True):
        assert one.messages == other.messages
        assert (one.usage, one.subtree, one.steps) == (other.usage, other.subtree, other.steps)
        assert one.started_calls.keys() == other.started_calls.keys()
        assert one.unread_mail() == other.unread_mail()


def test_answers_stand_in_the_order_of_their_calls() -> None:
    """They come as they are ready; a conversation has them as they were asked for."""
    story = as_stored(EVENTS[: EVENTS.index(answer(1)) + 1])

    assert [each.get("content") for each in story.root.messages[2:]] == ["answer 0", "answer 1", "answer 2"]


def spoken(story: TreeReplay) -> list[str]:
    """What was said in the first run, as far as it still counts."""
    return [each["content"] for each in story.root.messages]


def test_another_attempt_begins_where_the_turn_began() -> None:
    """What the one before said is gone, with the calls that it had begun, as soon as the next one speaks."""
    failed = RunRetried(**STAMP, attempt=1, status="lost")
    events = [
        *EVENTS[:3],
        said({"type": "ai", "content": "An answer."}),
        TurnEnded(**STAMP, turn=1, status="completed"),
        TurnStarted(**STAMP, turn=2),
        said({"type": "human", "content": "And?"}),
        said({"type": "ai", "content": "I read.", "tool_calls": CALLS[:1]}),
        ToolStarted(**STAMP, tool="Read", step_id="run-1:2", call_id="call-0"),
        failed,
    ]
    story = as_stored(events)
    assert (spoken(story), [*story.root.started_calls]) == (["Go.", "An answer.", "And?", "I read."], ["call-0"])
    assert (as_stored(events[:-1]).root.attempt, story.root.attempt) == (1, 2)
    assert (
        as_stored([*events, TurnEnded(**STAMP, turn=2, status="lost"), TurnStarted(**STAMP, turn=3)]).root.attempt == 1
    )

    events.append(said({"type": "human", "content": "And?"}))
    story = as_stored(events)
    assert (spoken(story), story.root.started_calls) == (["Go.", "An answer.", "And?"], {})

    kept = ({"type": "human", "content": "In short."}, 2)
    sizes: dict[str, Any] = {"before_messages": 3, "after_messages": 2, "before_tokens": 9, "after_tokens": 5}
    shorter = [*events, Compacted(**STAMP, **sizes, kept=kept), failed]
    assert spoken(as_stored([*shorter, events[-1]])) == ["In short.", "And?"]
    resumed = [*events, failed, RunResumed(**STAMP, turn=2), said({"type": "ai", "content": "Well."}), failed]
    assert spoken(as_stored([*resumed, said({"type": "ai", "content": "No."})])) == ["Go.", "An answer.", "And?", "No."]


def test_what_is_known_of_a_sandbox_is_what_it_told_since_it_was_started() -> None:
    """Mail is one with the message that it becomes; who is adopted goes on counting."""
    box = SandboxStarted(**STAMP, backend="machine", level="L1", sandbox={"number": 1})
    mail = MailDelivered(**STAMP, mail_id="mail-1", sender="user", kind="user", told=2)
    events = [
        *EVENTS[:2],
        box,
        said({"type": "ai", "content": "I read.", "tool_calls": CALLS[:2]}, step_id="run-1:7"),
        ToolEnded(**STAMP, tool="Read", status="denied", call_id="call-0", told=1),
        MailPushed(**STAMP, mail_id="mail-1", sender="user", kind="user", text="More."),
        mail,
    ]
    root = as_stored(events).root
    assert (root.recorded_reports, root.reply_step, root.unstarted_calls) == (1, "run-1:7", {"call-0"})

    charged = ModelCharged(**STAMP, step_id="run-1:7", usage=Usage(tool_calls=1), told=2)
    assert as_stored([*events, charged]).root.recorded_reports == 1, "what it was charged for has yet to be told"
    events += [said({"type": "human", "content": "More."}, told=2), Notice(**STAMP, text="n", told=3)]
    assert as_stored(events).root.recorded_reports == 3
    events += [RunResumed(**STAMP, turn=1), msgspec.structs.replace(box, adopted=True)]
    assert as_stored(events).root.recorded_reports == 3
    answered = [*events, answer(0)]
    assert as_stored(answered).root.unstarted_calls == set()
    assert as_stored([*events, box]).root.recorded_reports == 0


def test_answers_to_calls_of_before_an_attempt_stay_when_another_one_begins() -> None:
    """Calls that were cut off by a kernel's end are answered behind their reply, and not by the attempt."""
    failed = RunRetried(**STAMP, attempt=1, status="lost")
    first = [*EVENTS[:5], answer(2), RunResumed(**STAMP, turn=1)]
    mended = [*first, answer(0), answer(1), said({"type": "ai", "content": "Well."})]
    again = as_stored([*mended, failed, said({"type": "ai", "content": "No."})])
    assert [each["content"] for each in again.root.messages[2:]] == ["answer 0", "answer 1", "answer 2", "No."]


def test_who_went_back_behind_what_was_said_cannot_be_gone_on_with() -> None:
    """The record still has what its sandbox was not told; also after one more kernel's end."""
    box = SandboxStarted(**STAMP, backend="machine", level="L1", sandbox={"number": 1})
    retried = [*EVENTS[:4], RunRetried(**STAMP, attempt=1, status="lost"), box]
    root = as_stored(retried).root
    assert (root.is_rewound, root.sandbox is not None) == (True, True)
    root = as_stored([*retried, RunResumed(**STAMP, turn=1)]).root
    assert (root.is_rewound, root.sandbox) == (False, None)

    a_function = [*EVENTS[:2], *retried[-2:], RunResumed(**STAMP, turn=1)]
    root = as_stored(a_function).root
    assert (root.is_rewound, root.sandbox is not None) == (False, True)


def test_a_last_word_is_no_answer() -> None:
    """Its budget was used up, and that stays known until the next turn."""
    last = [*EVENTS[:3], said({"type": "ai", "content": "So far."}, step_id="run-1:1", exhausted="tokens")]
    assert as_stored(last).root.exhausted == "tokens"
    assert as_stored([*last, TurnStarted(**STAMP, turn=2)]).root.exhausted == ""


def test_what_a_run_used_counts_above_it() -> None:
    """Its own is its own; a subtree is that and all below, births included; moves of one run in a row are one."""
    story = as_stored(EVENTS)
    root, child = story.runs.values()

    assert root.usage == Usage(model_calls=1, tool_calls=3, output_tokens=3, usd=0.1)
    assert child.subtree == child.usage == Usage(model_calls=1, usd=0.2)
    assert root.subtree == root.usage + Usage(agents=1) + child.usage
    assert [(move.run, move.kind) for move in story.ledger] == [
        ("run-1", OPEN),
        ("run-1", SPENT),
        ("run-2", OPEN),
        ("run-1", SPENT),
        ("run-2", SPENT),
    ]
    assert CLOSED not in {move.kind for move in story.ledger}


def test_every_type_is_told_or_passed_over() -> None:
    """What is passed over is a type that there is; one that nobody knows is refused, and not passed over."""
    known = {each.__struct_config__.tag for each in get_args(AnyEvent)}

    assert codec.IGNORED_TAGS < known
    with pytest.raises(InvalidValue):
        codec.decode(b'{"type":"of_next_year","root":"r","run":"r","path":"main","agent":"a"}')


@pytest.mark.parametrize("message", [b"5", b"[]", b'"text"'])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    """A record that was damaged is not taken for a conversation."""
    line = encode(said({})).replace(b'"message":{}', b'"message":' + message)

    with pytest.raises(InvalidValue):
        TreeReplay().apply_all([EVENTS[0], codec.decode(line)])
