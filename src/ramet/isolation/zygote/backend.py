"""The common part of the backends of one machine: the way from a spec to a sandbox that a zygote forked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, IsolationUnavailable, SandboxFailed
from ramet.core.policy.policy import DEFAULTS, Grant, Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation import python_runtime, spawn_thread
from ramet.isolation.assignment import Assignment, IsolationMode, ZygoteConfig
from ramet.isolation.confine import bubblewrap
from ramet.isolation.contract import Exit, Image, Probe, SandboxSpec
from ramet.isolation.limits import container
from ramet.isolation.limits.cgroups import Cgroup, Cgroups, reap_freezers
from ramet.isolation.limits.freezer_groups import FreezerGroups
from ramet.isolation.limits.team_cgroups import ReservationGroups, SandboxLimits, shared_limits
from ramet.isolation.limits.watchdog import Watchdog, WatchedSandbox
from ramet.isolation.linux import procfs
from ramet.isolation.mounts import identities_of, states_in
from ramet.isolation.probe import NAMESPACES, Finding, level_of, probe_machine
from ramet.isolation.writable_mounts.preparation import MountPreparation
from ramet.isolation.zygote.assignment_builder import absolute, allow_traverse, build_assignment, is_open
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.zygote.dedicated import DedicatedZygotes
from ramet.isolation.zygote.launcher import Launch
from ramet.isolation.zygote.pool import Pool
from ramet.isolation.zygote.process import ZygoteChild
from ramet.isolation.zygote.sandbox import CRASHES, ForkedSandbox, send_assignment, wait_started
from ramet.isolation.zygote.termination import terminate

#: Users that systemd reserves for services without a user of their own, and for no other purpose.
UIDS = range(60578, 61184)
START_S = 30.0
#: The mechanisms that separate a process from the host's processes without bubblewrap.
_APART = (*NAMESPACES, "proc_mount")

#: Called with a run, the resource it uses most of ("memory" in MiB, "cpu" in cores), the amount, and the limit.
OnThreshold = Callable[[str, str, float, float], object]


class ZygoteBackend:
    """A backend on zygotes. `runs` holds all workspaces; each zygote keeps `parked_count` agents waiting.

    `on_threshold` is called on the event loop when an agent comes near a limit.
    """

    name: Literal["bwrap", "local"]
    wants_namespaces = True

    def __init__(self, runs: Path, *, parked_count: int = 4, on_threshold: OnThreshold | None = None) -> None:
        self._runs = absolute(runs)
        self.on_threshold = on_threshold
        self._digest = hashlib.sha256(os.fsencode(self._runs)).digest()
        self._runtime = python_runtime.find()
        self._config = ZygoteConfig("bwrap", self._runs, self._runtime.folders, {}, "bare")
        self._probe: Probe | None = None
        self._probing: asyncio.Future[None] | None = None
        self._cgroups: Cgroups | None = None
        self._groups = 0
        self._reservation_groups = ReservationGroups()
        self._freezer_groups = FreezerGroups()
        self._limits = container.ContainerLimits()
        self._has_read_only_root = False  #: in namespaces without bubblewrap
        self._watchdog = Watchdog()
        self._preparation = MountPreparation(self._runtime.folders)
        self._pool = Pool(
            self._start_shared, parked_count=parked_count, protected_paths=(self._runs, *self._runtime.folders)
        )
        self._dedicated_zygotes = DedicatedZygotes(self.start_zygote)
        self._zygotes = weakref.WeakSet[ZygoteClient]()  #: clients that have not been closed

    @property
    def owner(self) -> tuple[int, int] | None:
        """The user of this folder's workspaces: a later kernel of the folder owns workspaces that were left behind."""
        if os.geteuid() != 0:
            return None
        uid = UIDS[int.from_bytes(self._digest[:4], "big") % len(UIDS)]
        return uid, uid

    async def probe(self) -> Probe:
        """Try the mechanisms once, in a separate process, and return the result."""
        if self._probe is None:
            if self._probing is None:
                self._probing = in_thread(self._try, name="ramet-probe")
            await asyncio.shield(self._probing)
        assert self._probe is not None
        return self._probe

    async def start(self, spec: SandboxSpec) -> ForkedSandbox:
        level = self._level(await self.probe(), spec.grant.isolation)
        assignment = build_assignment(spec, self._config, self.owner)
        if assignment.mounts and self._config.is_apart:  # Elsewhere paths cannot be hidden.
            assignment = await self._preparation.prepare(assignment)
        try:
            assignment = await self._enter(spec.run, assignment)
        except BaseException:
            await run_shielded(self._preparation.release(assignment))
            raise
        try:
            return await self._start_child(spec, level, assignment)
        except BaseException as problem:
            await run_shielded(self._leave_sandbox(assignment))
            if isinstance(problem, SandboxFailed):  # The start may have failed because a mount has become a link.
                identities_of(assignment.mounts, assignment.writable)
            raise

    async def _enter(self, run: str, assignment: Assignment) -> Assignment:
        """Prepare the container for a run; return the assignment for its process. Raises SandboxFailed."""
        return assignment

    async def _leave_sandbox(self, assignment: Assignment) -> None:
        await self._leave()
        await self._preparation.release(assignment)

    async def _leave(self) -> None:
        """Clear the container after a run whose processes have all ended. Idempotent."""

    async def _start_child(self, spec: SandboxSpec, level: Isolation, assignment: Assignment) -> ForkedSandbox:
        is_fresh = level is Isolation.FRESH
        try:
            async with asyncio.timeout(START_S):
                zygotes = self._dedicated_zygotes if is_fresh else self._pool
                taking = zygotes.take(spec.image, assignment.mounts, assignment.writable)
                zygote, child = await _unless_abandoned(spec, taking)
                try:
                    sandbox = await self._assign(spec, level, zygote, child, assignment)
                except BaseException:
                    child.discard()
                    if not self._config.is_apart:  # The container is cleared next.
                        await run_shielded(asyncio.shield(child.exit_future))
                    raise
        except TimeoutError:
            raise SandboxFailed(f"run {spec.run}: nothing started within {START_S:g} s") from None
        if self._config.mode == "pod":
            return sandbox  # The only one.
        if is_fresh:
            self._dedicated_zygotes.prepare(spec.image, assignment.mounts, assignment.writable)
        else:
            zygote.refill_soon()
        return sandbox

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> ForkedSandbox:
        """Raise Gone: the children of a zygote end with their kernel."""
        raise Gone(f"run {spec.run} ended with the kernel that had started it")

    async def reap(self) -> Sequence[str]:
        """Remove control groups, the only thing that outlives a kernel.

        Groups of other folders are removed as well, but not returned.
        """
        await self.probe()
        groups = self._cgroups

        def sweep() -> Sequence[str]:
            reaped_names = groups.reap(self._prefix) if groups is not None else ()
            # A folder may never have a kernel again, and its groups slow down all others.
            for prefix in ("bwrap-", "local-"):
                if groups is not None:
                    groups.reap(prefix)
                reap_freezers(prefix)
            return reaped_names

        return await in_thread(sweep, name="ramet-reap")

    async def reserve(self, reservation: Reservation) -> None:
        """Do nothing: a control group reserves no free resources, and is made with the first sandbox."""

    async def keep(self, names: Callable[[], Awaitable[Collection[str]]]) -> Sequence[str]:
        """Do nothing: the reservations of an earlier kernel ended with it, or are reaped."""
        return ()

    async def warm(self) -> None:
        """Do nothing: a zygote waits from the first sandbox on."""

    async def disband(self, name: str) -> None:
        await self._reservation_groups.disband(name)

    @property
    def parked_count(self) -> int:
        return sum(zygote.parked_count for zygote in self._zygotes)

    def terminate(self) -> None:
        """Kill every sandbox; the zygotes end with this process."""
        children = [child for zygote in self._zygotes for child in zygote.children]
        terminate(children, [each for each in (self._cgroups, self._freezer_groups.place) if each is not None])

    async def close(self) -> None:
        """End all zygotes and sandboxes. Idempotent."""
        await asyncio.gather(self._pool.close(), self._dedicated_zygotes.close())
        self._watchdog.close()
        self._freezer_groups.close()
        if self._cgroups is not None:
            self._cgroups.close()
            self._cgroups = None

    @property
    def _prefix(self) -> str:
        return f"{self.name}-{self._digest.hex()[:12]}"

    def _look(self) -> Mapping[str, Finding]:
        """Return the findings of this machine; blocks."""
        return probe_machine()

    def _try(self) -> None:
        findings = self._look()
        probe = level_of(findings, self.name)
        mode: IsolationMode = "bwrap"
        if self.name == "local":
            mode = "namespaces" if self.wants_namespaces and is_apart(findings) else "none"
            self._has_read_only_root = findings["read_only_root"].works
        self._config = self._config._replace(
            mode=mode, has_landlock=findings["landlock"].works, has_seccomp=findings["seccomp"].works
        )
        if not self._config.is_apart:
            self._config = self._config._replace(in_memory=(), has_secrets=False, has_endpoints=False, has_ports=False)
        self._cgroups = Cgroups.open(self._prefix)
        self._probe = probe._replace(bounded_resources=shared_limits(self._cgroups))

    def _level(self, probe: Probe, isolation: Isolation) -> Isolation:
        """Return the level that a run gets; a backend that offers L2 offers FRESH, a zygote for one run, too."""
        if isolation is Isolation.FRESH and probe.level is Isolation.L2:
            return isolation
        is_none = probe.level is Isolation.L0 and (self.name == "bwrap" or sys.platform != "linux")
        if isolation.rank > probe.level.rank or is_none:
            raise IsolationUnavailable(isolation, probe.level, probe.missing, probe.remedy)
        return probe.level

    async def _start_shared(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> ZygoteClient:
        """Start a zygote whose children may share its address space."""
        return await self.start_zygote(image, mounts, writable)

    async def start_zygote(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> ZygoteClient:
        """Start one more zygote, which the caller then owns.

        Raises SandboxFailed, or InvalidValue if a mount has become a link.
        """
        owner = self._make_runs()
        config = self._config._replace(mounts=mounts, image=image, identities=identities_of(mounts, writable))
        if mounts:
            config = config._replace(states=states_in(mounts, self._runs))
        uid, gid = owner or (None, None)
        unreadable = tuple(folder for folder in config.runtime if not is_open(folder))
        sources = {source: source for source in mounts.values()} | dict(mounts)
        paths = tuple(dict.fromkeys((*_with_real_paths((*config.runtime, config.runs)), *sources)))
        granted_paths = tuple(dict.fromkeys((*sources, *_with_real_paths(unreadable))))
        launch = Launch(config.mode, uid, gid, paths, granted_paths, os.getpid(), sources=sources)
        shown_writable = tuple({*writable, *(mounts[each] for each in writable)})
        launch = launch._replace(is_read_only=self._has_read_only_root, writable=shown_writable)
        if config.mode == "bwrap":
            program = bubblewrap.find() or ""
            by_handle = bool(mounts) and await in_thread(lambda: bubblewrap.binds_handles(program), name="ramet-bwrap")
            arguments = tuple(bubblewrap.arguments(config, by_handle=by_handle))
            launch = launch._replace(bwrap=program, arguments=arguments, files=bubblewrap.FILES)
        make_group = None if self._cgroups is None else self._make_group
        zygote = await ZygoteClient.start(config, launch, self._runtime, make_group)
        self._zygotes.add(zygote)
        return zygote

    def _make_runs(self) -> tuple[int, int] | None:
        Path(self._runs).mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self.owner
        if owner is not None:
            allow_traverse(self._runs, owner[1])
        return owner

    def _make_group(self) -> Cgroup:
        assert self._cgroups is not None
        self._groups += 1
        group = self._cgroups.make(f"agent-{self._groups}")
        try:
            group.limit(**_limits(DEFAULTS))  # The limits that most agents will have.
        except BaseException:
            group.try_remove()
            raise
        return group

    async def _assign(
        self, spec: SandboxSpec, level: Isolation, zygote: ZygoteClient, child: ZygoteChild, assignment: Assignment
    ) -> ForkedSandbox:
        """Turn a parked child into an agent. Raises SandboxFailed."""
        grant, cgroup = spec.grant, child.cgroup
        if cgroup is not None:
            if _limits(grant) != _limits(DEFAULTS):
                cgroup.limit(**_limits(grant))
            assignment = assignment._replace(has_unmapped_memory=cgroup.has_memory)
        watched_sandbox = None
        async with self._in_own_group(grant, zygote, child) as cgroup_fds:
            bounds = self._reservation_groups.bounds(grant.memory_mb, grant.reservation)  # Its group exists by now.
            await send_assignment(child, assignment, (*cgroup_fds, *spec.stdio))
            watched_sandbox = self._watch(spec.run, grant, child, assignment)  # While the child closes its gates.
            try:
                await wait_started(child)
            except BaseException:
                if watched_sandbox is not None:
                    watched_sandbox.close()
                raise
        return ForkedSandbox(
            spec.run,
            level,
            zygote,
            child,
            assignment,
            watched_sandbox,
            on_end=lambda exit: self._look_at(zygote, exit),
            on_leaving=lambda: self._leave_sandbox(assignment),
            oom_kills=container.oom_kills if not self._config.is_apart and cgroup is None else None,
            bounds=bounds,
            make_freezer_group=lambda: self._freezer_groups.make(self._prefix),
        )

    @asynccontextmanager
    async def _in_own_group(self, grant: Grant, zygote: ZygoteClient, child: ZygoteChild) -> AsyncGenerator[list[int]]:
        """Yield descriptors to enter the group that a child moves to, if that is not the group it was parked in.

        Once the child has entered, that group is its own, and the other group is removed; otherwise the new group is
        removed.
        """
        if grant.reservation is None or self._cgroups is None or child.cgroup is None:
            yield []
            return
        group = await self._reservation_groups.make(self._cgroups, grant.reservation, _limits(grant))
        cgroup_fds: list[int] = []
        try:
            if group.has_entry_fds:
                cgroup_fds = group.entry_fds()
            else:
                await spawn_thread.call(lambda: group.add(child.pid))
            yield cgroup_fds
        except BaseException:
            child.discard()
            zygote.forget_group(group)
            raise
        finally:
            for fd in cgroup_fds:
                os.close(fd)
        zygote.change_group(child, group)

    def _watch(self, run: str, grant: Grant, child: ZygoteChild, assignment: Assignment) -> WatchedSandbox | None:
        """Watch a child; return None if it has ended already."""
        is_apart, cores = self._config.is_apart, self._limits.cpu_cores
        # Nothing is subtracted for the image: a process is charged its small part of the memory that it shares.
        with contextlib.suppress(Gone):
            return self._watchdog.watch(
                child.pid,
                adopter=self._adopter(child),
                grant=grant,
                workspace=Path(assignment.workspace),
                kill=lambda _: child.signal(signal.SIGKILL),
                has_memory_cgroup=child.cgroup is not None and child.cgroup.has_memory,
                has_cpu_cgroup=child.cgroup.has_cpu if child.cgroup else cores is not None and cores <= grant.cpu_cores,
                in_memory=() if is_apart else self._config.in_memory,
                by_session=self._config.mode == "none",
                in_own_network=is_apart,
                on_threshold=lambda resource, value, limit: self._report_threshold(run, resource, value, limit),
            )
        return None

    def _adopter(self, child: ZygoteChild) -> int | None:
        """Return the pid that becomes the parent of a run's orphans, and of no other processes."""
        if self._config.mode == "pod" and (agent := procfs.stat(child.pid)) is not None:
            return agent.parent
        return child.adopter if child.adopter > 0 else None

    def _report_threshold(self, run: str, resource: str, value: float, limit: float) -> None:
        if self.on_threshold is not None:
            self.on_threshold(run, resource, value, limit)

    def _look_at(self, zygote: ZygoteClient, exit: Exit) -> None:
        if exit.code in CRASHES:
            self._pool.rotate_after_crash(zygote)


def is_apart(findings: Mapping[str, Finding]) -> bool:
    """Return whether a process can be in namespaces of its own without bubblewrap."""
    return all(findings[name].works for name in _APART)


def _limits(grant: Grant) -> SandboxLimits:
    return {"memory_mb": grant.memory_mb, "cpu_cores": grant.cpu_cores, "pids": grant.pids}


def _with_real_paths(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*paths, *map(os.path.realpath, paths))))


async def _unless_abandoned(
    spec: SandboxSpec, taking: Coroutine[Any, Any, tuple[ZygoteClient, ZygoteChild]]
) -> tuple[ZygoteClient, ZygoteChild]:
    """Return a child and its zygote. Raises SandboxFailed, also once nobody waits for the start any more.

    The start of a zygote takes seconds on a busy machine, and the next run can use the zygote.
    """
    task, abandonment = asyncio.ensure_future(taking), asyncio.ensure_future(spec.abandoned.wait())
    is_taken = False
    try:
        await asyncio.wait((task, abandonment), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise SandboxFailed(f"run {spec.run}: nobody waits for its sandbox any more")
        is_taken = True
        return task.result()
    finally:
        abandonment.cancel()
        if not is_taken:  # On the way to the caller nothing is awaited: a child would be lost by a cancellation.
            task.add_done_callback(_discard_child)
            task.cancel()
            await asyncio.wait((task,))


def _discard_child(task: asyncio.Task[tuple[ZygoteClient, ZygoteChild]]) -> None:
    """Discard a child that came at the last moment."""
    if not (task.cancelled() or task.exception()):
        task.result()[1].discard()
