"""What a cluster says of a pod, as what it means for the run in it. Pure: the same words give the same verdict."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Literal, NamedTuple

from ramet.isolation.contract import Exit
from ramet.isolation.kubernetes.api import labels

if TYPE_CHECKING:
    from lightkube.models.core_v1 import ContainerStatus, PodStatus
    from lightkube.resources.core_v1 import Pod

#: Why a container does not start, that nobody there will mend by waiting: of the image, or of what was asked.
_IMAGE = frozenset(
    (
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
    )
)
_CONFIG = frozenset(
    ("CreateContainerConfigError", "CreateContainerError", "PostStartHookError", "RunContainerError", "StartError")
)
#: A base that was taken for one with ramet in it: where there is a registry_url, ramet is put on top.
_NO_RAMET = "No module named 'ramet'"
_PUT_IT_THERE = "have a base_image with ramet in it, or a registry_url, where one is pushed"
_LONG = 600  #: of what others say, so much is passed on

Kind = Literal["config", "deadline", "deleted", "disk", "exited", "image", "lost", "oom", "unschedulable"]


class PodFailure(NamedTuple):
    """Why a pod does not work, or no more, in the words of whoever said so."""

    kind: Kind
    words: str
    code: int = 0  #: of "exited"

    @property
    def is_final(self) -> bool:
        """Whether waiting cannot help; a pod that has no place may get one."""
        return self.kind != "unschedulable"


class ObservedPod(NamedTuple):
    """A pod, as it was told last."""

    name: str
    uid: str = ""
    owner: str = ""  #: of its labels
    place: str = ""  #: likewise
    version: str = ""  #: of its object; empty: it is out of sight
    node: str = ""  #: empty: it has no place yet
    is_running: bool = False  #: its container is said to run, which is told some time after it does
    outlives_s: float = 0.0  #: so long it waits for another kernel when its own is gone; 0: it cannot be taken up
    trouble: PodFailure | None = None


def parse_status(pod: Pod) -> ObservedPod:
    """What a pod's object says."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    assert meta is not None, "the API gives no pod without metadata"
    container = status.containerStatuses[0] if status is not None and status.containerStatuses else None
    state = container.state if container is not None else None
    return ObservedPod(
        name=meta.name or "",
        uid=meta.uid or "",
        owner=(meta.labels or {}).get(labels.OWNER, ""),
        place=(meta.labels or {}).get(labels.PLACE, ""),
        version=meta.resourceVersion or "",
        node=(spec.nodeName or "") if spec is not None else "",
        is_running=state is not None and state.running is not None,
        outlives_s=_seconds((meta.annotations or {}).get(labels.PATIENCE, "")),
        trouble=_deleted(pod) or (None if status is None else _trouble(status, container)),
    )


def gone(name: str) -> ObservedPod:
    """A pod that is out of sight: it is not there, or not this kernel's any more."""
    return ObservedPod(name, trouble=PodFailure("deleted", f"pod {name} was deleted, and not by this kernel"))


def exit_of(trouble: PodFailure) -> Exit:
    """How a run ended whose pod is in this trouble."""
    killed = -int(signal.SIGKILL)
    match trouble.kind:
        case "oom":
            return Exit(killed, "oom", trouble.words)
        case "disk":
            return Exit(killed, "workspace", trouble.words)
        case "deadline":
            return Exit(killed, "signalled", trouble.words)
        case _:
            return Exit(killed, "lost", trouble.words)


def _deleted(pod: Pod) -> PodFailure | None:
    if pod.metadata is None or pod.metadata.deletionTimestamp is None:
        return None
    said = [
        f": {each.message}"
        for each in (pod.status.conditions or [] if pod.status is not None else [])
        if each.type == "DisruptionTarget" and each.status == "True" and each.message
    ]
    return PodFailure("deleted", _short(f"pod {pod.metadata.name} was deleted, and not by this kernel{''.join(said)}"))


def _trouble(status: PodStatus, container: ContainerStatus | None) -> PodFailure | None:
    reason, message = status.reason or "", status.message or ""
    state = container.state if container is not None else None
    terminated = state.terminated if state is not None else None
    if reason == "DeadlineExceeded":
        return PodFailure("deadline", _short(f"the cluster ended the pod: {message or reason}"))
    if reason == "Evicted":
        is_own = "exceeds the" in message  # its own limits, and not the node's need
        kind: Kind = "lost" if not is_own else "oom" if _is_in_memory(message) else "disk"
        return PodFailure(kind, _short(f"the node evicted the pod: {message}"))
    if terminated is not None and terminated.reason == "OOMKilled":
        return PodFailure("oom", "the node's kernel ended the pod's container: out of memory")
    if status.phase == "Failed" and reason:
        return PodFailure("lost", _short(f"the node gave the pod up: {reason}: {message}"))
    if terminated is not None:
        if terminated.reason in ("ContainerCannotRun", "StartError"):
            return PodFailure("config", _short(f"{terminated.reason}: {terminated.message or ''}"))
        code = terminated.exitCode
        words = f"the pod's program ended with status {code}"
        said = (terminated.message or "").strip()
        remedy = f"; {_PUT_IT_THERE}" if said.endswith(_NO_RAMET) else ""
        return PodFailure("exited", _short(f"{words}: {said}{remedy}" if said else words), code)
    if status.phase in ("Failed", "Succeeded"):
        return PodFailure("exited", "the pod's program ended")
    if status.phase == "Unknown" or reason == "NodeLost":
        return PodFailure("lost", _short(f"the node cannot be reached: {message or reason}"))
    if state is not None and state.waiting is not None:
        why, words = state.waiting.reason or "", state.waiting.message or ""
        if why in _IMAGE:
            image = container.image if container is not None else ""
            return PodFailure("image", _short(f"image {image}: {why}: {words}"))
        if why in _CONFIG:
            return PodFailure("config", _short(f"{why}: {words}"))
    for each in status.conditions or []:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return PodFailure("unschedulable", _short(each.message or "no node takes the pod"))
    return None


def _seconds(word: str) -> float:
    """Of an annotation, which anybody may have written."""
    return float(word) if re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", word) else 0.0


def _is_in_memory(message: str) -> bool:
    """Whether an eviction is for a volume whose bytes are memory."""
    return "volume" in message and any(f'"{name}"' in message for name in ("tmp", "shm", "run"))


def _short(words: str) -> str:
    """In one line, and not too long a one: some of it was said in the pod."""
    words = "".join(each if each.isprintable() else " " for each in words)
    return words if len(words) <= _LONG else f"{words[:_LONG]}…"
