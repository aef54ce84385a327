"""The Kubernetes backend: each run gets a pod, which is created, watched and removed through the cluster's API."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ramet.core.errors import Gone, InvalidValue, IsolationUnavailable, RametError, SandboxFailed
from ramet.core.policy.policy import DEFAULTS, Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import Probe, SandboxSpec
from ramet.isolation.kubernetes import probe as probing
from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.connect.attach import Attach, PodTransport
from ramet.isolation.kubernetes.images import DEFAULT_IMAGE, FindImage, ImageProvider, Images, PodImage, PushAgain
from ramet.isolation.kubernetes.kernels import KernelIdentity, KernelLease, Kernels
from ramet.isolation.kubernetes.placement import single
from ramet.isolation.kubernetes.placement.own import OwnPods
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.placement.shared import SharedPod, TeamPodSize, fits
from ramet.isolation.kubernetes.pods.pods import Pods, new_name, new_uid
from ramet.isolation.kubernetes.reaper import Reaper
from ramet.isolation.remote.host_agent import NO_PORTS, OnThreshold
from ramet.isolation.zygote.assignment_builder import absolute, paths_of

_START_S = 300.0  #: from a pod's creation until a run has started in it


class Marks(NamedTuple):
    """Values of labels: for all kernels of a place, and for this kernel."""

    place: str
    owner: str


class KubernetesBackend:
    """A backend whose sandboxes are pods of one namespace.

    `runs` holds all workspaces, at the same path on the host and in each pod. No request goes to the cluster before
    `probe`. Raises MissingExtra without the extra `kubernetes`.
    """

    name: Literal["kubernetes"] = "kubernetes"

    def __init__(
        self,
        runs: Path,
        *,
        namespace: str,
        image: str | Images | Callable[[], Awaitable[Images]],
        image_with: FindImage | None = None,
        image_again: PushAgain | None = None,
        kubeconfig: os.PathLike[str] | str | None = None,
        runtime_classes: Mapping[str, str] | None = None,
        user_labels: Mapping[str, str] | None = None,
        pull_secrets: Sequence[str] = (),
        placement: Mapping[str, Any] | None = None,
        cpu_reserved: float = 0.1,
        reach: PodTransport | None = None,
        standing: Callable[[], Awaitable[KernelIdentity]] | None = None,
        unschedulable_s: float = 30.0,
        on_threshold: OnThreshold | None = None,
        team: Reservation | None = None,
        warm: int = 0,
        on_unplaced: Callable[[], object] | None = None,
    ) -> None:
        """Configure the backend; no request is sent.

        `image` is one image for all runs, a mapping by kind of `SandboxSpec.image`, or a function that is called on
        first use. `image_with` is called for each run that has mounts; mounts that the found image contains are not
        copied to the pod. `image_again` is called with an image that a node could not pull; if the image is available
        again, the run gets one more attempt.

        `runtime_classes` name the RuntimeClass of "L3" and "L4". `placement` has fields of a pod's spec out of
        `manifest.PLACEMENT`. `cpu_reserved` is the share of a run's processor time that a node must have free. Without
        `standing`, kernels of one folder of runs detect each other by locks there.

        `team`: runs with that reservation share a pod of its amounts, if the isolation between runs of that pod
        satisfies their policy. `warm` is the number of pods of each kind that wait for runs like those already started.
        `on_unplaced` is called when no node takes a pod: other backends may be able to free capacity.
        """
        self._runs = Path(absolute(runs))
        self._images = ImageProvider(image, image_with, image_again)
        self._classes = {
            Isolation(level): name
            for level, name in ({"L3": "gvisor", "L4": "kata"} if runtime_classes is None else runtime_classes).items()
        }
        self._labels = labels.check_labels("user_labels", user_labels or {})
        for key in placement or {}:
            if key not in manifest.PLACEMENT:
                raise InvalidValue("placement", key, f"fields of a pod's spec: {', '.join(manifest.PLACEMENT)}")
        if not 0 < cpu_reserved <= 1:
            raise InvalidValue("cpu_reserved", cpu_reserved, "a share above 0, at most 1")
        if warm < 0:
            raise InvalidValue("warm", warm, "the number of waiting pods, or 0")
        self.namespace, self._kubeconfig = namespace, kubeconfig
        self._pull_secrets, self._placement = tuple(pull_secrets), dict(placement or {})
        self._cpu_reserved, self._standing = cpu_reserved, standing
        self._reach: PodTransport = reach or Attach()
        self._unschedulable_s = unschedulable_s
        self.on_threshold = on_threshold
        self._api: Api | None = None
        self._first_identity: KernelIdentity | None = None  #: the first answer of `standing`
        self._kernels: Kernels | None = None
        self._reaper: Reaper | None = None
        self._pods: Pods | None = None
        self._warm, self._on_unplaced = warm, on_unplaced
        self._own: OwnPods | None = None
        self._team = team
        self._shared_pod: SharedPod | None = None
        self._probe: Probe | None = None
        self._probing = asyncio.Lock()
        self._is_closed = False

    @property
    def marks(self) -> Marks:
        """The labels of this kernel's objects in the cluster; available after `probe`."""
        return Marks(self._kin.place, self._owner)

    @property
    def owner(self) -> tuple[int, int] | None:
        """The owner of workspace files: always None.

        Files here belong to this process's user, and files in a pod to the pod's user.
        """
        return None

    async def probe(self) -> Probe:
        """Find out what this kernel may do in the namespace. A final result is cached."""
        async with self._probing:
            if self._probe is None:
                await self._images.find()
                if self._standing is not None and self._first_identity is None:
                    self._first_identity = await self._standing()
                template = self._template(self._images.plain("bare"))
                egress = self._reach.egress
                egress_policy = None if egress is None else manifest.egress_policy(template, egress)
                trial = manifest.pod(
                    template, manifest.PodRequest(name=new_name(), run="probe", grant=DEFAULTS, uid=new_uid())
                )
                probe, is_final = await probing.probe(self._open(), trial, self._classes, egress_policy)
                if not is_final:
                    return probe
                self._probe = probe
        return self._probe

    async def start(self, spec: SandboxSpec) -> PodSandbox:
        """See `ramet.isolation.contract.Backend`. Raises SpawnRefused, too, if a quota leaves no room."""
        probe = await self.probe()
        level, runtime_class = self._level(probe, spec.grant.isolation)
        self._check(spec)
        if (sandbox := await self._start_in_shared(spec)) is not None:
            return sandbox
        return await self._own_pods.start(spec, level, runtime_class)

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> PodSandbox:
        """Adopt a run; see `ramet.isolation.contract.Backend`.

        Only a run with its own pod that dials can be adopted. Raises Gone for any other run.
        """
        try:
            level, _ = self._level(await self.probe(), spec.grant.isolation)
        except IsolationUnavailable as problem:
            raise Gone(f"run {spec.run}: {problem}") from problem
        return await single.adopt(
            description,
            spec,
            pods=self._all,
            kernels=self._kin,
            level=level,
            on_threshold=self.on_threshold,
        )

    async def reap(self) -> Sequence[str]:
        """Delete pods, secrets and policies of this place's dead kernels.

        Pods that another kernel may adopt are deleted later.
        """
        if (await self.probe()).level is Isolation.L0:
            return ()
        return await self.reap_in(self.namespace)

    async def reap_in(self, namespace: str) -> Sequence[str]:
        """Reap as `reap` does, in another namespace. Raises Forbidden, Unreachable."""
        await self.probe()
        if self._reaper is None:
            self._reaper = Reaper(self._kin, lambda each: Api(each, self._kubeconfig))
        return await self._reaper.reap(namespace)

    async def close(self) -> None:
        """Delete all pods of this backend. Idempotent."""
        self._is_closed = True
        if self._reaper is not None:
            await self._reaper.close()
        if self._shared_pod is not None:
            self._shared_pod.close()
        if self._own is not None:
            await self._own.close()
        if self._pods is not None:
            await self._pods.close()
        if self._api is not None and self._probe is not None and self._reach.egress is not None:
            with contextlib.suppress(RametError):  # The next reap finds the policy: its kernel is no longer alive.
                await self._api.delete_policy(manifest.egress_name_of(self._owner))
        api, kernels = self._api, self._kernels
        self._api = self._kernels = None
        if api is not None:
            await api.close()
        if kernels is not None:
            kernels.lease.release()

    # ---- one run ----------------------------------------------------------------------------------------------------

    def _level(self, probe: Probe, isolation: Isolation) -> tuple[Isolation, str | None]:
        """Return the isolation level of a run, and the RuntimeClass that its pod needs.

        A pod shares no address space with another pod.
        """
        if probe.level is Isolation.L0:
            raise IsolationUnavailable(isolation, probe.level, probe.missing, probe.remedy)
        if isolation.rank <= Isolation.FRESH.rank:
            return (isolation if isolation is Isolation.FRESH else Isolation.L2), None
        for level in sorted(self._classes, key=lambda each: each.rank):
            if level.rank >= isolation.rank and probe.mechanisms.get(f"runtime_class_{level}"):
                return level, self._classes[level]
        raise IsolationUnavailable(isolation, probe.level, probe.missing, probe.remedy)

    def _check(self, spec: SandboxSpec) -> None:
        """Reject an invalid spec before anything is created. Raises InvalidValue, SandboxFailed."""
        runs = str(self._runs)
        if spec.grant.writable_mounts:
            accepted = "nothing in a pod: its folders are copies"
            raise InvalidValue("writable_mounts", list(spec.grant.writable_mounts), accepted)
        workspace, mounts, *_ = paths_of(spec, runs)
        if not spec.workspace.is_dir():
            raise InvalidValue("workspace", str(spec.workspace), f"a folder below {runs}")
        real = Path(os.path.realpath(runs))
        for mount, source in mounts.items():
            if real.is_relative_to(source):
                raise InvalidValue("readonly_mounts", mount, "a folder that contains no workspace of another machine")
        cwd = Path(workspace if spec.cwd is None else absolute(spec.cwd))
        if not any(cwd.is_relative_to(each) for each in (workspace, *mounts)) or not cwd.is_dir():
            raise InvalidValue("cwd", str(cwd), "a folder of the workspace or of readonly_mounts")
        if spec.grant.ports:
            raise InvalidValue("ports", dict(spec.grant.ports), NO_PORTS)
        if spec.stdio:
            raise InvalidValue("stdio", spec.stdio, "nothing: a terminal, or a pipe, does not reach another machine")
        self._check_open()

    def _check_open(self) -> None:
        """Raise SandboxFailed if the backend was closed."""
        if self._is_closed:
            raise SandboxFailed("the backend was closed")

    # ---- the runs of a team -----------------------------------------------------------------------------------------

    async def warm(self) -> None:
        """Probe, then start creating the team's shared pod, and warm pods for the default policy.

        Do nothing if no pod can be created or the backend was closed.
        """
        probe = await self.probe()
        if probe.level is Isolation.L0 or self._is_closed:
            return
        if self._team is not None and (shared := self._share(self._team)) is not None:
            shared.warm()
        self._own_pods.warm(*self._level(probe, DEFAULTS.isolation))

    def release_waiting_pods(self) -> None:
        """Release the waiting pods, because the pod of another run has no place."""
        if self._own is not None:
            self._own.release_waiting_pods()

    def _share(self, team: Reservation) -> SharedPod | None:
        """Return the shared pod of a team; None if the reservation gives no size for it."""
        pod_size = TeamPodSize.of(team)
        if self._shared_pod is None and pod_size is not None:
            self._shared_pod = SharedPod(
                team.name,
                self.namespace,
                self._all,
                lambda: self._all.make(self._template(self._images.plain(DEFAULT_IMAGE)), pod_size.request(team.name)),
                capacity=pod_size.capacity,
                patience_s=_START_S,
                on_threshold=self._report_threshold,
            )
        return self._shared_pod

    async def _start_in_shared(self, spec: SandboxSpec) -> PodSandbox | None:
        """Start a run in the team's shared pod; return None if the run needs its own pod."""
        team = self._team
        if team is None or spec.grant.reservation is None or spec.grant.reservation.name != team.name:
            return None
        shared = self._share(team) if fits(spec) else None
        return None if shared is None else await shared.start(spec)

    # ---- the cluster ------------------------------------------------------------------------------------------------

    def _open(self) -> Api:
        if self._api is None:
            self._api = Api(self.namespace, self._kubeconfig)
            self._kernels = Kernels(KernelLease(self._runs), self._first_identity, self._standing)
        return self._api

    @property
    def _all(self) -> Pods:
        if self._pods is None:
            self._pods = Pods(
                self._open(),
                self._reach,
                self._owner,
                unschedulable_s=self._unschedulable_s,
                on_unplaced=self._on_unplaced,
            )
        return self._pods

    @property
    def _own_pods(self) -> OwnPods:
        if self._own is None:
            self._own = OwnPods(
                self._all,
                self._images,
                self._template,
                warm=self._warm,
                within_s=_START_S,
                on_threshold=self._report_threshold,
            )
        return self._own

    def _report_threshold(self, run: str, resource: str, used: float, limit: float) -> None:
        if self.on_threshold is not None:
            self.on_threshold(run, resource, used, limit)

    @property
    def _kin(self) -> Kernels:
        assert self._kernels is not None, "opened by the probe"
        return self._kernels

    @property
    def _owner(self) -> str:
        return self._kin.owner(self.namespace)

    def _template(self, image: PodImage) -> manifest.PodTemplate:
        self._open()
        return manifest.PodTemplate(
            namespace=self.namespace,
            image=image.reference,
            command=(*image.program(self._reach.module), *self._reach.arguments),
            runs=str(self._runs),
            place=self._kin.place,
            owner=self._owner,
            labels=self._labels,
            pull_secrets=self._pull_secrets,
            placement=self._placement,
            cpu_reserved=self._cpu_reserved,
            outlives_s=self._reach.outlives_s,
        )
