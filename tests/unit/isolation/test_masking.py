"""Tests of masking in streams: secrets never come out, in any pieces of the stream, and everything else does."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.isolation.masking.masking import Mask


def masked_in_pieces(data: bytes, *secrets: str, cuts: list[int] | None = None) -> bytes:
    """Return the output of a stream that arrives in pieces."""
    mask, out, at = Mask(secrets), b"", 0
    for position in sorted({min(position, len(data)) for position in cuts or []}):
        out += mask.feed(data[at:position])
        at = position
    return out + mask.feed(data[at:], last=True)


@pytest.mark.parametrize(
    ("data", "secrets", "expected"),
    [
        (b"nothing to hide", ["key"], b"nothing to hide"),
        (b"nothing to hide", [], b"nothing to hide"),
        (b"nothing to hide", [""], b"nothing to hide"),
        (b"my key is here", ["key"], b"my *** is here"),
        (b"keykey", ["key"], b"******"),
        (b"sesame", ["sesame", "same"], b"***"),
        (b"sesame open", ["sesame", "same open"], b"***"),
        (b"ababab!", ["abab"], b"***!"),
        (b"ab", ["abc"], b"ab"),
        ("Schlüssel\n".encode(), ["Schlüssel"], b"***\n"),
        (b"line one\nline two", ["one\nline"], b"line *** two"),
        (b"k.y", ["k.y"], b"***"),
        (b"kay", ["k.y"], b"kay"),
    ],
)
def test_every_byte_of_a_secret_is_masked_and_no_other(data: bytes, secrets: list[str], expected: bytes) -> None:
    """Overlapping secrets are masked together."""
    assert masked_in_pieces(data, *secrets) == expected


_letters = st.text("ab", min_size=1, max_size=4)


@given(data=st.text("abc", max_size=30), secrets=st.lists(_letters, max_size=3), cuts=st.lists(st.integers(0, 30)))
@example(data="ababab", secrets=["abab"], cuts=[4])
@example(data="aab", secrets=["aa", "ab"], cuts=[2])
@example(data="abab", secrets=["ab"], cuts=[2])
@example(data="abab", secrets=["ab", "aba"], cuts=[2])
def test_masking_does_not_depend_on_the_pieces_of_a_stream(data: str, secrets: list[str], cuts: list[int]) -> None:
    """The output holds no secret, except one that only the gap of a masked one creates."""
    masked = masked_in_pieces(data.encode(), *secrets)

    assert masked_in_pieces(data.encode(), *secrets, cuts=cuts) == masked
    for part in masked.split(b"***"):
        assert not any(secret.encode() in part for secret in secrets)


def test_bytes_that_cannot_begin_a_secret_are_output_at_once() -> None:
    """A prompt that a user waits for is not delayed."""
    mask = Mask(["secret"])

    assert mask.feed(b"name? ") == b"name? "
    assert mask.feed(b"yes") == b"ye"
    assert mask.feed(b"!") == b"s!"


def test_delayed_bytes_are_output_at_the_end() -> None:
    """The bytes are unchanged if they did not become a secret."""
    mask = Mask(["secret"])
    assert mask.feed(b"a secr") == b"a "

    assert mask.feed(b"", last=True) == b"secr"


def test_a_stream_that_nearly_begins_a_long_secret_is_masked_in_linear_time() -> None:
    """Each of its bytes may begin the secret, and none does."""
    mask = Mask(["a" * 500_000 + "b", "a secret"])
    text = (b"a" * 1_000 + b"c") * 500
    start_s = time.thread_time()

    assert mask.feed(text, last=False) == text
    assert time.thread_time() - start_s < 2.0
