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
from ramet.testing.conformance.isolation.harness import (
    GRANT,
    BackendFixture,
    Check,
    Ended,
    GuestSession,
    NotHere,
    Violation,
    cgroups,
    eventually,
    holds,
    patience,
    replace_grant,
)

_CROWD = 50
_TIMES = 12  #: more than the number of descriptors that a backend may keep ready for each


async def an_unavailable_level_is_refused(site: BackendFixture) -> None:
    """Check that IsolationUnavailable names the requested level, the offered one, and a remedy; nothing is left."""
    stronger = [level for level in Isolation if level.rank > site.probe.level.rank and level is not Isolation.FRESH]
    if not stronger:
        raise NotHere(f"{site.backend.name} offers the strongest there is")
    spec = site.spec(grant=replace_grant(GRANT, isolation=stronger[0]))
    try:
        sandbox = await site.backend.start(spec)
    except IsolationUnavailable as refusal:
        holds(refusal.asked == stronger[0] and refusal.offered == site.probe.level, f"it says what there is: {refusal}")
    else:
        await sandbox.clean_up()
        raise Violation(f"{stronger[0]} was asked, {site.probe.level} is offered, and it was started")


async def a_failed_start_leaves_nothing(site: BackendFixture) -> None:
    """Check that a failed start leaves no descriptors, cgroups or files; other sandboxes live, and new ones start."""
    wrong: list[dict[str, Any]] = [
        {"workspace": site.ground.runs / "none"},
        {"grant": replace_grant(GRANT, readonly_mounts=("/none/such",))},
        {"cwd": pathlib.Path("/none/such")},
    ]
    async with site.visit() as visit:
        before = _held(visit)
        for given in wrong * _TIMES:
            spec = site.spec(**given)
            try:
                sandbox = await site.backend.start(spec)
            except RametError:
                made = spec.workspace.exists() and list(spec.workspace.iterdir())
                holds(not made, f"nothing is left in the workspace of what was not started: {made}")
            else:
                await sandbox.clean_up()
                raise Violation(f"a sandbox with {given} was started")
        await _are_flat(before, visit, within=len(wrong) * _TIMES // 2)
    async with site.visit() as visit:
        holds(await visit.ask("who"), "and the next one starts")


async def a_missing_entry_point_is_a_failure(site: BackendFixture) -> None:
    """Check that a missing entry point is reported at the start or by the end, with its name.

    The name is on stderr or in the error.
    """
    for entry in ("ramet.testing.conformance.isolation.none:main", "ramet.testing.conformance.isolation.guest:none"):
        try:
            sandbox = await site.backend.start(site.spec(entry=entry))
        except RametError as refusal:
            holds("none" in str(refusal), f"it says what is missing: {refusal}")
            continue
        try:
            async with patience():
                ended = await sandbox.wait()
            holds(ended.code != 0, f"what has no entry fails: {ended}")
        finally:
            await sandbox.clean_up()


async def a_cancelled_start_leaves_nothing(site: BackendFixture) -> None:
    """Check that a start that is cancelled at any moment leaves no process and no cgroup; the next one starts."""
    async with site.visit() as visit:
        before = _held(visit)
        for turns in range(2 * _TIMES):
            starting = asyncio.ensure_future(site.backend.start(site.spec()))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).clean_up()
        # A process that was requested before it, and then not wanted, exists by now.
        async with site.visit() as next_one:
            await next_one.ask("who")
        await _are_flat(before, visit, within=_TIMES)
    async with site.visit() as visit:
        holds(await visit.ask("who"), "and the next one starts")


async def many_sandboxes_in_sequence_leave_nothing(site: BackendFixture) -> None:
    """Check that the last sandbox of a sequence costs the host no more descriptors and cgroups than the first."""
    async with site.visit() as stays:
        before = _held(stays)
        for _ in range(2 * _TIMES):
            async with site.visit() as visit:
                await visit.tell("leave", code=0)
                await visit.ended()
        await _are_flat(before, stays, within=_TIMES)


async def many_concurrent_sandboxes(site: BackendFixture) -> None:
    """Check fifty concurrent sandboxes, each with its own workspace, channel and end."""
    async with contextlib.AsyncExitStack() as stack:
        visits = await asyncio.gather(*(stack.enter_async_context(site.visit()) for _ in range(_CROWD)))
        pids = {visit.sandbox.pid for visit in visits}
        holds(len(pids) == _CROWD or site.probe.remote, "each is a process of its own")
        await asyncio.gather(*(visit.ask("write", path="mine", text=visit.spec.run) for visit in visits))
        for visit in visits:
            holds((await visit.seen("mine")).read_text() == visit.spec.run, "each has its own workspace")
        await asyncio.gather(*(visit.tell("leave", code=at) for at, visit in enumerate(visits)))
        ends = await asyncio.gather(*(visit.ended() for visit in visits))
        holds([each.code for each in ends] == list(range(_CROWD)), "each has its own end")


async def closing_ends_all_sandboxes(site: BackendFixture) -> None:
    """Check that `close` ends every sandbox, is repeatable, also concurrently, and that waiters see the end."""
    async with contextlib.AsyncExitStack() as stack:
        visits = [await stack.enter_async_context(site.visit()) for _ in range(3)]
        for visit in visits:
            await visit.ask("hide", hold="held", quiet=True)
            await visit.ask("ignore", numbers=[signal.SIGTERM])
        groups = [group for visit in visits for group in cgroups(visit.sandbox.pid)]
        waiting = [asyncio.ensure_future(visit.ended()) for visit in visits]
        async with patience():
            await asyncio.gather(site.backend.close(), site.backend.close())
            await site.backend.close()
        held = [await visit.holding("held") for visit in visits]
        holds(not any(held), "nobody is left when close returns")
        holds(all(each.code < 0 for each in await asyncio.gather(*waiting)), "whoever waits is told of the end")
        try:
            await visits[0].ask("who")
        except (Ended, OSError):
            pass
        else:
            raise Violation("nobody answers after close")
        holds(not any(each.exists() for each in groups), "no cgroup is left when close returns")


async def closing_at_any_moment_leaves_nothing(site: BackendFixture) -> None:
    """Check `close` during a start or after a crash: callers get an end or an error, and no process is left."""
    for turns in range(0, 4 * _TIMES, 6):
        backend, spec = site.ground.make(), site.spec()
        first = GuestSession(await backend.start(spec), spec, site)
        await first.tell("end_by", number=signal.SIGSEGV)
        await first.closed()
        starting = asyncio.ensure_future(backend.start(site.spec()))
        for _ in range(turns):
            await asyncio.sleep(0)
        async with patience():
            await backend.close()
            try:
                late = await starting
            except RametError:
                pass
            else:
                await late.wait()
                await late.clean_up()
            await first.sandbox.clean_up()
        await backend.close()


async def a_living_sandbox_is_not_reaped(site: BackendFixture) -> None:
    """Check that `reap`, by this backend or another of the same folder, does not affect a live kernel."""
    async with site.visit() as visit:
        await visit.ask("write", path="mine", text="text")
        holds(not await site.backend.reap(), "there is nothing to be reaped")
        async with site.ground.open() as other:
            holds(not await other.backend.reap(), "nor for another of the same folder")
        holds(await visit.ask("read", path="mine") == "text", "who lives is left alone")


async def no_sandbox_outlives_its_kernel(site: BackendFixture) -> None:
    """Check that `kill -9` of the host process ends all sandboxes, and that the next `reap` removes remains, once."""
    async with _doomed(site) as (kernel, specs, groups):
        files = [spec.workspace / "held" for spec in specs]
        holds(all([await site.is_held(file) for file in files]), "a control: they live")
        kernel.kill()
        await kernel.wait()

        async def all_are_gone() -> bool:
            return not any([await site.is_held(file) for file in files])

        await eventually(all_are_gone, "nobody outlives its kernel")
    async with site.ground.open() as next_one:
        said = await next_one.backend.reap()
        holds(not isinstance(said, str) and all(isinstance(each, str) for each in said), f"reap says what: {said!r}")
        holds(not any(each.exists() for each in groups), "no cgroup is left after reap")
        holds(not await next_one.backend.reap(), "what was reaped is not reaped again")
        left = [spec.workspace if site.probe.remote else spec.workspace / "held" for spec in specs]
        holds(all(each.exists() for each in left), "workspaces are not garbage")
        async with next_one.visit() as visit:
            holds(await visit.ask("who"), "and a new one starts")


CHECKS: tuple[Check, ...] = (
    an_unavailable_level_is_refused,
    a_failed_start_leaves_nothing,
    a_missing_entry_point_is_a_failure,
    a_cancelled_start_leaves_nothing,
    many_sandboxes_in_sequence_leave_nothing,
    many_concurrent_sandboxes,
    closing_ends_all_sandboxes,
    closing_at_any_moment_leaves_nothing,
    a_living_sandbox_is_not_reaped,
    no_sandbox_outlives_its_kernel,
)


class _Doomed(NamedTuple):
    """A process that will be killed, and its sandboxes."""

    kernel: asyncio.subprocess.Process
    specs: list[SandboxSpec]
    groups: list[pathlib.Path]


@contextlib.asynccontextmanager
async def _doomed(site: BackendFixture) -> AsyncIterator[_Doomed]:
    """Start another process with a backend of the same kind and folder, and sandboxes that do not end by themselves."""
    specs = [site.spec() for _ in range(3)]
    kernel = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "ramet.testing.conformance.isolation.victim",
            site.ground.backend,
            str(site.ground.scratch),
        ),
        *(json.dumps([spec.run, str(spec.workspace)]) for spec in specs),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert kernel.stdout is not None, "asked for above"
        async with patience():
            pids = json.loads(await kernel.stdout.readline() or "[]")
        holds(len(pids) == len(specs), "another process has its sandboxes ready")
        yield _Doomed(kernel, specs, [group for pid in pids for group in cgroups(pid)])
    finally:
        if kernel.returncode is None:
            kernel.kill()
        await kernel.communicate()


def _held(visit: GuestSession) -> tuple[int, int]:
    """Return the number of open descriptors, and of cgroups, each counted once, next to that of a live sandbox."""
    return len(os.listdir("/proc/self/fd")), len(_groups(visit))  # noqa: PTH208


def _groups(visit: GuestSession) -> dict[str, set[str]]:
    """Return the cgroups next to that of a live sandbox, each with the pids in it, 0 for pids that we cannot see."""
    found: dict[str, set[str]] = {}
    for parent in {each.parent for each in cgroups(visit.sandbox.pid)}:
        for group in filter(pathlib.Path.is_dir, parent.iterdir()):
            with contextlib.suppress(OSError):  # The group is removed during the listing.
                found.setdefault(group.name, set()).update((group / "cgroup.procs").read_text().split())
    return found


async def _are_flat(before: tuple[int, int], visit: GuestSession, *, within: int) -> None:
    """Wait until the numbers are flat: a backend may hold a reserve, and may release ended sandboxes a little later."""

    def is_flat() -> bool:
        return all(now < was + within for was, now in zip(before, _held(visit), strict=True))

    def seen() -> str:
        return f"{before} at first, {_held(visit)} in the end: {_groups(visit)}"

    await eventually(is_flat, "descriptors and cgroups stay flat: ", seen)
