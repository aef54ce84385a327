"""Checks of refusals, crowds, and the end of a backend: in order, or with its kernel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from ramet.core.errors import IsolationUnavailable, RametError
from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import SandboxSpec
from ramet.testing.conformance.checks import NotHere, Violation, checks_of, expect
from ramet.testing.conformance.isolation.harness import (
    GRANT,
    BackendFixture,
    Check,
    Ended,
    GuestSession,
    cgroups,
    eventually,
    replace_grant,
    time_limit,
)

_MANY = 50
_TIMES = 12  #: more than the number of descriptors that a backend may keep ready for each


async def an_unavailable_level_is_refused(fixture: BackendFixture) -> None:
    """Check that IsolationUnavailable names the requested level, the offered one, and a remedy; nothing is left."""
    stronger = [level for level in Isolation if level.rank > fixture.probe.level.rank and level is not Isolation.FRESH]
    if not stronger:
        raise NotHere(f"{fixture.backend.name} offers the strongest level")
    spec = fixture.spec(grant=replace_grant(GRANT, isolation=stronger[0]))
    try:
        sandbox = await fixture.backend.start(spec)
    except IsolationUnavailable as refusal:
        expect(
            refusal.asked == stronger[0] and refusal.offered == fixture.probe.level,
            f"the error names the requested and the offered level: {refusal}",
        )
    else:
        await sandbox.clean_up()
        raise Violation(f"{stronger[0]} was requested, {fixture.probe.level} is offered, and a sandbox was started")


async def a_failed_start_leaves_nothing(fixture: BackendFixture) -> None:
    """Check that a failed start leaves no descriptors, cgroups or files; other sandboxes live, and new ones start."""
    invalid: list[dict[str, Any]] = [
        {"workspace": fixture.workdir.runs / "none"},
        {"grant": replace_grant(GRANT, readonly_mounts=("/none/such",))},
        {"cwd": pathlib.Path("/none/such")},
    ]
    async with fixture.start_guest() as guest:
        before = _counts(guest)
        for fields in invalid * _TIMES:
            spec = fixture.spec(**fields)
            try:
                sandbox = await fixture.backend.start(spec)
            except RametError:
                leftover = spec.workspace.exists() and list(spec.workspace.iterdir())
                expect(not leftover, f"a failed start leaves nothing in the workspace: {leftover}")
            else:
                await sandbox.clean_up()
                raise Violation(f"a sandbox with {fields} was started")
        await _stay_flat(before, guest, within=len(invalid) * _TIMES // 2)
    async with fixture.start_guest() as guest:
        expect(await guest.ask("process_info"), "the next sandbox starts")


async def a_missing_entry_point_is_a_failure(fixture: BackendFixture) -> None:
    """Check that a missing entry point is reported at the start or by the end, with its name.

    The name is on stderr or in the error.
    """
    for entry in ("ramet.testing.conformance.isolation.none:main", "ramet.testing.conformance.isolation.guest:none"):
        try:
            sandbox = await fixture.backend.start(fixture.spec(entry=entry))
        except RametError as refusal:
            expect("none" in str(refusal), f"the error names the missing entry point: {refusal}")
            continue
        try:
            async with time_limit():
                ended = await sandbox.wait()
            expect(ended.code != 0, f"a sandbox without its entry point fails: {ended}")
        finally:
            await sandbox.clean_up()


async def a_cancelled_start_leaves_nothing(fixture: BackendFixture) -> None:
    """Check that a start that is cancelled at any moment leaves no process and no cgroup; the next one starts."""
    async with fixture.start_guest() as guest:
        before = _counts(guest)
        for turns in range(2 * _TIMES):
            starting = asyncio.ensure_future(fixture.backend.start(fixture.spec()))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).clean_up()
        # A process that was requested before it, and then not wanted, exists by now.
        async with fixture.start_guest() as next_one:
            await next_one.ask("process_info")
        await _stay_flat(before, guest, within=_TIMES)
    async with fixture.start_guest() as guest:
        expect(await guest.ask("process_info"), "the next sandbox starts")


async def many_sandboxes_in_sequence_leave_nothing(fixture: BackendFixture) -> None:
    """Check that the last sandbox of a sequence costs the host no more descriptors and cgroups than the first."""
    async with fixture.start_guest() as stays:
        before = _counts(stays)
        for _ in range(2 * _TIMES):
            async with fixture.start_guest() as guest:
                await guest.send("leave", code=0)
                await guest.wait_ended()
        await _stay_flat(before, stays, within=_TIMES)


async def many_concurrent_sandboxes(fixture: BackendFixture) -> None:
    """Check fifty concurrent sandboxes, each with its own workspace, channel and end."""
    async with contextlib.AsyncExitStack() as stack:
        guests = await asyncio.gather(*(stack.enter_async_context(fixture.start_guest()) for _ in range(_MANY)))
        pids = {guest.sandbox.pid for guest in guests}
        expect(len(pids) == _MANY or fixture.probe.remote, "each sandbox has its own process")
        await asyncio.gather(*(guest.ask("write", path="mine", text=guest.spec.run) for guest in guests))
        for guest in guests:
            expect(
                (await guest.synced_path("mine")).read_text() == guest.spec.run, "each sandbox has its own workspace"
            )
        await asyncio.gather(*(guest.send("leave", code=at) for at, guest in enumerate(guests)))
        exits = await asyncio.gather(*(guest.wait_ended() for guest in guests))
        expect([each.code for each in exits] == list(range(_MANY)), "each sandbox has its own exit status")


async def closing_ends_all_sandboxes(fixture: BackendFixture) -> None:
    """Check that `close` ends every sandbox, is repeatable, also concurrently, and that waiters see the end."""
    async with contextlib.AsyncExitStack() as stack:
        guests = [await stack.enter_async_context(fixture.start_guest()) for _ in range(3)]
        for guest in guests:
            await guest.ask("hide", hold="held", quiet=True)
            await guest.ask("ignore", numbers=[signal.SIGTERM])
        groups = [group for guest in guests for group in cgroups(guest.sandbox.pid)]
        waiting = [asyncio.ensure_future(guest.wait_ended()) for guest in guests]
        async with time_limit():
            await asyncio.gather(fixture.backend.close(), fixture.backend.close())
            await fixture.backend.close()
        held_files = [await guest.is_locked("held") for guest in guests]
        expect(not any(held_files), "no process remains when close returns")
        expect(all(each.code < 0 for each in await asyncio.gather(*waiting)), "every waiter gets the end")
        try:
            await guests[0].ask("process_info")
        except (Ended, OSError):
            pass
        else:
            raise Violation("no guest answers after close")
        expect(not any(each.exists() for each in groups), "no cgroup remains when close returns")


async def closing_at_any_moment_leaves_nothing(fixture: BackendFixture) -> None:
    """Check `close` during a start or after a crash: callers get an end or an error, and no process is left."""
    for turns in range(0, 4 * _TIMES, 6):
        backend, spec = fixture.workdir.make(), fixture.spec()
        first = GuestSession(await backend.start(spec), spec, fixture)
        await first.send("end_by", number=signal.SIGSEGV)
        await first.wait_closed()
        starting = asyncio.ensure_future(backend.start(fixture.spec()))
        for _ in range(turns):
            await asyncio.sleep(0)
        async with time_limit():
            await backend.close()
            try:
                sandbox = await starting
            except RametError:
                pass
            else:
                await sandbox.wait()
                await sandbox.clean_up()
            await first.sandbox.clean_up()
        await backend.close()


async def a_living_sandbox_is_not_reaped(fixture: BackendFixture) -> None:
    """Check that `reap`, by this backend or another of the same folder, does not affect a live kernel."""
    async with fixture.start_guest() as guest:
        await guest.ask("write", path="mine", text="text")
        expect(not await fixture.backend.reap(), "reap removes nothing of a live backend")
        async with fixture.workdir.open() as other:
            expect(not await other.backend.reap(), "reap of another backend of the folder removes nothing either")
        expect(await guest.ask("read", path="mine") == "text", "the live guest still answers")


async def no_sandbox_outlives_its_kernel(fixture: BackendFixture) -> None:
    """Check that `kill -9` of the host process ends all sandboxes, and that the next `reap` removes remains, once."""
    async with _victim(fixture) as (kernel, specs, groups):
        files = [spec.workspace / "held" for spec in specs]
        expect(all([await fixture.is_locked(file) for file in files]), "control: the sandboxes live")
        kernel.kill()
        await kernel.wait()

        async def all_have_ended() -> bool:
            return not any([await fixture.is_locked(file) for file in files])

        await eventually(all_have_ended, "no sandbox outlives its kernel")
    async with fixture.workdir.open() as next_one:
        removed = await next_one.backend.reap()
        expect(
            not isinstance(removed, str) and all(isinstance(each, str) for each in removed),
            f"reap returns the names of what it removed: {removed!r}",
        )
        expect(not any(each.exists() for each in groups), "no cgroup remains after reap")
        expect(not await next_one.backend.reap(), "a second reap removes nothing")
        remaining = [spec.workspace if fixture.probe.remote else spec.workspace / "held" for spec in specs]
        expect(all(each.exists() for each in remaining), "workspaces are kept")
        async with next_one.start_guest() as guest:
            expect(await guest.ask("process_info"), "a new sandbox starts")


class _Victim(NamedTuple):
    """A process that will be killed, and its sandboxes."""

    kernel: asyncio.subprocess.Process
    specs: list[SandboxSpec]
    groups: list[pathlib.Path]


@contextlib.asynccontextmanager
async def _victim(fixture: BackendFixture) -> AsyncIterator[_Victim]:
    """Start another process with a backend of the same kind and folder, and sandboxes that do not end by themselves."""
    specs = [fixture.spec() for _ in range(3)]
    kernel = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "ramet.testing.conformance.isolation.victim",
            fixture.workdir.backend,
            str(fixture.workdir.scratch),
        ),
        *(json.dumps([spec.run, str(spec.workspace)]) for spec in specs),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert kernel.stdout is not None, "asked for above"
        async with time_limit():
            pids = json.loads(await kernel.stdout.readline() or "[]")
        expect(len(pids) == len(specs), "the other process has started its sandboxes")
        yield _Victim(kernel, specs, [group for pid in pids for group in cgroups(pid)])
    finally:
        if kernel.returncode is None:
            kernel.kill()
        await kernel.communicate()


def _counts(guest: GuestSession) -> tuple[int, int]:
    """Return the number of open descriptors, and of cgroups, each counted once, next to that of a live sandbox."""
    return len(os.listdir("/proc/self/fd")), len(_groups(guest))  # noqa: PTH208


def _groups(guest: GuestSession) -> dict[str, set[str]]:
    """Return the cgroups next to that of a live sandbox, each with the pids in it, 0 for pids that we cannot see."""
    groups: dict[str, set[str]] = {}
    for parent in {each.parent for each in cgroups(guest.sandbox.pid)}:
        for group in filter(pathlib.Path.is_dir, parent.iterdir()):
            with contextlib.suppress(OSError):  # The group is removed during the listing.
                groups.setdefault(group.name, set()).update((group / "cgroup.procs").read_text().split())
    return groups


async def _stay_flat(before: tuple[int, int], guest: GuestSession, *, within: int) -> None:
    """Wait until the numbers are flat: a backend may hold a reserve, and may release ended sandboxes a little later."""

    def is_flat() -> bool:
        return all(now < first + within for first, now in zip(before, _counts(guest), strict=True))

    def report() -> str:
        return f"{before} at first, {_counts(guest)} in the end: {_groups(guest)}"

    await eventually(is_flat, "the numbers of descriptors and cgroups do not grow: ", report)


CHECKS: tuple[Check, ...] = checks_of(__name__)
