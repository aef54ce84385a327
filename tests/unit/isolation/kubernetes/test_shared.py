"""Tests of the pod of a team: which runs fit, how large it is, and which arguments its program gets."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant, Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes import pod_args
from ramet.isolation.kubernetes.api import labels, manifest, quotas
from ramet.isolation.kubernetes.placement.shared import Capacity, TeamPodSize, fits
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from tests.unit.isolation.kubernetes.test_manifest import FORM

WORK = Path("/runs/one/work")
TEAM = Reservation(name="team", cpu_cores=2, memory_mb=512, sandboxes=4)


def spec(**fields: Any) -> SandboxSpec:
    own_fields = {
        name: fields.pop(name) for name in ("proxy", "cwd", "has_programs", "import_dir", "image") if name in fields
    }
    return SandboxSpec(run="one", grant=Grant(**fields), workspace=WORK, **own_fields)


@pytest.mark.parametrize(
    "fields",
    [{}, {"isolation": Isolation.L1}, {"cwd": WORK / "below"}, {"import_dir": Path("/runs/imports")}, {"image": "llm"}],
    ids=["nothing", "L1", "cwd", "import_dir", "llm"],
)
def test_requests_that_a_shared_pod_keeps_per_run_fit(fields: dict[str, Any]) -> None:
    assert fits(spec(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"isolation": Isolation.L2},
        {"isolation": Isolation.FRESH},
        {"secrets": {"token": "x"}},
        {"allowed_endpoints": ("example.org",)},
        {"proxy": Path("/runs/one/proxy")},
        {"readonly_mounts": ("/data",)},
        {"writable_mounts": ("/data",)},
        {"cwd": Path("/data")},
        {"has_programs": True},
    ],
    ids=["L2", "fresh", "secrets", "endpoints", "proxy", "mounts", "writable mounts", "cwd", "programs"],
)
def test_requests_that_a_shared_pod_would_share_do_not_fit(fields: dict[str, Any]) -> None:
    assert not fits(spec(**fields))


def test_no_run_fits_a_shared_pod_without_isolation() -> None:
    assert not fits(spec(isolation=Isolation.L1), Isolation.L0)


def test_the_pod_of_a_team_has_all_amounts_of_its_reservation() -> None:
    """The node agent's part is added; each run gets its grant until the amounts are used up."""
    measure = TeamPodSize.of(TEAM)
    assert measure is not None
    assert measure.capacity == Capacity(memory_mb=512, pids=256, disk_mb=1024)
    assert measure.capacity.holds(Capacity.of(Grant(memory_mb=512)))
    assert (
        not measure.capacity.minus(Capacity.of(Grant()))
        .minus(Capacity.of(Grant()))
        .holds(Capacity.of(Grant(memory_mb=1)))
    )
    assert TeamPodSize.of(Reservation(name="team", cpu_cores=2)) is None

    pod = manifest.pod(FORM, measure.request("team"))
    (container,) = pod["spec"]["containers"]
    lone_pod = manifest.pod(FORM, manifest.PodRequest(name="ramet-1", run="run-1", grant=Grant(), uid=1_000_002))

    assert int(container["resources"]["requests"]["memory"].removesuffix("Mi")) > 512
    assert container["resources"]["limits"]["cpu"] == "2200m"
    assert "activeDeadlineSeconds" not in pod["spec"]
    assert container["command"][-3:] == ["--shared", "320", FORM.runs]
    assert (pod["metadata"]["labels"][labels.TEAM], labels.RUN in pod["metadata"]["labels"]) == ("team", False)
    assert container["securityContext"] == lone_pod["spec"]["containers"][0]["securityContext"]
    assert pod["spec"]["securityContext"].keys() == lone_pod["spec"]["securityContext"].keys()


def test_a_quota_has_room_for_the_shared_pod_and_all_others() -> None:
    measure = TeamPodSize.of(TEAM)
    assert measure is not None
    usual = quotas.quota(TEAM)["spec"]["hard"]
    wide = quotas.quota(TEAM, measure.grant)["spec"]["hard"]

    def number(amount: str) -> int:
        return int(amount.removesuffix("Mi").removesuffix("m"))

    limits = manifest.resources(measure.grant, cpu_reserved=0.1)["limits"]
    for name, key in (("limits.memory", "memory"), ("limits.cpu", "cpu")):
        assert number(wide[name]) - number(usual[name]) == number(limits[key])


def test_pod_args_say_whether_the_pod_is_shared() -> None:
    single, shared = pod_args.read(["/runs", "/data"]), pod_args.read(["--shared", "320", "/runs"])

    assert (single.image, pod_args.read(["--llm", "/runs", "/data"])) == ("bare", single._replace(image="llm"))
    assert (single.is_shared, single.runs, list(single.places)) == (False, Path("/runs"), [Path("/data")])
    assert (shared.is_shared, shared.pids, shared.runs, list(shared.places)) == (True, 320, Path("/runs"), [])


def test_a_pod_of_one_run_has_no_extra_process_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NPROC)

    pod_args.limit_processes(pod_args.read(["/runs"]))

    assert resource.getrlimit(resource.RLIMIT_NPROC) == before


def test_per_accepts_run_or_team_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="run or team") as refusal:
        TeamNamespaces(tmp_path, namespace="agents", image="x", per="agent")  # type: ignore[arg-type]

    assert refusal.value.field == "per"
