"""Which runs a pod can wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ramet.core.policy.policy import Isolation
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.placement.warm_pool import PodShape
from tests.unit.isolation.kubernetes.test_manifest import BERTH, FORM

ASKED = replace(BERTH, folders=(), files=("/opt/models/a.bin",), size_mb=0)


def of(**fields: Any) -> PodShape | None:
    return PodShape.of(FORM, replace(ASKED, **fields), Isolation.L3)


def test_what_can_be_changed_of_a_pod_is_of_no_shape() -> None:
    """Who a run is, for how long, and what its pod's program is told of it when it starts."""
    grant = msgspec.structs.replace(ASKED.grant, timeout_seconds=1.0, pids=2, secrets={"token": "x"})
    about = labels.PodLabels(tree="another", team="another", path="another")

    assert of() == of(name="another", run="another", uid=7, about=about, grant=grant)


@pytest.mark.parametrize("amount", ["memory_mb", "cpu_cores", "tmpfs_size_mb", "workspace_size_mb"])
def test_pods_of_other_amounts_are_of_another_shape(amount: str) -> None:
    grant = msgspec.structs.replace(ASKED.grant, **{amount: 1})

    assert of() != of(grant=grant)


def test_pods_of_another_image_level_or_place_of_mounts_are_of_another_shape() -> None:
    others = (
        PodShape.of(replace(FORM, image="another"), ASKED, Isolation.L3),
        PodShape.of(FORM, ASKED, Isolation.FRESH),
        of(runtime_class=None),
        of(files=()),
    )

    assert of() not in others


def test_nobody_waits_for_a_run_to_which_something_travels() -> None:
    """Its place is as large as that."""
    assert of(folders=("/data",), size_mb=1) is None
