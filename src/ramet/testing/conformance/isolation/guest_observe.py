"""Requests of `guest` that observe: the guest itself, its descriptors, environments, processes and files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import stat
import sys
import time

_MB = 1024 * 1024


def process_info() -> dict[str, object]:
    """Return the guest's pid, uid, working directory and environment."""
    return {"pid": os.getpid(), "uid": os.getuid(), "cwd": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109


def has_imported(module: str) -> bool:
    """Return whether a module has been imported."""
    return module in sys.modules


def privileges() -> dict[str, int]:
    """Return the capabilities, and whether a program could gain some."""
    from ramet.isolation.linux import calls, caps

    get_no_new_privs = 39
    return {"capabilities": caps.read_capabilities(), "no_new_privs": calls.prctl(get_no_new_privs)}


def core_limit() -> int:
    """Return the maximum size of a core file."""
    return resource.getrlimit(resource.RLIMIT_CORE)[1]


def descriptors(up_to: int) -> list[dict[str, object]]:
    """Return the open descriptors, except the standard streams."""
    open_descriptors: list[dict[str, object]] = []
    for fd in range(3, up_to):
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            open_descriptors.append(
                {
                    "fd": fd,
                    "is_socket": stat.S_ISSOCK(mode),
                    "is_folder": stat.S_ISDIR(mode),
                    "is_inherited": os.get_inheritable(fd),
                }
            )
    return open_descriptors


def from_stdin() -> str:
    """Return the first bytes of standard input."""
    return os.read(0, 100).decode()


def environments() -> str:
    """Return all readable environments."""
    texts = []
    for each in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            texts.append(each.read_text(errors="replace"))
    return "\n".join(texts)


def processes() -> list[int]:
    """Return the listed processes."""
    return [int(each.name) for each in pathlib.Path("/proc").iterdir() if each.name.isdigit()]


def read(path: str) -> str:
    """Return the content of a file."""
    return pathlib.Path(path).read_text()


def write(path: str, text: str) -> None:
    """Create or replace a file."""
    pathlib.Path(path).write_text(text)


def make(path: str) -> str:
    """Create a new file in a folder, and return its path."""
    file = pathlib.Path(path, f"ramet-conformance-{os.getpid()}-{time.monotonic_ns()}")
    file.touch(exist_ok=False)
    return str(file)


def listing(path: str) -> list[str]:
    """Return the names in a folder."""
    return sorted(each.name for each in pathlib.Path(path).iterdir())


def fill(path: str, mb: int) -> float:
    """Write until `mb` MiB are written in a folder, or it is full; return how many were written."""
    written = 0
    block = os.urandom(_MB // 4)
    try:
        while written < mb * _MB:
            fd = os.open(f"{path}/fill-{time.monotonic_ns()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                for _ in range(4):
                    written += os.write(fd, block)
            finally:
                os.close(fd)
    except OSError:
        pass
    return written / _MB
