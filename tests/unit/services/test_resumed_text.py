"""Text of a resumed turn: the reader gets each part once, and a note if the new reply differs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.services.agent_types.resume_turn import ReplayFilter

NOTE = "[again]"


def text_after_replay(text: str, *replies: list[str]) -> str:
    """Return what a reader has at the end who had read `text`, and then gets replies in pieces."""
    onward, text_received = ReplayFilter(text, NOTE), text
    for pieces in replies:
        for piece in pieces:
            text_received += onward.feed(piece)
        onward.begin()
    return text_received + onward.rest()


@given(st.lists(st.lists(st.text("ab ", min_size=1), max_size=4), max_size=4), st.integers(0, 40))
def test_the_same_reply_continues_after_any_cut(replies: list[list[str]], cut: int) -> None:
    """Nothing is repeated and nothing is lost, in any pieces."""
    full_text = "".join(piece for pieces in replies for piece in pieces)
    assert text_after_replay(full_text[:cut], *replies) == full_text


def test_a_different_reply_is_sent_from_its_beginning() -> None:
    """A note comes first, then the whole reply; earlier replies are not repeated."""
    assert (
        text_after_replay("first one two", ["first "], ["one ", "three ", "four"])
        == f"first one two\n\n{NOTE}\n\none three four"
    )


def test_a_shorter_reply_counts_as_a_different_one() -> None:
    """The reader had more text than the new reply has."""
    assert text_after_replay("one two three", ["one ", "two"]) == f"one two three\n\n{NOTE}\n\n"


def test_a_void_reply_is_compared_again() -> None:
    """A reply that is void before it passes the old text never reaches the reader."""
    onward = ReplayFilter("one two", NOTE)
    assert onward.feed("one ") == ""
    assert onward.reset()
    assert onward.feed("one two three") == " three"
    assert not onward.reset(), "that was heard"
