"""What is kept of a channel: every word that is not answered, as it was said, however the bytes were cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import Gone
from ramet.core.outcome import ErrorInfo
from ramet.isolation.remote.replay_log import MAX_KEPT, ChannelLog
from ramet.wire import frames, guest_protocol
from ramet.wire.frames import FrameReader
from ramet.wire.guest_protocol import (
    Answer,
    ChildEnded,
    Done,
    GuestMessage,
    HostMessage,
    Note,
    Output,
    Record,
    Spawn,
    StartFunction,
    UseState,
)

START = StartFunction(run="r", path="r", name="f")
TALK = guest_protocol.StartConversation(run="r", root="r", path="r", agent="a", depth=0, cwd="/", json_size=0)


ASKS = guest_protocol.AskModel(id=1, step="r:1")


def begun() -> ChannelLog:
    """Of who was told what to do."""
    tape = ChannelLog()
    tape.record_input(packed(TALK))
    return tape


def packed(word: GuestMessage | HostMessage, body: bytes = b"") -> bytes:
    return b"".join(bytes(piece) for piece in frames.pack(guest_protocol.encode(word), body))


def cut(take: Callable[[bytes], None], data: bytes, sizes: Sequence[int]) -> None:
    """Give it piece by piece."""
    at = 0
    for size in (*sizes, len(data)):
        take(data[at : at + size])
        at += size


def said_again(tape: ChannelLog) -> list[GuestMessage]:
    return [guest_protocol.from_guest(frame.control) for frame in FrameReader().feed(tape.unanswered())]


SIZES = st.lists(st.integers(1, 40), max_size=30)


@given(
    bodies=st.lists(st.binary(max_size=200), max_size=12),
    answered=st.sets(st.integers(0, 11)),
    sizes=SIZES,
    back=SIZES,
    late=st.binary(min_size=1, max_size=100),
    cut_at=st.integers(1, 100),
)
def test_what_is_not_answered_comes_again_as_it_was_said(
    bodies: list[bytes], answered: set[int], sizes: list[int], back: list[int], late: bytes, cut_at: int
) -> None:
    """In its order; and the beginning of what was being said follows, so that its rest fits on."""
    tape = ChannelLog()
    words = [packed(Spawn(id=at), body) for at, body in enumerate(bodies)]
    last = packed(Spawn(id=99), late)
    begun = last[: min(cut_at, len(last) - 1)]

    tape.record_input(packed(START, b"capsule"))
    cut(tape.record_output, b"".join(words) + begun, sizes)
    cut(tape.record_input, b"".join(packed(Answer(id=at), b"answer" * at) for at in sorted(answered)), back)

    assert tape.unanswered() == b"".join(word for at, word in enumerate(words) if at not in answered) + begun
    tape.record_output(last[len(begun) :])
    assert said_again(tape)[-1] == Spawn(id=99)


def test_a_wish_to_hear_of_an_end_and_the_last_word_come_again() -> None:
    """Until that end was told; what needs no answer is gone."""
    tape = begun()
    for word in (guest_protocol.Watch(run="one"), guest_protocol.Watch(run="two"), Note(text="n"), Done(ok=True)):
        tape.record_output(packed(word))
    tape.record_input(packed(ChildEnded(run="one", status="completed", exit_code=0), b"value"))

    assert said_again(tape) == [guest_protocol.Watch(run="two"), Done(ok=True)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([(True, ASKS, b"{}"), (False, guest_protocol.StreamChunk(id=1), b"{}")], "part of a reply"),
        ([(True, UseState(id=1, do="set", name="k"), b"1")], "state"),
        ([(True, UseState(id=1, do="set", name="k"), b"1"), (False, Answer(id=1), b"")], "state"),
        ([(True, UseState(id=1, do="set"), b"1"), (True, UseState(id=2, do="commit"), b"")], "state"),
        ([(True, Spawn(id=1), b"x" * MAX_KEPT)], "8 MiB"),
        ([(True, Spawn(id=each), b"x" * (MAX_KEPT // 3)) for each in (1, 2, 3)], "8 MiB"),
        ([(True, Record(number=1), b"x" * MAX_KEPT)], "8 MiB"),
    ],
)
def test_nobody_goes_on_with_what_a_kernel_alone_knew(
    words: list[tuple[bool, GuestMessage | HostMessage, bytes]], why: str
) -> None:
    """A reply that was told in part, changes that are in no commit, more than is kept."""
    tape = begun()
    for is_said, word, body in words:
        (tape.record_output if is_said else tape.record_input)(packed(word, body))

    with pytest.raises(Gone, match=why):
        tape.unanswered()


def test_what_could_not_be_gone_on_with_can_be_again() -> None:
    """A commit that was answered, a large word that was."""
    tape = begun()
    tape.record_output(packed(UseState(id=1, do="set", name="k"), b"1") + packed(UseState(id=2, do="commit")))
    tape.record_output(packed(Spawn(id=3), b"x" * MAX_KEPT) + packed(Output(id=4, target="t")))
    for answered in (1, 2, 3):
        tape.record_input(packed(Answer(id=answered)))

    assert said_again(tape) == [Output(id=4, target="t")]


def test_a_commit_that_was_refused_settles_nothing() -> None:
    """Its changes are still in the kernel's memory alone."""
    tape = begun()
    tape.record_output(packed(UseState(id=1, do="set", name="k"), b"1") + packed(UseState(id=2, do="commit")))
    error = ErrorInfo(type="Conflict", message="no")
    tape.record_input(packed(Answer(id=1)) + packed(Answer(id=2, error=error)))

    with pytest.raises(Gone, match="state"):
        tape.unanswered()


@given(
    words=st.lists(st.sampled_from(["record", "word", "aside", "send", "hook", "watch"]), max_size=14),
    answers=st.lists(st.tuples(st.integers(1, 14), st.booleans()), max_size=14),
    sizes=SIZES,
)
def test_what_is_told_comes_again_until_an_answer_says_that_it_is_on_record(
    words: list[str], answers: list[tuple[int, bool]], sizes: list[int]
) -> None:
    """One to a question, or to what leads to more than its answer: an error says nothing, nor does any other answer."""
    kinds: dict[str, Callable[[int], GuestMessage]] = {
        "record": lambda number: Record(number=number),
        "word": lambda number: guest_protocol.AskModel(id=number, step=f"r:{number}"),
        "aside": lambda number: guest_protocol.AskModel(id=number, step=f"r:{number}", aside=True),
        "send": lambda number: guest_protocol.Send(id=number, to="x", text="t"),
        "hook": lambda number: guest_protocol.FireHook(id=number, event="PreToolUse"),
        "watch": lambda number: guest_protocol.Watch(run=str(number)),
    }
    tape = begun()
    said = {number: kinds[kind](number) for number, kind in enumerate(words, 1)}
    cut(tape.record_output, b"".join(packed(word) for word in said.values()), sizes)
    there, open_ = 0, {number for number, word in said.items() if isinstance(word, guest_protocol.Request)}
    for number, is_well in answers:
        if number in open_:
            open_.remove(number)
            error = None if is_well else ErrorInfo(type="RametError", message="no")
            tape.record_input(packed(Answer(id=number, error=error)))
            if is_well and words[number - 1] != "hook":
                there = max(there, number)

    assert said_again(tape) == [
        word
        for number, word in said.items()
        if number in open_ or isinstance(word, guest_protocol.Watch) or (isinstance(word, Record) and number > there)
    ]


def test_a_reply_that_was_told_in_pieces_and_then_whole_is_no_secret_any_more() -> None:
    """Who asked has it all."""
    tape = begun()
    tape.record_output(packed(ASKS))
    tape.record_input(packed(guest_protocol.StreamChunk(id=1), b"{}") + packed(Answer(id=1)))

    assert said_again(tape) == []


def test_who_was_told_nothing_waits_for_nobody() -> None:
    """What it is to do went with its kernel."""
    with pytest.raises(Gone, match="start message"):
        ChannelLog().unanswered()


@pytest.mark.parametrize("half", [1, 8, 20])
def test_half_a_word_of_a_kernels_cannot_be_made_whole(half: int) -> None:
    """Its rest went with that kernel."""
    tape = begun()
    tape.record_input(packed(Answer(id=1), b"body" * 100)[:half])

    with pytest.raises(Gone, match="half"):
        tape.unanswered()


@pytest.mark.parametrize("nonsense", [b"\0" * 8, b"\xff" * 8, b"\0\0\0\1\0\0\0\0{"])
def test_who_breaks_the_rules_is_not_gone_on_with(nonsense: bytes) -> None:
    """In either direction; and it does no harm."""
    for direction in ("said", "told"):
        tape = begun()
        getattr(tape, direction)(nonsense)
        getattr(tape, direction)(b"more")
        with pytest.raises(Gone):
            tape.unanswered()
