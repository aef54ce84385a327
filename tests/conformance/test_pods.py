"""A sandbox with a pod of its own keeps its promises, in an environment like a pod on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from ramet.testing.conformance.isolation.suite import CHECKS
from tests.support import in_pod, like_a_pod, pod_checks
from tests.support.users import own_user

USER = own_user()
#: Of the suite, what a pod does otherwise than other places; inside a real one the rest is shown, too.
PROMISES = (
    "exit_status",
    "descendants_end_with_the_guest",
    "killing_the_main_process_ends_all",
    "clean_up_releases_everything",
    "usage_is_reported",
    "commands_run_in_the_same_sandbox",
    "the_level_is_as_requested",
    "a_fresh_address_space_is_granted",
    "a_guest_has_no_privileges",
    "files_of_the_host_cannot_be_read",
    "mounts_can_be_read_and_not_written",
    "files_added_to_an_import_dir_become_visible",
    "the_network_is_off",
    "the_hosts_processes_are_out_of_reach",
    "memory_of_all_processes",
    "shared_memory",
    "temporary_files",
    "a_failed_start_leaves_nothing",
    *(each.__name__ for each in pod_checks.CHECKS),
)

pytestmark = pytest.mark.skipif("os.geteuid() != 0", reason="only root makes a place that is like a pod")


@pytest.fixture(scope="module")
def violations() -> Iterator[dict[str, str]]:
    """Violation of each promise, empty if it is kept.

    One environment serves every check: each finds it unchanged.
    """
    with tempfile.TemporaryDirectory(prefix="ramet-pod-", dir="/var/tmp") as folder:
        os.chown(folder, USER, USER)
        command = [sys.executable, like_a_pod.__file__, str(USER), folder, "16", in_pod.__name__, folder, *PROMISES]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-5000:]
        yield dict(map(json.loads, ran.stdout.splitlines()))


@pytest.mark.parametrize("promise", PROMISES)
def test_a_sandbox_with_a_pod_of_its_own_keeps_its_promises(violations: dict[str, str], promise: str) -> None:
    if violations[promise] not in ("", "not here: nothing limits the memory of this container"):
        pytest.fail(violations[promise], pytrace=False)


def test_checks_left_out_in_a_pod_are_checks_of_the_suite() -> None:
    assert {each.__name__ for each in CHECKS} >= in_pod.NOT_HERE
