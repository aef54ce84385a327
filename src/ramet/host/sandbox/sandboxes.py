"""The sandboxes of a runtime's runs: the chosen backend, the folders of the runs, and their network access."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import resource
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, IsolationUnavailable, MissingExtra, RametError, SandboxFailed, Unknown
from ramet.core.events import EndpointAsked, ThresholdCrossed
from ramet.core.policy.mount_rights import Mounts
from ramet.core.policy.policy import Grant, Isolation, Policy
from ramet.core.policy.reservation import Reservation
from ramet.host.egress.addresses import is_own_endpoint
from ramet.host.egress.connection import ProxyDecision, ProxyQuota
from ramet.host.egress.proxy import Proxy
from ramet.host.sandbox.grant_checks import can_be_fresh, check_remote
from ramet.host.sandbox.new_entries import reporting_new_entries
from ramet.host.sandbox.run_ports import RunPorts
from ramet.isolation.contract import Backend, ConfigurableBackend, ProcessBackend, ReservingBackend, Sandbox
from ramet.isolation.limits.cgroups import reap_groups
from ramet.isolation.mounts import Roots, roots_of
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.isolation.workspace.run_dirs import PROXY_SOCKET, RunFolder, RunFolders
from ramet.isolation.writable_mounts.refusals import checked_sources
from ramet.tools.context import ToolUseContext
from ramet.tools.run_info import RunInfo

_log = logging.getLogger("ramet.sandboxes")
BackendName = Literal["bwrap", "local"]


class Sandboxes:
    """The sandboxes of one runtime. Nothing is started, and no folder created, before the first sandboxed run."""

    def __init__(
        self,
        working_dir: pathlib.Path | None,
        backend: BackendName | Backend | None,
        traceparent: Callable[[str], str] = lambda _: "",
        folder_limits: FolderLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(backend, str) and backend not in ("bwrap", "local"):
            raise InvalidValue("backend", backend, "'bwrap', 'local', None, or an object that is a backend")
        self._working_dir, self._requested_backend = working_dir, backend
        self._folder_limits, self._clock = folder_limits, clock
        self.traceparent = traceparent
        #: Rules for folders that requesters other than the operator may name: nothing below them is reached through a
        #: link.
        self.mount_rules: Roots = {}
        self._temporary: pathlib.Path | None = None
        self._folders: RunFolders | None = None
        self._backend: Backend | None = None
        self._used_backend: Backend | None = None  #: may hold resources to release, without any sandbox
        self._shared_limits: frozenset[str] = frozenset()
        self._opening = asyncio.Lock()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self.contexts_by_run: dict[str, ToolUseContext] = {}  #: runs whose sandboxes live, by id
        self.proxy = Proxy()
        self.open_ports: set[RunPorts] = set()
        self.port_quota = ProxyQuota(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._local: Backend | None = None  #: backend of synchronous tools
        self._tools: pathlib.Path | None = None  #: holds their folders, and is removed with the runtime

    def placement(self, children: Policy | None = None) -> TreePlacement:
        """Return the placement of one tree. `children` is the policy of a host run's children that have none."""
        return TreePlacement(self, children)

    @property
    def folders(self) -> RunFolders:
        """The runs' folders: in the working directory, else in a temporary one that is removed with the runtime."""
        if self._folders is None:
            base_dir = self._working_dir
            if base_dir is None:
                base_dir = self._temporary = pathlib.Path(tempfile.mkdtemp(prefix="ramet-"))
            self._folders = RunFolders(base_dir, limits=self._folder_limits, clock=self._clock)
        return self._folders

    def remove_leftovers(self) -> None:
        """Remove the leftovers of a killed process, except the agents' files. Blocks. Raises OSError.

        The leftovers are import folders, folders of shared servers and sockets of proxies in the working directory,
        and control groups of any ended kernel.
        """
        if self._working_dir is not None:
            self.folders.drop_import_dir()
            self.folders.drop_server_folder()
            self.folders.remove_sockets()
        try:
            reap_groups(("bwrap-", "local-"))
        except (SandboxFailed, OSError) as problem:
            _log.warning("control groups of ended kernels could not be removed yet: %s", problem)

    @property
    def parked_count(self) -> int:
        """The number of processes of this machine that wait to become a run's sandbox."""
        return self._backend.parked_count if isinstance(self._backend, ProcessBackend) else 0

    def terminate(self) -> None:
        """Kill every sandbox that ends with this process, and remove everything except its files. Blocks for seconds.

        For a process that exits next: no run is notified.
        """
        self.proxy.unlink()
        for ports in self.open_ports:
            ports.unlink()
        for backend in (self._backend, self._local):
            if isinstance(backend, ProcessBackend):
                backend.terminate()
        for temporary in (self._tools, self._temporary):
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def folder_of(self, run: str) -> RunFolder | None:
        """Return the folder of a run of this or an earlier runtime, if there is one."""
        if self._folders is None and self._working_dir is None:
            return None
        try:
            return self.folders.find(run)
        except (Unknown, InvalidValue):
            return None

    async def backend(self) -> Backend:
        """Return the opened backend. Raises IsolationUnavailable if none was named and bwrap does not work."""
        if self._backend is None:
            async with self._opening:
                if self._backend is None:
                    self._backend = await self._open()
        return self._backend

    @property
    def shared_limits(self) -> frozenset[str]:
        """The parts of a reservation that the machine itself bounds; empty before the backend is open."""
        return self._shared_limits

    async def reserve(self, reservation: Reservation) -> None:
        """Have the backend reserve resources now, if it can.

        Raises SpawnRefused, SandboxFailed, IsolationUnavailable.
        """
        if isinstance(
            self._requested_backend, ReservingBackend
        ):  # Built-in backends need no call: they bound each sandbox.
            self._used_backend = self._requested_backend
            await self._requested_backend.reserve(reservation)

    def check_team(self, config: Any) -> None:
        """Raise InvalidValue for a team configuration that the backend does not accept; None means no configuration."""
        if isinstance(self._requested_backend, ConfigurableBackend):
            self._requested_backend.check_team(config)
        elif config is not None:
            raise InvalidValue("config", config, "null: the backend of this server takes no configuration of teams")

    async def configure_team(self, team: str, config: Any) -> None:
        """Pass the configuration of a team to the backend. Raises SpawnRefused, SandboxFailed, IsolationUnavailable."""
        if config is not None and isinstance(self._requested_backend, ConfigurableBackend):
            self._used_backend = self._requested_backend
            await self._requested_backend.configure_team(team, config)

    async def keep(self, names: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Release all reservations except those of these names. Other errors are logged, and left to the next runtime.

        Raises InvalidValue, MissingExtra if the backend is misconfigured: it would never work.
        """
        if isinstance(self._requested_backend, ReservingBackend):
            self._used_backend = self._requested_backend
            try:
                for each in await self._requested_backend.keep(names):
                    _log.info("removed, since no team has it any more: %s", each)
            except (InvalidValue, MissingExtra):
                raise
            except RametError as problem:
                _log.warning("reservations of earlier teams could not be released yet: %s", problem)

    async def warm(self) -> None:
        """Prepare slow parts of a sandbox ahead of time, if the backend has any.

        Errors are logged: the first run meets them.
        """
        if isinstance(self._requested_backend, ReservingBackend):
            self._used_backend = self._requested_backend
            try:
                await self._requested_backend.warm()
            except RametError as problem:
                _log.warning("nothing was prepared for the first run: %s", problem)

    async def reap(self) -> None:
        """Remove the remote resources of kernels that have ended. Errors are logged, and left to the next call."""
        backend = self._backend
        if backend is None:  # Opening the backend reaps.
            return
        try:
            if (await backend.probe()).remote:
                for each in await backend.reap():
                    _log.info("removed, since its kernel has ended: %s", each)
        except RametError as problem:
            _log.warning("leftovers of ended kernels could not be removed yet: %s", problem)

    async def disband(self, name: str) -> None:
        """Release a reservation whose sandboxes have ended. Errors are logged, and left to the next runtime."""
        backend = self._backend or self._requested_backend  # A reservation may have had no sandbox.
        if isinstance(backend, ReservingBackend):
            try:
                await backend.disband(name)
            except SandboxFailed as problem:
                _log.warning("the reservation of %s could not be released yet: %s", name, problem)

    async def _open(self) -> Backend:
        requested = self._requested_backend
        if requested == "local":
            from ramet.isolation.local import LocalBackend

            backend: Backend = LocalBackend(runs=self.folders.root, on_threshold=self._on_threshold)
        elif requested in (None, "bwrap"):
            from ramet.isolation.bwrap import BwrapBackend

            backend = BwrapBackend(runs=self.folders.root, on_threshold=self._on_threshold)
        else:
            assert not isinstance(requested, str), "checked when it was given"
            assert requested is not None, "as above"
            self._shared_limits = (await requested.probe()).bounded_resources
            await requested.reap()
            return requested
        probe = await backend.probe()
        if backend.name == "bwrap" and probe.level.rank < Isolation.L2.rank:
            await backend.close()
            remedy = (
                probe.remedy
                if requested
                else f"{probe.remedy} Or set backend='local', and accept a lower isolation level."
            )
            raise IsolationUnavailable(Isolation.L2, probe.level, probe.missing, remedy)
        await backend.reap()
        self._shared_limits = probe.bounded_resources
        return backend

    async def local(self) -> Backend:
        """Return the backend of synchronous tools that do not run in threads: processes of the kind `local`."""
        if self._local is None:
            from ramet.isolation.local import LocalBackend

            self._local = LocalBackend(runs=self._tools_root)
        return self._local

    @property
    def _tools_root(self) -> pathlib.Path:
        if self._tools is None:
            self._tools = pathlib.Path(tempfile.mkdtemp(prefix="ramet-tools-"))
        return self._tools

    def tool_folder(self, root: str, run: str) -> pathlib.Path:
        """Return the folder in whose `work` the tools of a run may write: created now, or as the last call left it."""
        folder = self._tools_root / root / run
        (folder / "work").mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def drop_tool_folders(self, root: str) -> None:
        """Remove the files that the tools of an ended tree have written."""
        if self._tools is not None and (self._tools / root).exists():
            self.run_in_background(asyncio.to_thread(shutil.rmtree, self._tools / root, ignore_errors=True))

    def _on_threshold(self, run: str, resource: str, used: float, limit: float) -> None:
        context = self.contexts_by_run.get(run)
        if context is not None:
            context.emit(ThresholdCrossed, resource=resource, used=round(used, 3), limit=limit)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run cleanup work concurrently; `close` waits for it."""
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._on_cleanup_done)

    def _on_cleanup_done(self, task: asyncio.Task[None]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a sandbox could not be cleaned up", exc_info=error)

    async def close(self) -> None:
        """End every sandbox, and remove temporary files, all of them even if the caller is cancelled."""
        await run_shielded(self._close())

    async def _close(self) -> None:
        backend = self._backend or self._used_backend
        self._backend = self._used_backend = None
        if backend is not None:
            await backend.close()
        if self._local is not None:
            local, self._local = self._local, None
            await local.close()
        while self._background_tasks:
            await asyncio.wait(list(self._background_tasks))
        if self._tools is not None:
            tools, self._tools = self._tools, None
            await asyncio.to_thread(shutil.rmtree, tools, ignore_errors=True)
        if self._temporary is not None:
            self._folders = None
            temporary, self._temporary = self._temporary, None
            await asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True)


@dataclass(frozen=True)
class TreePlacement:
    """An implementation of `ramet.spawn.ports.Placement` for one tree."""

    sandboxes: Sandboxes
    children: Policy | None
    environ: Mapping[str, str] | None = None  #: None: the host's own

    async def backend(self, grant: Grant) -> Backend:
        backend = await self.sandboxes.backend()
        probe = await backend.probe()
        if grant.isolation.rank > probe.level.rank and not can_be_fresh(backend, probe.level, grant):
            missing = probe.missing or (f"a backend that offers {grant.isolation}",)
            remedy = probe.remedy or f"ask for at most {probe.level}: {backend.name} offers no more anywhere"
            raise IsolationUnavailable(grant.isolation, probe.level, missing, remedy)
        if probe.remote:
            check_remote(grant, backend.name)
        return backend

    def folder(self, run: RunInfo, *, is_there: bool = False) -> RunFolder:
        if is_there:
            return self.sandboxes.folders.find(run.id)
        return self.sandboxes.folders.create(run.id, path=run.path, agent=run.agent)

    def env(self, run: RunInfo, grant: Grant) -> dict[str, str]:
        """Return the allowed variables of the host, the run's trace header, and the variables of its policy."""
        environ = os.environ if self.environ is None else self.environ
        allowed = {name: environ[name] for name in grant.allowed_env_vars if name in environ}
        header = self.sandboxes.traceparent(run.id)
        return allowed | ({"TRACEPARENT": header} if header else {}) | dict(grant.env_vars)

    def mount_roots(self, mounts: Sequence[str]) -> Mapping[str, str]:
        """Resolve the roots of mounts. See `Placement`."""
        return roots_of(mounts, self.sandboxes.mount_rules)

    def check_mounts(self, mounts: Mounts, roots: Mapping[str, str]) -> None:
        """Check mounts against their roots. See `Placement`."""
        checked_sources(mounts, roots, str(self.sandboxes.folders.root))

    def check_endpoints(self, endpoints: Sequence[str], parent_endpoints: Collection[str]) -> None:
        """Check that endpoints do not name the host itself. See `Placement`."""
        for each in endpoints:
            if each not in parent_endpoints and is_own_endpoint(each):
                raise InvalidValue("allowed_endpoints", each, "no address of the host itself, unless its parent has it")

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run cleanup work concurrently; the runtime waits for it when it stops."""
        self.sandboxes.run_in_background(work)

    @asynccontextmanager
    async def serving_ports(self, run: RunInfo, grant: Grant, sandbox: Sandbox) -> AsyncGenerator[RunPorts]:
        """Serve the ports of a run's sandbox. See `Placement`."""
        sandboxes = self.sandboxes
        ports = RunPorts.open(
            sandbox,
            grant.ports,
            sandboxes.folders.find(run.id).ports,
            quota=sandboxes.port_quota,
            on_closed=sandboxes.open_ports.discard,
        )
        sandboxes.open_ports.add(ports)
        try:
            yield ports
        finally:
            await run_shielded(ports.close())

    @asynccontextmanager
    async def observing(self, run: ToolUseContext, grant: Grant, roots: Roots) -> AsyncGenerator[pathlib.Path | None]:
        """Record thresholds and endpoints of the run; yield the socket of its proxy, or None without any endpoint."""
        sandboxes, proxy = self.sandboxes, None
        sandboxes.contexts_by_run[run.run.id] = run
        try:
            async with AsyncExitStack() as observers:
                if grant.writable_mounts:
                    await observers.enter_async_context(reporting_new_entries(run, grant, roots))
                if grant.allowed_endpoints:
                    backend = await sandboxes.backend()
                    proxy = sandboxes.folders.find(run.run.id).path / PROXY_SOCKET
                    await observers.enter_async_context(self.network_access(run, grant, proxy, backend))
                yield proxy
        finally:
            del sandboxes.contexts_by_run[run.run.id]

    @asynccontextmanager
    async def server_folder(self) -> AsyncGenerator[pathlib.Path]:
        """Provide a folder for a server that belongs to no run. See `Placement`."""
        folders = self.sandboxes.folders
        folder = await asyncio.to_thread(folders.server_folder)
        try:
            yield folder
        finally:
            self.run_in_background(asyncio.to_thread(folders.drop_server_folder, folder.name))

    @asynccontextmanager
    async def network_access(
        self, run: ToolUseContext, grant: Grant, path: pathlib.Path, backend: Backend
    ) -> AsyncGenerator[None]:
        """Let a process of this backend reach its allowed endpoints through a socket at `path` while this is open."""

        def tell(decision: ProxyDecision) -> None:
            run.emit(
                EndpointAsked,
                host=decision.host,
                port=decision.port,
                allowed=decision.is_allowed,
                reason=decision.reason,
            )

        run_proxy = await self.sandboxes.proxy.open(path, grant.allowed_endpoints, owner=backend.owner, on_event=tell)
        try:
            yield
        finally:
            await run_shielded(run_proxy.close())
