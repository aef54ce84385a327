"""Tests of errors of an ended zygote: the reason is shown, and no folder of the machine."""

from __future__ import annotations

import pytest

from ramet.isolation.zygote.client import without_paths

_TRACE = 'Traceback (most recent call last):\n  File "/srv/ramet/zygote.py", line 9, in load\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{_TRACE}OSError: [Errno 116] it was exchanged: '/srv/a b/.ramet'\n",
            "OSError: [Errno 116] it was exchanged: …",
        ),
        (f'{_TRACE}OSError: it is gone: "/srv/it\'s"', "OSError: it is gone: …"),
        ("bwrap: Can't find source path /srv/x: No such file", "bwrap: Can't find source path … No such file"),
        ("read/write failed", "read/write failed"),
        ("", ""),
    ],
)
def test_the_last_line_is_shown_without_paths(text: str, message: str) -> None:
    """The other lines are for the operator's log."""
    assert without_paths(text) == message
