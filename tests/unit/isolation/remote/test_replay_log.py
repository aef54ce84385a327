"""Tests of the log of a channel: every unanswered message is replayed as it was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import Gone
from ramet.core.outcome import ErrorInfo
from ramet.isolation.remote.replay_log import MAX_KEPT, ChannelLog
from ramet.wire import frames
from ramet.wire.frames import FrameReader
from ramet.wire.guest_protocol import guest_to_host, host_to_guest, message_codec
from ramet.wire.guest_protocol.guest_to_host import Done, GuestMessage, Note, Output, Record, Spawn, UseState
from ramet.wire.guest_protocol.host_to_guest import Answer, ChildEnded, HostMessage, StartFunction

START = StartFunction(run="r", path="r", name="f")
TALK = host_to_guest.StartConversation(run="r", root="r", path="r", agent="a", depth=0, cwd="/", json_size=0)


ASKS = guest_to_host.AskModel(id=1, step="r:1")


def started_log() -> ChannelLog:
    """Return the log of a guest that got its first message."""
    log = ChannelLog()
    log.record_input(message_bytes(TALK))
    return log


def message_bytes(word: GuestMessage | HostMessage, body: bytes = b"") -> bytes:
    return b"".join(bytes(piece) for piece in frames.pack(message_codec.encode(word), body))


def feed_in_pieces(take: Callable[[bytes], None], data: bytes, sizes: Sequence[int]) -> None:
    """Feed the data in pieces of these sizes."""
    at = 0
    for size in (*sizes, len(data)):
        take(data[at : at + size])
        at += size


def replayed_messages(log: ChannelLog) -> list[GuestMessage]:
    return [message_codec.from_guest(frame.control) for frame in FrameReader().feed(log.encode_unanswered())]


SIZES = st.lists(st.integers(1, 40), max_size=30)


@given(
    bodies=st.lists(st.binary(max_size=200), max_size=12),
    answered_ids=st.sets(st.integers(0, 11)),
    sizes=SIZES,
    back=SIZES,
    late=st.binary(min_size=1, max_size=100),
    cut_at=st.integers(1, 100),
)
def test_unanswered_messages_are_replayed_as_they_were_sent(
    bodies: list[bytes], answered_ids: set[int], sizes: list[int], back: list[int], late: bytes, cut_at: int
) -> None:
    """The order stays, and the first part of an unfinished message follows, so that its rest fits."""
    log = ChannelLog()
    words = [message_bytes(Spawn(id=at), body) for at, body in enumerate(bodies)]
    last = message_bytes(Spawn(id=99), late)
    started_log = last[: min(cut_at, len(last) - 1)]

    log.record_input(message_bytes(START, b"capsule"))
    feed_in_pieces(log.record_output, b"".join(words) + started_log, sizes)
    feed_in_pieces(
        log.record_input, b"".join(message_bytes(Answer(id=at), b"answer" * at) for at in sorted(answered_ids)), back
    )

    assert (
        log.encode_unanswered()
        == b"".join(word for at, word in enumerate(words) if at not in answered_ids) + started_log
    )
    log.record_output(last[len(started_log) :])
    assert replayed_messages(log)[-1] == Spawn(id=99)


def test_watches_and_the_final_message_are_replayed() -> None:
    """A watch is replayed until its end was reported; messages without an answer are dropped."""
    log = started_log()
    for word in (guest_to_host.Watch(run="one"), guest_to_host.Watch(run="two"), Note(text="n"), Done(ok=True)):
        log.record_output(message_bytes(word))
    log.record_input(message_bytes(ChildEnded(run="one", status="completed", exit_code=0), b"value"))

    assert replayed_messages(log) == [guest_to_host.Watch(run="two"), Done(ok=True)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([(True, ASKS, b"{}"), (False, host_to_guest.StreamChunk(id=1), b"{}")], "part of a reply"),
        ([(True, UseState(id=1, do="set", name="k"), b"1")], "state"),
        ([(True, UseState(id=1, do="set", name="k"), b"1"), (False, Answer(id=1), b"")], "state"),
        ([(True, UseState(id=1, do="set"), b"1"), (True, UseState(id=2, do="commit"), b"")], "state"),
        ([(True, Spawn(id=1), b"x" * MAX_KEPT)], "8 MiB"),
        ([(True, Spawn(id=each), b"x" * (MAX_KEPT // 3)) for each in (1, 2, 3)], "8 MiB"),
        ([(True, Record(number=1), b"x" * MAX_KEPT)], "8 MiB"),
    ],
)
def test_a_log_without_state_of_the_dead_kernel_cannot_be_replayed(
    words: list[tuple[bool, GuestMessage | HostMessage, bytes]], reason: str
) -> None:
    """A partly streamed reply, uncommitted changes, and more bytes than are kept raise Gone."""
    log = started_log()
    for is_said, word, body in words:
        (log.record_output if is_said else log.record_input)(message_bytes(word, body))

    with pytest.raises(Gone, match=reason):
        log.encode_unanswered()


def test_answers_make_a_log_replayable_again() -> None:
    """An answered commit and an answered large message no longer prevent a replay."""
    log = started_log()
    log.record_output(
        message_bytes(UseState(id=1, do="set", name="k"), b"1") + message_bytes(UseState(id=2, do="commit"))
    )
    log.record_output(message_bytes(Spawn(id=3), b"x" * MAX_KEPT) + message_bytes(Output(id=4, target="t")))
    for number in (1, 2, 3):
        log.record_input(message_bytes(Answer(id=number)))

    assert replayed_messages(log) == [Output(id=4, target="t")]


def test_a_refused_commit_keeps_a_log_unreplayable() -> None:
    """The changes are still only in the kernel's memory."""
    log = started_log()
    log.record_output(
        message_bytes(UseState(id=1, do="set", name="k"), b"1") + message_bytes(UseState(id=2, do="commit"))
    )
    error = ErrorInfo(type="Conflict", message="no")
    log.record_input(message_bytes(Answer(id=1)) + message_bytes(Answer(id=2, error=error)))

    with pytest.raises(Gone, match="state"):
        log.encode_unanswered()


@given(
    words=st.lists(st.sampled_from(["record", "word", "aside", "send", "hook", "watch"]), max_size=14),
    answers=st.lists(st.tuples(st.integers(1, 14), st.booleans()), max_size=14),
    sizes=SIZES,
)
def test_records_are_replayed_until_an_answer_confirms_them(
    words: list[str], answers: list[tuple[int, bool]], sizes: list[int]
) -> None:
    """An answer to a later request confirms earlier records; an error, or an answer to a hook, does not."""
    kinds: dict[str, Callable[[int], GuestMessage]] = {
        "record": lambda number: Record(number=number),
        "word": lambda number: guest_to_host.AskModel(id=number, step=f"r:{number}"),
        "aside": lambda number: guest_to_host.AskModel(id=number, step=f"r:{number}", aside=True),
        "send": lambda number: guest_to_host.Send(id=number, to="x", text="t"),
        "hook": lambda number: guest_to_host.FireHook(id=number, event="PreToolUse"),
        "watch": lambda number: guest_to_host.Watch(run=str(number)),
    }
    log = started_log()
    messages = {number: kinds[kind](number) for number, kind in enumerate(words, 1)}
    feed_in_pieces(log.record_output, b"".join(message_bytes(word) for word in messages.values()), sizes)
    last_number, open_ = 0, {number for number, word in messages.items() if isinstance(word, guest_to_host.Request)}
    for number, is_well in answers:
        if number in open_:
            open_.remove(number)
            error = None if is_well else ErrorInfo(type="RametError", message="no")
            log.record_input(message_bytes(Answer(id=number, error=error)))
            if is_well and words[number - 1] != "hook":
                last_number = max(last_number, number)

    assert replayed_messages(log) == [
        word
        for number, word in messages.items()
        if number in open_
        or isinstance(word, guest_to_host.Watch)
        or (isinstance(word, Record) and number > last_number)
    ]


def test_a_streamed_reply_that_was_answered_is_replayable() -> None:
    """The guest has the whole reply."""
    log = started_log()
    log.record_output(message_bytes(ASKS))
    log.record_input(message_bytes(host_to_guest.StreamChunk(id=1), b"{}") + message_bytes(Answer(id=1)))

    assert replayed_messages(log) == []


def test_a_log_without_a_first_message_cannot_be_replayed() -> None:
    """The task of the guest was lost with its kernel."""
    with pytest.raises(Gone, match="start message"):
        ChannelLog().encode_unanswered()


@pytest.mark.parametrize("half", [1, 8, 20])
def test_a_partial_message_of_the_kernel_prevents_a_replay(half: int) -> None:
    """The rest of the message was lost with the kernel."""
    log = started_log()
    log.record_input(message_bytes(Answer(id=1), b"body" * 100)[:half])

    with pytest.raises(Gone, match="half"):
        log.encode_unanswered()


@pytest.mark.parametrize("nonsense", [b"\0" * 8, b"\xff" * 8, b"\0\0\0\1\0\0\0\0{"])
def test_a_log_with_invalid_bytes_cannot_be_replayed(nonsense: bytes) -> None:
    """Invalid bytes in either direction do no other harm."""
    for direction in ("record_output", "record_input"):
        log = started_log()
        getattr(log, direction)(nonsense)
        getattr(log, direction)(b"more")
        with pytest.raises(Gone):
            log.encode_unanswered()
