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
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Check, NotHere, holds, replace_grant

_REFUSED = {"EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "ENXIO", "EXDEV"}
_UNREACHABLE = {"EACCES", "EPERM", "ENETUNREACH", "ECONNREFUSED", "EAFNOSUPPORT", "ENOENT", "EHOSTUNREACH"}
_SECRET = "a secret of the host"


async def the_level_is_as_requested(site: BackendFixture) -> None:
    """Check that a sandbox has at least the requested level, and that the probe reports it."""
    async with site.visit(grant=replace_grant(GRANT, isolation=site.probe.level)) as visit:
        holds(visit.sandbox.level.rank >= site.probe.level.rank, f"{visit.sandbox.level} is what was asked, or more")
    if site.probe.missing:
        holds(site.probe.remedy, f"for what is missing there is a remedy: {site.probe.missing}")
    holds(await site.backend.probe() == site.probe, "the probe says the same again")


async def a_fresh_address_space_is_granted(site: BackendFixture) -> None:
    """Check that a request for no shared address space is fulfilled, or refused (`closing`)."""
    if site.probe.level is not Isolation.L2:
        raise NotHere(f"fresh is L2 and more; {site.backend.name} offers {site.probe.level} here")
    async with site.visit(grant=replace_grant(GRANT, isolation=Isolation.FRESH), env={"A": "b"}) as visit:
        holds(visit.sandbox.level is Isolation.FRESH, "fresh is told as such")
        holds((await visit.ask("who"))["env"].get("A") == "b", "and is a sandbox like another")


async def a_guest_has_no_privileges(site: BackendFixture) -> None:
    """Check that a guest has no capability, and no program that could give one."""
    site.needs_walls()
    async with site.visit() as visit:
        holds(
            await visit.ask("privileges") == {"capabilities": 0, "no_new_privs": 1},
            "a guest has no capabilities and cannot gain any",
        )
        holds(await visit.ask("core_limit") == 0, "a crash leaves no core file")


async def nothing_else_can_be_written(site: BackendFixture) -> None:
    """Check that only the workspace, and /tmp and /dev/shm in memory, can be written."""
    site.needs_walls()
    with _on_the_host() as folder:
        places = [
            *("/", "/usr", "/etc", "/var", "/var/tmp", "/home", "/root", "/run", "/dev", "/proc/sys", "/sys", "/opt"),
            *(sys.prefix, str(pathlib.Path(__file__).parents[3]), str(site.ground.scratch), str(site.ground.runs)),
            *(str(folder), str(pathlib.Path.home())),
        ]
        async with site.visit() as visit:
            await visit.ask("make", path=".")
            for place in places:
                with contextlib.suppress(ValueError):
                    said = await visit.fails("make", path=place)
                    holds(said in _REFUSED, f"nothing can be made in {place}: {said or 'it was'}")
            for place in ("/tmp", "/dev/shm"):
                if not await visit.fails("write", path=f"{place}/{visit.spec.run}", text="x"):
                    seen = visit.spec.run in os.listdir(place)  # noqa: PTH208 - names only
                    holds(not seen, f"what is written in {place} is not the host's")
        holds((folder / "secret").read_text() == _SECRET, "the host's file is as it was")


async def files_of_the_host_cannot_be_read(site: BackendFixture) -> None:
    """Check that files that any user of the host may read are not visible inside."""
    site.needs_walls()
    with _on_the_host() as folder:
        (site.ground.scratch / "secret").write_text(_SECRET)
        files = [folder / "secret", site.ground.scratch / "secret", pathlib.Path("/etc/shadow")]
        spec = site.spec()
        if site.probe.remote:
            (spec.workspace / "link").symlink_to(folder / "secret")
        async with site.visit(spec) as visit:
            for file in files:
                said = await visit.fails("read", path=str(file))
                holds(said in _REFUSED, f"{file} cannot be read: {said or 'it was'}")
            if not site.probe.remote:
                (spec.workspace / "link").symlink_to(folder / "secret")
            said = await visit.fails("read", path="link")
            holds(said in _REFUSED, f"nor through a link: {said or 'it was'}")
            for path in (folder, pathlib.Path.home(), site.ground.scratch):
                said = await visit.fails("listing", path=str(path))
                seen = not said and "secret" in await visit.ask("listing", path=str(path))
                holds(not seen, f"{path} is not listed")


async def mounts_can_be_read_and_not_written(site: BackendFixture) -> None:
    """Check that mounts can be read at their own path, as folder and as working directory, whatever their modes."""
    with _on_the_host() as folder:
        (folder / "below").mkdir()
        (folder / "below" / "file").write_text("text")
        async with site.visit_if_granted("readonly_mounts", (str(folder),), cwd=folder / "below") as visit:
            holds((await visit.ask("who"))["cwd"] == str(folder / "below"), "`cwd` is where it works")
            holds(await visit.ask("read", path="file") == "text", "a mount can be read from its own path")
            holds(await visit.ask("read", path=f"{folder}/secret") == _SECRET, "all of it")
            if site.has_walls:
                for deed in ({"deed": "write", "path": f"{folder}/secret", "text": "x"}, {"deed": "make", "path": "."}):
                    said = await visit.fails(**deed)
                    holds(said in _REFUSED, f"a mount cannot be written: {said or 'it was'}")
        holds((folder / "secret").read_text() == _SECRET, "the host's file is as it was")


async def files_added_to_a_shelf_become_visible(site: BackendFixture) -> None:
    """Check that files on a shelf can be read at their own path and removed again, but not written inside."""
    shelf = site.ground.runs / "shelves" / "one"
    shelf.mkdir(parents=True)
    beside = shelf.with_name("other")
    beside.mkdir()
    (beside / "secret").write_text(_SECRET)
    async with site.visit(shelf=shelf) as visit:
        holds(await visit.ask("listing", path=str(shelf)) == [], "an empty shelf is one")
        (shelf / "below").mkdir()
        (shelf / "below" / "file").write_text("text")
        await visit.refresh()
        holds(await visit.ask("read", path=f"{shelf}/below/file") == "text", "what is put there later can be read")
        if site.has_walls:
            for deed in (
                {"deed": "write", "path": f"{shelf}/below/file", "text": "x"},
                {"deed": "make", "path": str(shelf)},
            ):
                said = await visit.fails(**deed)
                holds(said in _REFUSED, f"a shelf cannot be written: {said or 'it was'}")
            said = await visit.fails("read", path=str(beside / "secret"))
            holds(said in _REFUSED, f"another's shelf cannot be read: {said or 'it was'}")
        shutil.rmtree(shelf / "below")
        await visit.refresh()
        holds(await visit.ask("listing", path=str(shelf)) == [], "what was taken away is gone")


async def a_mount_around_the_workspace(site: BackendFixture) -> None:
    """Check that a mount around the workspace keeps it writable and shows no other workspace, or is refused by name."""
    async with site.visit() as other:
        await other.ask("write", path="mine", text=_SECRET)
        around = (str(site.ground.scratch),)
        async with site.visit_if_granted("readonly_mounts", around) as visit:
            await visit.ask("write", path="file", text="text")
            holds((await visit.seen("file")).read_text() == "text", "the workspace is as it would be")
            if site.has_walls:
                said = await visit.fails("read", path=str(other.spec.workspace / "mine"))
                holds(said in _REFUSED, f"another's workspace cannot be read through a mount: {said or 'it was'}")


async def secrets_are_files_in_memory(site: BackendFixture) -> None:
    """Check that secrets are in /run/secrets, and not in the environment, the workspace, or visible to the host."""
    async with site.visit_if_granted("secrets", {"token": _SECRET}) as visit:
        holds(await visit.ask("read", path="/run/secrets/token") == _SECRET, "a secret can be read")
        holds(await visit.ask("listing", path="/run/secrets") == ["token"], "and no other is there")
        holds(_SECRET not in str(await visit.ask("who")), "it is not in the environment")
        holds(_SECRET not in await visit.ask("environments"), "nor in any other")
        holds(not list((await visit.seen(".")).iterdir()), "nor in the workspace")
        holds(not os.access("/run/secrets/token", os.F_OK), "nor does the host see it")


async def the_network_is_off(site: BackendFixture) -> None:
    """Check that the host's loopback, abstract sockets, and pathname sockets in folders are out of reach."""
    site.needs_walls()
    with (
        _on_the_host() as folder,
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
        async with site.visit() as visit:
            attempts: list[tuple[str, dict[str, object]]] = [
                ("connect_tcp", {"host": "127.0.0.1", "port": port}),
                ("connect_tcp", {"host": "192.0.2.1", "port": 9}),
                ("connect_unix", {"path": abstract.getsockname().decode()}),
                ("connect_unix", {"path": str(folder / "socket")}),
            ]
            for deed, given in attempts:
                said = await visit.fails(deed, **given)
                holds(said in _UNREACHABLE, f"{deed} {given} leads nowhere: {said or 'it did'}")


async def the_hosts_processes_are_out_of_reach(site: BackendFixture) -> None:
    """Check that host processes cannot be signalled, and are not listed in separate namespaces."""
    site.needs_walls()
    async with site.visit() as visit:
        for pid in (os.getpid(), os.getppid(), visit.sandbox.pid):
            if pid > 0 and (pid > 1000 or not site.is_apart):  # inside, a low number belongs to another process
                said = await visit.fails("reach_process", pid=pid)
                holds(said in {"ESRCH", "EPERM"}, f"process {pid} of the host cannot be signalled: {said or 'it can'}")
        if not await visit.fails("processes"):
            listed = await visit.ask("processes")
            holds(len(listed) <= 8 and os.getpid() not in listed, f"processes of the host are not listed: {listed}")


async def two_sandboxes_do_not_see_each_other(site: BackendFixture) -> None:
    """Check that two sandboxes share no files, processes, sockets or signals, even with the same user and backend."""
    site.needs_walls()
    async with site.visit() as one, site.visit() as other:
        await one.ask("write", path="mine", text=_SECRET)
        await one.ask("note", number=signal.SIGUSR1)
        for path in (
            one.spec.workspace / "mine",
            f"../{one.spec.workspace.name}/mine",
            f"/proc/{one.sandbox.pid}/cwd/mine",
        ):
            said = await other.fails("read", path=str(path))
            holds(said in _REFUSED, f"{path} of another cannot be read: {said or 'it was'}")
        said = await other.fails("make", path=str(one.spec.workspace))
        holds(said in _REFUSED, f"nothing can be made in the workspace of another: {said or 'it was'}")
        for path in (site.ground.runs, pathlib.Path("..")):
            seen = [] if await other.fails("listing", path=str(path)) else await other.ask("listing", path=str(path))
            holds(one.spec.workspace.name not in seen, f"workspaces of others are not listed in {path}")
        if one.sandbox.pid > 0 and (one.sandbox.pid > 1000 or not site.is_apart):
            said = await other.fails("reach_process", pid=one.sandbox.pid)
            holds(said in {"ESRCH", "EPERM"}, f"another's processes cannot be signalled: {said or 'they can'}")
        if not await one.fails("listen_unix", path="\0conformance"):
            said = await other.fails("connect_unix", path="\0conformance")
            holds(said in _UNREACHABLE, f"another's abstract sockets are out of reach: {said or 'reached'}")
        if not await one.fails("listen_unix", path="/tmp/conformance.sock"):
            said = await other.fails("connect_unix", path="/tmp/conformance.sock")
            holds(said in _UNREACHABLE, f"another's /tmp is out of reach: {said or 'reached'}")
        with contextlib.suppress(Exception):
            port = await one.ask("listen_tcp")
            said = await other.fails("connect_tcp", host="127.0.0.1", port=port)
            holds(said in _UNREACHABLE, f"another's loopback is out of reach: {said or 'reached'}")
        holds(await one.ask("noted") == [], "no signal came")


CHECKS: tuple[Check, ...] = (
    the_level_is_as_requested,
    a_fresh_address_space_is_granted,
    a_guest_has_no_privileges,
    nothing_else_can_be_written,
    files_of_the_host_cannot_be_read,
    mounts_can_be_read_and_not_written,
    files_added_to_a_shelf_become_visible,
    a_mount_around_the_workspace,
    secrets_are_files_in_memory,
    the_network_is_off,
    the_hosts_processes_are_out_of_reach,
    two_sandboxes_do_not_see_each_other,
)


@contextlib.contextmanager
def _on_the_host() -> Iterator[pathlib.Path]:
    """Create a folder of the host that any user may read, with a file in it; remove it afterwards."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-conformance-"))
    try:
        folder.chmod(0o755)
        (folder / "secret").write_text(_SECRET)
        (folder / "secret").chmod(0o644)
        yield folder
    finally:
        shutil.rmtree(folder)
