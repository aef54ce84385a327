"""stdout and stderr in a real process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TELL = r"from ramet.cli.render.streams import prepare_streams; prepare_streams(); print('✓ a · b … 漢 \ud83d')"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("ascii", b"+ a - b ... ? ?\n"), ("latin-1", b"+ a \xb7 b ... ? ?\n"), ("utf-8", "✓ a · b … 漢 ?\n".encode())],
)
def test_any_text_can_be_printed_in_any_encoding(encoding: str, expected: bytes) -> None:
    """Our signs become the nearest ones, other signs become question marks, and nothing fails."""
    env = {**os.environ, "PYTHONIOENCODING": encoding}

    assert subprocess.run([sys.executable, "-c", TELL], env=env, capture_output=True, check=True).stdout == expected


def test_closed_streams_are_no_error() -> None:
    """`ramet … >&- 2>&-` ends with status 0."""
    command = f'"{sys.executable}" -m ramet --version >&- 2>&-'

    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


def test_a_full_disk_is_reported_in_one_line() -> None:
    """The status is not 0."""
    command = f'"{sys.executable}" -m ramet --version > /dev/full'

    process_result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    assert (process_result.returncode, process_result.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in process_result.stderr


@pytest.mark.parametrize("line", [["--version"], ["agents", "list"]])
def test_a_closed_pipe_ends_the_command_silently(line: list[str]) -> None:
    """The status is 141, and nothing is printed."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process_result = subprocess.run(
            [sys.executable, "-m", "ramet", *line], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)

    assert (process_result.returncode, process_result.stderr) == (141, b"")
