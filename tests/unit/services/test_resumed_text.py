"""What is said of a text that is told again: all of it, once; and where it is another one, a reader is told so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.services.agent_types.llm.resume_turn import ReplayFilter

NOTE = "[again]"


def told(said: str, *replies: list[str]) -> str:
    """What a reader has in the end who had read `said`, and then replies in pieces."""
    onward, heard = ReplayFilter(said, NOTE), said
    for pieces in replies:
        for piece in pieces:
            heard += onward.feed(piece)
        onward.begin()
    return heard + onward.rest()


@given(st.lists(st.lists(st.text("ab ", min_size=1), max_size=4), max_size=4), st.integers(0, 40))
def test_the_same_text_goes_on_wherever_it_was_cut(replies: list[list[str]], cut: int) -> None:
    """Nothing is repeated and nothing lost, however the pieces fall."""
    whole = "".join(piece for pieces in replies for piece in pieces)
    assert told(whole[:cut], *replies) == whole


def test_another_reply_is_told_from_its_beginning() -> None:
    """Behind a note, with all that came of it before it differed; replies before it are not told again."""
    assert told("first one two", ["first "], ["one ", "three ", "four"]) == f"first one two\n\n{NOTE}\n\none three four"


def test_a_shorter_reply_is_told_from_its_beginning() -> None:
    """More was said than comes: what was cut off was not the answer."""
    assert told("one two three", ["one ", "two"]) == f"one two three\n\n{NOTE}\n\n"


def test_a_reply_that_is_void_is_compared_again() -> None:
    """Asked for once more before it came further than the first: its reader never hears of that."""
    onward = ReplayFilter("one two", NOTE)
    assert onward.feed("one ") == ""
    assert onward.reset()
    assert onward.feed("one two three") == " three"
    assert not onward.reset(), "that was heard"
