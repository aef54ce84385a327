"""Run a command as root of a user namespace that allows no further namespace, as on a hardened machine.

Run by root as `python -I no_namespaces.py COMMAND…`. Processes in the namespace keep their own uids.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import sys

#: As many users as tests know of: all up to the ordinary one's.
USERS = 65536


def main() -> int:
    """Make the namespace, forbid further ones, run the command in it, and end with the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    waiting, ready = os.pipe()
    mapped, mapping = os.pipe()
    child = os.fork()
    if child == 0:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: kept over exec
        if libc.unshare(0x10000000):
            os._exit(125)
        os.write(ready, b".")
        os.read(mapped, 1)
        pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
        os.execvp(sys.argv[1], sys.argv[1:])
    os.read(waiting, 1)
    for kind in ("uid_map", "gid_map"):
        pathlib.Path(f"/proc/{child}/{kind}").write_text(f"0 0 {USERS}")
    os.write(mapping, b".")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
