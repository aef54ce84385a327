"""A file of an agent that is at work, copied out of its sandbox: from Python, on the command line, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

import ramet
from ramet.cli.main import main
from ramet.core.errors import Gone, InvalidValue, OutputTooLarge, Unknown
from ramet.host.sandbox.handle import AgentHandle
from ramet.services.client.client import Client
from tests.support.serving import Served
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]


def draft_and_wait() -> None:
    """Leave two files and a link, and wait."""
    import pathlib
    import sys
    import time

    pathlib.Path("draft.txt").write_text("so far")
    pathlib.Path("large.bin").write_bytes(b"x" * 5_000)
    pathlib.Path("link").symlink_to("/etc/passwd")
    pathlib.Path("out").mkdir()
    pathlib.Path("out/-").write_text("of a strange name")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    time.sleep(600)


async def started(runtime: ramet.AgentRuntime) -> AgentHandle:
    """The agent, at work, once its files are there."""
    ready = asyncio.Event()
    policy = ramet.Policy(max_output_bytes=4_096)
    handle = await runtime.start_agent(agent=draft_and_wait, policy=policy, on_stdout=lambda text: ready.set())
    await ready.wait()
    return handle


async def test_168_a_file_is_read_by_the_agents_owner(runtime: ramet.AgentRuntime) -> None:
    """168: plain files only, of a size that is checked before; after the end of the agent it is a typed error."""
    handle = await started(runtime)

    assert await handle.read_file("draft.txt") == b"so far"
    with pytest.raises(OutputTooLarge):
        await handle.read_file("large.bin")
    with pytest.raises(InvalidValue, match="a link"):
        await handle.read_file("link")
    with pytest.raises(Unknown, match="unknown file 'none'"):
        await handle.read_file("none")
    await handle.cancel("seen enough")
    with pytest.raises(Gone, match="has ended"):
        await handle.read_file("draft.txt")


async def test_168_a_file_is_copied_on_the_command_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """168: `ramet cp` beside a kernel; a file that is there is not overwritten; a run in the host has no workspace."""
    folder, out = tmp_path / "work", tmp_path / "copy.txt"
    folder.mkdir()

    async def on(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["cp", *words, "--dir", str(folder)])  # It has a loop of its own.
        return status, capsys.readouterr().err

    async with ramet.AgentRuntime(folder, backend="local") as runtime:
        handle = await started(runtime)
        here = await runtime.spawn(asyncio.sleep, args=(600,))
        assert (await on(handle.id, "draft.txt", str(out)))[0] == 0
        assert out.read_text() == "so far"
        status, err = await on(handle.id, "draft.txt", str(out))
        assert (status, "expected a file that does not exist yet" in err) == (2, True)
        assert "a link" in (await on(handle.id, "link", str(tmp_path / "x")))[1]
        assert "runs in no sandbox" in (await on(here.id, "draft.txt", str(tmp_path / "x")))[1]
        assert not (tmp_path / "x").exists()


async def test_168_a_file_named_as_stdout_is_copied_to_a_file(
    tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """168: `-` as TO is stdout, and is nothing else; without TO a file has the name that it has in the sandbox."""
    folder, here = tmp_path / "work", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)

    async def on(*words: str) -> tuple[int, bytes, str]:
        status = await asyncio.to_thread(main, ["cp", *words, "--dir", str(folder)])
        out, err = capsysbinary.readouterr()
        return status, out, err.decode()

    async with ramet.AgentRuntime(folder, backend="local") as runtime:
        handle = await started(runtime)
        assert await on(handle.id, "out/-") == (0, b"", "")
        assert (here / "-").read_text() == "of a strange name"
        assert await on(handle.id, "out/-", "-") == (0, b"of a strange name", "")
        status, _, err = await on(handle.id, "out/-")
        assert (status, "expected a file that does not exist yet" in err) == (2, True)
        (here / "-").unlink()
        status, out, err = await on(handle.id, "out/-", "--json")
        assert (status, json.loads(out)) == (0, {"file": "-", "bytes": 17}), err
        status, _, err = await on(handle.id, "x" * 300)
        assert (status, err.count("\n"), "at most 255" in err) == (2, 1, True), err


async def test_168_a_file_is_copied_over_http(client: Client, served: Served) -> None:
    """168: for the operator, as bytes; refusals are those of the same question in the server's process."""
    handle = await started(served.server.runtime)

    assert await client.kernel.read_file(handle.id, "draft.txt") == b"so far"
    with pytest.raises(OutputTooLarge):
        await client.kernel.read_file(handle.id, "large.bin")
    with pytest.raises(InvalidValue, match="a link"):
        await client.kernel.read_file(handle.id, "link")
    with pytest.raises(Unknown):
        await client.kernel.read_file("run-none", "draft.txt")
