"""The command line of bubblewrap, and files of its root that are not the host's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ramet.isolation.room import Room

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ca-certificates", "ld.so.cache", "localtime", "mime.types", "ssl/certs", "ssl/openssl.cnf")

#: Nobody but the agent, and no way to resolve a name: that is the proxy's.
FILES = {
    "/etc/passwd": "agent:x:65534:65534::/:/bin/sh\n",
    "/etc/group": "agent:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def find() -> str | None:
    """Where the program is."""
    return shutil.which("bwrap")


def arguments(room: Room) -> list[str]:
    """For a zygote: a root of its own, in which its children then make theirs. Nothing in it is a secret."""
    found = ["--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    found += ["--as-pid-1", "--new-session", "--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
    found += [*_system(), "--dev", "/dev", "--proc", "/proc", "--dir", "/tmp", "--dir", "/run"]
    for name in _ETC:
        found += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    binds = [(path, "--ro-bind") for path in (*room.runtime, *room.mounts)] + [(room.runs, "--bind")]
    for path, how in sorted(binds, key=lambda bind: (bind[0].count("/"), bind[0])):
        found += [how, os.path.realpath(path), path]
    return [*found, "--chdir", "/", "--remount-ro", "/dev", "--remount-ro", "/"]


def _system() -> Iterator[str]:
    """Links into /usr, or folders where a system still has them apart."""
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
