"""First process of a test's kernel: set an outer limit, become another user if one is given, and start the kernel.

Run by root as `unshare --mount --pid --fork --kill-child --mount-proc python -I outer.py UID MODULE ARGUMENTS…`.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

#: Processes that everything in here may be together, the sandboxes included.
MOST_PIDS = 1000
#: Where pids in here begin: above any number that a sandbox counts up to, so that no attack hits by accident.
FIRST_PID = 700
PROJECT = pathlib.Path(__file__).resolve().parents[2]


def limit_pids() -> None:
    """Limit the processes of this pid namespace, where the kernel has a limit for each (6.14 and later)."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= (6, 14):
        pathlib.Path("/proc/sys/kernel/pid_max").write_text(str(MOST_PIDS))
    pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(FIRST_PID))


def open_the_way(needed: list[pathlib.Path]) -> None:
    """Let other users reach these folders below closed ones, in this mount namespace only.

    An empty folder that holds only the needed folders covers each folder that others may not enter.
    """
    covered: dict[pathlib.Path, list[pathlib.Path]] = {}
    for path in needed:
        closed = [above for above in reversed(path.parents) if not above.stat().st_mode & 0o001]
        if closed:
            covered.setdefault(closed[0], []).append(path)
    for folder, wanted in covered.items():
        stages = [(path, tempfile.mkdtemp(prefix="ramet-stage-")) for path in sorted(set(wanted))]
        for path, stage in stages:
            subprocess.run(["mount", "--bind", path, stage], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", folder], check=True)
        for path, stage in stages:
            path.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--move", stage, path], check=True)
            pathlib.Path(stage).rmdir()


def main() -> int:
    """Set up, start the kernel, and reap orphaned processes until the kernel ends."""
    uid, command = int(sys.argv[1]), sys.argv[2:]
    limit_pids()
    if uid:
        open_the_way([pathlib.Path(sys.base_prefix), pathlib.Path(command[0]).parents[1], PROJECT])
    child = os.fork()
    if child == 0:
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.chdir(PROJECT)
        os.execv(command[0], command)
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
