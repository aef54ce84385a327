"""Tests of pod status: what a cluster reports of a pod, and what that means for its run."""

from __future__ import annotations

from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Pod

from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.pod_status import Kind, PodFailure, deleted_pod, exit_of, parse_status


def _pod(status: dict[str, Any], **meta: Any) -> Pod:
    pod_json = {"metadata": {"name": "p", "uid": "u", "labels": {labels.OWNER: "o"}, **meta}, "status": status}
    return cast(Pod, Pod.from_dict({**pod_json, "spec": {"containers": [], "nodeName": "node1"}}))


def _state(phase: str, **state: Any) -> dict[str, Any]:
    container = {"name": "agent", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [container]}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes: Insufficient cpu.",
        }
    ],
}
STATES: dict[str, tuple[dict[str, Any], Kind, str]] = {
    "killed for memory": (
        _state("Failed", terminated={"exitCode": 137, "reason": "OOMKilled"}),
        "oom",
        "out of memory",
    ),
    "ended": (_state("Succeeded", terminated={"exitCode": 0, "reason": "Completed"}), "exited", "status 0"),
    "failed": (_state("Failed", terminated={"exitCode": 3, "reason": "Error", "message": "why"}), "exited", "3: why"),
    "has no ramet": (
        _state("Failed", terminated={"exitCode": 1, "message": "ModuleNotFoundError: No module named 'ramet'\n"}),
        "exited",
        "'ramet'; set base_image to an image that contains ramet",
    ),
    "failed, in many words": (
        _state("Failed", terminated={"exitCode": 3, "reason": "Error", "message": "one\n\x1b[31mother"}),
        "exited",
        "3: one  [31mother",
    ),
    "no image": (
        _state("Pending", waiting={"reason": "ErrImagePull", "message": "x: not found"}),
        "image",
        "not found",
    ),
    "no image again": (_state("Pending", waiting={"reason": "ImagePullBackOff"}), "image", "ImagePullBackOff"),
    "no name": (_state("Pending", waiting={"reason": "InvalidImageName", "message": "bad"}), "image", "bad"),
    "no secret": (
        _state("Pending", waiting={"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}),
        "config",
        'secret "s" not found',
    ),
    "no program": (
        _state("Failed", terminated={"exitCode": 128, "reason": "StartError", "message": "python3: not found"}),
        "config",
        "python3: not found",
    ),
    "no place": (UNSCHEDULABLE, "unschedulable", "Insufficient cpu"),
    "out of time": (
        {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active on the node longer"},
        "deadline",
        "longer",
    ),
    "the node is full": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        "lost",
        "low on resource",
    ),
    "its disk is full": (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": 'Usage of EmptyDir volume "runs" exceeds the limit "40Mi".',
        },
        "disk",
        "runs",
    ),
    "its memory is full": (
        {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "64Mi".'},
        "oom",
        "tmp",
    ),
    "the node stops": ({"phase": "Failed", "reason": "Shutdown", "message": "Node is shutting"}, "lost", "shutting"),
    "the node is gone": ({"phase": "Unknown", "reason": "NodeLost", "message": "Node n was lost"}, "lost", "was lost"),
}


@pytest.mark.parametrize("name", STATES)
def test_each_failed_status_has_a_kind(name: str) -> None:
    """The cluster's message is passed on."""
    status, kind, words = STATES[name]

    trouble = parse_status(_pod(status)).failure

    assert trouble is not None
    assert trouble.kind == kind
    assert words in trouble.message
    assert trouble.is_final == (name != "no place")


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Pending"},
        _state("Pending", waiting={"reason": "ContainerCreating"}),
        _state("Pending", waiting={"reason": "PodInitializing"}),
        _state("Running", running={"startedAt": "2026-11-22T00:00:00Z"}),
    ],
    ids=["new", "creating", "initializing", "running"],
)
def test_a_starting_pod_has_no_failure(status: dict[str, Any]) -> None:
    status_view = parse_status(_pod(status))

    assert status_view.failure is None
    assert (status_view.name, status_view.uid, status_view.owner, status_view.node) == ("p", "u", "o", "node1")
    assert status_view.is_running == (status["phase"] == "Running")


def test_a_deletion_takes_precedence_over_other_failures() -> None:
    """The reason of a disruption is included, if one is given."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempted",
    }
    running = {**_state("Running", running={}), "conditions": [condition]}

    for status_view in (parse_status(_pod(running, deletionTimestamp="2026-11-22T00:00:00Z")), deleted_pod("p")):
        assert status_view.failure is not None
        assert status_view.failure.kind == "deleted"
    assert "preempted" in str(parse_status(_pod(running, deletionTimestamp="2026-11-22T00:00:00Z")).failure)


@pytest.mark.parametrize(
    ("word", "seconds"),
    [("60", 60.0), ("1.5", 1.5), (None, 0.0), ("", 0.0), ("nan", 0.0), ("1e9", 0.0), ("-1", 0.0), ("9" * 6, 0.0)],
)
def test_the_patience_of_a_pod_is_read_from_its_annotation(word: str | None, seconds: float) -> None:
    """An invalid value counts as zero."""
    marks = {} if word is None else {labels.PATIENCE: word}

    assert parse_status(_pod(_state("Running", running={}), annotations=marks)).outlives_s == seconds


def test_a_pod_that_left_the_watch_has_no_version_and_owner() -> None:
    """A watch reports a pod that another kernel claimed like a deleted one, so it must not be deleted."""
    assert parse_status(_pod(_state("Running", running={}), resourceVersion="7")).version == "7"
    assert (deleted_pod("p").version, deleted_pod("p").owner) == ("", "")


def test_messages_of_a_cluster_are_bounded() -> None:
    trouble = parse_status(
        _pod(_state("Pending", waiting={"reason": "ErrImagePull", "message": "x" * 100_000}))
    ).failure

    assert trouble is not None
    assert len(trouble.message) < 1000


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("oom", "oom"), ("disk", "workspace"), ("deadline", "signalled"), ("deleted", "lost"), ("exited", "lost")],
)
def test_the_kind_of_a_pod_failure_gives_the_end_of_its_run(kind: Kind, reason: str) -> None:
    end = exit_of(PodFailure(kind, "words"))

    assert (end.reason, end.detail) == (reason, "words")
    assert end.code < 0
