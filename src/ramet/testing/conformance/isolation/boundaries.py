"""Checks of boundaries: a process inside does not reach files, sockets and processes of the host or other sandboxes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator

from ramet.core.policy.policy import Isolation
from ramet.testing.conformance.checks import NotHere, checks_of, expect
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Check, replace_grant

_REFUSED = {"EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "ENXIO", "EXDEV"}
_UNREACHABLE = {"EACCES", "EPERM", "ENETUNREACH", "ECONNREFUSED", "EAFNOSUPPORT", "ENOENT", "EHOSTUNREACH"}
_SECRET = "a secret of the host"


async def the_level_is_as_requested(fixture: BackendFixture) -> None:
    """Check that a sandbox has at least the requested level, and that the probe reports it."""
    async with fixture.start_guest(grant=replace_grant(GRANT, isolation=fixture.probe.level)) as guest:
        expect(
            guest.sandbox.level.rank >= fixture.probe.level.rank,
            f"{guest.sandbox.level} is at least the requested level",
        )
    if fixture.probe.missing:
        expect(fixture.probe.remedy, f"the probe names a remedy for what is missing: {fixture.probe.missing}")
    expect(await fixture.backend.probe() == fixture.probe, "a second probe has the same result")


async def a_fresh_address_space_is_granted(fixture: BackendFixture) -> None:
    """Check that a request for no shared address space is fulfilled, or refused (`closing`)."""
    if fixture.probe.level is not Isolation.L2:
        raise NotHere(f"a fresh address space needs L2; {fixture.backend.name} offers {fixture.probe.level} here")
    async with fixture.start_guest(grant=replace_grant(GRANT, isolation=Isolation.FRESH), env={"A": "b"}) as guest:
        expect(guest.sandbox.level is Isolation.FRESH, "the sandbox reports the level FRESH")
        expect(
            (await guest.ask("process_info"))["env"].get("A") == "b",
            "a fresh sandbox gets its variables, like any other",
        )


async def a_guest_has_no_privileges(fixture: BackendFixture) -> None:
    """Check that a guest has no capability, and no program that could give one."""
    fixture.require_confinement()
    async with fixture.start_guest() as guest:
        expect(
            await guest.ask("privileges") == {"capabilities": 0, "no_new_privs": 1},
            "a guest has no capabilities and cannot gain any",
        )
        expect(await guest.ask("core_limit") == 0, "a crash leaves no core file")


async def nothing_else_can_be_written(fixture: BackendFixture) -> None:
    """Check that only the workspace, and /tmp and /dev/shm in memory, can be written."""
    fixture.require_confinement()
    with _host_folder() as folder:
        paths = [
            *("/", "/usr", "/etc", "/var", "/var/tmp", "/home", "/root", "/run", "/dev", "/proc/sys", "/sys", "/opt"),
            *(
                sys.prefix,
                str(pathlib.Path(__file__).parents[3]),
                str(fixture.workdir.scratch),
                str(fixture.workdir.runs),
            ),
            *(str(folder), str(pathlib.Path.home())),
        ]
        async with fixture.start_guest() as guest:
            await guest.ask("make", path=".")
            for path in paths:
                with contextlib.suppress(ValueError):
                    error = await guest.failure_of("make", path=path)
                    expect(error in _REFUSED, f"no file can be created in {path}: {error or 'a file was created'}")
            for path in ("/tmp", "/dev/shm"):
                if not await guest.failure_of("write", path=f"{path}/{guest.spec.run}", text="x"):
                    is_visible = guest.spec.run in os.listdir(path)  # noqa: PTH208 - names only
                    expect(not is_visible, f"a file that is written in {path} does not appear on the host")
        expect((folder / "secret").read_text() == _SECRET, "the file of the host is unchanged")


async def files_of_the_host_cannot_be_read(fixture: BackendFixture) -> None:
    """Check that files that any user of the host may read are not visible inside."""
    fixture.require_confinement()
    with _host_folder() as folder:
        (fixture.workdir.scratch / "secret").write_text(_SECRET)
        files = [folder / "secret", fixture.workdir.scratch / "secret", pathlib.Path("/etc/shadow")]
        spec = fixture.spec()
        if fixture.probe.remote:
            (spec.workspace / "link").symlink_to(folder / "secret")
        async with fixture.start_guest(spec) as guest:
            for file in files:
                error = await guest.failure_of("read", path=str(file))
                expect(error in _REFUSED, f"{file} cannot be read: {error or 'it was read'}")
            if not fixture.probe.remote:
                (spec.workspace / "link").symlink_to(folder / "secret")
            error = await guest.failure_of("read", path="link")
            expect(error in _REFUSED, f"a link to a file of the host cannot be read: {error or 'it was read'}")
            for path in (folder, pathlib.Path.home(), fixture.workdir.scratch):
                error = await guest.failure_of("listing", path=str(path))
                is_visible = not error and "secret" in await guest.ask("listing", path=str(path))
                expect(not is_visible, f"{path} is not listed")


async def mounts_can_be_read_and_not_written(fixture: BackendFixture) -> None:
    """Check that mounts can be read at their own path, as folder and as working directory, whatever their modes."""
    with _host_folder() as folder:
        (folder / "below").mkdir()
        (folder / "below" / "file").write_text("text")
        async with fixture.start_guest_if_granted("readonly_mounts", (str(folder),), cwd=folder / "below") as guest:
            expect((await guest.ask("process_info"))["cwd"] == str(folder / "below"), "`cwd` is the working directory")
            expect(await guest.ask("read", path="file") == "text", "a mount can be read from its own path")
            expect(await guest.ask("read", path=f"{folder}/secret") == _SECRET, "every file of a mount can be read")
            if fixture.is_confined:
                for attempt in (
                    {"request": "write", "path": f"{folder}/secret", "text": "x"},
                    {"request": "make", "path": "."},
                ):
                    error = await guest.failure_of(**attempt)
                    expect(error in _REFUSED, f"a mount cannot be written: {error or 'it was written'}")
        expect((folder / "secret").read_text() == _SECRET, "the file of the host is unchanged")


async def a_writable_mount_keeps_its_repository(fixture: BackendFixture) -> None:
    """Check that a writable mount can be changed, except a repository in it, or is refused by name."""
    with _host_folder() as folder:
        (folder / ".git").mkdir()
        (folder / ".git" / "config").write_text("text")
        async with fixture.start_guest_if_granted("writable_mounts", (str(folder),)) as guest:
            for name in ("new", "secret"):
                error = await guest.failure_of("write", path=f"{folder}/{name}", text="text")
                expect(not error, f"a file in a writable mount can be written: {error}")
            if fixture.is_confined:
                error = await guest.failure_of("write", path=f"{folder}/.git/config", text="x")
                expect(error in _REFUSED, f"a repository cannot be written: {error or 'it was written'}")
        expect((folder / "new").read_text() == "text", "a new file is on the host")
        expect((folder / "new").stat().st_uid == folder.stat().st_uid, "a new file has the owner of the folder")
        expect((folder / "secret").read_text() == "text", "a change is on the host")
        expect((folder / ".git" / "config").read_text() == "text", "the repository is unchanged")


async def files_added_to_an_import_dir_become_visible(fixture: BackendFixture) -> None:
    """Check that files of an import folder can be read at their own path and removed again, but not written inside."""
    import_dir = fixture.workdir.runs / "import-dirs" / "one"
    import_dir.mkdir(parents=True)
    other_import_dir = import_dir.with_name("other")
    other_import_dir.mkdir()
    (other_import_dir / "secret").write_text(_SECRET)
    async with fixture.start_guest(import_dir=import_dir) as guest:
        expect(await guest.ask("listing", path=str(import_dir)) == [], "a new import folder is empty")
        (import_dir / "below").mkdir()
        (import_dir / "below" / "file").write_text("text")
        await guest.sync()
        expect(
            await guest.ask("read", path=f"{import_dir}/below/file") == "text", "a file that is added later can be read"
        )
        if fixture.is_confined:
            for attempt in (
                {"request": "write", "path": f"{import_dir}/below/file", "text": "x"},
                {"request": "make", "path": str(import_dir)},
            ):
                error = await guest.failure_of(**attempt)
                expect(error in _REFUSED, f"an import folder cannot be written: {error or 'it was written'}")
            error = await guest.failure_of("read", path=str(other_import_dir / "secret"))
            expect(error in _REFUSED, f"the import folder of another sandbox cannot be read: {error or 'it was read'}")
        shutil.rmtree(import_dir / "below")
        await guest.sync()
        expect(await guest.ask("listing", path=str(import_dir)) == [], "a removed file is no longer visible")


async def a_mount_around_the_workspace(fixture: BackendFixture) -> None:
    """Check that a mount around the workspace keeps it writable and shows no other workspace, or is refused by name."""
    async with fixture.start_guest() as other:
        await other.ask("write", path="mine", text=_SECRET)
        mounts = (str(fixture.workdir.scratch),)
        async with fixture.start_guest_if_granted("readonly_mounts", mounts) as guest:
            await guest.ask("write", path="file", text="text")
            expect((await guest.synced_path("file")).read_text() == "text", "the workspace stays writable")
            if fixture.is_confined:
                error = await guest.failure_of("read", path=str(other.spec.workspace / "mine"))
                expect(error in _REFUSED, f"another workspace cannot be read through a mount: {error or 'it was read'}")


async def secrets_are_files_in_memory(fixture: BackendFixture) -> None:
    """Check that secrets are in /run/secrets, and not in the environment, the workspace, or visible to the host."""
    async with fixture.start_guest_if_granted("secrets", {"token": _SECRET}) as guest:
        expect(await guest.ask("read", path="/run/secrets/token") == _SECRET, "a secret can be read")
        expect(await guest.ask("listing", path="/run/secrets") == ["token"], "there is no other secret")
        expect(_SECRET not in str(await guest.ask("process_info")), "a secret is not in the environment of the guest")
        expect(_SECRET not in await guest.ask("environments"), "a secret is in no readable environment")
        expect(not list((await guest.synced_path(".")).iterdir()), "a secret is not in the workspace")
        expect(not os.access("/run/secrets/token", os.F_OK), "a secret is not visible on the host")


async def the_network_is_off(fixture: BackendFixture) -> None:
    """Check that the host's loopback, abstract sockets, and pathname sockets in folders are out of reach."""
    fixture.require_confinement()
    with (
        _host_folder() as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        abstract.bind("")
        abstract.listen()
        named.bind(str(folder / "socket"))
        named.listen()
        (folder / "socket").chmod(0o777)
        port = tcp.getsockname()[1]
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(abstract.getsockname())
        async with fixture.start_guest() as guest:
            attempts: list[tuple[str, dict[str, object]]] = [
                ("connect_tcp", {"host": "127.0.0.1", "port": port}),
                ("connect_tcp", {"host": "192.0.2.1", "port": 9}),
                ("connect_unix", {"path": abstract.getsockname().decode()}),
                ("connect_unix", {"path": str(folder / "socket")}),
            ]
            for request, arguments in attempts:
                error = await guest.failure_of(request, **arguments)
                expect(error in _UNREACHABLE, f"{request} {arguments} does not connect: {error or 'it connected'}")


async def the_hosts_processes_are_out_of_reach(fixture: BackendFixture) -> None:
    """Check that host processes cannot be signalled, and are not listed in separate namespaces."""
    fixture.require_confinement()
    async with fixture.start_guest() as guest:
        for pid in (os.getpid(), os.getppid(), guest.sandbox.pid):
            if pid > 0 and (
                pid > 1000 or not fixture.has_namespaces
            ):  # inside, a low number belongs to another process
                error = await guest.failure_of("reach_process", pid=pid)
                expect(
                    error in {"ESRCH", "EPERM"}, f"process {pid} of the host cannot be signalled: {error or 'it was'}"
                )
        if not await guest.failure_of("processes"):
            listed = await guest.ask("processes")
            expect(len(listed) <= 8 and os.getpid() not in listed, f"processes of the host are not listed: {listed}")


async def two_sandboxes_do_not_see_each_other(fixture: BackendFixture) -> None:
    """Check that two sandboxes share no files, processes, sockets or signals, even with the same user and backend."""
    fixture.require_confinement()
    async with fixture.start_guest() as one, fixture.start_guest() as other:
        await one.ask("write", path="mine", text=_SECRET)
        await one.ask("note", number=signal.SIGUSR1)
        for path in (
            one.spec.workspace / "mine",
            f"../{one.spec.workspace.name}/mine",
            f"/proc/{one.sandbox.pid}/cwd/mine",
        ):
            error = await other.failure_of("read", path=str(path))
            expect(error in _REFUSED, f"{path} of another sandbox cannot be read: {error or 'it was read'}")
        error = await other.failure_of("make", path=str(one.spec.workspace))
        expect(error in _REFUSED, f"no file can be created in another workspace: {error or 'a file was created'}")
        for path in (fixture.workdir.runs, pathlib.Path("..")):
            names = (
                [] if await other.failure_of("listing", path=str(path)) else await other.ask("listing", path=str(path))
            )
            expect(one.spec.workspace.name not in names, f"other workspaces are not listed in {path}")
        if one.sandbox.pid > 0 and (one.sandbox.pid > 1000 or not fixture.has_namespaces):
            error = await other.failure_of("reach_process", pid=one.sandbox.pid)
            expect(
                error in {"ESRCH", "EPERM"}, f"processes of another sandbox cannot be signalled: {error or 'they were'}"
            )
        if not await one.failure_of("listen_unix", path="\0conformance"):
            error = await other.failure_of("connect_unix", path="\0conformance")
            expect(error in _UNREACHABLE, f"abstract sockets of another sandbox are unreachable: {error or 'reached'}")
        if not await one.failure_of("listen_unix", path="/tmp/conformance.sock"):
            error = await other.failure_of("connect_unix", path="/tmp/conformance.sock")
            expect(error in _UNREACHABLE, f"sockets in /tmp of another sandbox are unreachable: {error or 'reached'}")
        with contextlib.suppress(Exception):
            port = await one.ask("listen_tcp")
            error = await other.failure_of("connect_tcp", host="127.0.0.1", port=port)
            expect(error in _UNREACHABLE, f"the loopback of another sandbox is unreachable: {error or 'reached'}")
        expect(await one.ask("received_signals") == [], "no signal arrived")


@contextlib.contextmanager
def _host_folder() -> Iterator[pathlib.Path]:
    """Create a folder of the host that any user may read, with a file in it; remove it afterwards."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-conformance-"))
    try:
        folder.chmod(0o755)
        (folder / "secret").write_text(_SECRET)
        (folder / "secret").chmod(0o644)
        yield folder
    finally:
        shutil.rmtree(folder)


CHECKS: tuple[Check, ...] = checks_of(__name__)
