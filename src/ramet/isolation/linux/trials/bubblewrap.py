"""A trial of bubblewrap as a whole: its privileges can differ from its user's in both directions."""

from __future__ import annotations

import errno
import os
import pathlib

from ramet.isolation.linux.trials.throwaway import NotIsolated


def works(program: str) -> str:
    """Return the program if a sandbox of it sees neither the host's files, nor its processes, nor its name."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        links = [option for name in ("bin", "sbin", "lib", "lib64") for option in _link(name)]
        script = (
            "test -e /etc/passwd && echo files; set -- /proc/[0-9]*; test $# -gt 3 && echo processes; "
            'test "$(uname -n)" = ramet-probe || echo name; exit 0'
        )
        options = "--unshare-all --unshare-user --die-with-parent --new-session --hostname ramet-probe"
        mounts = ["--ro-bind", "/usr", "/usr", *links, "--proc", "/proc", "--dev", "/dev"]
        os.execve(program, [program, *options.split(), *mounts, "--", "/bin/sh", "-c", script], {})
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        lines = pipe.read().decode(errors="replace").split("\n")
    _, status = os.waitpid(pid, 0)
    if status:
        raise OSError(errno.EPERM, " ".join(lines).strip() or f"status {status}")
    if any(lines):
        raise NotIsolated(f"seen inside, of the host: {' '.join(lines).strip()}")
    return program


def _link(name: str) -> list[str]:
    path = pathlib.Path("/", name)
    if path.is_symlink():
        return ["--symlink", f"usr/{name}", str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []
