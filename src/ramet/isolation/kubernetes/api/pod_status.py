"""The meaning of a pod's status for its run. Pure: the same status gives the same result."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Literal, NamedTuple

from ramet.isolation.contract import Exit
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.errors import Unreachable

if TYPE_CHECKING:
    from lightkube.models.core_v1 import ContainerStatus, PodStatus
    from lightkube.resources.core_v1 import Pod

#: Reasons why a container does not start that waiting does not fix: of the image, or of the configuration.
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
#: The error of a base image without ramet. With a registry_url, ramet is added to the base image.
_NO_RAMET = "No module named 'ramet'"
_INSTALL_RAMET = "set base_image to an image that contains ramet, or set registry_url, to which one is pushed"
_LONG = 600  #: the number of characters of a message that are passed on

Kind = Literal["config", "deadline", "deleted", "disk", "exited", "image", "lost", "oom", "unschedulable"]


class PodFailure(NamedTuple):
    """The reason why a pod does not work, or no longer works, in the words of its source."""

    kind: Kind
    message: str
    code: int = 0  #: of "exited"

    @property
    def is_final(self) -> bool:
        """Return whether waiting cannot help. A pod without a node may still get one."""
        return self.kind != "unschedulable"


class ObservedPod(NamedTuple):
    """The last observed state of a pod."""

    name: str
    uid: str = ""
    owner: str = ""  #: of its labels
    place: str = ""  #: likewise
    version: str = ""  #: of its object; empty: the object is not visible
    node: str = ""  #: empty: the pod has no node yet
    is_running: bool = False  #: the cluster reports a running container, some time after its start
    outlives_s: float = 0.0  #: how long it waits for another kernel after its own is gone; 0: it cannot be adopted
    failure: PodFailure | None = None


def parse_status(pod: Pod) -> ObservedPod:
    """Convert a pod's object into its observed state. Raises Unreachable for one that does not come from the API."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if meta is None:
        raise Unreachable("the answer does not come from the API of a cluster: it has a pod without metadata")
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
        failure=_find_deletion(pod) or (None if status is None else _trouble(status, container)),
    )


def deleted_pod(name: str) -> ObservedPod:
    """Return the state of a pod that does not exist, or no longer belongs to this kernel."""
    return ObservedPod(name, failure=PodFailure("deleted", f"pod {name} was deleted, and not by this kernel"))


def exit_of(failure: PodFailure) -> Exit:
    """Return the exit of a run whose pod failed."""
    kill_code = -int(signal.SIGKILL)
    match failure.kind:
        case "oom":
            return Exit(kill_code, "oom", failure.message)
        case "disk":
            return Exit(kill_code, "workspace", failure.message)
        case "deadline":
            return Exit(kill_code, "signalled", failure.message)
        case _:
            return Exit(kill_code, "lost", failure.message)


def _find_deletion(pod: Pod) -> PodFailure | None:
    if pod.metadata is None or pod.metadata.deletionTimestamp is None:
        return None
    details = [
        f": {each.message}"
        for each in (pod.status.conditions or [] if pod.status is not None else [])
        if each.type == "DisruptionTarget" and each.status == "True" and each.message
    ]
    return PodFailure(
        "deleted", _short(f"pod {pod.metadata.name} was deleted, and not by this kernel{''.join(details)}")
    )


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
        return PodFailure("lost", _short(f"the pod failed on its node: {reason}: {message}"))
    if terminated is not None:
        if terminated.reason in ("ContainerCannotRun", "StartError"):
            return PodFailure("config", _short(f"{terminated.reason}: {terminated.message or ''}"))
        code = terminated.exitCode
        summary = f"the pod's program ended with status {code}"
        last_message = (terminated.message or "").strip()
        remedy = f"; {_INSTALL_RAMET}" if last_message.endswith(_NO_RAMET) else ""
        return PodFailure("exited", _short(f"{summary}: {last_message}{remedy}" if last_message else summary), code)
    if status.phase in ("Failed", "Succeeded"):
        return PodFailure("exited", "the pod's program ended")
    if status.phase == "Unknown" or reason == "NodeLost":
        return PodFailure("lost", _short(f"the node cannot be reached: {message or reason}"))
    if state is not None and state.waiting is not None:
        waiting_reason, summary = state.waiting.reason or "", state.waiting.message or ""
        if waiting_reason in _IMAGE:
            image = container.image if container is not None else ""
            return PodFailure("image", _short(f"image {image}: {waiting_reason}: {summary}"))
        if waiting_reason in _CONFIG:
            return PodFailure("config", _short(f"{waiting_reason}: {summary}"))
    for each in status.conditions or []:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return PodFailure("unschedulable", _short(each.message or "no node accepts the pod"))
    return None


def _seconds(text: str) -> float:
    """Parse an annotation, which anyone may have written."""
    return float(text) if re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text) else 0.0


def _is_in_memory(message: str) -> bool:
    """Return whether a pod was evicted because of a volume in memory."""
    return "volume" in message and any(f'"{name}"' in message for name in ("tmp", "shm", "run"))


def _short(text: str) -> str:
    """Return a message in one line of limited length: some of it comes from the pod."""
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"
