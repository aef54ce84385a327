"""Agents as pods: each run in a pod of its own, made, watched and removed through the API of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ramet.core.errors import Gone, InvalidValue, IsolationUnavailable, RametError, SandboxFailed, SpawnRefused
from ramet.core.policy import DEFAULTS, Isolation
from ramet.isolation.admission import NO_MOUNTS, absolute
from ramet.isolation.contract import Image, Probe, SandboxSpec
from ramet.isolation.kubernetes import labels, manifest, probing
from ramet.isolation.kubernetes.api import Api
from ramet.isolation.kubernetes.images import FindImage, Furnished, Images, PodImage, by_kind
from ramet.isolation.kubernetes.labels import About
from ramet.isolation.kubernetes.life import Ground, Pod, told_of
from ramet.isolation.kubernetes.lookout import Lookout
from ramet.isolation.kubernetes.podline import PodLine
from ramet.isolation.kubernetes.presence import Presence
from ramet.isolation.kubernetes.reach import Attach, Reach
from ramet.isolation.kubernetes.reaper import reap
from ramet.isolation.kubernetes.sandbox import PodSandbox
from ramet.isolation.kubernetes.seen import Trouble, exit_of
from ramet.isolation.remote.outside import Machine, OnThreshold

#: Users of pods: none of an ordinary image, and far too many for two pods of a node to get the same by chance.
UIDS = range(1_000_000, 2_000_000_000)
_CLOSE_S = 30.0

_log = logging.getLogger("ramet.kubernetes")


class Standing(NamedTuple):
    """A kernel among those of a place, where they share a database and no disk."""

    place: str
    kernel: str  #: a name that no other process has, or has had
    living: Collection[str]  #: kernels that live, by such names


class Marks(NamedTuple):
    """Values of labels: of all kernels of a place, and of this one."""

    place: str
    owner: str


class KubernetesBackend:
    """A backend whose sandboxes are pods of one namespace. `runs` holds all workspaces, here and in each pod.

    Nothing is asked of the cluster before `probe`. Raises MissingExtra without the extra `kubernetes`.
    """

    name: Literal["kubernetes"] = "kubernetes"

    def __init__(
        self,
        runs: Path,
        *,
        namespace: str,
        image: str | Images | Callable[[], Awaitable[Images]],
        image_with: FindImage | None = None,
        kubeconfig: os.PathLike[str] | str | None = None,
        context: str | None = None,
        runtime_classes: Mapping[str, str] | None = None,
        user_labels: Mapping[str, str] | None = None,
        pull_secrets: Sequence[str] = (),
        placement: Mapping[str, Any] | None = None,
        parent: Mapping[str, Any] | None = None,
        cpu_reserved: float = 0.1,
        about: Callable[[str], About] = lambda _: About(),
        reach: Reach | None = None,
        standing: Callable[[], Awaitable[Standing]] | None = None,
        start_s: float = 300.0,
        unschedulable_s: float = 30.0,
        on_threshold: OnThreshold | None = None,
    ) -> None:
        """`image` is one for all, or one for each kind of `SandboxSpec.image`, or finds out when it is needed first.

        `image_with` is asked for each run that has mounts: what the image that it finds has does not travel.
        `runtime_classes` name the RuntimeClass of "L3" and "L4"; `placement` has fields of a pod's spec out of
        `manifest.PLACEMENT`; `parent` is an owner reference; `cpu_reserved` the share of a run's processor time that a
        node must have free. `about` says of a run's id what is known of it, for labels. Without `standing`, kernels of
        one folder of runs know of each other by locks there.
        """
        self._runs = Path(absolute(runs))
        self._images: Mapping[Image, PodImage] = {}
        self._find_images: Callable[[], Awaitable[Images]] | None = None
        if isinstance(image, str) or not callable(image):
            self._images = by_kind(image)
        else:
            self._find_images = image
        self._image_with = image_with
        self._classes = {
            Isolation(level): name
            for level, name in ({"L3": "gvisor", "L4": "kata"} if runtime_classes is None else runtime_classes).items()
        }
        self._labels = labels.checked("user_labels", user_labels or {})
        for key in placement or {}:
            if key not in manifest.PLACEMENT:
                raise InvalidValue("placement", key, f"fields of a pod's spec: {', '.join(manifest.PLACEMENT)}")
        if not 0 < cpu_reserved <= 1:
            raise InvalidValue("cpu_reserved", cpu_reserved, "a share above 0, at most 1")
        self.namespace, self._kubeconfig, self._context = namespace, kubeconfig, context
        self._pull_secrets, self._placement, self._parent = tuple(pull_secrets), dict(placement or {}), parent
        self._cpu_reserved, self._about, self._standing = cpu_reserved, about, standing
        self._reach: Reach = reach or Attach()
        self._kernel = self._place = ""
        self._start_s, self._unschedulable_s = start_s, unschedulable_s
        self.on_threshold = on_threshold
        self._api: Api | None = None
        self._presence: Presence | None = None
        self._ground: Ground | None = None
        self._pods: set[Pod] = set()
        self._machines: set[Machine] = set()
        self._strays: set[asyncio.Task[None]] = set()
        self._probe: Probe | None = None
        self._probing = asyncio.Lock()
        self._is_closed = False

    @property
    def marks(self) -> Marks:
        """What is ours in the cluster bears these; known once the cluster was asked."""
        return Marks(self._place, self._owner)

    @property
    def owner(self) -> tuple[int, int] | None:
        """Files here are this user's; in pods they belong to the pod's."""
        return None

    async def probe(self) -> Probe:
        """Asks the cluster what this kernel may do in the namespace; remembered once it has answered."""
        async with self._probing:
            if self._probe is None:
                if self._find_images is not None and not self._images:
                    self._images = by_kind(await self._find_images())
                if self._standing is not None and not self._place:
                    self._place, self._kernel, _ = await self._standing()
                form = self._form(self._images["bare"])
                egress = self._reach.egress
                way_out = None if egress is None else manifest.way_out(form, egress)
                trial = manifest.pod(form, manifest.Berth(name=_name(), run="probe", grant=DEFAULTS, uid=_uid()))
                probe, is_final = await probing.probe(self._open(), trial, self._classes, way_out)
                if not is_final:
                    return probe
                self._probe = probe
        return self._probe

    async def start(self, spec: SandboxSpec) -> PodSandbox:
        """See `ramet.isolation.contract.Backend`. Raises SpawnRefused, too, where a quota leaves no room."""
        probe = await self.probe()
        level, runtime_class = self._level(probe, spec.grant.isolation)
        self._check(spec)
        furnished = await self._furnished(spec)
        pod = self._make(spec, furnished, runtime_class)
        try:
            async with asyncio.timeout(self._start_s):
                sandbox = await self._move_in(pod, spec, furnished, level)
        except TimeoutError:
            pod.release()
            raise SandboxFailed(f"run {spec.run}: nothing started within {self._start_s:g} s") from None
        except BaseException:
            pod.release()
            raise
        return sandbox

    async def adopt(self, description: Mapping[str, Any]) -> PodSandbox:
        """Raises Gone: what was under way on an attach stream is lost with its kernel."""
        raise Gone(f"run {description.get('run')} ended with the kernel that had started it")

    async def reap(self) -> Sequence[str]:
        """Delete pods, secrets and policies of this place's dead kernels."""
        if (await self.probe()).level is Isolation.L0:
            return ()
        return await self._reap(self._open())

    async def reap_in(self, namespace: str) -> Sequence[str]:
        """The same in another namespace. Raises Forbidden, Unreachable."""
        await self.probe()
        api = Api(namespace, self._kubeconfig, self._context)
        try:
            return await self._reap(api)
        finally:
            await api.close()

    async def _reap(self, api: Api) -> Sequence[str]:
        presence = self._presence
        assert presence is not None, "opened by the probe"

        def owner_of(kernel: str) -> str:
            return labels.digest(api.namespace, self._place, kernel)

        async def living(standing: Callable[[], Awaitable[Standing]]) -> Collection[str]:
            return (self._kernel, *(await standing()).living)

        asked = None if self._standing is None else partial(living, self._standing)
        return await reap(api, presence, self._place, owner_of, asked)

    async def close(self) -> None:
        """Delete all its pods; idempotent."""
        self._is_closed = True
        for pod in self._pods:
            pod.release()
        if self._pods:
            _, late = await asyncio.wait([pod.gone for pod in self._pods], timeout=_CLOSE_S)
            for each in late:  # The API is away: they end by themselves, and go with the next reap.
                each.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await asyncio.gather(*(machine.close() for machine in list(self._machines)))
        await asyncio.gather(*self._strays, return_exceptions=True)
        if self._api is not None and self._probe is not None and self._reach.egress is not None:
            with contextlib.suppress(RametError):  # Whoever reaps finds it: its kernel lives no more.
                await self._api.delete_policy(manifest.way_out_of(self._owner))
        ground, api, presence = self._ground, self._api, self._presence
        self._ground = self._api = self._presence = None
        if ground is not None:
            await ground.lookout.close()
        if api is not None:
            await api.close()
        if presence is not None:
            presence.leave()

    # ---- one run ----------------------------------------------------------------------------------------------------

    def _level(self, probe: Probe, asked: Isolation) -> tuple[Isolation, str | None]:
        """What a run gets, and the RuntimeClass that its pod needs. A pod shares no address space with another one."""
        if probe.level is Isolation.L0:
            raise IsolationUnavailable(asked, probe.level, probe.missing, probe.remedy)
        if asked.rank <= Isolation.FRESH.rank:
            return (asked if asked is Isolation.FRESH else Isolation.L2), None
        for level in sorted(self._classes, key=lambda each: each.rank):
            if level.rank >= asked.rank and probe.mechanisms.get(f"runtime_class_{level}"):
                return level, self._classes[level]
        raise IsolationUnavailable(asked, probe.level, probe.missing, probe.remedy)

    def _check(self, spec: SandboxSpec) -> None:
        """Refuse what cannot be, before anything is made. Raises InvalidValue, SandboxFailed."""
        runs, workspace = str(self._runs), absolute(spec.workspace)
        if not workspace.startswith(f"{runs}/") or not spec.workspace.is_dir():
            raise InvalidValue("workspace", str(spec.workspace), f"a folder below {runs}")
        mounts = [*map(absolute, spec.grant.readonly_mounts)]
        for mount in mounts:
            if mount in NO_MOUNTS or mount.startswith("/proc/") or not Path(mount).exists():
                raise InvalidValue("readonly_mounts", mount, "a folder or file of the host that a sandbox may see")
            if runs == mount or runs.startswith(f"{mount}/"):
                raise InvalidValue("readonly_mounts", mount, "a folder that no workspace of another machine is in")
        if spec.shelf is not None and not (absolute(spec.shelf).startswith(f"{runs}/") and spec.shelf.is_dir()):
            raise InvalidValue("shelf", str(spec.shelf), f"a folder below {runs}")
        cwd = Path(workspace if spec.cwd is None else absolute(spec.cwd))
        if not any(cwd.is_relative_to(each) for each in (workspace, *mounts)) or not cwd.is_dir():
            raise InvalidValue("cwd", str(cwd), "a folder of the workspace or of readonly_mounts")
        if self._is_closed:
            raise SandboxFailed("the backend was closed")

    async def _furnished(self, spec: SandboxSpec) -> Furnished:
        """The image that a run starts from, with what it has of its mounts. Raises SandboxFailed."""
        mounts = [absolute(each) for each in spec.grant.readonly_mounts]
        found = None
        if self._image_with is not None and mounts:
            try:
                found = await self._image_with(mounts)
            except (RametError, OSError) as error:  # A disk may be full.
                raise SandboxFailed(f"run {spec.run}: no image for its pod: {error}") from error
            if self._is_closed:
                raise SandboxFailed("the backend was closed")
        if found is None:
            return Furnished(self._images[spec.image], {})
        return found.beside(mounts)

    def _make(self, spec: SandboxSpec, furnished: Furnished, runtime_class: str | None) -> Pod:
        name = _name()
        there = furnished.places
        mounts = [Path(each) for each in map(absolute, spec.grant.readonly_mounts)]
        mounts = [each for each in mounts if not any(each.is_relative_to(path) for path in there)]
        files = self._reach.secret(name)
        berth = manifest.Berth(
            name=name,
            run=spec.run,
            grant=spec.grant,
            uid=_uid(),
            about=self._about(spec.run),
            runtime_class=runtime_class,
            folders=[str(each) for each in mounts if each.is_dir()],
            files=[*(str(each) for each in mounts if not each.is_dir()), *there],
            size_mb=sum(map(_size_mb, mounts)),
            secret=name if files else None,
        )
        form = self._form(furnished.image)
        secret = manifest.secret(form, name, spec.run, berth.about, files) if files else None
        ground = self._ground
        if ground is None:
            selector = labels.selector(owner=self._owner)
            lookout = Lookout(self._open(), selector, self._remove_stray)
            ground = self._ground = Ground(
                api=self._open(), lookout=lookout, reach=self._reach, unschedulable_s=self._unschedulable_s
            )
        pod = Pod(ground, manifest.pod(form, berth), secret)
        self._pods.add(pod)
        pod.gone.add_done_callback(lambda _: self._pods.discard(pod))
        return pod

    async def _move_in(self, pod: Pod, spec: SandboxSpec, furnished: Furnished, level: Isolation) -> PodSandbox:
        """Have a run start in a pod. Raises SandboxFailed with the cluster's words if the pod cannot be had."""
        starting = asyncio.ensure_future(self._start(pod, spec, furnished, level))
        try:
            await asyncio.wait((starting, pod.troubled), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise SandboxFailed(_failure(pod, pod.troubled.result()))
            return starting.result()
        except SandboxFailed as error:
            if pod.troubled.done() and pod.troubled.result().words not in str(error):
                raise SandboxFailed(f"{error}; {_failure(pod, pod.troubled.result())}") from error
            raise
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def _start(self, pod: Pod, spec: SandboxSpec, furnished: Furnished, level: Isolation) -> PodSandbox:
        try:
            reached = await asyncio.shield(pod.reached)
        except RametError as error:
            if isinstance(error, (SandboxFailed, SpawnRefused)):
                raise
            raise SandboxFailed(f"run {spec.run}: no pod: {error}") from error
        machine = Machine(PodLine(reached.line, pod), level=level, on_threshold=self.on_threshold)
        self._machines.add(machine)
        pod.gone.add_done_callback(lambda _: self._machines.discard(machine))
        told_of(pod, lambda trouble: machine.lost(exit_of(trouble)))
        try:
            hello = await machine.hello()
            if level.rank < Isolation.L3.rank and hello.level.rank < Isolation.L1.rank:
                raise IsolationUnavailable(
                    level, hello.level, tuple(hello.missing), f"on the pod's node: {hello.remedy}"
                )
            return PodSandbox(await machine.start(spec, furnished.places), machine, pod, self.namespace, spec.run)
        except BaseException:
            await machine.close()
            raise

    # ---- the cluster ------------------------------------------------------------------------------------------------

    def _open(self) -> Api:
        if self._api is None:
            self._api = Api(self.namespace, self._kubeconfig, self._context)
            self._presence = Presence(self._runs)
            self._place = self._place or self._presence.place
            self._kernel = self._kernel or self._presence.kernel
        return self._api

    @property
    def _owner(self) -> str:
        return labels.digest(self.namespace, self._place, self._kernel)

    def _form(self, image: PodImage) -> manifest.Form:
        self._open()
        return manifest.Form(
            namespace=self.namespace,
            image=image.reference,
            command=(*image.program(self._reach.module), *self._reach.arguments),
            runs=str(self._runs),
            place=self._place,
            owner=self._owner,
            labels=self._labels,
            pull_secrets=self._pull_secrets,
            placement=self._placement,
            parent=self._parent,
            cpu_reserved=self._cpu_reserved,
        )

    def _remove_stray(self, name: str) -> None:
        async def remove() -> None:
            try:
                await self._open().delete_pod(name)
            except RametError as problem:
                _log.warning("pod %s stays for now: %s", name, problem)

        task = asyncio.get_running_loop().create_task(remove())
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)


def _failure(pod: Pod, trouble: Trouble) -> str:
    said, last = "", pod.words.rpartition("\n")[2]
    if trouble.kind == "exited" and last and last not in trouble.words:
        said = f"; it said: {pod.words}"
    return f"pod {pod.name}: {trouble.words}{said}"


def _name() -> str:
    return f"ramet-{secrets.token_hex(6)}"


def _uid() -> int:
    return UIDS.start + secrets.randbelow(len(UIDS))


def _size_mb(path: Path) -> int:
    """What a folder or file takes on a disk, rounded up."""
    files = (
        [path] if not path.is_dir() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    )
    return 1 + sum(4096 * -(-file.lstat().st_size // 4096) for file in files if not file.is_symlink()) // 2**20
