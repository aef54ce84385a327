"""Tests of output streams of real processes: bounded, live, masked, and never blocking."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.isolation.workspace import output
from ramet.isolation.workspace.output import OutputStream
from tests.support.waiting import eventually


class Writer:
    """Writing end of a stream, in the test's own hands; `source` is the stream's end."""

    def __init__(self) -> None:
        self.source, self._sink = os.pipe()

    def say(self, data: bytes) -> None:
        assert os.write(self._sink, data) == len(data)

    def end(self) -> None:
        if self._sink >= 0:
            os.close(self._sink)
            self._sink = -1


@pytest.fixture
async def writer() -> AsyncIterator[Writer]:
    writer = Writer()
    yield writer
    writer.end()


@contextlib.contextmanager
def stream_of_script(script: str, **options: Any) -> Any:
    """Yield the output stream of a Python script, and its process."""
    source, sink = os.pipe()
    process = subprocess.Popen([sys.executable, "-ISc", script], stdout=sink)
    os.close(sink)
    stream = OutputStream(source, **options)
    try:
        yield stream, process
    finally:
        stream.close()
        process.kill()
        process.wait()


async def wait_for_bytes(stream: OutputStream, total: int) -> None:
    """Return once this many bytes have arrived."""
    await eventually(lambda: stream.total_bytes == total)


async def test_printed_text_is_complete_after_draining(tmp_path: Path) -> None:
    """The text is in memory, in the file, and was passed to the callback."""
    texts: list[str] = []

    with stream_of_script("print('grüße ' * 3)", file=tmp_path / "log", on_text=texts.append) as (stream, _):
        await stream.wait_drained()

    assert stream.text == "".join(texts) == (tmp_path / "log").read_text() == "grüße grüße grüße \n"
    assert stream.total_bytes == len(stream.text.encode())


async def test_text_is_delivered_while_the_process_runs(writer: Writer) -> None:
    """Half a character waits for its other half."""
    texts: list[str] = []
    stream = OutputStream(writer.source, on_text=texts.append)

    writer.say("ein €".encode()[:-1])
    await eventually(lambda: texts == ["ein "])
    writer.say("€".encode()[-1:])
    await eventually(lambda: texts == ["ein ", "€"])

    stream.close()


async def test_the_newest_is_kept_in_memory_and_the_beginning_in_the_file(tmp_path: Path) -> None:
    """Each has its own limit, and the file says that it is cut."""
    script = "import sys; [sys.stdout.write(f'{n:07}\\n') for n in range(100_000)]"

    with stream_of_script(script, ring_bytes=800, file=tmp_path / "log", max_file_bytes=1600) as (stream, _):
        await stream.wait_drained()

    assert stream.total_bytes == 800_000
    assert stream.text.split() == [f"{n:07}" for n in range(99_900, 100_000)]
    head, _, notice = (tmp_path / "log").read_text().partition("\n…")
    assert head.split() == [f"{n:07}" for n in range(200)]
    assert "at most 1600 bytes" in notice


async def test_a_log_file_is_appended_to_within_its_limit(tmp_path: Path) -> None:
    """A retried or resumed run cannot fill the disk, and the cut is noted once."""
    log = tmp_path / "log"
    for text in ("first ", "second ", "third "):
        with stream_of_script(f"print({text!r}, end='')", file=log, max_file_bytes=10) as (stream, _):
            await stream.wait_drained()

    assert log.read_text() == "first seco\n… [cut off here: at most 10 bytes are kept]\n"


async def test_a_full_log_file_notes_the_cut_only_when_more_arrives(tmp_path: Path) -> None:
    """Nothing was cut before."""
    log = tmp_path / "log"
    for text, is_cut in (("12345", False), ("6", True), ("7", True)):
        with stream_of_script(f"print({text!r}, end='')", file=log, max_file_bytes=5) as (stream, _):
            await stream.wait_drained()
        assert log.read_text().startswith("12345")
        assert log.read_text().count("cut off") == is_cut


async def test_a_flood_costs_bounded_memory_and_disk_and_leaves_turns_to_others(tmp_path: Path) -> None:
    """At most three chunks of a gigabyte are read between two messages of another stream, also on a busy machine."""
    flood = "import os; data = b'x' * 65536\nfor _ in range(16384): os.write(1, data)"
    other, text_received = Writer(), asyncio.Event()
    aside = OutputStream(other.source, on_text=lambda _: text_received.set())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    max_read = 0
    with stream_of_script(flood, file=tmp_path / "log", max_file_bytes=1024 * 1024) as (stream, _):
        drained = asyncio.ensure_future(stream.wait_drained())
        while not drained.done():
            text_received.clear()
            bytes_before = stream.total_bytes
            other.say(b".")
            await text_received.wait()
            max_read = max(max_read, stream.total_bytes - bytes_before)
        await drained

    assert stream.total_bytes == 2**30
    # One in the turn of the loop in which the word is said, one in which it is heard, one before the test goes on.
    assert max_read <= 3 * output._CHUNK
    assert len(stream.text) == 64 * 1024
    assert (tmp_path / "log").stat().st_size < 1024 * 1024 + 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    other.end()
    await aside.wait_drained()


async def test_secrets_are_masked_in_memory_file_and_callback(tmp_path: Path, writer: Writer) -> None:
    """Secrets that arrive in pieces are masked, too."""
    texts: list[str] = []
    stream = OutputStream(writer.source, file=tmp_path / "log", on_text=texts.append, mask=("hunter2", "pässword"))

    total = 0
    for piece in (b"it is hun", b"ter", b"2 or p\xc3", b"\xa4ssword", b", hunt"):
        writer.say(piece)
        total += len(piece)
        await wait_for_bytes(stream, total)
    writer.end()
    await stream.wait_drained()

    assert stream.text == "".join(texts) == (tmp_path / "log").read_text() == "it is *** or ***, hunt"


async def test_a_failed_callback_is_logged_once_and_dropped(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    """The run and its stored output continue."""
    calls: list[str] = []

    def careless(text: str) -> None:
        calls.append(text)
        raise ZeroDivisionError("my own fault")

    stream = OutputStream(writer.source, on_text=careless)
    for expected in (1, 2, 3):
        writer.say(b"x")
        await wait_for_bytes(stream, expected)

    assert calls == ["x"]
    assert stream.text == "xxx"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "my own fault" in caplog.text
    stream.close()


async def test_an_unwritable_log_file_is_logged_once(
    tmp_path: Path, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    """Output in memory is not affected."""
    stream = OutputStream(writer.source, file=tmp_path / "no such folder" / "log")
    for expected in (1, 2):
        writer.say(b"x")
        await wait_for_bytes(stream, expected)
    stream.close()

    assert stream.text == "xx"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_log_file_that_is_a_link_is_not_followed(tmp_path: Path, writer: Writer) -> None:
    """The target of the link is unchanged."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "precious")
    stream = OutputStream(writer.source, file=tmp_path / "log")
    writer.say(b"overwritten")
    await eventually(lambda: stream.total_bytes)
    stream.close()

    assert (tmp_path / "precious").read_text() == "mine"


async def test_close_reads_the_pipe_and_ends_the_wait(writer: Writer) -> None:
    """An open writing end does not matter, and a second close does nothing."""
    stream = OutputStream(writer.source, mask=("wordless",))
    waiting = asyncio.ensure_future(stream.wait_drained())
    await asyncio.sleep(0)
    writer.say(b"last words")

    stream.close()
    stream.close()

    await waiting
    assert stream.text == "last words"


async def test_close_reads_a_bounded_number_of_chunks(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could not be ended may fill the pipe as fast as it is read."""
    monkeypatch.setattr(output, "_LAST", 2)
    fcntl.fcntl(writer.source, fcntl.F_SETPIPE_SZ, 1024 * 1024)
    writer.say(bytes(1024 * 1024))
    stream = OutputStream(writer.source)

    stream.close()

    assert stream.total_bytes == 2 * output._CHUNK


async def test_the_newest_text_begins_with_a_whole_character(writer: Writer) -> None:
    """The rest of a cut character is dropped."""
    stream = OutputStream(writer.source, ring_bytes=8)
    writer.say("äß€€".encode())
    await wait_for_bytes(stream, 10)
    assert stream.text == "ß€€"
    writer.say(b"1")
    await wait_for_bytes(stream, 11)
    stream.close()

    assert stream.text == "€€1"


async def test_an_idle_stream_holds_one_descriptor(tmp_path: Path, writer: Writer) -> None:
    """The log file is open only during a write, so that a thousand agents fit."""
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the numbers
    stream = OutputStream(writer.source, file=tmp_path / "log")
    writer.say(b"x")
    await eventually(lambda: stream.total_bytes)

    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # noqa: PTH208 - that of the listing
    stream.close()


@given(data=st.binary(max_size=200), ring_bytes=st.integers(0, 64), pieces=st.integers(1, 50))
async def test_memory_keeps_the_end_and_the_callback_gets_everything(data: bytes, ring_bytes: int, pieces: int) -> None:
    """Any bytes in any pieces are decoded."""
    writer, texts = Writer(), list[str]()
    stream = OutputStream(writer.source, ring_bytes=ring_bytes, on_text=texts.append)
    for at in range(0, len(data), pieces):
        writer.say(data[at : at + pieces])
        while stream.total_bytes < min(len(data), at + pieces):  # noqa: ASYNC110 - turns of the loop, no time
            await asyncio.sleep(0)
    writer.end()
    await stream.wait_drained()

    assert "".join(texts) == data.decode(errors="replace")
    newest = data[len(data) - ring_bytes :] if ring_bytes < len(data) else data
    assert newest.decode(errors="replace").endswith(stream.text)
    assert len(newest) - len(stream.text.encode()) <= 3 or not newest.isascii()
