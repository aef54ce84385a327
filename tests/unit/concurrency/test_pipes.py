"""Captures: what is kept, what is counted, and when it is enough."""

from __future__ import annotations

import contextlib
import os
import pathlib

import pytest

from ramet.concurrency.pipes import Capture
from tests.support.commands import sh
from tests.support.waiting import alive, eventually, pid_in


@pytest.mark.parametrize(
    ("head", "tail", "pieces", "kept", "left_out"),
    [
        (10, 0, [b"abc"], b"abc", 0),
        (3, 0, [b"abc"], b"abc", 0),
        (3, 0, [b"ab", b"cd"], b"abc", 1),
        (3, 3, [b"abcdef"], b"abcdef", 0),
        (3, 3, [b"abcd", b"efgh"], "abc\n… [2 bytes left out here] …\nfgh".encode(), 2),
        (1, 2, [b"abcdefghij"] * 3, "a\n… [27 bytes left out here] …\nij".encode(), 27),
    ],
)
def test_a_capture_keeps_the_beginning_and_the_end(
    head: int, tail: int, pieces: list[bytes], kept: bytes, left_out: int
) -> None:
    """And says how much lay between; it is enough as soon as more would be thrown away, if that stops it."""
    capture, stopping = Capture(head=head, tail=tail), Capture(head=head, tail=tail, stops=True)

    for piece in pieces:
        capture.append(piece)
        stopping.append(piece)

    assert (capture.data(), capture.omitted_bytes, capture.total) == (kept, left_out, sum(map(len, pieces)))
    assert (capture.is_full, stopping.is_full) == (False, left_out > 0)


async def test_one_that_got_away_and_prints_without_end_does_not_hold_up_the_caller(tmp_path: pathlib.Path) -> None:
    """It left its session, its parent and its mark: it is out of reach, and ends by itself when its pipe is closed."""
    script = f"""
        env -i PATH="$PATH" setsid sh -c 'echo $$ > {tmp_path}/pid; exec yes' &
        while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done
    """

    done = await sh(script)

    assert done.stdout.startswith(b"y\ny\n")
    pid = pid_in(tmp_path / "pid")()
    await eventually(lambda: not alive(pid))
    with contextlib.suppress(ChildProcessError):  # ours only where we are pid 1
        os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
