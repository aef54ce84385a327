"""Tests of `Capture`: which bytes it keeps and counts, and when it has enough."""

from __future__ import annotations

import contextlib
import os
import pathlib

import pytest

from ramet.concurrency.pipes import Capture
from tests.support.commands import sh
from tests.support.waiting import alive, eventually, pid_in


@pytest.mark.parametrize(
    ("head", "tail", "pieces", "expected", "left_out"),
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
    head: int, tail: int, pieces: list[bytes], expected: bytes, left_out: int
) -> None:
    """A capture says how many bytes it left out; one that `stops` has enough once it would drop bytes."""
    capture, stopping = Capture(head=head, tail=tail), Capture(head=head, tail=tail, stops=True)

    for piece in pieces:
        capture.append(piece)
        stopping.append(piece)

    assert (capture.data(), capture.omitted_bytes, capture.total) == (expected, left_out, sum(map(len, pieces)))
    assert (capture.is_full, stopping.is_full) == (False, left_out > 0)


async def test_an_escaped_process_that_prints_forever_does_not_delay_the_caller(tmp_path: pathlib.Path) -> None:
    """A process without session, parent and mark escapes the reaper, and ends once its pipe is closed."""
    script = f"""
        env -i PATH="$PATH" setsid sh -c 'echo y; echo $$ > {tmp_path}/pid; exec yes' &
        while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done
    """

    result = await sh(script)

    assert result.stdout.startswith(b"y\n")  # written before the shell could end
    pid = pid_in(tmp_path / "pid")()
    await eventually(lambda: not alive(pid))
    with contextlib.suppress(ChildProcessError):  # ours only where we are pid 1
        os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
