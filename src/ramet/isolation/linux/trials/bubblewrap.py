"""A trial of bubblewrap as a whole: its privileges can differ from its user's in both directions."""

from __future__ import annotations

import errno
import os
import pathlib

from ramet.isolation.linux.trials.throwaway import NotKept


def works(program: str) -> str:
    """Return the program if a sandbox of it sees neither the host's files, nor its processes, nor its name."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(into, 1)
        os.dup2(into, 2)
        links = [word for name in ("bin", "sbin", "lib", "lib64") for word in _link(name)]
        seen = (
            "test -e /etc/passwd && echo files; set -- /proc/[0-9]*; test $# -gt 3 && echo processes; "
            'test "$(uname -n)" = ramet-probe || echo name; exit 0'
        )
        kept = "--unshare-all --unshare-user --die-with-parent --new-session --hostname ramet-probe"
        shown = ["--ro-bind", "/usr", "/usr", *links, "--proc", "/proc", "--dev", "/dev"]
        os.execve(program, [program, *kept.split(), *shown, "--", "/bin/sh", "-c", seen], {})
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode(errors="replace").split("\n")
    _, status = os.waitpid(pid, 0)
    if status:
        raise OSError(errno.EPERM, " ".join(said).strip() or f"status {status}")
    if any(said):
        raise NotKept(f"seen inside, of the host: {' '.join(said).strip()}")
    return program


def _link(name: str) -> list[str]:
    path = pathlib.Path("/", name)
    if path.is_symlink():
        return ["--symlink", f"usr/{name}", str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []
