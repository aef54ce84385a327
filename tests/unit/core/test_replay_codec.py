"""Tests of `core/replay/codec.py`: a replay of partly decoded events ends like one of whole events."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    RunEnded,
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
from ramet.core.outcome import Result, Status, Usage
from ramet.core.replay import codec
from ramet.core.replay.replay import CLOSED, OPEN, SPENT, TreeReplay

STAMP: dict[str, Any] = {"root": "run-1", "run": "run-1", "path": "main", "agent": "worker"}
CHILD: dict[str, Any] = {**STAMP, "run": "run-2", "path": "main/child", "parent": "run-1", "depth": 1}
CALLS = [{"name": "Read", "args": {}, "id": f"call-{number}"} for number in range(3)]


def recorded_message(message: dict[str, Any], **fields: Any) -> MessageRecorded:
    return MessageRecorded(**{**STAMP, **fields}, message=message)


def answer(number: int) -> Event:
    call = f"call-{number}"
    return recorded_message({"type": "tool", "content": f"answer {number}", "tool_call_id": call}, call_id=call)


EVENTS: list[Event] = [
    RunSpawned(**STAMP, name="main"),
    TurnStarted(**STAMP, turn=1),
    recorded_message({"type": "human", "content": "Go."}),
    ModelAsked(**STAMP, step_id="run-1:1", model="scripted", reserved_tokens=10),
    recorded_message(
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
    recorded_message({"type": "ai", "content": "Done."}, **CHILD, usage=Usage(model_calls=1, usd=0.2)),
    MailPushed(**STAMP, mail_id="mail-1", sender="user", kind="user", text="More."),
    MailDelivered(**STAMP, mail_id="mail-1", sender="user", kind="user"),
    recorded_message({"type": "human", "content": "More."}),
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


def replay_as_stored(events: list[Event]) -> TreeReplay:
    """Return the replay of events as a journal stores them."""
    replay = TreeReplay()
    for seq, event in enumerate(events, 1):
        if event.__struct_config__.tag in codec.IGNORED_TAGS:
            replay.skip(seq)
        else:
            replay.apply(codec.decode(encode(msgspec.structs.replace(event, seq=seq))))
    return replay


@pytest.mark.parametrize("upto", range(1, len(EVENTS) + 1))
def test_a_partial_decode_replays_like_whole_events(upto: int) -> None:
    """Conversations, usage, moves and open calls are equal, wherever the journal ends."""
    events = [msgspec.structs.replace(each, seq=seq) for seq, each in enumerate(EVENTS[:upto], 1)]
    full_replay, replayed_state = (
        TreeReplay().apply_all(decode(encode(each)) for each in events),
        replay_as_stored(EVENTS[:upto]),
    )

    assert replayed_state.ledger == full_replay.ledger
    assert replayed_state.seq == full_replay.seq == upto
    for one, other in zip(full_replay.runs.values(), replayed_state.runs.values(), strict=True):
        assert one.messages == other.messages
        assert (one.usage, one.subtree, one.steps) == (other.usage, other.subtree, other.steps)
        assert one.started_calls.keys() == other.started_calls.keys()
        assert one.unread_mail() == other.unread_mail()


def step(run: dict[str, Any], number: int) -> str:
    return f"{run['run']}:{number}"


#: Events of two runs, with few calls and steps, so that they often concern each other.
ANY_EVENTS = st.lists(
    st.one_of(
        *(
            st.builds(
                make,
                st.sampled_from([STAMP, CHILD]),
                st.integers(0, 2),
                st.sampled_from([None, Usage(model_calls=1, usd=0.1), Usage(output_tokens=7, usd=0.7)]),
            )
            for make in (
                lambda run, n, _: TurnStarted(**run, turn=n),
                lambda run, n, _: TurnEnded(**run, turn=n, status="completed"),
                lambda run, n, _: RunResumed(**run, turn=n),
                lambda run, n, _: RunRetried(**run, attempt=n, status="lost"),
                lambda run, n, _: RunEnded(**run, result=Result(status=Status.COMPLETED, value=n)),
                lambda run, n, _: ModelAsked(**run, step_id=step(run, n), model="scripted", reserved_tokens=10),
                lambda run, n, usage: ModelCharged(**run, step_id=step(run, n), usage=usage or Usage(), told=n),
                lambda run, n, usage: MessageRecorded(
                    **run,
                    message={"type": "ai", "content": "é", "tool_calls": CALLS[:n]},
                    step_id=step(run, n) if n else None,
                    usage=usage,
                ),
                lambda run, n, _: MessageRecorded(
                    **run, message={"type": "tool", "tool_call_id": f"call-{n}"}, call_id=f"call-{n}" if n else None
                ),
                lambda run, n, _: MessageRecorded(**run, message={"type": n or "human", "tool_call_id": n}, told=n),
                lambda run, n, _: ToolStarted(**run, tool="Read", step_id=step(run, n), call_id=f"call-{n}"),
                lambda run, n, _: ToolEnded(**run, tool="Read", status="ok", call_id=f"call-{n}", preview="…", told=n),
                lambda run, n, _: MailPushed(**run, mail_id=f"mail-{n}", sender="main", kind="user", text="More."),
                lambda run, n, _: MailDelivered(**run, mail_id=f"mail-{n}", sender="main", kind="user"),
            )
        )
    ),
    max_size=20,
)
JOURNALS = st.builds(
    lambda before, shared, after: [
        EVENTS[0],
        *before,
        RunSpawned(**CHILD, name="child", parent_call="call-1", birth={"shared": shared, "persistent": True}),
        *after,
    ],
    ANY_EVENTS,
    st.integers(0, 3),
    ANY_EVENTS,
)


@given(JOURNALS)
def test_any_journal_replays_alike_from_partly_decoded_events(events: list[Event]) -> None:
    """Every field of every run is equal, and so are the moves of the budget."""
    whole = TreeReplay().apply_all(msgspec.structs.replace(each, seq=seq) for seq, each in enumerate(events, 1))
    partly = replay_as_stored(events)

    assert (partly.seq, partly.ledger, [*partly.runs]) == (whole.seq, whole.ledger, [*whole.runs])
    for one, other in zip(whole.runs.values(), partly.runs.values(), strict=True):
        assert one.messages == other.messages
        assert [(each.kind, each.call_id) for each in one.conversation] == [
            (each.kind, each.call_id) for each in other.conversation
        ]
        assert {**vars(one), "conversation": None} == {**vars(other), "conversation": None}


@given(JOURNALS)
def test_usage_is_the_sum_of_the_moves(events: list[Event]) -> None:
    """What the moves of a run's budget charge is what the run has used, apart from the spawn of its child."""
    replay = replay_as_stored(events)

    for run in replay.runs.values():
        moves = [move.usage for move in replay.ledger if move.run == run.id]
        assert sum(move.tokens for move in moves) == run.usage.tokens
        assert sum(move.tool_calls for move in moves) == run.usage.tool_calls
        assert sum(move.usd for move in moves) == pytest.approx(run.usage.usd)


def test_answers_are_ordered_by_their_calls() -> None:
    """Answers are recorded as they arrive, and replayed in the order of the calls."""
    replay = replay_as_stored(EVENTS[: EVENTS.index(answer(1)) + 1])

    assert [each.get("content") for each in replay.root.messages[2:]] == ["answer 0", "answer 1", "answer 2"]


def root_contents(replay: TreeReplay) -> list[str]:
    """Return the contents of the root's messages that still count."""
    return [each["content"] for each in replay.root.messages]


def test_a_retried_attempt_restarts_at_the_start_of_its_turn() -> None:
    """Messages and begun calls of the failed attempt disappear once the next attempt records a message."""
    retry = RunRetried(**STAMP, attempt=1, status="lost")
    events = [
        *EVENTS[:3],
        recorded_message({"type": "ai", "content": "An answer."}),
        TurnEnded(**STAMP, turn=1, status="completed"),
        TurnStarted(**STAMP, turn=2),
        recorded_message({"type": "human", "content": "And?"}),
        recorded_message({"type": "ai", "content": "I read.", "tool_calls": CALLS[:1]}),
        ToolStarted(**STAMP, tool="Read", step_id="run-1:2", call_id="call-0"),
        retry,
    ]
    replay = replay_as_stored(events)
    assert (root_contents(replay), [*replay.root.started_calls]) == (
        ["Go.", "An answer.", "And?", "I read."],
        ["call-0"],
    )
    assert (replay_as_stored(events[:-1]).root.attempt, replay.root.attempt) == (1, 2)
    assert (
        replay_as_stored(
            [*events, TurnEnded(**STAMP, turn=2, status="lost"), TurnStarted(**STAMP, turn=3)]
        ).root.attempt
        == 1
    )

    events.append(recorded_message({"type": "human", "content": "And?"}))
    replay = replay_as_stored(events)
    assert (root_contents(replay), replay.root.started_calls) == (["Go.", "An answer.", "And?"], {})

    compaction = ({"type": "human", "content": "In short."}, 2)
    sizes: dict[str, Any] = {"before_messages": 3, "after_messages": 2, "before_tokens": 9, "after_tokens": 5}
    shorter = [*events, Compacted(**STAMP, **sizes, kept=compaction), retry]
    assert root_contents(replay_as_stored([*shorter, events[-1]])) == ["In short.", "And?"]
    resumed_events = [
        *events,
        retry,
        RunResumed(**STAMP, turn=2),
        recorded_message({"type": "ai", "content": "Well."}),
        retry,
    ]
    assert root_contents(replay_as_stored([*resumed_events, recorded_message({"type": "ai", "content": "No."})])) == [
        "Go.",
        "An answer.",
        "And?",
        "No.",
    ]


def test_a_sandbox_counts_its_messages_since_its_start() -> None:
    """Mail counts together with its message, and an adopted sandbox continues counting."""
    start_event = SandboxStarted(**STAMP, backend="machine", level="L1", sandbox={"number": 1})
    mail = MailDelivered(**STAMP, mail_id="mail-1", sender="user", kind="user", told=2)
    events = [
        *EVENTS[:2],
        start_event,
        recorded_message({"type": "ai", "content": "I read.", "tool_calls": CALLS[:2]}, step_id="run-1:7"),
        ToolEnded(**STAMP, tool="Read", status="denied", call_id="call-0", told=1),
        MailPushed(**STAMP, mail_id="mail-1", sender="user", kind="user", text="More."),
        mail,
    ]
    root = replay_as_stored(events).root
    assert (root.recorded_reports, root.reply_step, root.unstarted_calls) == (1, "run-1:7", {"call-0"})

    charge = ModelCharged(**STAMP, step_id="run-1:7", usage=Usage(tool_calls=1), told=2)
    assert replay_as_stored([*events, charge]).root.recorded_reports == 1, "what it was charged for has yet to be told"
    events += [recorded_message({"type": "human", "content": "More."}, told=2), Notice(**STAMP, text="n", told=3)]
    assert replay_as_stored(events).root.recorded_reports == 3
    events += [RunResumed(**STAMP, turn=1), msgspec.structs.replace(start_event, adopted=True)]
    assert replay_as_stored(events).root.recorded_reports == 3
    events_with_answer = [*events, answer(0)]
    assert replay_as_stored(events_with_answer).root.unstarted_calls == set()
    assert replay_as_stored([*events, start_event]).root.recorded_reports == 0


def test_answers_to_calls_before_an_attempt_survive_a_retry() -> None:
    """Calls that a kernel's end cut off are answered behind their reply, and do not belong to the attempt."""
    retry = RunRetried(**STAMP, attempt=1, status="lost")
    first = [*EVENTS[:5], answer(2), RunResumed(**STAMP, turn=1)]
    mended = [*first, answer(0), answer(1), recorded_message({"type": "ai", "content": "Well."})]
    second_replay = replay_as_stored([*mended, retry, recorded_message({"type": "ai", "content": "No."})])
    assert [each["content"] for each in second_replay.root.messages[2:]] == ["answer 0", "answer 1", "answer 2", "No."]


def test_a_rewound_sandbox_is_not_adopted_after_a_resume() -> None:
    """The journal has messages that the sandbox did not get; a function without messages keeps its sandbox."""
    start_event = SandboxStarted(**STAMP, backend="machine", level="L1", sandbox={"number": 1})
    retried = [*EVENTS[:4], RunRetried(**STAMP, attempt=1, status="lost"), start_event]
    root = replay_as_stored(retried).root
    assert (root.is_rewound, root.sandbox is not None) == (True, True)
    root = replay_as_stored([*retried, RunResumed(**STAMP, turn=1)]).root
    assert (root.is_rewound, root.sandbox) == (False, None)

    a_function = [*EVENTS[:2], *retried[-2:], RunResumed(**STAMP, turn=1)]
    root = replay_as_stored(a_function).root
    assert (root.is_rewound, root.sandbox is not None) == (False, True)


def test_an_exhausted_budget_is_known_until_the_next_turn() -> None:
    """A last word does not count as an answer."""
    last = [*EVENTS[:3], recorded_message({"type": "ai", "content": "So far."}, step_id="run-1:1", exhausted="tokens")]
    assert replay_as_stored(last).root.exhausted_resource == "tokens"
    assert replay_as_stored([*last, TurnStarted(**STAMP, turn=2)]).root.exhausted_resource == ""


def test_usage_of_a_run_counts_in_every_subtree_above_it() -> None:
    """A subtree's usage includes spawns, and consecutive moves of one run are merged."""
    replay = replay_as_stored(EVENTS)
    root, child = replay.runs.values()

    assert root.usage == Usage(model_calls=1, tool_calls=3, output_tokens=3, usd=0.1)
    assert child.subtree == child.usage == Usage(model_calls=1, usd=0.2)
    assert root.subtree == root.usage + Usage(agents=1) + child.usage
    assert [(move.run, move.kind) for move in replay.ledger] == [
        ("run-1", OPEN),
        ("run-1", SPENT),
        ("run-2", OPEN),
        ("run-1", SPENT),
        ("run-2", SPENT),
    ]
    assert CLOSED not in {move.kind for move in replay.ledger}


def test_every_event_type_is_replayed_or_passed_over() -> None:
    """Each type that is passed over exists, and an unknown type is refused."""
    known_tags = {each.__struct_config__.tag for each in get_args(AnyEvent)}

    assert codec.IGNORED_TAGS < known_tags
    with pytest.raises(InvalidValue):
        codec.decode(b'{"type":"of_next_year","root":"r","run":"r","path":"main","agent":"a"}')


@pytest.mark.parametrize("message", [b"5", b"[]", b'"text"'])
def test_a_record_that_is_no_message_is_refused(message: bytes) -> None:
    """A damaged record is not replayed as a conversation."""
    line = encode(recorded_message({})).replace(b'"message":{}', b'"message":' + message)

    with pytest.raises(InvalidValue):
        TreeReplay().apply_all([EVENTS[0], codec.decode(line)])
