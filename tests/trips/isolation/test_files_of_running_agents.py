"""A file of an active agent, copied out of its sandbox: from Python, on the command line, and over HTTP."""

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
from tests.support.serving import EchoServer
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]


def draft_and_wait() -> None:
    """Write files and a link, and wait."""
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


async def start_with_files(runtime: ramet.AgentRuntime) -> AgentHandle:
    """Return the active agent once its files exist."""
    ready = asyncio.Event()
    policy = ramet.Policy(max_output_bytes=4_096)
    handle = await runtime.start_agent(agent=draft_and_wait, policy=policy, on_stdout=lambda text: ready.set())
    await ready.wait()
    return handle


async def test_168_the_owner_reads_a_file_of_an_active_agent(runtime: ramet.AgentRuntime) -> None:
    """168: only plain files within the size limit can be read; after the agent's end the handle raises Gone."""
    handle = await start_with_files(runtime)

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
    """168: `ramet cp` works beside a kernel, overwrites no file, and refuses links and runs in the host."""
    folder, out = tmp_path / "work", tmp_path / "copy.txt"
    folder.mkdir()

    async def on(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["cp", *words, "--dir", str(folder)])  # It has a loop of its own.
        return status, capsys.readouterr().err

    async with ramet.AgentRuntime(folder, backend="local") as runtime:
        handle = await start_with_files(runtime)
        host_run = await runtime.spawn(asyncio.sleep, args=(600,))
        assert (await on(handle.id, "draft.txt", str(out)))[0] == 0
        assert out.read_text() == "so far"
        status, err = await on(handle.id, "draft.txt", str(out))
        assert (status, "expected a file that does not exist yet" in err) == (2, True)
        assert "a link" in (await on(handle.id, "link", str(tmp_path / "x")))[1]
        assert "runs in no sandbox" in (await on(host_run.id, "draft.txt", str(tmp_path / "x")))[1]
        assert not (tmp_path / "x").exists()


async def test_168_a_file_named_dash_is_copied_to_a_file(
    tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """168: `-` as TO alone is stdout; without TO the copy has the name that the file has in the sandbox."""
    folder, destination = tmp_path / "work", tmp_path / "here"
    folder.mkdir()
    destination.mkdir()
    monkeypatch.chdir(destination)

    async def on(*words: str) -> tuple[int, bytes, str]:
        status = await asyncio.to_thread(main, ["cp", *words, "--dir", str(folder)])
        out, err = capsysbinary.readouterr()
        return status, out, err.decode()

    async with ramet.AgentRuntime(folder, backend="local") as runtime:
        handle = await start_with_files(runtime)
        assert await on(handle.id, "out/-") == (0, b"", "")
        assert (destination / "-").read_text() == "of a strange name"
        assert await on(handle.id, "out/-", "-") == (0, b"of a strange name", "")
        status, _, err = await on(handle.id, "out/-")
        assert (status, "expected a file that does not exist yet" in err) == (2, True)
        (destination / "-").unlink()
        status, out, err = await on(handle.id, "out/-", "--json")
        assert (status, json.loads(out)) == (0, {"file": "-", "bytes": 17}), err
        status, _, err = await on(handle.id, "x" * 300)
        assert (status, err.count("\n"), "at most 255" in err) == (2, 1, True), err


async def test_168_a_file_is_copied_over_http(client: Client, echo_server: EchoServer) -> None:
    """168: the operator gets the bytes, and the errors of the same read in the server's process."""
    handle = await start_with_files(echo_server.server.runtime)

    assert await client.kernel.read_file(handle.id, "draft.txt") == b"so far"
    with pytest.raises(OutputTooLarge):
        await client.kernel.read_file(handle.id, "large.bin")
    with pytest.raises(InvalidValue, match="a link"):
        await client.kernel.read_file(handle.id, "link")
    with pytest.raises(Unknown):
        await client.kernel.read_file("run-none", "draft.txt")
