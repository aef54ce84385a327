"""AC-S3-1 to AC-S3-13 with pods: the tests of the other backends, unchanged (AC-S3-9), and checks of the cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.support.acceptance import Server, put_rules
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.cluster import Cluster
from tests.support.pods import live_objects_of, settings_of
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.trips.teams.test_teams_over_http import (
    RULES,
    client,
    team,
    test_a_gate_decides_before_a_served_call_runs,
    test_a_killed_agent_process_fails_its_turn,
    test_a_killed_server_resumes_its_agents,
    test_a_team_admits_exactly_its_capacity,
    test_a_team_works_on_tasks_and_ends_together,
    test_an_agent_streams_a_turn_and_leaves_nothing,
    test_bodies_reach_a_sandboxed_agent_unchanged,
    test_control_runs_known_operations_only,
    test_every_operation_on_an_agent_needs_its_nonce,
    test_loaded_code_can_be_imported_until_it_is_unloaded,
    test_loud_agents_do_not_block,
    test_plugin_types_are_served_and_bad_spawns_cost_nothing,
    test_turns_run_in_order_and_can_be_interrupted,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images

__all__ = [
    "client",
    "team",
    "test_a_gate_decides_before_a_served_call_runs",
    "test_a_killed_agent_process_fails_its_turn",
    "test_a_killed_server_resumes_its_agents",
    "test_a_team_admits_exactly_its_capacity",
    "test_a_team_works_on_tasks_and_ends_together",
    "test_an_agent_streams_a_turn_and_leaves_nothing",
    "test_bodies_reach_a_sandboxed_agent_unchanged",
    "test_control_runs_known_operations_only",
    "test_every_operation_on_an_agent_needs_its_nonce",
    "test_loaded_code_can_be_imported_until_it_is_unloaded",
    "test_loud_agents_do_not_block",
    "test_plugin_types_are_served_and_bad_spawns_cost_nothing",
    "test_turns_run_in_order_and_can_be_interrupted",
]


@pytest.fixture(scope="module")
def server(cluster: Cluster, shared_namespace: str, pod_images: object) -> Iterator[Server]:
    """A server for all tests. No pod and no namespace of a team is left when it has ended.

    The images of its pods are in the registry already, so that it makes none while other tests make theirs.
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
            assert live_objects_of(cluster, folder) == []
            log_lines = (folder / "stderr").read_text().splitlines()
            assert [line for line in log_lines if " WARNING ramet.serve: " not in line] == []  # requests refused
        finally:
            server.end(signal.SIGKILL)
