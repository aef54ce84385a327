"""Tests of a working machine: a slow stream delays no other, and sandboxes end with their machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Workdir, replace_grant
from tests.support.machines import MachineBackend
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")

TEN_MB = 10 * 1024 * 1024
#: Sends what it was given through the proxy, and says what came back.
TALK = """
import hashlib, socket, sys
with socket.create_connection(("127.0.0.1", 3128)) as end:
    end.sendall(bytes(2 ** 20))
    end.shutdown(socket.SHUT_WR)
    back = b"".join(iter(lambda: end.recv(2 ** 16), b""))
print(hashlib.sha256(back).hexdigest(), end="")
"""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[BackendFixture]:
    """Open a separate machine."""
    async with Workdir("tests.support.machines:MachineBackend", tmp_path).open() as site:
        yield site


async def test_unread_output_does_not_delay_other_streams(site: BackendFixture) -> None:
    """Another sandbox of the line continues, and this one does once its output is read; nothing is lost."""
    async with site.start_guest() as loud, site.start_guest() as other:
        await loud.send("say", stream=1, text="l", times=TEN_MB)
        for _ in range(20):
            assert await other.ask_with(b"x" * 100_000, "echo") == (100_000, b"x" * 100_000)
        request = asyncio.ensure_future(loud.ask("process_info"))
        reading = asyncio.ensure_future(loud.output())

        await request
        await loud.send("leave", code=0)
        await loud.wait_ended()

        out, _ = await reading
        assert len(out) == TEN_MB


async def test_the_sandboxes_of_a_dead_machine_end_at_once(site: BackendFixture) -> None:
    """Waiters get "lost", earlier output can be read, and no sandbox can be started there."""
    assert isinstance(site.backend, MachineBackend)
    process = await site.backend.process()
    async with site.start_guest() as one, site.start_guest() as other:
        await one.ask("say", stream=1, text="last words", times=1)
        waiting = [asyncio.ensure_future(each.sandbox.wait()) for each in (one, other)]
        await one.ask("process_info")
        process.kill()

        ends = await asyncio.gather(*waiting)

        assert {each.reason for each in ends} == {"lost"}
        assert (await one.output())[0] == b"last words"
        with pytest.raises(SandboxFailed):
            await one.sandbox.sync()
        with pytest.raises(SandboxFailed):
            await site.backend.start(site.spec())


async def test_a_sandbox_with_endpoints_reaches_the_hosts_proxy(site: BackendFixture, tmp_path: Path) -> None:
    """Each connection inside is one to the socket on the host, in both directions, to its end."""
    chunks_received = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks_received.append(await reader.read())
        writer.write(b"answer" * 100_000)
        writer.close()

    grant = replace_grant(GRANT, allowed_endpoints=("api.example:443",))
    path = site.workdir.runs / "proxy.sock"
    server = await asyncio.start_unix_server(answer, path)
    try:
        async with site.start_guest(grant=grant, proxy=path) as guest:
            talks = [
                guest.sandbox.run_command([sys.executable, "-c", TALK], timeout_s=60, max_bytes=1000) for _ in range(3)
            ]
            for code, out, err in await asyncio.gather(*talks):
                assert (code, out.decode()) == (0, hashlib.sha256(b"answer" * 100_000).hexdigest()), err
            server.close()
            path.unlink(missing_ok=True)  # from Python 3.13 on, the server removes it
            code, _, err = await guest.sandbox.run_command([sys.executable, "-c", TALK], timeout_s=60, max_bytes=1000)
            assert code == 0 or b"BrokenPipe" in err or b"ConnectionReset" in err, err
    finally:
        server.close()
    assert chunks_received == [bytes(2**20)] * 3


async def test_a_workspace_is_copied_to_the_machine_and_back(site: BackendFixture) -> None:
    """Earlier files are there; changed and removed files arrive on the host after a sync and at the end."""
    spec = site.spec()
    (spec.workspace / "below").mkdir()
    for name in ("kept", "changed", "below/removed"):
        (spec.workspace / name).write_text(name)
    async with site.start_guest(spec) as guest:
        run = guest.sandbox.run_command
        script = "cat kept below/removed; rm -r below; echo more >> changed; ln -s kept link; ln -s /etc out; mkfifo f"
        assert (await run(["/bin/sh", "-c", script], timeout_s=60, max_bytes=1000)).stdout == b"keptbelow/removed"
        await guest.sandbox.sync()
        assert sorted(each.name for each in spec.workspace.iterdir()) == ["changed", "kept", "link"]
        assert (spec.workspace / "changed").read_text() == "changedmore\n"
        assert (spec.workspace / "link").readlink() == Path("kept")
        await run(["/bin/sh", "-c", "echo late > late; rm kept"], timeout_s=60, max_bytes=1000)
    assert sorted(each.name for each in spec.workspace.iterdir()) == ["changed", "late", "link"]


async def test_a_file_that_stays_may_have_any_name(site: BackendFixture, caplog: pytest.LogCaptureFixture) -> None:
    """The other files arrive; the name, which is no Unicode, is reported with escapes."""
    spec = site.spec()
    async with site.start_guest(spec) as guest:
        script = 'import os; os.mkfifo(b"\\xff"); open("other", "w").close()'
        assert (await guest.sandbox.run_command([sys.executable, "-c", script], timeout_s=60, max_bytes=1000)).code == 0
        await guest.sandbox.sync()
        assert [each.name for each in spec.workspace.iterdir()] == ["other"]
        assert r"\udcff: neither a file nor a folder nor a link" in caplog.text


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder outside of the scratch folder, which holds workspaces and may not be mounted."""
    with tempfile.TemporaryDirectory(prefix="ramet-mounts-") as folder:
        yield Path(folder)


async def test_a_single_file_may_be_a_mount(site: BackendFixture, folder: Path) -> None:
    """A mount above the size limit is refused by name, with a hint to use an image."""
    (folder / "file").write_text("text")
    async with site.start_guest(grant=replace_grant(GRANT, readonly_mounts=(str(folder / "file"),))) as guest:
        assert await guest.ask("read", path=str(folder / "file")) == "text"
    with (folder / "large").open("wb") as file:
        file.truncate(257 * 2**20)
    with pytest.raises(InvalidValue, match="image") as refusal:
        await site.backend.start(site.spec(grant=replace_grant(GRANT, readonly_mounts=(str(folder),))))
    assert refusal.value.field == "readonly_mounts"


async def test_a_mount_that_the_machines_image_has_is_not_copied(site: BackendFixture, folder: Path) -> None:
    """A mount, and a path below it, appear at their host paths with the content of the machine's image."""
    assert isinstance(site.backend, MachineBackend)
    machine = await site.backend.machine()
    library = Path(json.__file__).parent
    (folder / "json").mkdir()
    (folder / "json" / "decoder.py").write_text("as it is here")
    (folder / "text").write_text("it goes")
    mounts = (str(folder / "json"), str(folder / "text"), str(folder / "json" / "decoder.py"))
    spec = site.spec(grant=replace_grant(GRANT, readonly_mounts=mounts), cwd=folder / "json")

    with pytest.raises(InvalidValue, match="/none/such"):
        await machine.start(spec, {mounts[0]: "/none/such"})
    with pytest.raises(InvalidValue, match="/usr/out"):
        await machine.start(spec, {"/usr/out": str(library)})
    for _ in range(2):  # It may be linked to already.
        sandbox = await machine.start(spec, {mounts[0]: str(library)})
        try:
            command = ["/bin/sh", "-c", f"cat {folder}/text; ls; cat {mounts[2]}"]
            code, out, err = await sandbox.run_command(command, timeout_s=60, max_bytes=100_000)
        finally:
            await sandbox.clean_up()
        assert code == 0, err
        names = sorted(each.name for each in library.iterdir())
        assert out.decode() == "\n".join([f"it goes{names[0]}", *names[1:], (library / "decoder.py").read_text()])


async def test_a_workspace_above_its_size_limit_is_not_synced(site: BackendFixture) -> None:
    """Sparse files are small there and large here: the sync fails, and the host stores no more than was granted."""
    async with site.start_guest(grant=replace_grant(GRANT, workspace_size_mb=4)) as guest:
        script = "for name in a b c; do truncate -s 4M $name; done"
        assert (await guest.sandbox.run_command(["/bin/sh", "-c", script], timeout_s=60, max_bytes=1000)).code == 0
        with pytest.raises(SandboxFailed, match="transferred"):
            await guest.sandbox.sync()
        await guest.sandbox.run_command(["/bin/sh", "-c", "rm a b c; echo x > d"], timeout_s=60, max_bytes=1000)
        await guest.sandbox.sync()
        assert (guest.spec.workspace / "d").read_text() == "x\n"


async def test_a_cleaned_up_sandbox_leaves_nothing_on_its_machine(site: BackendFixture) -> None:
    """The workspace and the import folder of the sandbox are removed."""
    assert isinstance(site.backend, MachineBackend)
    process = await site.backend.process()
    runs = Path(f"/proc/{process.pid}/root{site.workdir.runs}")
    shared_folder = site.workdir.runs / "imports"
    shared_folder.mkdir()
    (shared_folder / "file").touch()
    async with site.start_guest(import_dir=shared_folder) as one, site.start_guest(import_dir=shared_folder) as other:
        await one.sandbox.clean_up()
        assert await other.ask("listing", path=str(shared_folder)) == ["file"]
        assert one.spec.workspace.name not in names(runs)

    await eventually(lambda: not [each for each in names(runs) if not each.startswith(".")])


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return [each.name for each in folder.iterdir()]
