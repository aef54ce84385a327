"""The examples as programs, with settings that put their agents into pods. Nothing is left of them."""

from __future__ import annotations

import asyncio
import pathlib
import signal
from collections.abc import Iterator

import pytest
import yaml
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.networking_v1 import NetworkPolicy

from ramet.isolation.kubernetes.api import labels
from tests.support.cluster import Cluster
from tests.support.free_ports import free_port
from tests.support.pods import is_being_removed, live_objects_at, settings_of
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.trips.examples.test_examples import ExampleOutput, running_example

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """The folder in which an example starts and has its temporary files. It must be empty when a test ends."""
    with short_folder() as path:
        yield path
        assert list(path.iterdir()) == []


@pytest.fixture
def settings(cluster: Cluster, namespace: str, tmp_path: pathlib.Path) -> str:
    """The path of a ramet.yaml for this cluster."""
    file = tmp_path / "ramet.yaml"
    given = settings_of(cluster, namespace)
    file.write_text(yaml.safe_dump({name.removeprefix("RAMET_").lower(): value for name, value in given.items()}))
    return str(file)


@pytest.fixture
def settings_with_listener(cluster: Cluster, settings: str) -> str:
    """The path of a ramet.yaml for this cluster with which pods dial the server."""
    dial = f"{cluster.host}:{free_port(cluster.host)}"
    with pathlib.Path(settings).open("a") as file:
        file.write(f"pods: {{dial: '{dial}'}}\n")
    return settings


async def place_of(folder: pathlib.Path) -> str:
    """Return the name by which the cluster knows an example, as soon as the example has one."""
    found: list[str] = []

    def look() -> bool:
        found.extend(each.read_text() for each in folder.glob("ramet-*/.ramet/runs/.kernels/place"))
        return bool(found)

    await eventually(look)
    return found[0]


def policies_of(cluster: Cluster, kernel_group: str, *, going: bool = True) -> list[str]:
    """Return the network policies that let agents of a group of kernels dial them.

    With `going`, policies in namespaces that are being removed count as well.
    """
    with cluster.blocking_client() as kube:
        found = kube.list(NetworkPolicy, namespace="*", labels={labels.PLACE: kernel_group})
        spaces = {
            each.metadata.name
            for each in kube.list(Namespace)
            if each.metadata and (going or not is_being_removed(each))
        }
        return [each.metadata.name or "" for each in found if each.metadata and each.metadata.namespace in spaces]


async def run(folder: pathlib.Path, example: str, *options: str) -> tuple[ExampleOutput, str]:
    """Run an example to its end; return how it ended, and the group of its kernels."""
    async with running_example(folder, example, *options) as process:
        (out, err), kernel_group = await asyncio.gather(process.communicate(), place_of(folder))
    assert process.returncode is not None
    return ExampleOutput(process.returncode, out.decode(), err.decode()), kernel_group


async def test_a_simple_agent(cluster: Cluster, folder: pathlib.Path, settings: str) -> None:
    """AC-S3-1: an agent in a pod answers from a file of its image, and nothing is left."""
    done, kernel_group = await run(folder, "simple_agent", "--config", settings)

    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[2] == "agent: lighthouse/keeper, idle, isolation L2"
    assert any("`lamp.motor.timeout_ms` = 400 (lamp.yaml:4: `timeout_ms: 400 " in line for line in lines)
    assert lines[-2:] == ["done: 1 turn, idle, isolation L2", "left: 0 agents, 0 teams"]
    assert live_objects_at(cluster, kernel_group) == []


async def test_a_team(cluster: Cluster, folder: pathlib.Path, settings: str) -> None:
    """AC-S3-2: three pods share a bundle. The pods and the namespace of their team are gone in the end."""
    done, kernel_group = await run(folder, "team_scenario", "--config", settings)

    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    agents = sorted(line for line in lines if line.startswith("agent: "))
    assert agents == [f"agent: counters/{name}, idle, isolation L2" for name in ("architect", "worker-1", "worker-2")]
    assert "architect > 48 words, 35 different; the most frequent:" in lines
    assert lines[-2:] == ["deleted: counters, with its 3 agents", "left: 0 agents, 0 teams"]
    assert live_objects_at(cluster, kernel_group) == []


async def test_a_team_that_is_interrupted_leaves_nothing(
    cluster: Cluster, folder: pathlib.Path, settings_with_listener: str
) -> None:
    """Ctrl-C removes the namespace of the team and the network policies, which no later program would find."""
    async with running_example(folder, "team_scenario", "--config", settings_with_listener) as process:
        assert process.stdout is not None
        while not (await process.stdout.readline()).startswith(b"team: "):
            pass
        kernel_group = await place_of(folder)
        assert len(live_objects_at(cluster, kernel_group)) == 1
        assert len(policies_of(cluster, kernel_group)) == 2
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()

    assert process.returncode == 130
    assert b"Traceback" not in err
    assert live_objects_at(cluster, kernel_group) == []
    assert policies_of(cluster, kernel_group, going=False) == []
