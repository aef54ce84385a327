"""What a zygote that ended says to those who asked for an agent: why, and nothing of the machine's folders."""

from __future__ import annotations

import pytest

from ramet.isolation.zygote.client import without_paths

_TRACE = 'Traceback (most recent call last):\n  File "/srv/ramet/zygote.py", line 9, in load\n'


@pytest.mark.parametrize(
    ("printed", "said"),
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
def test_the_last_line_is_told_without_paths(printed: str, said: str) -> None:
    """The rest is for the log of the operator."""
    assert without_paths(printed) == said
