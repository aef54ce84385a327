"""Pods keep every promise of a backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ramet.isolation.contract import Image
from ramet.isolation.kubernetes.images import PodImage
from ramet.testing.conformance.isolation import closing
from ramet.testing.conformance.isolation.suite import CHECKS, Check, NotHere, Workdir, run
from tests.support.account import Account, create_account
from tests.support.cluster import Cluster
from tests.support.pods import CPU_RESERVED, EYES, IMAGES, NAMESPACE

#: What a pod that runs share does not keep of it, and why.
NOT_SHARED = {
    "an_unavailable_level_is_refused": "whoever asks for more than there is between runs of a pod has one of its own",
    "processes": "who starts more than were granted is ended, not refused: test_team_pods",
}
#: What is shown once more of pods that were there before their runs: when they begin, and how they end.
WAITED = (
    "exit_status",
    "descendants_end_with_the_guest",
    "clean_up_releases_everything",
    "the_environment_has_only_the_given_variables",
    "the_level_is_as_requested",
    "a_fresh_address_space_is_granted",
    "secrets_are_files_in_memory",
    "memory",
    "a_missing_entry_point_is_a_failure",
    "a_cancelled_start_leaves_nothing",
)
#: The share of its limit that a pod is sure of, where what is usual is too little: with a fiftieth of 0.2 processors,
#: and two processes in it that want all of them, its program was silent for longer than the kernel waits.
RESERVING = {"processor": 0.5}
CASES = [
    pytest.param(check, whose, id=f"{name}-{check.__name__}")
    for whose, name in (("backend", "run"), ("TeamBackend", "team"), ("WarmPodBackend", "waited"))
    for check in CHECKS
    if whose != "WarmPodBackend" or check.__name__ in WAITED
]
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images


@pytest.fixture(scope="module")
def account(cluster: Cluster, shared_namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """The account of a kernel, for all tests of this module."""
    with create_account(cluster, shared_namespace, tmp_path_factory.mktemp("account")) as account:
        yield account


@pytest.mark.parametrize(("check", "whose"), CASES)
async def test_pods_keep_a_backends_promises(
    check: Check,
    whose: str,
    cluster: Cluster,
    account: Account,
    shared_namespace: str,
    pod_images: Mapping[Image, PodImage],
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods of runs, pods of teams and warm pods pass the suite of tests/conformance, with fewer sandboxes."""
    if whose == "TeamBackend" and check.__name__ in NOT_SHARED:
        pytest.skip(NOT_SHARED[check.__name__])
    monkeypatch.setattr(closing, "_MANY", 6)
    monkeypatch.setattr(closing, "_TIMES", 3)
    if check.__name__ in RESERVING:
        monkeypatch.setenv(CPU_RESERVED, str(RESERVING[check.__name__]))
    monkeypatch.setenv("KUBECONFIG", str(account.kubeconfig))
    monkeypatch.setenv(EYES, str(cluster.kubeconfig))
    monkeypatch.setenv(NAMESPACE, shared_namespace)
    monkeypatch.setenv(IMAGES, " ".join(pod_images[kind].reference for kind in ("bare", "llm")))
    try:
        await run(check, Workdir(f"tests.support.pods:{whose}", scratch, lock_probe="tests.support.pods:eyes"))
    except NotHere as why:
        pytest.skip(str(why))
