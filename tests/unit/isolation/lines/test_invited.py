"""Tests of `isolation/transport/reinvite.py`: join tokens on standard input of a working machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation.transport import certificates
from ramet.isolation.transport.join_keys import new_key
from ramet.isolation.transport.join_token import JoinToken, format_token, parse_token
from ramet.isolation.transport.reinvite import TokenStream
from tests.support.waiting import eventually

CA = certificates.make(["127.0.0.1"]).ca
FIRST = JoinToken(url="wss://127.0.0.1:1/line", ca=CA, key="first", pod="uid-1")


def new_token(url: str = "wss://127.0.0.1:2/line") -> JoinToken:
    return JoinToken(url=url, ca=CA, key=new_key(), pod="uid-1")


@asynccontextmanager
async def token_stream() -> AsyncIterator[tuple[TokenStream, int]]:
    """Yield a machine's stream of tokens, and the descriptor to write to it."""
    source, into = os.pipe()
    try:
        async with TokenStream(source, pod="uid-1") as invitations:
            yield invitations, into
    finally:
        os.close(into)


async def test_a_repeated_token_is_read_once_from_any_pieces() -> None:
    """A kernel repeats its token until the machine connects; a token names no pod."""
    async with token_stream() as (invitations, into):
        new = new_token()
        assert b"uid" not in format_token(new)
        for at in range(0, len(format_token(new)), 100):
            os.write(into, format_token(new)[at : at + 100])
            await asyncio.sleep(0)
        assert await invitations.wait_other(FIRST) == new
        os.write(into, format_token(new))
        newest = new_token()
        os.write(into, format_token(newest))
        assert await invitations.wait_other(new) == newest


@pytest.mark.parametrize(
    "noise",
    [
        b"{}\n",
        b"no JSON\n",
        b"\xff\x00\n",
        b"[" * 5000 + b"\n",
        format_token(new_token()).replace(b'"ca"', b'"more":1,"ca"'),
        format_token(new_token("http://127.0.0.1/line")),
        format_token(new_token()).replace(b"CERTIFICATE", b"NOTHING"),
        b"x" * 300_000 + b"\n",
        format_token(new_token())[:-2] + b"\n",
    ],
    ids=["empty", "text", "bytes", "depth", "more", "url", "ca", "length", "broken off"],
)
async def test_an_invalid_token_is_ignored_and_logged(noise: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """The next token is read, and the log never repeats a key."""
    async with token_stream() as (invitations, into):
        new = new_token()
        hearing = asyncio.ensure_future(invitations.wait_other(FIRST))
        for at in range(0, len(noise), 1 << 15):
            await asyncio.to_thread(os.write, into, noise[at : at + (1 << 15)])
        os.write(into, format_token(new))
        assert await hearing == new
    err = capfd.readouterr().err
    assert err.count("ramet: a line on standard input is not a join token, and is ignored: ") == 1
    assert '"key"' not in err


@pytest.mark.parametrize("source", ["ended", "file", "nothing", "closed"])
async def test_a_stream_without_possible_input_yields_no_token(source: str, tmp_path: Path) -> None:
    """A missing standard input, as in a pod of an older kernel, is no error."""
    if source == "ended":
        read_end, into = os.pipe()
        os.close(into)
    elif source == "closed":
        read_end = -1
    else:
        (tmp_path / "file").write_bytes(format_token(new_token()))
        read_end = os.open("/dev/null" if source == "nothing" else tmp_path / "file", os.O_RDONLY)
    async with TokenStream(read_end, pod="uid-1") as invitations:
        hearing = asyncio.ensure_future(invitations.wait_other(FIRST))
        await eventually(lambda: invitations._source == -1)
        assert not hearing.done()
        hearing.cancel()
    if read_end >= 0:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(read_end)


def test_errors_of_tokens_show_no_values() -> None:
    with pytest.raises(InvalidValue) as refusal:
        parse_token(b'{"url": "wss://a", "ca": "b", "key": 5, "secret": "s3cret"}', pod="uid-1")
    assert "s3cret" not in str(refusal.value)
