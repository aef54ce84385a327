"""Tests of requests that no pod can meet: they are refused before any request to the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.backend import KubernetesBackend


def test_ports_of_a_pod_are_refused_by_name(tmp_path: Path) -> None:
    """A pod's loopback is on another machine; a run without ports is accepted."""
    workspace = tmp_path / "runs" / "one"
    workspace.mkdir(parents=True)
    backend = KubernetesBackend(tmp_path / "runs", namespace="agents", image="example.org/agents")

    backend._check(SandboxSpec(run="one", grant=Grant(), workspace=workspace))
    with pytest.raises(InvalidValue, match="another machine") as refusal:
        backend._check(SandboxSpec(run="one", grant=Grant(ports={"web": 8000}), workspace=workspace))

    assert (refusal.value.field, refusal.value.value) == ("ports", {"web": 8000})
