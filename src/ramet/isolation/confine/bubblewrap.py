"""The command line of bubblewrap, and files of its root that differ from the host's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ramet.isolation.assignment import BIND_HANDLE, ZygoteConfig

_HELP_S = 10.0
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ca-certificates", "ld.so.cache", "localtime", "mime.types", "ssl/certs", "ssl/openssl.cnf")

#: No user except the agent, and no name resolution, which is the proxy's task.
FILES = {
    "/etc/passwd": "agent:x:65534:65534::/:/bin/sh\n",
    "/etc/group": "agent:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def find() -> str | None:
    """Return the path of the program; None if it is not installed."""
    return shutil.which("bwrap")


@cache
def binds_handles(program: str) -> bool:
    """Return whether this program accepts bind sources by descriptor.

    The program is asked once; its version says little, because some versions add the option.
    """
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=_HELP_S, check=False)
    return f"{BIND_HANDLE} " in help_text.stdout + help_text.stderr


def arguments(config: ZygoteConfig, *, by_handle: bool) -> list[str]:
    """Return the arguments for a zygote: a root of its own, in which its children then make theirs.

    The arguments hold no secret. With `by_handle` a mount's source stands where bwrap takes a descriptor; the starter
    of bwrap opens it.
    """
    args = ["--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    args += ["--as-pid-1", "--new-session", "--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
    args += [*_system(), "--dev", "/dev", "--proc", "/proc", "--dir", "/tmp", "--dir", "/run"]
    for name in _ETC:
        args += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    binds = [(path, "--ro-bind", os.path.realpath(path)) for path in config.runtime]
    binds += [(path, BIND_HANDLE if by_handle else "--ro-bind", source) for path, source in config.mounts.items()]
    binds.append((config.runs, "--bind", os.path.realpath(config.runs)))
    for path, option, source in sorted(binds, key=lambda bind: (bind[0].count("/"), bind[0])):
        args += [option, source, path]
    return [*args, "--chdir", "/", "--remount-ro", "/dev", "--remount-ro", "/"]


def _system() -> Iterator[str]:
    """Yield arguments for links into /usr, or for folders where a system still has separate ones."""
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
