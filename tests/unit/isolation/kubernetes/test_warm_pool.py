"""Tests of the shapes of warm pods: which runs a waiting pod can serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ramet.core.policy.policy import Isolation
from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.placement.warm_pool import PodShape
from tests.unit.isolation.kubernetes.test_manifest import BERTH, FORM

POD_REQUEST = replace(BERTH, folders=(), files=("/opt/models/a.bin",), size_mb=0)


def shape_of(**fields: Any) -> PodShape | None:
    return PodShape.of(FORM, replace(POD_REQUEST, **fields), Isolation.L3)


def test_changeable_settings_are_not_part_of_the_shape() -> None:
    """Identity, timeout, and everything that the program gets at the start of the run can change later."""
    grant = msgspec.structs.replace(POD_REQUEST.grant, timeout_seconds=1.0, pids=2, secrets={"token": "x"})
    about = labels.PodLabels(tree="another", team="another", path="another")

    assert shape_of() == shape_of(name="another", run="another", uid=7, pod_labels=about, grant=grant)


@pytest.mark.parametrize("amount", ["memory_mb", "cpu_cores", "tmpfs_size_mb", "workspace_size_mb"])
def test_different_amounts_make_different_shapes(amount: str) -> None:
    grant = msgspec.structs.replace(POD_REQUEST.grant, **{amount: 1})

    assert shape_of() != shape_of(grant=grant)


def test_different_images_levels_and_mounts_make_different_shapes() -> None:
    others = (
        PodShape.of(replace(FORM, image="another"), POD_REQUEST, Isolation.L3),
        PodShape.of(FORM, POD_REQUEST, Isolation.FRESH),
        shape_of(runtime_class=None),
        shape_of(files=()),
    )

    assert shape_of() not in others


def test_a_run_with_copied_folders_has_no_shape() -> None:
    """The volume of such a run is as large as its folders."""
    assert shape_of(folders=("/data",), size_mb=1) is None
