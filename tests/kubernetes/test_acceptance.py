"""AC-S3-1 to AC-S3-13 with pods: the very tests of the other backends, which is AC-S3-9, and what the cluster shows."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.support.acceptance import Server, put_rules
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.cluster import Cluster
from tests.support.pods import living_of, settings_of
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.trips.teams.test_teams_over_http import (
    RULES,
    client,
    team,
    test_a_killed_process,
    test_a_killed_server,
    test_a_simple_agent,
    test_a_team,
    test_bodies_are_nobodys_business,
    test_capacity,
    test_code_that_is_loaded_into_an_agent_that_lives,
    test_control,
    test_loud_agents,
    test_plugins,
    test_the_nonce,
    test_the_safety_gate,
    test_turns,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images

__all__ = [
    "client",
    "team",
    "test_a_killed_process",
    "test_a_killed_server",
    "test_a_simple_agent",
    "test_a_team",
    "test_bodies_are_nobodys_business",
    "test_capacity",
    "test_code_that_is_loaded_into_an_agent_that_lives",
    "test_control",
    "test_loud_agents",
    "test_plugins",
    "test_the_nonce",
    "test_the_safety_gate",
    "test_turns",
]


@pytest.fixture(scope="module")
def server(cluster: Cluster, shared_namespace: str, pod_images: object) -> Iterator[Server]:
    """One for all tests. When it has ended, no pod, and no namespace of a team, is left of it.

    The images of its pods are in the registry: it makes none beside other tests that do.
    """
    if not any(each.name() == "kubelet" for each in psutil.process_iter()):
        pytest.skip("the node is another machine: what works in its pods cannot be seen from here")
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS)
        put_rules(folder, RULES)
        server = Server(folder, "kubernetes", **settings_of(cluster, shared_namespace))
        try:
            yield server
            assert server.end(signal.SIGTERM) == 0
            assert living_of(cluster, folder) == []
            told = (folder / "stderr").read_text().splitlines()
            assert [line for line in told if " WARNING ramet.serve: " not in line] == []  # requests refused
        finally:
            server.end(signal.SIGKILL)
