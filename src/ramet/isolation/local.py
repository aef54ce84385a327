"""The backend for trusted code, tests, and the inside of a pod: each agent is a process behind Landlock and seccomp."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Isolation
from ramet.isolation.assignment import Assignment
from ramet.isolation.contract import Exit, Image
from ramet.isolation.limits.container import ContainerSlot, limits
from ramet.isolation.linux.trials import background
from ramet.isolation.probe import Finding, findings, probe_machine
from ramet.isolation.zygote import prefork
from ramet.isolation.zygote.backend import OnThreshold, ZygoteBackend, is_apart
from ramet.isolation.zygote.client import ZygoteClient

_NAMESPACES = "Let `local` use namespaces, and allow its user all kinds of them and a /proc in them."
_ROOT = "Set securityContext.readOnlyRootFilesystem of the container."
_LIMITS = "Set resources.limits of the container, and podPidsLimit of the kubelet."


class LocalBackend(ZygoteBackend):
    """Level L1: rlimits, no_new_privs, Landlock and seccomp; also namespaces, where the machine allows them.

    In a pod that belongs to one run, level L2: namespaces, root, /tmp, /dev/shm and /run are the pod's.
    """

    name = "local"

    def __init__(
        self,
        runs: Path,
        *,
        parked_count: int = 4,
        on_threshold: OnThreshold | None = None,
        namespaces: bool = True,
        pod: bool = False,
        places: Sequence[Path] = (),
    ) -> None:
        """Prepare the backend; without `namespaces` it works as on a machine without them.

        Then it has no /tmp, no secrets and no endpoints.

        `pod` says that this process is in a pod which belongs to one run at a time, under a user id of no other pod.
        Then /tmp and /dev/shm are the run's where they are memory, and secrets are files where /run is memory.
        Endpoints are reached through a relay on the pod's loopback. A folder above `runs` or above one of `places`,
        where mounts will be, does not belong to a run.

        Raises InvalidValue if `pod` is set and the user is root, who cannot be confined.
        """
        if pod and os.geteuid() == 0:
            raise InvalidValue("pod", "as root", "a user of its own: runAsNonRoot, and a runAsUser of no other pod")
        super().__init__(runs, parked_count=0 if pod else parked_count, on_threshold=on_threshold)
        self.wants_namespaces = namespaces and not pod
        self._wants_pod, self._places = pod, tuple(places)
        self._pod: ContainerSlot | None = None
        self._bounds_tcp = False

    def _look(self) -> Mapping[str, Finding]:
        if not self._wants_pod:
            base_findings = super()._look()
            if self.wants_namespaces and is_apart(base_findings):
                return base_findings
            root_finding = base_findings["read_only_root"]
            detail, remedy = root_finding.detail or "no namespaces are used", root_finding.remedy or _NAMESPACES
            return {**base_findings, "read_only_root": Finding(False, detail, remedy)}
        self._limits = limits()
        limited_resources = {
            "cgroup_cpu": self._limits.cpu_cores,
            "cgroup_memory": self._limits.memory_mb,
            "cgroup_pids": self._limits.pids,
        }
        # No namespace is requested: further trials are of no use here.
        base_findings = findings(background.results()) or probe_machine()
        self._bounds_tcp = base_findings["landlock_tcp"].works
        base_findings = {
            **base_findings,
            "read_only_root": Finding(bool(os.statvfs("/").f_flag & os.ST_RDONLY), "", _ROOT),
        }
        return {
            **base_findings,
            **{name: Finding(most is not None, "", _LIMITS) for name, most in limited_resources.items()},
        }

    def _try(self) -> None:
        super()._try()
        if not self._wants_pod:
            return
        assert self._probe is not None, "tried above"
        self._pod = ContainerSlot([Path(self._config.runs), *self._places])
        probe = self._probe._replace(bounded_resources=frozenset())
        if probe.level is Isolation.L1:
            probe = probe._replace(level=Isolation.L2)
        self._config = self._config._replace(
            mode="pod",
            in_memory=self._pod.in_memory,
            has_secrets=self._pod.has_secrets,
            has_endpoints=self._bounds_tcp and self._config.has_seccomp,
        )
        self._probe = probe

    async def start_zygote(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> ZygoteClient:
        """Start a zygote; see `ZygoteBackend`. In a pod, end a zygote first that was forked from the program."""
        if self._pod is not None and (waiting := prefork.claim_zygote()) is not None:
            await in_thread(waiting.end, name="ramet-wait")
        return await super().start_zygote(image, mounts, writable)

    async def _start_shared(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> ZygoteClient:
        waiting = None if self._pod is None else prefork.claim_zygote()
        if waiting is None:
            return await super()._start_shared(image, mounts, writable)
        self._make_runs()
        return await ZygoteClient.from_prefork(*waiting, self._config._replace(mounts=mounts, image=image))

    async def _enter(self, run: str, assignment: Assignment) -> Assignment:
        if (pod := self._pod) is None:
            return assignment
        secrets = assignment.secrets
        entering = in_thread(lambda: pod.enter(run, secrets), name="ramet-pod")
        try:
            await run_shielded(entering)
        except asyncio.CancelledError:
            if entering.exception() is None:
                await run_shielded(self._leave())
            raise
        return assignment._replace(secrets=dict.fromkeys(secrets, ""))  # They are in files already.

    async def _leave(self) -> None:
        if self._pod is not None:
            await in_thread(self._pod.leave, name="ramet-pod")

    def _look_at(self, zygote: ZygoteClient, exit: Exit) -> None:
        super()._look_at(zygote, exit)
        if self._pod is not None:
            self._pod.take_secrets()
