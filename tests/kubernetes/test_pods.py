"""Pods keep every promise of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ramet.isolation.conformance import endings
from ramet.isolation.conformance.suite import CHECKS, Check, Ground, NotHere, run
from ramet.isolation.contract import Image
from ramet.isolation.kubernetes.images import PodImage
from tests.support.cluster import Cluster
from tests.support.pods import IMAGES, NAMESPACE

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]  # the first test makes images


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
async def test_pods_keep_a_backends_promises(
    check: Check,
    cluster: Cluster,
    shared_namespace: str,
    pod_images: Mapping[Image, PodImage],
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in tests/conformance, with fewer at once and in a row: each is a pod."""
    monkeypatch.setattr(endings, "_CROWD", 6)
    monkeypatch.setattr(endings, "_TIMES", 3)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv(NAMESPACE, shared_namespace)
    monkeypatch.setenv(IMAGES, " ".join(pod_images[kind].reference for kind in ("bare", "llm")))
    try:
        await run(check, Ground("tests.support.pods:backend", scratch, eyes="tests.support.pods:eyes"))
    except NotHere as why:
        pytest.skip(str(why))
