"""Checks inside a pod, or a place like one: each promise of the suite that one sandbox at a time can show.

Run as `python -m tests.support.in_pod FOLDER [NAME…]`. Prints a line of JSON for each check: its name, and "" or the
problem.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
import traceback

from ramet.isolation.linux.trials import background
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote import prefork
from ramet.testing.conformance.isolation.suite import CHECKS, Check, NotHere, Workdir, run
from tests.support import pod_checks

#: Of the suite: those that need two sandboxes at once, or a host outside of the sandbox's pod to look from.
NOT_HERE = frozenset(
    {
        "the_first_process",
        "a_channel_is_a_connected_stream",
        "an_image_is_imported_in_advance",
        "nothing_else_can_be_written",
        "a_mount_around_the_workspace",
        "secrets_are_files_in_memory",
        "two_sandboxes_do_not_see_each_other",
        "ports_are_reached_from_the_host_alone",
        "processes",
        "a_limit_affects_one_sandbox",
        "a_cancelled_start_leaves_nothing",
        "many_sandboxes_in_sequence_leave_nothing",
        "many_concurrent_sandboxes",
        "closing_ends_all_sandboxes",
        "no_sandbox_outlives_its_kernel",
    }
)
HERE = "tests.support.in_pod:in_pod"


def in_pod(runs: pathlib.Path) -> LocalBackend:
    """Return the backend that is checked."""
    return LocalBackend(runs, pod=True)


async def main(folder: pathlib.Path, names: list[str]) -> None:
    """Run all checks, or the checks of these names."""
    for at, check in enumerate((*CHECKS, *pod_checks.CHECKS)):
        if check.__name__ in names or not (names or check.__name__ in NOT_HERE):
            check_folder = folder / str(at)
            check_folder.mkdir()
            print(json.dumps([check.__name__, await _problem_of(check, check_folder)]), flush=True)  # noqa: T201


async def _problem_of(check: Check, folder: pathlib.Path) -> str:
    try:
        await run(check, Workdir(HERE, folder))
    except NotHere as why:
        return f"not here: {why}"
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    background.start()  # As a pod's own program does.
    prefork.start_zygote()
    asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
