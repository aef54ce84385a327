"""The backend `kubernetes` with teams: each team has its own namespace; all other pods use the given one."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ramet.core.errors import Gone, InvalidValue, IsolationUnavailable, RametError, SandboxFailed
from ramet.core.policy.policy import Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import Probe, SandboxSpec
from ramet.isolation.kubernetes import probe as probing
from ramet.isolation.kubernetes.api import quotas
from ramet.isolation.kubernetes.api.errors import Forbidden
from ramet.isolation.kubernetes.api.namespaces import Spaces
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.connect.listener import SharedListener
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.placement.shared import TeamPodSize

Per = Literal["run", "team"]
PER: tuple[Per, ...] = ("run", "team")  #: the possible owners of a pod


class TeamNamespaces:
    """A `ReservingBackend` that reserves by the quota of a namespace.

    The namespace is created with the team and removed with it. A quota keeps a team within its amounts, and `kubectl`
    shows it; no node is kept free for the team. With `per` "team", the team's runs share a pod there, where that gives
    the isolation that they ask for. That pod is created together with the namespace. `options` are options of
    `KubernetesBackend`; the backends of all namespaces get the same ones.
    """

    name: Literal["kubernetes"] = "kubernetes"

    def __init__(
        self,
        runs: Path,
        *,
        namespace: str,
        kubeconfig: os.PathLike[str] | str | None = None,
        listener: SharedListener | None = None,
        pull_secrets: Sequence[str] = (),
        per: Per = "run",
        warm: int = 0,
        **options: Any,
    ) -> None:
        """Configure the backend. Raises InvalidValue.

        `listener` is the listener that all pods dial; it begins and ends with this backend. Without `listener`, pods
        are reached through the API server. `pull_secrets` are Secrets of `namespace`; a team's namespace gets copies.
        `warm` pods of each kind wait in `namespace`. None wait in a team's namespace, because its quota is for what the
        team asks for.
        """
        if per not in PER:
            raise InvalidValue("per", per, " or ".join(PER))
        if listener is not None:
            options["reach"] = listener
        self._listener, self._pull_secrets = listener, tuple(pull_secrets)
        self._kubeconfig, self._per, self._warm = kubeconfig, per, warm

        options |= {"kubeconfig": kubeconfig, "pull_secrets": pull_secrets}
        self._default_backend = default_backend = KubernetesBackend(runs, namespace=namespace, warm=warm, **options)

        def make(each: str, team: Reservation | None) -> KubernetesBackend:
            return KubernetesBackend(
                runs, namespace=each, team=team, on_unplaced=default_backend.release_waiting_pods, **options
            )

        self._make = make
        self._namespaces: Spaces | None = None
        self._teams: dict[str, asyncio.Task[KubernetesBackend]] = {}  #: by reservation

    @property
    def owner(self) -> tuple[int, int] | None:
        return self._default_backend.owner

    async def probe(self) -> Probe:
        """Probe the namespace of runs without a team. Raises what `SharedListener.start` raises."""
        if self._listener is not None:
            await self._listener.start()
        return await self._default_backend.probe()

    async def start(self, spec: SandboxSpec) -> PodSandbox:
        """Start a run in the namespace of its reservation, if it has one. Raises as `KubernetesBackend.start` does."""
        await self.probe()
        reservation = spec.grant.reservation
        if reservation is None:
            return await self._default_backend.start(spec)
        return await (await self._team(reservation)).start(spec)

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> PodSandbox:
        await self.probe()
        reservation = spec.grant.reservation
        if reservation is None:
            return await self._default_backend.adopt(description, spec)
        try:
            backend = await self._team(reservation)
        except RametError as problem:
            raise Gone(f"run {spec.run}: {problem}") from problem
        return await backend.adopt(description, spec)

    async def reserve(self, reservation: Reservation) -> None:
        """Create the namespace of a reservation, with its quota.

        Raises SandboxFailed with the cluster's message; nothing is left then. Raises IsolationUnavailable if there can
        be no pods, and InvalidValue if the configured namespace does not exist.
        """
        await self._team(reservation)

    async def disband(self, name: str) -> None:
        """Delete a reservation's pods and its namespace. Raises SandboxFailed. Idempotent."""
        creation = self._teams.pop(name, None)
        if creation is not None:
            creation.cancel()
            await asyncio.wait((creation,))
            if not creation.cancelled() and creation.exception() is None:
                await creation.result().close()
        try:
            await (await self._open()).remove(quotas.name_of(name))
        except RametError as problem:
            raise SandboxFailed(f"namespace {quotas.name_of(name)}: {problem}") from problem

    async def keep(self, names: Callable[[], Awaitable[Collection[str]]]) -> Sequence[str]:
        """Delete the namespaces of all teams of this place except `names`; return what was deleted.

        A namespace is deleted whichever kernel created it.
        """
        try:
            spaces = await self._open()
            # Listed before the teams: a team of another kernel is recorded before it has a namespace.
            known = await spaces.list_team_namespaces(self._default_backend.marks.place)
        except Forbidden:  # A kernel that may not list namespaces has created none.
            return ()
        named_namespaces = {quotas.name_of(each) for each in await names()}
        unnamed_namespaces = [each for each in known if each not in named_namespaces]
        for each in unnamed_namespaces:
            await spaces.remove(each)
        return [f"namespace {each}" for each in unnamed_namespaces]

    async def warm(self) -> None:
        """Have warm pods wait in the configured namespace, if `warm` is not 0.

        In a team's namespace, only the shared pod waits.
        """
        if self._warm:
            await self.probe()
            await self._default_backend.warm()

    async def reap(self) -> Sequence[str]:
        """Delete pods, secrets and policies of dead kernels, in the namespaces of teams, too."""
        if (await self.probe()).level is Isolation.L0:
            return ()
        removed_names = list(await self._default_backend.reap())
        try:
            known = await (await self._open()).list_team_namespaces(self._default_backend.marks.place)
        except Forbidden:
            return removed_names
        for each in known:
            with contextlib.suppress(Forbidden):
                removed_names += await self._default_backend.reap_in(each)
        return removed_names

    async def close(self) -> None:
        """Delete all pods; namespaces stay as long as their teams. Idempotent."""
        teams, self._teams = self._teams, {}
        for each in teams.values():
            each.cancel()
        await asyncio.gather(*teams.values(), return_exceptions=True)
        backends = [each.result() for each in teams.values() if not each.cancelled() and each.exception() is None]
        await asyncio.gather(self._default_backend.close(), *(each.close() for each in backends))
        if self._namespaces is not None:
            spaces, self._namespaces = self._namespaces, None
            await spaces.close()
        if self._listener is not None:
            await self._listener.stop()

    async def _open(self) -> Spaces:
        """Return the client for namespaces, if pods can be created.

        Raises IsolationUnavailable, InvalidValue, or SandboxFailed if the API does not answer.
        """
        probe, namespace = await self.probe(), self._default_backend.namespace
        if not probe.mechanisms.get(probing.NAMESPACE, True):
            accepted = f"an existing namespace; create it with: kubectl create namespace {namespace}"
            raise InvalidValue("namespace", namespace, accepted)
        if not probe.mechanisms.get(probing.API, True):
            raise SandboxFailed(probe.remedy)
        if probe.level is Isolation.L0:
            raise IsolationUnavailable(Isolation.L2, probe.level, probe.missing, probe.remedy)
        if self._namespaces is None:
            self._namespaces = Spaces(self._kubeconfig)
        return self._namespaces

    async def _team(self, reservation: Reservation) -> KubernetesBackend:
        """Return the backend of a reservation's namespace. Concurrent callers share one creation."""
        name = reservation.name
        creation = self._teams.get(name)
        if creation is None or (creation.done() and (creation.cancelled() or creation.exception() is not None)):
            creation = self._teams[name] = asyncio.get_running_loop().create_task(self._create_backend(reservation))
            creation.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(creation)
        except (SandboxFailed, IsolationUnavailable, InvalidValue):
            raise
        except RametError as problem:
            rights = "; deploy/teams has the rights that are needed" if isinstance(problem, Forbidden) else ""
            raise SandboxFailed(f"no namespace for reservation {name}: {problem}{rights}") from problem

    async def _create_backend(self, reservation: Reservation) -> KubernetesBackend:
        spaces = await self._open()
        marks = self._default_backend.marks
        pod_size = TeamPodSize.of(reservation) if self._per == "team" else None
        shared = None if pod_size is None else pod_size.grant
        namespace = await spaces.make(reservation, place=marks.place, owner=marks.owner, shared=shared)
        for each in self._pull_secrets:
            await spaces.copy_secret(each, self._default_backend.namespace, namespace)
        backend = self._make(namespace, reservation if shared is not None else None)
        try:
            await backend.warm()
        except BaseException:
            await backend.close()
            raise
        return backend
